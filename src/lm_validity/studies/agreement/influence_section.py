"""The section on what a headline figure rests on: itself with one family, benchmark or model left out."""

import pandas as pd

from lm_validity.pages import figures
from lm_validity.pages.page import Figure, Section, Table
from lm_validity.studies.agreement.shown import MOST_DRAWN, plotted
from lm_validity.studies.agreement.summary import InfluenceSummary, Value
from lm_validity.summaries import number


def influence_section(
    influence: dict[str, list[InfluenceSummary]],
    whole: dict[str, Value],
    *,
    measure: str,
    prefix: str,
    name: str,
) -> Section | None:
    """`influence` and the figure of the `whole` table by protocol; `measure`: the figure's name in `InfluenceSummary`.

    `prefix`: of file names; `name`: what the figure is called, e.g. `mean tau`. None where nothing can be shown.
    """
    rows = [
        {
            "left_out": left.name,
            "kind": left.kind,
            "protocol": figures.PROTOCOL_LABELS[protocol],
            "value": getattr(left, measure),
            "change": number(getattr(left, measure)) - number(whole.get(protocol)),
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
        finding=f"The largest change comes from leaving out the {largest['kind']} {largest['left_out']}: "
        f"{largest['change']:+.3f} ({largest['protocol'].lower()}).",
        figures=[_figure(plotted(frame[frame["kind"] == kind]), kind, prefix, name) for kind in kinds],
        tables=[table],
    )


def _figure(frame: pd.DataFrame, kind: str, prefix: str, name: str) -> Figure:
    order = frame.groupby("left_out")["change"].mean().sort_values().index.tolist()
    if len(order) > MOST_DRAWN:
        order = [*order[: MOST_DRAWN // 2], *order[-MOST_DRAWN // 2 :]]
        frame = frame[frame["left_out"].isin(order)]
    chart = figures.interval_dots(
        frame,
        y="left_out",
        value="change",
        title=f"Change of the {name}",
        y_order=order,
        tooltip=figures.tooltips(left_out="Left out", protocol="Protocol", value=f"{name}|.3f", change="change|+.3f"),
        zero=True,
    )
    return Figure(f"{prefix}_{kind}", f"One {kind} left out", chart)
