"""The section on what a headline figure rests on: itself with one family, benchmark or model left out."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from lm_validity.pages import figures
from lm_validity.pages.page import Figure, Section, Table
from lm_validity.studies.agreement.statistics.influence import LeftOut


def influence_notes(protocol: str, values: Sequence[float]) -> list[str]:
    """A note where the figure of the whole table is known and one of `values`, without a part of it, is not."""
    lost = int(np.isnan(values).sum())
    if not lost:
        return []
    return [
        f"{protocol}: {lost} of {len(values)} parts left out leave too little of the table: influence is null there."
    ]


def influence_section(
    influence: dict[str, list[LeftOut]],
    whole: dict[str, float],
    *,
    measure: str,
    prefix: str,
    name: str,
) -> Section | None:
    """`influence` and the figure of the `whole` table by protocol; `measure`: the attribute of `LeftOut` that is shown.

    `prefix`: of file names; `name`: what the figure is called, e.g. `mean tau`. None where nothing can be shown.
    """
    rows = [
        {
            "left_out": left.name,
            "kind": left.kind,
            "protocol": figures.PROTOCOL_LABELS[protocol],
            "value": getattr(left, measure),
            "change": getattr(left, measure) - whole.get(protocol, np.nan),
        }
        for protocol, results in influence.items()
        for left in results
    ]
    frame = pd.DataFrame(rows)
    if frame.empty or not frame["change"].notna().any():
        return None
    largest = frame.loc[frame["change"].abs().idxmax()]
    kinds = [kind for kind in ("family", "benchmark") if (frame["kind"] == kind).any()]
    table = Table(
        prefix,
        "One family, benchmark or model left out",
        frame,
        formats={"value": ".3f", "change": "+.3f"},
        labels={"left_out": "left out", "value": name},
        folded=True,
    )
    return Section(
        f"What the {name} rests on",
        finding=f"The largest change is that of leaving out the {largest['kind']} {largest['left_out']}: "
        f"{largest['change']:+.3f} ({largest['protocol'].lower()}).",
        figures=[_figure(frame[frame["kind"] == kind], kind, prefix, name) for kind in kinds],
        tables=[table],
    )


def _figure(frame: pd.DataFrame, kind: str, prefix: str, name: str) -> Figure:
    chart = figures.interval_dots(
        frame,
        y="left_out",
        value="change",
        title=f"Change of the {name}",
        y_order=frame.groupby("left_out")["change"].mean().sort_values().index.tolist(),
        color=figures.protocol_color(),
        tooltip=figures.tooltips(left_out="Left out", protocol="Protocol", value=f"{name}|.3f", change="change|+.3f"),
        zero=True,
    )
    return Figure(f"{prefix}_{kind}", f"One {kind} left out", chart)
