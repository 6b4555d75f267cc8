"""What cells and names of scores say, in one grammar for all formats; what metrics and tasks are: which way their
scores count, and which are fractions. lm-eval's own tasks stand in a table of the package, read without lm_eval
(`workflow/scripts/tasks_table.py` makes it).

A name's parts are its words: `suite_average`, `Mean score` and `suiteAverage` have the part average, `averages` and
`timedial` have not.
"""

import math
import re
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from lm_validity.errors import InputError
from lm_validity.tables.schema import KEY, LARGEST_SCORE
from lm_validity.words import listing, with_names

WORDS = Path(__file__).parent / "roles.tsv"
TABLE = Path(__file__).parent / "lm_eval_tasks.tsv"
MISSING = frozenset(
    ("", "-", "–", "—", "--", "---", "−", "?", "na", "n/a", "n.a.", "#n/a", "nan", "none", "null", "nil", "missing",
     "tbd", "n/r", "nr", "/", "…", "...", "not reported", "unknown", "pending")
)  # fmt: skip
# Metrics by their name before the filter: fractions of items, whose standard error follows from the fraction
CHOICES = ("acc", "acc_norm", "acc_bytes", "acc_norm_bytes", "acc_mutual_info")
SHARES_OF_ITEMS = (*CHOICES, "exact_match", "em")
FRACTIONS = (*SHARES_OF_ITEMS, "f1", "mcc")
PERPLEXITY = "loglikelihood_rolling"  # output type of corpora, which are no benchmarks with right and wrong answers
_ONE = 1 + 1e-9  # a mean of ones may end above 1
_NUMBER = r"[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?"
_VALUE = re.compile(rf"(?P<value>{_NUMBER})\s*(?P<percent>%)?", re.I)
_ROUNDED = 0.006  # of a share that is written with its counts
_PM = r"(?:±|\+/-|\+-|\\pm|&plusmn;|&#177;)"
_SPREAD = re.compile(rf"\(?\s*{_PM}\s*(?P<error>{_NUMBER})\s*(?P<sign>%)?\s*\)?", re.I)
_IN_PARENTHESES = re.compile(rf"\(\s*(?P<error>{_NUMBER})\s*(?P<sign>%)?\s*\)", re.I)
_ENDS = re.compile(rf"[\[(]\s*(?P<low>{_NUMBER})\s*%?\s*(?:,|;|–|to|-)\s*(?P<high>{_NUMBER})\s*%?\s*[\])]", re.I)
_PAIR = re.compile(r"\[\s*(?P<value>[\d.]+)\s*[,;]\s*(?P<error>[\d.]+)\s*\]")  # of a list in a cell
_CHANGE = re.compile(rf"\(\s*[-+↑↓▲▼]\s*{_NUMBER}\s*%?\s*\)|[↑↓▲▼]\s*(?:{_NUMBER})?%?", re.I)
_REMARK = re.compile(r"\(\s*[^()]*(?:shot|cot|maj|pass|@)[^()]*\)", re.I)
_COUNTED = re.compile(
    rf"(?:(?P<value>{_NUMBER})\s*%?\s*(?=\())?\(?\s*(?P<right>\d+)\s*(?:/|of|out of)\s*(?P<number>\d+)\s*\)?", re.I
)
_FOOTNOTE = re.compile(r"<sup>[^<>]*</sup>|\^\{?\d+\}?", re.I)
_BREAK = re.compile(r"<br\s*/?>", re.I)
_TAG = re.compile(r"<[^<>]*>")
_TAG_IN_NUMBER = re.compile(r"(?<=\d)(?:<[^<>]*>)+(?=\d)")  # what it parts is no number: `71.3<sub>2</sub>`
_LINK = re.compile(r"\[([^\[\]]+)\]\([^()]*\)")
_WITHOUT_MARKUP = re.compile(r"[A-Za-z0-9_.,:+() -]+")
_BOLD = re.compile(r"\*\*(?=[^\s*])([^*]*)\*\*")  # a pair: of `Ant 4**` the stars are a footnote's
_LATEX = re.compile(r"\\(?:textbf|underline|textit|mathbf|bf|emph)\s*\{([^{}]*)\}")
_MARKS = re.compile(r"(\*\*|__|`|\*+|[†‡§¶#^]|[⁰¹²³⁴⁵⁶⁷⁸⁹]+|🥇|🥈|🥉|✅|[⬆⬇]\ufe0f?|\[\d+\])")


