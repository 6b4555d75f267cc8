"""Readings of an input that were tried on it, best first: each text column, key and part of the path as model,
benchmark, item, run; those stay in which each score is once and models repeat."""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from lm_validity.errors import InputError
from lm_validity.tables.metrics import plain, plain_text, vocabulary
from lm_validity.tables.roles import MODEL_LIKE, RUN_LIKE, SETTINGS, STEP_LIKE, Column, Columns, known_names
from lm_validity.tables.told import Given, Long, Told, apply_table, averages, first_with, named_average, needed, show

TRIED = 40  # readings of a table that are executed, of a long one fewer
_MOST_OPTIONS = 800  # readings of a table that are compared before
_MOST_TABLES = 6
_CELLS_TRIED = 120_000  # rows times readings
_FEW = 12  # different values of runs
_HEADER = [Given((None,))]
_PLACES_NAMED = frozenset(("rank", "ranks", "ranking", "rankings"))  # a row, or a key above rows, that holds places


class Candidate(NamedTuple):
    """A reading that was executed, and how likely it is what was meant."""

    long: Long
    points: float


def one(name: str) -> list[Given]:
    """A column as a role's."""
    return [Given((name,))]


def find(tables: Sequence[Columns], refusals: list[InputError]) -> list[Candidate]:
    """The readings of tables that lie above each other, coarsest first, which give a consistent table: best first, each
    table once. `refusals`: why likely ones give none is added to it."""
    found: dict[tuple[object, ...], Candidate] = {}
    for place, columns in enumerate(tables[:_MOST_TABLES]):
        tried = max(4, min(TRIED >> place, _CELLS_TRIED // len(columns.table.cells)))
        ranked = sorted(((_before(columns, told), told) for told in options(columns)), key=lambda pair: -pair[0])
        for points, told in ranked[:tried]:
            if first_with(tables, told) is not columns or _carried(columns, told):
                continue
            try:
                long = apply_table(columns, told)
            except InputError as refused:
                refusals.append(refused)
                continue
            candidate = Candidate(long, points + _after(long))
            names = (tuple(sorted(" ".join(sorted(str(name).split())) for name in long.scores[role].unique()))
                     for role in ("model", "benchmark"))  # fmt: skip
            table = len(long.scores), round(float(long.scores["value"].sum()), 6), *names
            found[table] = max(found.get(table, candidate), candidate, key=lambda each: each.points)
    return _diverse(sorted(found.values(), key=lambda each: -each.points))


def _carried(columns: Columns, told: Told) -> bool:
    """Whether a score stands once for many rows: a fact of a level above."""
    names = needed({role: told.get(role, []) for role in ("model", "benchmark")})
    if not names or not told.keys() & {"item", "run", "answer"}:
        return False
    return any(columns.determines(names, name) for name in needed({"score": told.get("score", [])}))


_FAR = 6.0  # points below the first, from where a reading is none that was meant


def _diverse(ranked: list[Candidate]) -> list[Candidate]:
    """The best three, not more than two of which have the same names, or the same scores while others are left."""
    likely = [each for each in ranked if each.points > ranked[0].points - _FAR]
    counts: Counter[str] = Counter()
    kept, later = list[Candidate](), list[Candidate]()
    for each in likely:
        told = each.long.told
        kind = show({role: told.get(role, _HEADER) for role in ("model", "benchmark", "item", "run")})
        scores = show({role: told[role] for role in ("score", "answer") if role in told})
        counts.update((kind, scores))
        if counts[kind] <= 2:
            (kept if counts[scores] <= 2 else later).append(each)
    return (kept + later)[:3]


# ----------------------------------------------------------------------------------------------------------------------
# What may be tried.


def score_sets(columns: Columns, but: Sequence[str]) -> list[list[str]]:
    """Which number columns may be the scores together, likeliest first."""
    single = len(columns.table.cells) <= 2
    free = [c for c in columns.values() if c.numeric and c.distinct > 0 and c.name not in {*but, *columns.spreads}]
    free = [c for c in free if not c.never and (c.word == "score" or not c.places)]
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
            named = [name for name in names if plain(name) in _PLACES_NAMED | {"cost", "total"}
                     or (len(name) < 20 and vocabulary("has")["average"] & set(plain(name).split("_")))]  # fmt: skip
            if 0 < len(named) < c.distinct / 2 + 1 and len(named) < 4:
                rules += [Given((c.name,), name) for name in named]
    return rules


def options(columns: Columns) -> list[Told]:
    """Readings to try, each once: each text column, key and part of the path as model and as benchmark."""
    if columns.readings is None:
        readings = {show(told): told for told in itertools.islice(_options(columns), _MOST_OPTIONS)}
        columns.readings = list(readings.values())
    return columns.readings


def _options(columns: Columns) -> Iterator[Told]:
    names, place = [c.name for c in _name_columns(columns)], []
    if "file" not in names:
        place = ["file"]
    ignored, by_word = ignored_rows(columns), _by_word(columns)
    for model, bench in itertools.product([*names, *place, None], [None, *names, *place]):
        own = [name for name in (model, bench) if name]
        if bench == model or (bench in place and model) or set(own) & set(needed(by_word, but=_TOLD_BY_WORD)):
            continue
        named: Told = {"model": one(model)} if model else {}
        named |= {"benchmark": one(bench)} if bench else {}
        fixed = {role: given for role, given in by_word.items() if not set(needed({role: given})) & set(own)}
        for role in ("run", "checkpoint"):  # of a model, not of its scores
            if model and role in fixed and columns.determines([model], needed({role: fixed[role]})[0]):
                del fixed[role]
        for scores in _scores(columns, named, metric="metric" in fixed):
            scored = set(needed(scores))
            free = {role: given for role, given in fixed.items() if not scored & set(needed({role: given}))}
            yield from _completed(columns, free | named | scores, ignored)


_TOLD_BY_WORD = ("metric", "run", "checkpoint")


def _by_word(columns: Columns) -> Told:
    """The roles besides names and scores that headers say."""
    told: Told = {}
    for role in (*_TOLD_BY_WORD, *SETTINGS):
        named = sorted((c for c in columns.values() if c.word == role and c.distinct), key=lambda c: c.head == "filter")
        if len(named) == 1 or (len(named) == 2 and named[1].head == "filter"):  # of lm-eval's printed tables
            told[role] = [Given(tuple(c.name for c in named))]
    return told


def _name_columns(columns: Columns) -> list[Column]:
    """Columns whose cells may be names, the likeliest first, and those that have one name in all rows."""
    textual = [c for c in columns.values() if c.textual and c.distinct > 1 and c.word not in SETTINGS]
    textual = [c for c in textual if c.like["hash"] <= 0.5]
    for named in [c for c in textual if c.word == "model"][:1]:
        textual = [c for c in textual if c is named or c.word in {"model", "benchmark"} or c.kind != "cell"
                   or not columns.alike(named.name, c.name)]  # fmt: skip
    textual += [c for c in columns.values() if c.word == "model" and c.distinct > 0 and c not in textual]
    textual.sort(key=lambda c: (c.word not in {"model", "benchmark"}, c.distinct, not c.name.endswith("name")))
    del textual[12:]
    fixed = [c for c in columns.values() if c.distinct == 1 and c.textual and c.length < 60 and c not in textual]
    some = [c for c in fixed if c.word in {"model", "benchmark"} or c.like["model"] > 0 or c.kind == "level"]
    return textual + (some or ([c for c in fixed if c.kind == "path"][-1:] if not textual else []))


def _scores(columns: Columns, named: Told, *, metric: bool) -> Iterator[Told]:
    """What may be scores beside models and benchmarks, with what several headers are; `metric`: a column says it."""
    own = needed(named)
    if "model" in named:
        yield from ({"answer": given} for given in answers(columns) if not set(needed({"answer": given})) & set(own))
        numeric = [c for c in columns.values() if c.numeric and c.name not in own]
        hits = [c for c in numeric if c.boolean or (c.low in {0.0, 1.0} and c.low == c.high)]
        heads = {
            "checkpoint": [c for c in numeric if STEP_LIKE.search(c.name)],
            "run": [c for c in numeric if RUN_LIKE.search(c.name)],
            "item": hits if len(hits) > 4 and sum(c.boolean for c in hits) > 2 else [],
        }
        for role, heading in heads.items() if columns.unique(own) else ():
            if len(heading) > 1:
                yield {role: _HEADER, "score": [Given((c.name,)) for c in heading]}
    for names in score_sets(columns, own):
        told: Told = {"score": [Given((name,)) for name in names]}
        if "model" not in named:
            if "benchmark" in named and (len(names) > 1 or not columns[names[0]].word):
                yield told | {"model": _HEADER}
        elif len(names) == 1:
            yield told
        elif "benchmark" not in named:
            yield told | {"benchmark": _HEADER}
        elif all(map(columns.is_metric, names)) and not metric:
            yield told | {"metric": _HEADER}
        else:
            yield told | {"benchmark": [Given((*named["benchmark"][0].names, None))]}


def _completed(columns: Columns, told: Told, ignored: list[Given]) -> Iterator[Told]:
    """The reading with what makes each score the only one, numbers of items, errors, and without averages' rows."""
    compared = any(given.detail for given in told.get("answer", []))  # answers and labels
    names = needed({role: told[role] for role in ("score", "answer") if role in told})
    rows = ~np.isnan(np.array([columns[name].numbers for name in names])).all(axis=0)
    if compared:
        rows = np.ones(len(rows), dtype=bool)
    for given in ignored:
        if plain(given.detail or "") in _PLACES_NAMED:
            rows &= columns[str(given.names[0])].clean != given.detail
    own = needed(told, but=("score", "answer"))
    said = "score" in told and all(columns[name].word for name in own)  # why it is refused is worth saying
    for extra in (_apart(columns, told, rows) or [{}] * (compared or said)) if rows.any() else ():
        full = dict(told)
        for role, sources in extra.items():
            base = full.get(role[:-1], [Given(())])[0]
            full |= {role[:-1]: [Given((*base.names, *sources[0].names))]} if role.endswith("+") else {role: sources}
        full |= _beside(columns, full, names)
        used = {*needed(full), *(c.name for c in columns.values() if c.word in {"benchmark", "metric"})}
        rules = [g for g in ignored if str(g.names[0]) in used or plain(g.detail or "") in _PLACES_NAMED]
        yield full | ({"ignore": rules} if rules else {})


def _beside(columns: Columns, told: Told, names: list[str]) -> Told:
    """Subjects of items, else numbers of items and errors of scores."""
    used = {*needed(told)}
    free = [c for c in columns.values() if c.name not in used]
    subjects = [c.name for c in free if c.word == "subject"]
    if "item" in told:
        return {"subject": one(subjects[0])} if len(subjects) == 1 else {}
    if "answer" in told:
        return {}
    counts = [c for c in free if c.numeric and c.word == "n"]
    errors = [c for c in free if c.numeric and c.error_of]
    found = {"n": one(counts[0].name)} if len(counts) == 1 else {}
    narrow = len(names) == 1 or None in told["model"][0].names
    if errors and (narrow or any(c.parts & columns[name].parts for c in errors for name in names)):
        found["error"] = [Given((c.name,), c.error_of) for c in errors]
    return found


def _apart(columns: Columns, told: Told, rows: np.ndarray) -> list[Told]:
    """What makes model and benchmark unique in the rows (n,) with scores: nothing, runs, items, or a further part of a
    name (`model+`)."""
    own = needed(told, but=("score", "answer"))
    if columns.unique(own, rows):
        return [{}]
    groups, used = columns.count(frozenset(own), rows), set(needed(told))
    number = int(np.count_nonzero(rows))
    others = [c for c in columns.values() if c.name not in used and c.distinct > 1 and not c.evidence]
    others = [c for c in others if not c.numeric or c.whole]
    telling = [c for c in others if columns.unique([*own, c.name], rows)]
    telling.sort(key=lambda c: not c.name.endswith("name"))
    found: list[Told] = []
    for c in telling:
        found += [{role: one(c.name)} for role in _role_apart(c, number / groups, fractions="score" in told)]
        if not (c.all_different and number > 2 * groups):
            found += _joined_apart(columns, told, c)
    if any(c.word in _APART for c in telling) or (telling and not any(c.word == "item" for c in others)):
        return found
    return found + _pairs_apart(columns, told, [c for c in others if not c.boolean and (c.word or not c.never)], rows)


_APART = ("item", "run", "checkpoint")


def _joined_apart(columns: Columns, told: Told, c: Column) -> list[Told]:
    """A column as a further part of models' or benchmarks' names."""
    found: list[Told] = []
    if c.distinct < 60 and c.word not in ("item", "run") and (c.textual or (c.whole and not c.places)):
        for role in ("model", "benchmark") if c.textual else ("model",):
            first = needed({role: told.get(role, [])})[:1]
            if not columns.determines([c.name], first[0]) if first else role == "benchmark":
                found.append({f"{role}+": one(c.name)})
    return found


def _pairs_apart(columns: Columns, told: Told, others: list[Column], rows: np.ndarray) -> list[Told]:
    """Two columns as parts of models' names, or as runs and items."""
    own, found = needed(told, but=("score", "answer")), list[Told]()
    model = next(iter(needed({"model": told.get("model", [])})), None)
    texts = [c for c in others if c.textual and c.word not in ("item", "run") and not columns.determines(own, c.name)]
    few = [c for c in others if c.word in ("run", "checkpoint") or c.distinct <= 10]
    few = sorted(few, key=lambda c: c.word != "model")[:4]
    many = [c for c in others if c.word == "item" or c.distinct > 2][:5]
    named = model is not None and columns[model].distinct > 1
    pairs = [(True, *pair) for pair in itertools.combinations(texts[:4] if named else (), 2)]
    pairs += [(False, *pair) for pair in itertools.product(few, many) if pair[0] is not pair[1]]
    for joined, first, second in pairs:
        if not columns.unique([*own, first.name, second.name], rows):
            continue
        role = "checkpoint" if first.word == "checkpoint" or first.like["step"] > 0.5 else "run"
        if first.word == "model" and model and not columns.determines([first.name], model):
            role = "model+"
        both = {"model+": [Given((first.name, second.name))]}
        found.append(both if joined else {role: one(first.name), "item": one(second.name)})
    return found


def _role_apart(c: Column, each: float, *, fractions: bool) -> list[str]:
    """Which roles a column may have that tells scores of one model and benchmark apart, `each` of them."""
    if c.word in _APART:
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


# ----------------------------------------------------------------------------------------------------------------------
# What is sure.

_WEAK = ("id", "idx", "index", "no", "example")  # may number anything


def sure(columns: Columns) -> Told | None:
    """The first reading that headers and marks alone give, and that leaves no column that nothing explains."""
    return next((told for told in options(columns) if _is_said(columns, told) and _is_explained(columns, told)), None)


def _is_said(columns: Columns, told: Told) -> bool:
    """Whether headers and marks say all roles of a reading."""
    parts = {role: [columns[name] for name in needed({role: sources})] for role, sources in told.items()}
    model, scores, answer = (parts.get(role, []) for role in ("model", "score", "answer"))
    texts = [c for c in columns.values() if c.textual and c.kind == "cell"]
    alone = len(texts) == 1 and texts == model and model[0].all_different and model[0].word is None
    if len(model) != 1 or not (alone or model[0].word == "model") or "ignore" in told or None in told["model"][0].names:
        return False
    if alone and model[0].like["model"] < 0.5 and all(columns.is_metric(c.name) for c in scores):
        return False  # of what is measured only by accuracy, rows may be subjects as well as models
    words = {role: {role} for role in ("metric", "item", "subject", "run", "checkpoint", *SETTINGS)}
    words["benchmark"] = {"benchmark", "subject"}
    joined = len(told.get("benchmark", _HEADER)[0].names) > 1
    if joined or any(c.word not in words[role] for role in words for c in parts.get(role, [])):
        return False
    if answer:
        return len(answer) == 1 and answer[0].word == "answer" and "item" in told and bool(parts.get("benchmark"))
    return all(c.evidence == 2 for c in scores) and not any(c.head in _WEAK for c in parts.get("item", []))


def _is_explained(columns: Columns, told: Told) -> bool:
    """Whether every varying column is used, or a fact of a model, a benchmark or an item, or no score for sure."""
    used, scores = set(needed(told)), needed({"score": told.get("score", [])})
    keys = [names for role in ("model", "benchmark", "item") if (names := needed({role: told.get(role, [])}))]
    unused = [c for c in columns.values() if c.name not in used]
    roles = [c for c in unused if (c.distinct and c.word in {"benchmark", "metric"}) or (
        c.distinct > 1 and c.word in {"model", "item", "run", "checkpoint", "answer", "n"})]  # fmt: skip
    if not all(any(columns[name].word == c.word and columns.alike(c.name, name) for name in used) for c in roles):
        return False
    left = [c for c in unused if c.distinct > 1]
    numbers = [c.name for c in left if c.numeric and not c.never and not c.places and c.word in {None, "score"}
               and c.name not in columns.spreads]  # fmt: skip
    proved = averages(columns, [*scores, *numbers])
    if any(name not in proved and not named_average(columns, name, [*scores, name]) for name in numbers):
        return False
    texts = [c for c in left if not c.numeric and not c.says and c.word != "about" and c.length < 80]
    return all(any(columns.determines(names, c.name) for names in keys) for c in texts)


# ----------------------------------------------------------------------------------------------------------------------
# What is preferred.

_RIGHT_WORDS = {
    "model": {None, "model", "setting", "about", "item", "checkpoint", "run"},
    "benchmark": {None, "benchmark", "metric", "subject"},
}
_WORD_POINTS = {"model": 3.0, "benchmark": 3.0, "metric": 2.0, "answer": 3.0, "item": 1.5, "run": 1.5,
                "checkpoint": 2.0}  # fmt: skip


def _before(columns: Columns, told: Told) -> float:
    """How far a reading is preferred before it is tried: for words of its headers, evidence that numbers are scores,
    and what names look like."""
    of = {role: [columns[name] for name in needed({role: told.get(role, [])})]
          for role in (*_WORD_POINTS, "score")}  # fmt: skip
    header = {role for role, sources in told.items() for given in sources if None in given.names}
    models, benches, scores = of["model"], of["benchmark"], of["score"]
    points = [
        *(points for role, points in _WORD_POINTS.items() for c in of[role] if c.word == role),
        *(-4.0 for role, words in _RIGHT_WORDS.items() for c in of[role] if c.word not in words),
        -1.5 * sum(c.word in {"about", "item", "setting", "run"} or (c.word is None and "id" in c.parts)
                   for c in models[:1]),
        -1.5 * sum(c.word is None and c.has("system") for c in benches),
        -1.5 * sum(c.textual and c.like["run"] < 0.5 for c in of["run"]),
        -0.4 * sum(len(given.names) > 1 for role in ("model", "benchmark") for given in told.get(role, [])),
        -0.8 * ("model" in header),
        -1.0 * sum(c.length < 2 for c in (*models, *benches)),
    ]  # fmt: skip
    heads = [c.name for c in scores]
    if scores:
        unmarked = [c for c in scores if not c.evidence]
        points += [
            1.5 * float(np.mean([c.evidence for c in scores])) + 0.3 * min(5, len(scores)),
            -2.0 * float(np.mean([c.whole and c.evidence < 2 for c in scores])),
            -1.0 * sum(1 < c.high <= 10 and not c.whole for c in unmarked) / len(scores),
            -1.5
            * (len({2 if c.whole and c.high <= 100 else int(np.ceil(np.log10(max(1, c.high)))) for c in unmarked}) > 1),
            -1.0 * sum(named_average(columns, name, heads) for name in heads),
        ]
    tasks = known_names()
    metrics = tasks | vocabulary("is")["score"]
    like_models = [bool(MODEL_LIKE.search(name)) and plain(name.split("/")[-1]) not in metrics for name in heads]
    for role, weight in (("model", 2.5), ("benchmark", -2.5)):
        names = max((c.like["model"] for c in of[role]), default=0.0)
        points.append(weight * (float(np.mean(like_models)) if role in header else names))
    shares = [plain(name) in tasks for name in heads] if "benchmark" in header else [c.like["task"] for c in benches]
    return sum(points) + 2.0 * float(np.mean(shares or [0]))


def _after(long: Long) -> float:
    """How far a reading is preferred for what it gives: full tables, several models, enough answers. Not at all where
    no benchmark has several models, or no model several benchmarks."""
    scores = long.scores
    models, benchmarks = scores["model"].nunique(), scores["benchmark"].nunique()
    pairs = len(scores[["model", "benchmark"]].drop_duplicates())
    if (models > 1 and pairs == benchmarks) or (benchmarks > 1 and pairs == models):
        return -math.inf
    names = [name for name in long.keys if name in ("model", "benchmark", "metric", "run", "checkpoint")]
    cells = int(np.prod([scores[name].nunique() for name in names]))
    points: float = 3.0 * min(1.0, len(scores) / cells) - 3.0 + (1.0 if models > 1 else -1.5) + 0.5 * (benchmarks > 1)
    if "item" in long.rows:
        answered = long.rows[["model", "benchmark", "item"]].drop_duplicates()
        points += 3.0 * len(answered) / (models * len(answered[["benchmark", "item"]].drop_duplicates())) - 3.0
    if long.items:
        points += 1.0 * ("answer" in long.told) - 2.0 * bool(scores["n"].median() < 8)
    return points
