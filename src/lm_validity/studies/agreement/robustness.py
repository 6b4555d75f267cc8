"""What the agreement rests on: one benchmark against all others together, each family or benchmark left out."""

from dataclasses import dataclass
from operator import attrgetter
from typing import Literal

import pandas as pd

from lm_validity.missing import is_known, known, number
from lm_validity.pages import figures
from lm_validity.pages.page import Figure, Finding, Part, Section, Table
from lm_validity.studies.agreement.data import Data
from lm_validity.studies.agreement.intervals import Value, ends
from lm_validity.studies.agreement.reasons import LOST_MODEL
from lm_validity.studies.agreement.statistics import subsets
from lm_validity.studies.agreement.statistics.resampling import transformed_interval
from lm_validity.studies.agreement.wording import MOST_DRAWN, plotted, value_in_words
from lm_validity.words import UNDER

# ----------------------------------------------------------------------------------------------------------------------
# Without one family, benchmark or model.


@dataclass(frozen=True)
class FiguresWithoutPart:
    """The headline figures without one `kind` of part: a family, a benchmark or a model, of this `name`."""

    kind: str
    name: str
    mean_tau: Value
    first_component: Value


def left_out(data: Data) -> dict[str, list[FiguresWithoutPart]]:
    """By protocol the headline figures without each family, benchmark and model."""
    reason = "Without this part, too little of the table would be left."
    return {
        p: [
            FiguresWithoutPart(part.kind, part.name, known(part.mean_tau, reason), known(part.first_component, reason))
            for part in subsets.leave_one_out(
                data.scores[p], list(data.matrix.models), data.tasks, data.matrix.families
            )
        ]
        for p in data.matrix.protocols
    }


# ----------------------------------------------------------------------------------------------------------------------
# What the page shows of it.


LABELS = figures.PROTOCOL_LABELS
UNCHANGED = 0.0005  # a smaller change is written as 0.000
# what a part is left out of: the name of its files, and what it is called
MEASURES = {
    "mean_tau": ("influence", "mean tau"),
    "first_component": ("share_influence", "share of the first component"),
}


def one_with_others(data: Data) -> Part:
    """What one benchmark alone tells of the ranking by all others together, by protocol."""
    by_protocol: dict[str, dict[str, object]] = {}
    finding = None
    for p in data.matrix.protocols:
        taus = subsets.one_with_others(data.scores[p])
        value = known(float(taus[0]), "No benchmark has a tau with the others.")
        interval = ends(value, transformed_interval(taus[0], taus[1:], "tau"), LOST_MODEL)
        by_protocol[p] = {"one_with_others": value, "one_with_others_interval": interval}
        if is_known(value):
            over = " The interval is over models." if is_known(interval) else ""
            finding = Finding(
                "Between the ranking by one benchmark picked at random and the ranking by all others together"
                f"{data.assumed}, tau is {value_in_words(value, interval)} {UNDER[p]}.",
                f"No benchmark is on both sides.{over}",
            )
    return Part({"subsets": by_protocol}, findings=[finding])


# ----------------------------------------------------------------------------------------------------------------------
# Without one family, benchmark or model.


def influence(
    parts: dict[str, list[FiguresWithoutPart]],
    totals: dict[str, Value],
    measure: Literal["mean_tau", "first_component"],
) -> Part:
    """How much a figure rests on one part: its values without each family, benchmark and model in turn, and what that
    changes. `totals`: by protocol the figure of the whole table. No section where nothing can be shown."""
    (prefix, name), values = MEASURES[measure], attrgetter(measure)
    rows = [
        {
            "left_out": row.name,
            "kind": row.kind,
            "protocol": LABELS[protocol],
            "value": values(row),
            "change": number(values(row)) - number(totals[protocol]),
        }
        for protocol, rows_of_protocol in parts.items()
        for row in rows_of_protocol
    ]
    frame = pd.DataFrame(rows)
    if frame.empty or not frame["change"].notna().any():
        return Part({"influence": parts})
    largest = frame.loc[frame["change"].abs().idxmax()]
    finding = f"The largest change comes from leaving out the {largest['kind']} {largest['left_out']}: "
    finding += f"{largest['change']:+.3f} ({largest['protocol'].lower()})."
    if abs(largest["change"]) < UNCHANGED:
        known_kinds = list(dict.fromkeys(frame["kind"][frame["change"].notna()]))
        any_of = " or ".join(filter(None, [", ".join(known_kinds[:-1]), known_kinds[-1]]))
        finding = f"No {any_of} that is left out changes it by {2 * UNCHANGED:g} or more."
    kinds = [kind for kind in ("family", "benchmark") if (frame["kind"] == kind).any()]
    table = Table(
        prefix,
        "One family, benchmark or model left out",
        frame,
        formats={"value": ".3f", "change": "+.3f"},
        labels={"left_out": "left out", "value": name},
        folded=True,
    )
    section = Section(
        f"What the {name} rests on",
        hint="one family, benchmark or model left out",
        finding=finding,
        figures=[_influence_chart(plotted(frame[frame["kind"] == kind]), kind, prefix, name) for kind in kinds],
        tables=[table],
    )
    return Part({"influence": parts}, section)


def _influence_chart(frame: pd.DataFrame, kind: str, prefix: str, name: str) -> Figure:
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
