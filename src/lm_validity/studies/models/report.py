"""The page of models: who may be best, the tiers, which model beats which."""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

import numpy as np
from markupsafe import Markup

from lm_validity.pages.page import Answer, Finding, Lede, Page, Picture, Section
from lm_validity.pages.svg import KINDS, NAMES, carpet, carpet_svg, shortened
from lm_validity.results.put import Column, Row, Rows, ends_of, labels_of
from lm_validity.results.sections import TOKENS, Dots, Says, SectionOf, Series, TableOf, Written, write_rows
from lm_validity.studies.agreement.score_matrix import STUDY, ScoreMatrix, read_score_matrix, without_shared_items
from lm_validity.studies.items.answers import model_scores
from lm_validity.studies.models.numbers import ModelOrder, Place, model_order
from lm_validity.tables.counted import Sources
from lm_validity.words import count, decimal, explain_protocols, number

FIRST_RANKS = 8  # of the picture on a site's first page
RULE = "Tiers and ranks hold for all pairs of models at once (95%)"
PLACES = SectionOf(
    "On each benchmark",
    Says("paired_pairs", "{count:order} of the models, on one benchmark each."),
    TableOf(
        "models_by_benchmark",
        {"subject": "benchmark", "protocol": "protocol"},
        {
            "models": Column("models", "models", ".0f"),
            "may_be_best": Column("may_be_best", "may be best", ".0f"),
            "separated": Column("separated_pairs", "pairs told apart", ".0f"),
            "tested": Column("separated_pairs", "of pairs", ".0f", "n"),
            "paired": Column("paired_pairs", "compared item by item", ".0f"),
            "smallest_detectable": Column("smallest_detectable", "smallest detectable gap", ".4f"),
        },
        "Benchmarks",
    ),
    hint="who may be best, pairs told apart, the smallest gap that is found",
    explanation="On one benchmark models are compared on the items that both answered (McNemar's or the paired t "
    "test), else by their standard errors; p is adjusted by Holm over all pairs. Smallest detectable: the gap that the "
    "test of two models alone finds four times out of five, the median over pairs.",
)
EVERY_MODEL = SectionOf(
    "Every model on every benchmark",
    Says("model_rank", "{count:rank} on all benchmarks together and on each."),
    TableOf(
        "models",
        {"subject": "benchmark", "protocol": "protocol", "other": "model"},
        {
            "tier": Column("tier", "tier", ".0f"),
            "rank": Column("model_rank", "rank", ".0f"),
            "rank_low": Column("model_rank", "first", ".0f", "low"),
            "rank_high": Column("model_rank", "last", ".0f", "high"),
            **Column("score", "score", ".4f").with_ends("score"),
        },
        "Models",
        folded=True,
    ),
    hint="ranks, tiers, scores with intervals",
)


def report_models(sources: Sources, output: str | Path) -> None:
    """Write results, tables and the page of models under `output`. Raises InputError as `read_score_matrix` and
    `model_order`."""
    matrix, items = read_score_matrix(sources), sources.items
    matrix = matrix if items is None else without_shared_items(matrix, items)
    counted = model_scores(sources, study=STUDY)
    copies = set(matrix.models) - set(counted.rows["model"])
    order = model_order(matrix, items, copies)
    order = order._replace(notes=(*order.notes, *(note for note in counted.notes if note not in order.notes)))
    write_rows(models_page(order, matrix), order.rows, output)


