"""Readings of an input that were tried on it, best first: each text column, key and part of the path as model,
benchmark, item, run; those stay in which each score is once and models repeat."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from lm_validity.errors import InputError
from lm_validity.tables.cell_text import plain_text
from lm_validity.tables.frame import Frame, Table
from lm_validity.tables.roles import (
    MODEL_LIKE,
    RUN_LIKE,
    SETTINGS,
    STEP_LIKE,
    Column,
    Columns,
    key,
    known_names,
    vocabulary,
)
from lm_validity.tables.told import Given, Long, Told, apply_table, averages, first_with, named_average, needed, show

TRIED = 40  # readings of a table that are executed, of a long one fewer
_MOST_OPTIONS = 800  # readings of a table that are compared before
_MOST_TABLES = 6
_CELLS_TRIED = 120_000  # rows times readings
_FEW = 12  # different values of runs
_HEADER = [Given((None,))]
_PLACES_NAMED = frozenset(("rank", "ranks", "ranking", "rankings"))  # a row, or a key above rows, that holds places


@dataclass
class Candidate:
    """A reading that was executed. `why`: what speaks for it and against it."""

    told: Told
    long: Long
    columns: Columns
    why: dict[str, float] = field(default_factory=dict)

    @property
    def points(self) -> float:
        """How likely it is what was meant."""
        return sum(self.why.values())

    @property
    def signature(self) -> tuple[object, ...]:
        """What readings that give one table have in common."""
        scores = self.long.scores
        names = (
            tuple(sorted(" ".join(sorted(str(name).split())) for name in scores[role].unique())[:3])
            for role in ("model", "benchmark")
        )
        counts = (scores[role].nunique() for role in ("model", "benchmark"))
        return (len(scores), round(float(scores["value"].sum()), 6), *counts, *names)


def one(name: str) -> list[Given]:
    """A column as a role's."""
    return [Given((name,))]