class CellValue(NamedTuple):
    """What a cell says. `percent`: it has the sign. `error`: behind ±, in parentheses or half of two ends (NaN: none);
    `kind` of it is `ci95` for ends, else unknown (None). `items`: the n of `45/60`, else NaN."""

    value: float
    error: float = math.nan
    percent: bool = False
    kind: str | None = None
    items: float = math.nan


def plain_text(text: str) -> str:
    """A cell's or a name's text without markup: links, HTML tags, footnotes, bold and LaTeX."""
    if _WITHOUT_MARKUP.fullmatch(text):
        return " ".join(text.split())
    text = _LINK.sub(r"\1", _TAG.sub("", _TAG_IN_NUMBER.sub(" ", _BREAK.sub(" ", _FOOTNOTE.sub("", text)))))
    text = re.sub(r"\\([%_#&])", r"\1", _LATEX.sub(r"\1", _BOLD.sub(r"\1", text))).replace("$", "")
    return re.sub(r"\s+", " ", text.replace("\u00a0", " ").replace("\u202f", " ")).strip(" \t`")


def read_cell(text: str) -> CellValue | None:
    """The number in a cell, with what stands around it; None for what is no number.

    Read are `57.1`, `57.1%`, `57.1 ± .8`, `57.1 (0.8)`, `57.1 [55.2, 59.0]`, `**64.1**`, `42.0*`, `1,234.5`, `1e-3`,
    `45/60`, `75% (45/60)`, `57.1 (+2.3)` (the change is left out) and `81.0 (5-shot)`. `<1`, `57.1/60.2` and `1.234,5`
    are not: which number they mean is not known.
    """
    if text.lstrip()[:1].isalpha():  # no mark stands before a number as a letter
        return None
    bare = plain_text(text.replace("−", "-").replace("–", "–"))
    clean = _MARKS.sub("", _CHANGE.sub("", _REMARK.sub("", bare))).strip()
    if (pair := _PAIR.fullmatch(clean)) and float(pair["error"]) < float(pair["value"]):
        return _bounded(CellValue(float(pair["value"]), float(pair["error"])))
    if counted := _COUNTED.fullmatch(clean):  # `45/60`, or `75% (45/60)`, which must agree
        right, number = int(counted["right"]), int(counted["number"])
        share = right / number if 0 < number >= right else math.nan
        shown = _float(counted["value"]) if counted["value"] else share
        agrees = any(abs(shown / scale - share) <= _ROUNDED for scale in (1, 100))
        return CellValue(share, items=number) if agrees else None
    if (match := _VALUE.match(clean)) is None:
        return None
    value, percent, behind = _float(match["value"]), bool(match["percent"]), clean[match.end() :].strip()
    if behind in ("", "%"):
        return _bounded(CellValue(value, percent=percent))
    if spread := _SPREAD.fullmatch(behind) or _IN_PARENTHESES.fullmatch(behind):
        return _bounded(CellValue(value, _float(spread["error"]), percent or bool(spread["sign"])))
    if (ends := _ENDS.fullmatch(behind)) and _float(ends["low"]) <= value <= _float(ends["high"]):
        return _bounded(CellValue(value, (_float(ends["high"]) - _float(ends["low"])) / 2, percent, "ci95"))
    return None


def _float(text: str) -> float:
    return float(text.replace(",", ""))


def _bounded(cell: CellValue) -> CellValue | None:
    """The cell, unless its value or error is larger than any score."""
    return None if max(abs(cell.value), 0.0 if math.isnan(cell.error) else cell.error) > LARGEST_SCORE else cell


# ----------------------------------------------------------------------------------------------------------------------
# Words as parts of names.

_BITS = re.compile(r"(^|_)bits_per_\w+$")


@cache
def vocabulary(where: str) -> dict[str, frozenset[str]]:
    """The words of each role or kind: of headers that are one (`is`), have it among their words (`has`) or end in it
    (`ends`); of columns that are a spread of another (`spread`)."""
    lines = [line.split("\t") for line in WORDS.read_text(encoding="utf-8").splitlines()[1:]]
    return {role: frozenset(words.split()) for role, kind, words in lines if kind == where}