def models_page(order: ModelOrder, matrix: ScoreMatrix) -> Page:
    """The page: on all benchmarks together after training where that is known, else direct; else on the first one.
    Where no benchmark has scores of two models, which are not the same model, the order is not known."""
    if not order.places:
        reasons = [note for note in order.notes if "count once" in note] or ["No benchmark has scores of two models"]
        lede = Lede("Which model is best is not known", reasons[0].rstrip("."))
        found = [Finding(f"{lede.heading}. {lede.sentence}.")]
        return Page("models", "Models", found, [], notes=order.notes, lede=lede)
    labels = dict(zip(matrix.models, matrix.labels, strict=True))
    rows = Rows("models", (_labelled(row, labels) for row in order.rows))
    together = [scope for scope in order.places if scope[0] is None]
    main = together[-1] if together else order.places[0]
    assumed = {name for name, unknown in zip(matrix.benchmarks, matrix.assumed, strict=True) if unknown}
    ledes = {scope: _lede(rows, scope, assumed=scope[0] in assumed) for scope in (together or order.places)}
    basis = ". ".join([_scope_words(rows, main), *([RULE] if _places(rows, main) else [])]) + "."
    series = Series("model_rank", {"other": "{}"}, _where(main), KINDS[main[1]])
    ranks = Dots([series], f"Rank, {NAMES[main[1]]}", rising=True, most=FIRST_RANKS, zero=False)
    return Page(
        name="models",
        title="Models",
        question="Which model is best, which are not told apart, and which beats which? "
        + explain_protocols({protocol for _, protocol in order.places}, trained_here=matrix.trained_here),
        findings=[
            Finding(f"{lede.heading}. {lede.sentence}.", _scope_words(rows, scope)) for scope, lede in ledes.items()
        ],
        sections=[
            _pairs(rows, scope) for scope in reversed(together or [main]) if rows.all("lead", **_where(scope))
        ] + [section.drawn(rows) for section in (PLACES, EVERY_MODEL)],
        notes=order.notes,
        lede=ledes[main],
        picture=Picture(_table(rows, main), f"{basis} {_READING}"),
        answers=[
            Answer("Which model is best?", f"{ledes[main].heading}.", ranks.draw(rows).svg, _places(rows, main), basis,
                   "All models")
        ],
    )  # fmt: skip


def _labelled(row: Row, labels: dict[str, str]) -> Row:
    """The row with short names of models."""
    if (behind := labels_of(row).get("behind")) is not None:
        row = row._replace(conditions=json.dumps({"behind": labels[str(behind)]}, ensure_ascii=False))
    return row._replace(other=labels.get(row.other or "", row.other))


def _where(scope: Place) -> dict[str, str | None]:
    return {"subject": scope[0], "protocol": scope[1]}


def _scope_words(rows: Rows, scope: Place) -> str:
    """On which benchmarks, for which others, the order holds."""
    benchmark, protocol = scope
    if benchmark is not None:
        return f"On {benchmark}, {NAMES[protocol]}, for other items like these"
    leads = rows.all("lead", **_where(scope))
    numbers = {row.n or 0 for row in leads}
    largest = f"{'up to ' * (len(numbers) > 1)}{max(numbers, default=0)}"
    wider = any(row.interval_for == "benchmarks" for row in leads)
    population = "benchmarks like these" if wider else "other items of these benchmarks, not for other benchmarks"
    return f"Mean over {largest} benchmarks, {NAMES[protocol]}, for {population}"


def _ranked(rows: Rows, scope: Place) -> list[Row]:
    """The models that have a rank, the best first."""
    return [row for row in rows.all("model_rank", **_where(scope)) if row.value is not None]


def _places(rows: Rows, scope: Place, begin: str = "") -> str:
    """`95%: rank 1 to 15`, of the first model; empty where there is no test."""
    ends = ends_of(_ranked(rows, scope)[0])
    return f"95%: {begin}rank {ends[0]:.0f} to {ends[1]:.0f}" if ends else ""


def _lede(rows: Rows, scope: Place, *, assumed: bool) -> Lede:
    """How many may be best, and how many tiers there are. assumed: nothing says which direction is better."""
    ranked, where = _ranked(rows, scope), _where(scope)
    best, tiers = rows.value("may_be_best", **where), [number(row.value) for row in rows.all("tier", **where)]
    on, name = f" on {scope[0]}" * (scope[0] is not None), ranked[0].other or ""
    if separated := rows.row("separated_pairs", **where):
        summary = f"{number(separated.value):.0f} of {count(separated.n or 0, 'pair')} are told apart{on}"
    on, tied = on + ", if higher is better" * assumed, sum(row.value == 1 for row in ranked) - 1
    leads = f"{name} and {tied} more rank first" if tied else f"{name} ranks first"
    if np.isnan(best) or not separated:
        return Lede(f"Which model is best{on} is not known", f"{leads}, but nothing says how sure that is")
    heading = f"{best:.0f} of {count(len(ranked), 'model')} may be best{on}; {leads}"
    heading = f"{name} is best of {count(len(ranked), 'model')}{on}" if best == 1 else heading
    heading = f"Any of the {len(ranked)} models may be best{on}" if best == len(ranked) else heading
    return Lede(heading, f"{count(int(np.nanmax(tiers)), 'tier')}; {summary}", _places(rows, scope, f"{name} has "))