def find(
    data: Frame, tables: Sequence[Table], of: Callable[[Table], Columns], refusals: list[InputError], best: int = 3
) -> list[Candidate]:
    """The readings of tables that lie above each other, coarsest first, which give a consistent table: best first, each
    table once. `refusals`: why likely ones give none is added to it."""
    found: dict[tuple[object, ...], Candidate] = {}
    for place, table in enumerate(tables[:_MOST_TABLES]):
        columns = of(table)
        if not any(column.numeric for column in columns.values()) and not answers(columns):
            continue
        options = {show(told): told for told in itertools.islice(_options(columns), _MOST_OPTIONS)}
        tried = max(4, min(TRIED >> place, _CELLS_TRIED // len(table.cells)))
        before = {text: _before(columns, told) for text, told in options.items()}
        for text in sorted(options, key=lambda text: -sum(before[text].values()))[:tried]:
            if first_with(tables, options[text]) is not table:
                continue
            try:
                long = apply_table(data, columns, options[text])
            except InputError as refused:
                refusals.append(refused)
                continue
            if not _repeats(long.scores) or _carried(columns, options[text]):
                continue
            candidate = Candidate(options[text], long, columns, before[text] | _after(long))
            same = found.get(candidate.signature)
            if same is None or same.points < candidate.points:
                found[candidate.signature] = candidate
    return _diverse(sorted(found.values(), key=lambda each: -each.points), best)


def _repeats(scores: pd.DataFrame) -> bool:
    """Whether some benchmark has several models and some model several benchmarks, where there are several."""
    pairs = scores[["model", "benchmark"]].drop_duplicates()
    models, benchmarks = pairs["model"].nunique(), pairs["benchmark"].nunique()
    return bool((models == 1 or len(pairs) > benchmarks) and (benchmarks == 1 or len(pairs) > models))


def _carried(columns: Columns, told: Told) -> bool:
    """Whether a score stands once for many rows: a fact of a level above."""
    names = needed({role: told.get(role, []) for role in ("model", "benchmark")})
    if not names or not told.keys() & {"item", "run", "answer"}:
        return False
    return any(columns.determines(names, name) for name in needed({"score": told.get("score", [])}))


_FAR = 6.0  # points below the first, from where a reading is none that was meant


def _diverse(ranked: list[Candidate], best: int) -> list[Candidate]:
    """The best readings, not more than two of which have the same names, or the same scores while others are left."""
    likely = [each for each in ranked if each.points > ranked[0].points - _FAR]
    counts: Counter[str] = Counter()
    kept, later = list[Candidate](), list[Candidate]()
    for each in likely:
        kind = show({role: each.told.get(role, _HEADER) for role in ("model", "benchmark", "item", "run")})
        scores = show({role: each.told[role] for role in ("score", "answer") if role in each.told})
        counts.update((kind, scores))
        if counts[kind] <= 2:
            (kept if counts[scores] <= 2 else later).append(each)
    return (kept + later)[:best]


# ----------------------------------------------------------------------------------------------------------------------
# What may be tried.


def score_sets(columns: Columns, but: Sequence[str]) -> list[list[str]]:
    """Which number columns may be the scores together, likeliest first."""
    single = len(columns.table.cells) <= 2
    free = [c for c in columns.values() if c.numeric and c.distinct > 0 and c.name not in {*but, *columns.spreads}]
    free = [c for c in free if not c.never and not c.places]
    tied = len(columns.table.cells) <= _FEW  # where all models may have one score
    allowed = [c for c in free if c.distinct > 1 or c.evidence or single or (tied and not c.whole and c.high > 0)]
    means = averages(columns, [c.name for c in free])
    allowed = [c for c in allowed if c.name not in means] or allowed
    allowed = list({(c.head, c.numbers.tobytes()): c for c in reversed(allowed)}.values())[::-1]  # each once
    decimal = [c for c in allowed if not c.whole or c.evidence]
    bases = [
        [c for c in allowed if c.evidence == 2],
        [c for c in allowed if c.evidence],
        decimal,
        [c for c in decimal if not c.whole],
        [c for c in decimal if c.low >= 0 and c.high <= 1],
        [c for c in allowed if c.low >= 0 and 10 < c.high <= 100],
        [c for c in allowed if c.low >= 0 and c.high <= 100 and (c.distinct > 1 or len(columns.table.cells) == 1)],
        allowed,
    ]
    found: list[list[str]] = []
    everything = [c.name for c in allowed]
    for base in bases:
        names = [c.name for c in base]
        for chosen in ([name for name in names if not named_average(columns, name, everything)], names):
            if chosen and chosen not in found:
                found.append(chosen)
    if 1 < len(allowed) <= 6:
        found += [[c.name] for c in allowed if [c.name] not in found]
    return found


def answers(columns: Columns) -> list[list[Given]]:
    """Which columns may say right or wrong, likeliest first: `true` and `false`, or two that are equal where it is
    right."""
    found = [c.name for c in columns.values() if c.boolean and c.kind == "cell" and c.distinct == 2]
    found.sort(key=lambda name: columns[name].word != "answer")
    options = [one(name) for name in found[:4]]
    given = [c for c in columns.values() if c.parts & {"pred", "prediction", "predicted", "answer", "output"}]
    right = [c for c in columns.values() if c.parts & {"gold", "target", "label", "correct", "truth", "reference"}]
    for left, other in itertools.islice(itertools.product(given, right), 6):
        if left is not other and set(left.texts) & set(other.texts) and not (left.boolean or other.boolean):
            options.append([Given((left.name,), other.name)])
    return options


def ignored_rows(columns: Columns) -> list[Given]:
    """Rows whose name is that of an average, a total, a cost or places."""
    rules = []
    for c in columns.values():
        if c.textual and c.distinct > 1 and c.length < 40:
            names = [plain_text(text) for text in c.texts]
            named = [name for name in names if key(name) in _PLACES_NAMED | {"cost", "total"}
                     or (len(name) < 20 and vocabulary("has")["average"] & set(key(name).split("_")))]  # fmt: skip
            if 0 < len(named) < c.distinct / 2 + 1 and len(named) < 4:
                rules += [Given((c.name,), name) for name in named]
    return rules


def _options(columns: Columns) -> Iterator[Told]:
    """Readings to try: each text column, key and part of the path as model and as benchmark."""
    textual, fixed = _name_columns(columns)
    models = [c.name for c in (*textual, *fixed)]
    place = [] if "file" in models else ["file"]
    models += place
    ignored = ignored_rows(columns)
    settings: Told = {c.word: one(c.name) for c in columns.values() if c.word in SETTINGS}
    for model in [*models, None]:
        for bench in [None, *(c.name for c in (*textual, *fixed)), *(place if model is None else [])]:
            own = [name for name in (model, bench) if name]
            if bench == model or set(own) & set(needed(settings)):
                continue
            if len(own) > 1 and columns[own[1]].distinct > 1 and columns.determines(own[:1], own[1]):
                continue  # a fact of the models
            rest = _Rest(columns, model, bench, ignored, settings)
            if model is not None:
                for answer in answers(columns):
                    if not set(needed({"answer": answer})) & set(own):
                        yield from rest.of({"answer": answer})
                yield from _header_roles(columns, model, bench)
            for names in score_sets(columns, own):
                alone = bench is None or (len(names) == 1 and columns[names[0]].word)
                if model is not None or not alone:
                    yield from rest.of({"score": [Given((name,)) for name in names]})


def _name_columns(columns: Columns) -> tuple[list[Column], list[Column]]:
    """Columns whose cells may be names, the likeliest first, and those that have one name in all rows."""
    textual = [c for c in columns.values() if c.textual and c.distinct > 1 and c.word not in SETTINGS]
    textual = [c for c in textual if c.like["hash"] <= 0.5]
    named = [c for c in textual if c.word == "model"][:1]
    same = {
        c.name
        for n in named
        for c in textual
        if columns.determines([n.name], c.name) and columns.determines([c.name], n.name)
    }
    textual = [c for c in textual if c.name not in same or c.word in {"model", "benchmark"} or c.kind != "cell"]
    by_word = [c for c in columns.values() if c.word == "model" and c.distinct > 0 and c not in textual]
    textual = sorted(textual + by_word, key=lambda c: (c.word not in {"model", "benchmark"}, c.distinct))[:12]
    fixed = [c for c in columns.values() if c.distinct == 1 and c.textual and c.length < 60]
    some = [c for c in fixed if c.word == "model" or c.like["model"] > 0 or c.kind == "level"]
    return textual, some or ([c for c in fixed if c.kind == "path"][-1:] if not textual else [])


def _header_roles(columns: Columns, model: str, bench: str | None) -> Iterator[Told]:
    """Number columns whose headers are checkpoints, runs or items."""
    own = [name for name in (model, bench) if name]
    numeric = [c for c in columns.values() if c.numeric and c.name not in own]
    found = []
    for role, pattern in (("checkpoint", STEP_LIKE), ("run", RUN_LIKE)):
        names = [c.name for c in numeric if pattern.search(c.name)]
        found += [(role, names)] if len(names) > 1 else []
    answers = [c.name for c in numeric if c.boolean or (c.low in {0.0, 1.0} and c.low == c.high)]
    if len(answers) > 4 and sum(columns[name].boolean for name in answers) > 2:
        found.append(("item", answers))
    told: Told = {"model": one(model)} | ({"benchmark": one(bench)} if bench else {})
    for role, names in found if columns.unique(own) else ():
        yield told | {role: _HEADER, "score": [Given((name,)) for name in names]}


@dataclass
class _Rest:
    """Readings with a model's column (None: the headers) and a benchmark's, and what else they need."""

    columns: Columns
    model: str | None
    bench: str | None
    ignored: list[Given]
    settings: Told

    def of(self, scores: Told) -> Iterator[Told]:
        """The readings with these scores."""
        names, columns = needed(scores), self.columns
        rows = ~np.isnan(np.array([columns[name].numbers for name in names])).all(axis=0)
        if compared := any(given.detail for given in scores.get("answer", [])):  # answers and labels
            rows = np.ones(len(rows), dtype=bool)
        for given in self.ignored:
            if key(given.detail or "") in _PLACES_NAMED:
                rows &= columns[str(given.names[0])].clean != given.detail
        if not rows.any():
            return
        wide = "score" in scores and len(names) > 1 and self.model is not None
        own = [name for name in (self.model, self.bench) if name]
        for extra in self._apart(rows, names, fractions="score" in scores) or [{}] * compared:
            told = self._named(names, wide=wide)
            for role, sources in extra.items():
                if role.endswith("+"):
                    base = told.get(role[:-1], [Given(())])[0]
                    told[role[:-1]] = [Given((*base.names, *sources[0].names))]
                elif role != "metric" or "metric" not in told:
                    told[role] = sources
            if "answer" in scores and "item" not in told and not extra:
                items = [c.name for c in columns.values() if c.word == "item" and c.name not in own]
                told |= next(({"item": one(name)} for name in items if columns.unique([*own, name], rows)), {})
            told |= scores
            yield self._completed(told, names, wide=wide)

    def _named(self, names: list[str], *, wide: bool) -> Told:
        """The columns of models and benchmarks, and what several score columns' headers are."""
        told: Told = {"model": one(self.model) if self.model else _HEADER}
        told |= {"benchmark": one(self.bench)} if self.bench else {}
        if wide and not self.bench:
            told["benchmark"] = _HEADER
        elif wide and all(map(self.columns.is_metric, names)):
            told["metric"] = _HEADER
        elif wide:
            told["benchmark"] = [Given((self.bench, None))]
        return told

    def _completed(self, told: Told, names: list[str], *, wide: bool) -> Told:
        """The reading with numbers of items, errors, settings, and without averages' rows."""
        columns, used = self.columns, set(needed(told))
        numbers = [c for c in columns.values() if c.numeric and c.name not in used]
        if not told.keys() & {"item", "answer"}:
            counts = [c for c in numbers if c.word == "n"]
            if len(counts) == 1:
                told["n"] = one(counts[0].name)
            errors = [c for c in numbers if c.error_of]
            if errors and (not wide or any(c.parts & columns[name].parts for c in errors for name in names)):
                told["error"] = [Given((c.name,), c.error_of) for c in errors]
        named = {c.name for c in columns.values() if c.word in {"benchmark", "metric"}}
        if "item" in told:
            subjects = [c.name for c in columns.values() if c.word == "subject" and c.name not in used]
            told |= {"subject": one(subjects[0])} if len(subjects) == 1 else {}
        told |= {role: sources for role, sources in self.settings.items() if sources[0].names[0] not in used}
        rules = [
            given
            for given in self.ignored
            if str(given.names[0]) in {*needed(told), *named} or key(given.detail or "") in _PLACES_NAMED
        ]
        return told | ({"ignore": rules} if rules else {})

    def _apart(self, rows: np.ndarray, scores: Sequence[str], *, fractions: bool) -> list[Told]:
        """What makes model and benchmark unique in the rows (n,) with scores: nothing, runs, checkpoints, items, or a
        further part of a name (`model+`)."""
        columns = self.columns
        own = [name for name in (self.model, self.bench) if name] + needed(self.settings)
        if columns.unique(own, rows):
            return [{}]
        groups = columns.count(frozenset(own), rows)
        each = np.count_nonzero(rows) / groups
        used = {*own, *scores}
        others = [
            c
            for c in columns.values()
            if c.name not in used and c.distinct > 1 and not c.evidence and (not c.numeric or c.whole)
        ]
        telling = [c for c in others if columns.unique([*own, c.name], rows)]
        found: list[Told] = []
        for c in telling:
            found += [{role: one(c.name)} for role in self._roles(c, each, fractions=fractions)]
            found += self._joins(c, many=bool(np.count_nonzero(rows) > 2 * groups))
        if any(c.word in {"item", "run", "checkpoint", "metric"} for c in telling) or (
            telling and not any(c.word == "item" for c in others)
        ):
            return found
        others = [c for c in others if not c.boolean and (c.word or not c.never)]
        named = self.model and columns[self.model].distinct > 1
        texts = [c for c in others if c.textual and c.word not in {"item", "run", "metric"} and named]
        texts = [c for c in texts if not columns.determines(own, c.name)][:4]
        for pair in itertools.combinations(texts, 2):
            if columns.unique([*own, *(c.name for c in pair)], rows):
                found.append({"model+": [Given(tuple(c.name for c in pair))]})
        few = [c for c in others if c.word in {"run", "checkpoint", "metric"} or c.distinct <= 10]
        few = sorted(few, key=lambda c: c.word != "model")[:4]
        many = [c for c in others if c.word == "item" or c.distinct > 2][:5]
        for first, second in itertools.product(few, many):
            if first is not second and columns.unique([*own, first.name, second.name], rows):
                stepped = first.word == "checkpoint" or first.like["step"] > 0.5
                role = "metric" if first.word == "metric" else "checkpoint" if stepped else "run"
                if first.word == "model" and self.model and not columns.determines([first.name], self.model):
                    role = "model+"
                item = second.word if second.word in {"run", "checkpoint"} and role == "metric" else "item"
                found.append({role: one(first.name), item: one(second.name)})
        return found

    @staticmethod
    def _roles(c: Column, each: float, *, fractions: bool) -> list[str]:
        """Which roles a column may have that tells scores of one model and benchmark apart, `each` of them."""
        if c.word in {"item", "run", "checkpoint", "metric"}:
            return [c.word]
        if c.like["step"] > 0.5:
            return ["checkpoint"]
        if (c.never and c.numeric) or c.boolean:
            return []
        named = c.textual and c.like["run"] < 0.5
        few = c.distinct <= _FEW or c.places or bool(c.parts & {"timestamp", "created", "datetime"})
        if each > 3 and c.distinct >= each:
            return ["item"] if not fractions or each > _FEW or named else ["run"] * few
        return ["run"] if few and each > 1 else []

    def _joins(self, c: Column, *, many: bool) -> list[Told]:
        """A column as a further part of the model's or benchmark's name."""
        if not (c.textual or c.whole) or (c.all_different and many) or c.distinct >= 60:
            return []
        if c.word in {"item", "run", "metric"} or (c.numeric and c.places):
            return []
        found: list[Told] = []
        if self.model and not self.columns.determines([c.name], self.model):
            found.append({"model+": one(c.name)})
        if c.textual and not (self.bench and self.columns.determines([c.name], self.bench)):
            found.append({"benchmark+": one(c.name)})
        return found


# ----------------------------------------------------------------------------------------------------------------------
# What is preferred.

_RIGHT_WORDS = {
    "model": {None, "model", "setting", "about", "item", "checkpoint", "run"},
    "benchmark": {None, "benchmark", "metric", "subject"},
    "item": {None, "item"},
    "run": {None, "run", "item"},
    "checkpoint": {None, "checkpoint"},
}
_WORD_POINTS = {
    "model": 3.0,
    "benchmark": 3.0,
    "metric": 2.0,
    "answer": 3.0,
    "item": 1.5,
    "run": 1.5,
    "checkpoint": 2.0,
}


def _before(columns: Columns, told: Told) -> dict[str, float]:
    """Why a reading is preferred before it is tried: few reasons, each by name."""
    parts = {role: [columns[name] for name in needed({role: sources})] for role, sources in told.items()}
    of = {
        role: parts.get(role, [])
        for role in ("model", "benchmark", "metric", "score", "answer", "item", "run", "checkpoint")
    }
    header = {role for role, sources in told.items() for given in sources if None in given.names}
    why: dict[str, float] = {}
    why["words"] = sum(points for role, points in _WORD_POINTS.items() for c in of[role] if c.word == role)
    varied = any(c.word == "model" and c.distinct > 1 for c in columns.values())
    why["words"] -= 2.0 * sum(varied and c.word == "model" and c.distinct == 1 for c in of["model"])
    why["words"] += 1.0 * sum(c.word in {"setting", "about"} for c in of["model"][1:])
    why["other words"] = -4.0 * sum(c.word not in words for role, words in _RIGHT_WORDS.items() for c in of[role])
    why["other words"] -= 1.5 * sum(
        c.word in {"about", "item", "setting", "run"} or (c.word is None and "id" in c.parts) for c in of["model"][:1]
    )
    why["other words"] -= 1.5 * sum(c.numeric and c.word is None and c.never for c in of["model"][1:])
    why["other words"] -= 1.5 * sum(c.word is None and c.has("system") for c in of["benchmark"])
    scores = of["score"]
    if scores:
        why["evidence"] = 3.0 * float(np.mean([c.evidence for c in scores])) / 2 + 0.3 * min(5, len(scores))
        why["evidence"] -= 2.0 * sum(c.whole and c.evidence < 2 for c in scores) / len(scores)
        unmarked = [c for c in scores if not c.evidence]
        why["evidence"] -= 1.0 * sum(1 < c.high <= 10 and not c.whole for c in unmarked) / len(scores)
        why["evidence"] -= 1.5 * (len(set(map(_magnitude, unmarked))) > 1)
        why["averages"] = -1.0 * sum(named_average(columns, c.name, [s.name for s in scores]) for c in scores)
    why["names"] = _names(of, header, [c.name for c in scores])
    joins = [g for role in ("model", "benchmark") for g in told.get(role, []) if len(g.names) > 1]
    why["run"] = -1.5 * sum(c.textual and c.like["run"] < 0.5 for c in of["run"])
    why["run"] -= 1.0 * sum(c.kind == "path" for role in ("item", "checkpoint") for c in of[role])
    first = next((name for name in columns if columns.table.kinds[name] == "cell"), "")
    why["first"] = 0.4 * sum(c.name == first for c in of["model"][:1])
    why["simple"] = -0.4 * len(joins) - 0.8 * ("model" in header)
    why["simple"] -= 0.8 * ("benchmark" in header) * sum(c.kind == "cell" and c.word is None for c in of["benchmark"])
    why["simple"] -= 0.2 * sum(c.kind == "path" for c in of["benchmark"]) + 0.5 * sum(
        c.kind == "heading" for c in of["model"]
    )
    long = len(columns.table.cells) > 30
    why["simple"] -= 0.5 * sum(c.all_different and c.kind == "cell" and long for c in of["model"])
    why["simple"] -= 1.0 * sum(c.length < 2 for role in ("model", "benchmark") for c in of[role])
    return why


def _magnitude(c: Column) -> int:
    """Of what size the numbers of a column are: shares 0, up to 10 1, percentages 2, larger ones more."""
    return 2 if c.whole and c.high <= 100 else int(np.ceil(np.log10(max(1, c.high))))


def _names(of: dict[str, list[Column]], header: set[str], heads: list[str]) -> float:
    """What the names of models and benchmarks look like."""
    metrics = known_names() | vocabulary("is")["score"]
    models = {role: max((c.like["model"] for c in of[role]), default=0.0) for role in ("model", "benchmark")}
    for role in header & models.keys():
        models[role] = _mean(
            bool(MODEL_LIKE.search(name)) and key(name.split("/")[-1]) not in metrics for name in heads
        )
    tasks = _mean(c.like["task"] for c in of["benchmark"])
    if "benchmark" in header:
        tasks = _mean(key(name) in known_names() for name in heads)
    hashes = sum(c.like["hash"] for role in models for c in of[role])
    return 2.5 * models["model"] + 2.0 * tasks - 2.5 * models["benchmark"] - 2.0 * hashes


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return float(sum(found)) / len(found) if found else 0.0


def _after(long: Long) -> dict[str, float]:
    """Why a reading is preferred for what it gives: full tables, several models, enough answers."""
    scores = long.scores
    models, benchmarks = scores["model"].nunique(), scores["benchmark"].nunique()
    several = int(np.prod([scores[name].nunique() for name in scores if name in ("run", "checkpoint", "metric")]))
    why = {"full": 3.0 * min(1.0, len(scores) / max(1, several) / (models * benchmarks)) - 3.0}
    if "item" in long.rows:
        pairs = len(long.rows[["benchmark", "item"]].drop_duplicates()) * models
        why["full"] += 3.0 * min(1.0, len(long.rows[["model", "benchmark", "item"]].drop_duplicates()) / pairs) - 3.0
    why["several"] = 1.0 * (models > 1) + 0.5 * (benchmarks > 1) - 1.5 * (models == 1)
    if long.items:
        why["answers"] = -2.0 * (scores["n"].median() < 8) + 1.0 * ("answer" in long.told)
    return why
