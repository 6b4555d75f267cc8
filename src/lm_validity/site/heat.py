"""The scores that count as a heat table: a row a model, a column a benchmark, sortable, each with its interval."""

import numpy as np
from markupsafe import Markup

from lm_validity.missing import Missing
from lm_validity.pages.page import Picture
from lm_validity.pages.svg import NAMES
from lm_validity.results.put import Rows
from lm_validity.results.sections import Heat
from lm_validity.site.cards.values import CardSources
from lm_validity.tables.schema import PROTOCOLS
from lm_validity.tables.sheets import unique_labels

MOST = 6_000  # cells of a table; more would make the page slow
Z_95 = 1.959964
NO_ERROR = Missing("The score has no standard error.")


def heat_picture(sources: CardSources) -> Picture:
    """One table for each protocol that has scores, the best models first. More colour is better within a column.

    Seeds are averaged; their standard errors are root mean squares, since they share the items.
    """
    scores = sources.last_rows.assign(square=lambda rows: rows["stderr"].astype("float64") ** 2)
    keys = ["model", "benchmark", "protocol"]
    means = scores.groupby(keys, sort=False).agg(value=("value", "mean"), square=("square", "mean")).reset_index()
    names = means["model"].drop_duplicates()
    labels = dict(zip(names, unique_labels(names.str.rpartition("/")[2], names), strict=True))
    lower = set(sources.sheet.index[~sources.sheet["higher_is_better"].astype(bool)])
    rows, tables = Rows("data"), Markup("")
    for protocol in PROTOCOLS:
        own = means[means["protocol"] == protocol]
        if own.empty:
            continue
        oriented = own["value"].where(~own["benchmark"].isin(lower), -own["value"])
        places = oriented.groupby(own["benchmark"]).rank(pct=True).groupby(own["model"]).mean()
        order = places.sort_values(ascending=False, kind="stable").index
        shown = {model: place for place, model in enumerate(order[: max(1, MOST // own["benchmark"].nunique())])}
        in_points = own["value"].between(-1, 1).groupby(own["benchmark"]).all()
        own = own[own["model"].isin(shown)].sort_values(["model", "benchmark"])
        for row in own.sort_values("model", key=lambda models: models.map(shown), kind="stable").itertuples():
            half = Z_95 * float(np.sqrt(row.square))
            ends = (row.value - half, row.value + half) if np.isfinite(half) else NO_ERROR
            unit = "accuracy" if in_points[row.benchmark] else "score"
            at = rows.of(model=labels[row.model], subject=row.benchmark, protocol=protocol)
            at.put("score", row.value, unit, {"items": ends})
        heading = Markup("<h2>{}</h2>").format(NAMES[protocol].capitalize()) if means["protocol"].nunique() > 1 else ""
        heat = Heat(
            "score", {"model": "{}"}, {"subject": "{}"}, "", {"protocol": protocol}, by_column=True, lower=lower
        )
        tables += heading + heat.draw(rows).svg
    note = "In hundredths. The more colour, the better on that benchmark. Point at a score for its interval."
    return Picture(tables, note)