# ----------------------------------------------------------------------------------------------------------------------
# The table of models: tier, rank with its interval, scores by benchmark.

_READING = (
    "A tier is a group of models that are not told apart: none of them is found better than another. Line: the ranks "
    "that a model may have. Small dots: its score on each benchmark, from the lowest to the highest of all models."
)
_HEAD = Markup('<th class="c-{0}" scope="col"><button type="button"><span class="nb">{0}</span></button></th>')
_CELL = Markup('<td class="c-{}" data-v="{}">{}</td>')
_LINE = Markup(
    '<tr class="{}" data-name="{} {}" data-in="" data-answers="">{}<th scope="row" data-v="{}"><bdi>{}</bdi></th>{}'
    "</tr>"
)
_TABLE = Markup(
    '<div class="tools" data-table data-things="models"><input type="search" placeholder="Find a model or family" '
    'aria-label="Find a model or family"><output>{} models</output></div><table class="m models"><thead><tr>{}</tr>'
    "</thead><tbody>{}</tbody></table>"
)


def _table(rows: Rows, scope: Place) -> Markup:
    """All models by tier, the best first, on a band for each tier; a search goes with it. Columns in which nothing is
    known are left out."""
    tiers = {row.other: row.value or math.inf for row in rows.all("tier", **_where(scope))}
    ranked = sorted(_ranked(rows, scope), key=lambda row: (tiers[row.other], row.value))
    names, last = [row.other or "" for row in ranked], max(number(row.value) for row in ranked)
    standings, sizes = _standings(rows, scope[1]), {row.other: row.value for row in rows.all("parameters")}
    families = {n: row.text or "" for n in names if (row := rows.row("family", other=n))}
    columns: dict[str, Iterable[tuple[float | str | None, str]]] = {
        "tier": ((tiers[n], f"{tiers[n]:.0f}") if tiers[n] < math.inf else (None, "–") for n in names),
        "rank": ((row.value, _whisker(row, last, KINDS[scope[1]])) for row in ranked),
        "scores": ((fmean(shares) if (shares := standings.get(n)) else None, _strip(shares or [])) for n in names),
        "family": ((families.get(n) or None, families.get(n, "")) for n in names),
        "size": ((v, "" if v is None else f"{Written(v, TOKENS)}") for v in map(sizes.get, names)),
    }
    if scope[0] is not None:
        scores = {row.other: row.value for row in rows.all("score", **_where(scope))}
        columns["scores"] = ((scores.get(n), decimal(number(scores.get(n)), 3)) for n in names)
    drawn = {name: [*cells] for name, cells in columns.items()}
    drawn = {name: cells for name, cells in drawn.items() if any(value is not None for value, _ in cells)}
    body = []
    for index, name in enumerate(names):
        cells = {
            c: _CELL.format(c, "" if (v := shares[index])[0] is None else v[0], v[1]) for c, shares in drawn.items()
        }
        line = ("even" if tiers[name] % 2 == 0 else "", name, families.get(name, ""), cells.pop("tier", ""), name)
        body.append(_LINE.format(*line, shortened(name, 34), Markup("").join(cells.values())))
    heads = Markup("").join(map(_HEAD.format, dict.fromkeys(("tier", "model", *drawn))))
    return _TABLE.format(len(names), heads, Markup("").join(body))


def _whisker(row: Row, last: float, kind: str) -> Markup:
    """The rank of a model and those that it may have, from the first to the last rank, as a strip."""

    def across(rank: float) -> float:
        return round(2 + 96 * (rank - 1) / max(last - 1, 1), 2)

    ends, line, words = ends_of(row), Markup(""), f"{row.other}: rank {row.value:.0f}"
    if ends:
        line = Markup('<line x1="{}%" x2="{}%" y1="10" y2="10" class="{} w"/>').format(*map(across, ends), kind)
        words += f", from {ends[0]:.0f} to {ends[1]:.0f}"
    return Markup(
        '<svg width="100%" height="20" role="img" aria-label="{}">{}<circle cx="{}%" cy="10" r="3.6" class="{}"/></svg>'
    ).format(words, line, across(number(row.value)), kind)