@lru_cache(maxsize=100_000)  # a dozen rules ask it of each name in turn
def plain(name: str) -> str:
    """A name in small letters and digits, its words joined by underscores: `Average ⬆️` is average."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", "_", plain_text(name)).casefold()
    return re.sub(r"[\W_]+", "_", words).strip("_")


@lru_cache(maxsize=100_000)
def parts(name: str) -> tuple[str, ...]:
    """The words of a name, without what stands in parentheses."""
    return tuple(word for word in plain(re.sub(r"[(（][^()（）]*[)）]", " ", name)).split("_") if word)


def lower_is_better(name: str) -> bool:
    """Whether a name ends in a word of which less is better: `val_loss`, `Hallucination rate`, `ECE (10-bin)`; not
    `error_detection`."""
    words = [*parts(name)]
    while len(words) > 1 and (words[-1] in vocabulary("has")["rate"] or words[-1].isdigit()):
        words.pop()
    in_full = "_".join(words)
    ends = bool(words) and words[-1] in vocabulary("ends")["lower is better"]
    return ends or in_full.endswith("cross_entropy") or bool(_BITS.search(in_full))


def names_loss(name: str) -> bool:
    """Whether a name is that of what is better when it is lower, also where the word comes first (`ppl_c4`); not
    `weight_loss_qa`."""
    return lower_is_better(name) or names_perplexity(name) or parts(name)[:1] in (("loss",), ("nll",), ("bpb",))


def may_be_negative(name: str) -> bool:
    """Whether a name is that of a correlation, which may be below 0."""
    return not vocabulary("has")["correlation"].isdisjoint(plain(name).split("_"))


def is_unbounded(name: str) -> bool:
    """Whether a name is that of a measure without bounds: a loss, a perplexity, a rating."""
    words = parts(name)
    known = not vocabulary("has")["unbounded"].isdisjoint(words) or "mtbench" in plain(name).replace("_", "")
    return known or bool(_BITS.search("_".join(words)))


def names_perplexity(name: str) -> bool:
    """Whether a name has the word perplexity, whose values are never below 1."""
    return not {"ppl", "perplexity"}.isdisjoint(parts(name))


def is_no_score(metric: str) -> bool:
    """Whether a metric's name is that of a length, a number or a time."""
    words = {*parts(metric.partition(",")[0])}
    return bool(words & vocabulary("has")["no score of a metric"]) and not {"win", "success", "pass", "solve"} & words


@cache
def spread_ends() -> dict[str, str]:
    """The kind of spread (`sd`, `low`, `n`) by the ending of a name, the longest first."""
    ends = {end: kind for kind, words in vocabulary("spread").items() for end in words}
    return dict(sorted(ends.items(), key=lambda pair: -len(pair[0])))


def spread_owner(name: str, owners: dict[str, str]) -> str | None:
    """The column that `x_std`, `x_lower`, `x n` are of; `owners`: columns by plain name."""
    ends = [end for end in spread_ends() if plain(name).endswith(f"_{end}")]
    found = (owners.get(plain(name).removesuffix(f"_{end}")) for end in ends)
    return next((owner for owner in found if owner not in (None, name)), None)


# ----------------------------------------------------------------------------------------------------------------------
# Tasks and metrics.

COLUMNS = ("task", "metric", "higher_is_better", "output_type", "choices", "category")
# Of several metrics of a task the main one: length-normalised accuracy where the task has it, as leaderboards do
PREFERRED = ("acc_norm", "acc", "exact_match")
METRIC = "metric:"  # begins the rows that say which way a metric counts


class TaskFacts(NamedTuple):
    """A row of the table as texts; "" where unknown."""

    metric: str = ""
    higher_is_better: str = ""
    output_type: str = ""
    choices: str = ""
    category: str = ""


@cache
def _table() -> dict[str, TaskFacts]:
    lines = TABLE.read_text(encoding="utf-8").splitlines()[1:]
    return {name: TaskFacts(*values) for name, *values in (line.split("\t") for line in lines)}


def task_names() -> Iterable[str]:
    """The names of the table: tasks, beginnings of tasks, and metrics after `METRIC`."""
    return _table()


def find_task_facts(task: str) -> TaskFacts | None:
    """The facts of a task by its name, else of the longest beginning of a name that the table has; None: unknown."""
    table = _table()
    if task in table:
        return table[task]
    starts = (task[:end] + "*" for end in range(len(task) - 1, 1, -1) if task[end - 1] in "_-")
    return next((table[start] for start in starts if start in table), None)


def metric_direction(metric: str) -> bool | None:
    """Whether a higher value of a metric (`name` or `name,filter`) is better, as tasks agree; None: unknown."""
    facts = _table().get(METRIC + metric.partition(",")[0])
    return None if facts is None else facts.higher_is_better == "1"


# Of a task that the table does not have, in this order
_FALLBACK = ("primary_score", "main_score", *PREFERRED,
             "accuracy", "accuracy_avg", "mean", "qem", "em", "f1", "mc2", "pass@1", "pass_at_1",
             "top1", "top-1", "acc1", "acc@1", "resolved")  # fmt: skip