def _standings(rows: Rows, protocol: str) -> dict[str | None, list[float]]:
    """Of each model where it stands on each benchmark, from 0 for the lowest to 1 for the highest score; a benchmark on
    which a lower score is better from the highest on."""
    adjusted: dict[str | None, list[float]] = {}
    for benchmark in rows.labels("subject", "score"):
        scores = {
            r.other: r.value for r in rows.all("score", subject=benchmark, protocol=protocol) if r.value is not None
        }
        least, largest = min(scores.values(), default=0.0), max(scores.values(), default=0.0)
        first = next(iter(rows.all("model_rank", subject=benchmark, protocol=protocol)), None)
        falling = first is not None and scores.get(first.other) == least < largest
        for model, score in scores.items():
            share = (score - least) / ((largest - least) or 1.0)
            adjusted.setdefault(model, []).append(1 - share if falling else share)
    return adjusted


def _strip(shares: list[float]) -> Markup:
    """A small dot for each share of the way from the left to the right."""
    dots = "".join(f"M{1 + 98 * share:.1f} 10h0" for share in shares)
    return Markup(
        '<svg class="dots" width="100%" height="20" viewBox="0 0 100 20" preserveAspectRatio="none" aria-hidden="true">'
        '<path d="{}"/></svg>'
    ).format(dots)


# ----------------------------------------------------------------------------------------------------------------------
# All pairs of models as a picture of cells, each with its sentence.


def _pairs(rows: Rows, scope: Place) -> Section:
    """Which model beats which, models in the order of their ranks: a cell says its pair under the pointer, or by the
    arrow keys."""
    where, leads = _where(scope), rows.all("lead", **_where(scope))
    named = {row.other for row in leads} | {str(labels_of(row)["behind"]) for row in leads}
    models = [row.other or "" for row in _ranked(rows, scope) if row.other in named]
    index = {name: position for position, name in enumerate(models)}
    adjusted = {(row.other, labels_of(row)["behind"]): row for row in rows.all("lead_p_adjusted", **where)}
    further = {(row.other, labels_of(row)["behind"]): row for row in rows.all("more_to_decide", **where)}
    shades, cells = np.full((len(models), len(models)), np.nan), [[""] * len(models) for _ in models]
    over = "benchmarks" if leads[0].interval_for == "benchmarks" else "items"
    for row in leads:
        pair = (row.other, labels_of(row)["behind"])
        i, j = index[str(pair[0])], index[str(pair[1])]
        p, ends = number(adjusted[pair].value), ends_of(row)
        apart = p < 0.05
        shades[i, j], shades[j, i] = (1.0, 7.0) if apart else (4.0, 4.0)
        parts = [Written(number(row.value), row.unit), *(Written(end, row.unit) for end in ends or ())]
        numbers = [f"{part:+}" for part in parts] + [f"{p:.2g}", f"{number(further[pair].value):.0f}"]
        cells[i][j] = "|".join(numbers)
    size = 12.0 * len(models) if len(models) < 60 else 720.0
    unit = " points" if leads[0].unit == "accuracy" else " standard deviations" if leads[0].unit == "sd" else ""
    says = {
        "better": f"{{a}} beats {{b}}: {{lead}}{unit}{{interval}}; p {{p}} after Holm.",
        "not known": f"{{a}} and {{b}} are not told apart: {{lead}}{unit}{{interval}}; p {{p}} after Holm. {{more}}",
        "interval": " (95%: {low} to {high})" if ends_of(leads[0]) else "",
        "more": f"{{more}} more {over} like these would decide, if the lead stays.",
    }
    data = {"rows": models, "columns": models, "pairs": cells, "says": says}
    label = f"Which of {count(len(models), 'model')} beats which, {NAMES[scope[1]]}"
    picture = carpet_svg(size, size, label, carpet(shades, 0, 0, size, size, 7.0), ranks=data)
    beaten = rows.row("separated_pairs", **where)
    tested = beaten.n or 0 if beaten else 0
    summary = f"{number(beaten.value):.0f} of {count(tested, 'pair')} of models are told apart" if beaten else ""
    note = "Rows and columns go by rank. Dark: the row's model beats the column's. Light: it is beaten."
    if len(models) < len(_ranked(rows, scope)):
        note += f" The first {len(models)} models."
    return Section(
        f"Which model beats which, {NAMES[scope[1]]}" if scope[0] is None else f"Which model beats which on {scope[0]}",
        f"{summary}. {_scope_words(rows, scope)}.",
        pictures=[Picture(picture, note)],
        explanation="p is that of no difference, two-sided, after Holm's adjustment over all pairs; the interval is "
        "of the pair by itself.",
        hint="a sentence for each pair",
    )