_FEWEST_ALIKE = 3  # scores by which a metric is a copy of another
_SCORE_WORDS = frozenset(
    ("acc", "accuracy", "match", "score", "f1", "pass", "em", "correct", "bleu", "rouge", "mcc", "win", "solved",
     "resolved", "qem")
)  # fmt: skip


def choose_metric(facts: TaskFacts, names: Sequence[str]) -> str | None:
    """The metric of a benchmark among `names`: the task table's, else the first of the usual ones, else the only one
    that is no length, number, time or rate, else the only one with a word for a score; None where that is unsure."""
    if facts.metric in names or not names:
        return facts.metric or None
    bare, _, filter_name = facts.metric.partition(",")
    for candidate in (bare, *_FALLBACK):
        matches = sorted(name for name in names if name.partition(",")[0] == candidate)
        if matches:  # one with the same filter before others
            return min(matches, key=lambda name: name.partition(",")[2] != filter_name)
    scores = sorted(name for name in names if not is_no_score(name)) or (list(names) if len(names) == 1 else [])
    for candidates in (scores, [name for name in scores if _SCORE_WORDS & set(parts(name.partition(",")[0]))]):
        if len({name.partition(",")[0] for name in candidates}) == 1:
            return candidates[0]
    return None


def distinct_metrics(rows: pd.DataFrame) -> list[str]:
    """The metrics of the rows of a benchmark, without those whose scores (three at least) an earlier one has."""
    names = list(rows["metric"].dropna().unique())
    key = [name for name in KEY if name != "metric" and name in rows]
    firsts = dict[object, str]()
    for metric in names if len(names) > 1 else ():
        of_metric = rows[rows["metric"] == metric]
        scores = frozenset(zip(*(of_metric[name].astype(str) for name in [*key, "value"]), strict=True))
        firsts.setdefault(scores if len(scores) >= _FEWEST_ALIKE else metric, str(metric))
    return list(firsts.values()) or names


# ----------------------------------------------------------------------------------------------------------------------
# Whether higher or lower is better on a benchmark: from the sheet, the scores, else its metric, else asked for or
# assumed, and said.

_FILL_IN = "fill in the column 'higher_is_better' of the benchmarks sheet"
ASSUMED = "Direction unknown, so higher counts as better"  # how that note begins


class Directions(NamedTuple):
    """facts: the sheet's rows of benchmarks with scores, with the direction that is known, else higher is better, and
    `direction_known`. notes: on directions that the sheet and the scores say otherwise, or that are assumed."""

    facts: pd.DataFrame
    notes: list[str]


def known_directions(sheet: pd.DataFrame, rows: pd.DataFrame) -> pd.Series:
    """Whether higher is better by benchmark of the sheet, (n,) in its order; null where nothing says it.

    The sheet decides, else the scores, else the metric, of the sheet or of the scores, where tasks agree on it. A
    rolling log-likelihood metric (perplexity, bits per byte) is a loss. `rows`: scores, of one metric each benchmark.
    """
    in_table, of_scores = (_first_known(rows, column) for column in ("higher_is_better", "metric"))
    names = sheet["benchmark"]
    metrics = sheet["metric"].where(sheet["metric"].notna(), names.map(of_scores)).map(metric_direction, "ignore")
    metrics = metrics.where(metrics.notna() | (sheet["output_type"] != PERPLEXITY), other=False)
    found = sheet["higher_is_better"].astype(object)
    for further in (names.map(in_table), metrics):
        found = found.where(found.notna(), further)
    return pd.Series(pd.array([None if pd.isna(each) else bool(each) for each in found], "boolean"), sheet.index)


def _first_known(rows: pd.DataFrame, column: str) -> dict[str, object]:
    """The first value of a column that is known, by benchmark."""
    filled = rows.loc[rows[column].notna(), ["benchmark", column]].drop_duplicates("benchmark")
    return dict(zip(filled["benchmark"], filled[column], strict=True))


def settled_directions(rows: pd.DataFrame, sheet: pd.DataFrame, path: str | Path) -> Directions:
    """The direction of each benchmark with scores, and what is said of it.

    The sheet's direction wins over that of the scores. Raises InputError for benchmarks that are named like a loss and
    of which nothing says the direction (of others higher counts as better), and for one with both directions in the
    scores and none in the sheet.
    """
    directions, scored = known_directions(sheet, rows), sheet["benchmark"].isin(set(rows["benchmark"]))
    unknown = sheet.loc[directions.isna() & scored, "benchmark"].tolist()
    metrics = _first_known(rows, "metric")
    losses = [name for name in sorted(unknown) if names_loss(str(metrics.get(name, name)))]
    if losses:
        problem = f"{path}: nothing says whether higher is better on {listing(losses)}, named like a loss."
        raise InputError(problem, f"{_FILL_IN}: 0 where lower is better, else 1.")
    notes = _conflicts(rows, sheet, path) + with_names({f"{ASSUMED}: {{}}.": unknown})
    better = {"higher_is_better": directions.fillna(value=True).astype(bool), "direction_known": directions.notna()}
    return Directions(sheet.assign(**better)[scored].reset_index(drop=True), notes)


def _conflicts(rows: pd.DataFrame, sheet: pd.DataFrame, path: str | Path) -> list[str]:
    """Notes on benchmarks whose direction in the scores is not that of the sheet."""
    conflicts: dict[bool, list[str]] = {True: [], False: []}
    of_sheet = sheet.set_index("benchmark")["higher_is_better"]
    said = rows.loc[rows["higher_is_better"].notna(), ["benchmark", "model", "higher_is_better"]]
    for benchmark, claims in said.groupby("benchmark"):
        direction, higher = of_sheet.get(benchmark), claims["higher_is_better"].to_numpy(bool)
        if pd.isna(direction) and higher.any() and not higher.all():
            first = claims.drop_duplicates("higher_is_better").set_index("higher_is_better")["model"]
            problem = f"{path}: {benchmark} has both directions in the scores: higher_is_better is true for "
            raise InputError(f"{problem}{first[True]}, false for {first[False]}.", f"{_FILL_IN}.")
        if not pd.isna(direction) and (higher != direction).any():
            conflicts[bool(direction)].append(f"{benchmark} ({(higher != direction).sum()} of {len(higher)} scores)")
    words = {True: "higher", False: "lower"}
    return [
        f"The benchmarks sheet says that {words[direction]} is better, the scores say {words[not direction]}: "
        f"{'; '.join(benchmarks)}. The sheet's direction is used. If it is wrong, the order of the models is reversed "
        "on that benchmark."
        for direction, benchmarks in conflicts.items()
        if benchmarks
    ]


# ----------------------------------------------------------------------------------------------------------------------
# Which scores are fractions, and which are said to be but cannot.


def are_fractions(cells: pd.DataFrame, sheet: pd.DataFrame) -> np.ndarray:
    """Whether (n,) scores are fractions, whose differences are points: all of the benchmark's are from 0 to 1, it is no
    corpus, and neither its metric nor, where that is unknown, its own name is that of a loss, a perplexity or a rating.

    cells: `benchmark`, `protocol`, `metric`, `value`.
    """
    corpora = set(sheet.loc[sheet["output_type"] == PERPLEXITY, "benchmark"])
    names = cells["metric"].where(cells["metric"].notna(), cells["benchmark"])
    bounded = cells["value"].between(0, 1) & ~cells["benchmark"].isin(corpora) & ~names.map(is_unbounded).astype(bool)
    result: np.ndarray = bounded.groupby([cells["benchmark"], cells["protocol"]]).transform("all").to_numpy(dtype=bool)
    return result


def unit_notes(rows: pd.DataFrame, facts: pd.DataFrame, path: str | Path) -> list[str]:
    """A note on scores that cannot be fractions of the benchmark's items.

    `rows`: selected rows of SCORES with known values, `facts`: the sheet's rows of their benchmarks. Raises InputError
    for a benchmark of choices with fractions for some models and percentages for others.
    """
    above_one, by_name = list[str](), facts.set_index("benchmark")
    for benchmark in sorted(rows.loc[rows["value"] > _ONE, "benchmark"].unique()):
        scores, fact = rows[(rows["benchmark"] == benchmark) & rows["value"].notna()], by_name.loc[benchmark]
        named = [name for name in (fact["metric"], *scores["metric"].dropna().head(1)) if isinstance(name, str)]
        name, high = (named or [""])[0].split(",")[0], scores["value"] > _ONE
        if fact["output_type"] == PERPLEXITY or name not in FRACTIONS:
            continue
        if not high.all() and name in CHOICES:
            first, second = (f"{row['value']:.4g} for {row['model']} ({row['protocol']})"
                             for row in (scores[high].iloc[0], scores[~high].iloc[0]))  # fmt: skip
            problem = f"{path}: {benchmark} has percentages and fractions under {name}: {first}, {second}."
            raise InputError(problem, "write accuracies as fractions, 0 to 1, and their standard errors too.")
        largest = scores["value"].max()
        above_one.append(f"{benchmark} ({name}: {high.sum()} of {len(scores)} scores, up to {largest:.4g})")
    sentence = "Scores above 1 under a metric that gives fractions. They may be percentages: {}."
    return [sentence.format("; ".join(above_one))] if above_one else []
