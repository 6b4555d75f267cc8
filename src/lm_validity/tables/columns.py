"""Which column of a table is what: model, benchmark, value, error, a fact about the model, or nothing that is read."""

import csv
import io
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lm_validity.config.sheets import metric_key
from lm_validity.errors import InputError, did_you_mean
from lm_validity.tables.cell_text import (
    has_other_letters,
    is_missing,
    is_unbounded,
    names_average,
    names_cost,
    names_count,
    names_rank,
    names_spread,
    parts,
    plain,
    read_cell,
    spread_of,
)
from lm_validity.tables.claims import Claim
from lm_validity.tables.decisions import CONVERTED, EVERY, LEFT_OUT, READ, Decision
from lm_validity.tables.task_facts import find_task_facts, metric_direction
from lm_validity.words import listing

# Columns of a score that a file may have, and other names by which they are found in a header
ROLES: dict[str, tuple[str, ...]] = {
    "model": ("model_name", "model_id", "llm_model", "fullname", "llm", "model_name_or_path", "base_model_name",
              "models", "llms", "model_version"),
    "benchmark": ("task", "dataset", "scenario", "evaluation", "eval", "benchmark_id", "benchmark_name", "task_name",
                  "dataset_name", "task_id", "benchmarks", "tasks", "datasets"),
    "value": ("score", "result", "metric_value", "scores", "estimate"),
    "stderr": ("standard_error", "std_err", "std_error", "sem"),
    "metric": ("metric_name", "measure"),
    "checkpoint": (),
    "iteration": ("step", "steps"),
    "tokens_b": (),
    "protocol": (),
    "prepared_on": (),
    "prompt": (),
    "prompt_variant": (),
    "num_fewshot": ("n_shot", "shots", "num_shots", "n_shots", "fewshot", "few_shot", "number_of_shots"),
    "seed": (),
    "run": ("trial", "repeat", "repetition", "replicate", "run_id", "sampling_seed", "sample_seed"),
    "split": (),
    "n_items": ("num_samples", "num_examples", "n_samples", "num_items", "num_questions", "n_questions"),
    "higher_is_better": (),
}  # fmt: skip
_OF_LONG = ("benchmarks", "tasks", "datasets")  # beside a column of values; else perhaps a number of them
# The column of documents in a table with a row for each answer, and those that say whether it is right
ITEM = ("item", "item_id", "question_id", "example_id", "doc_id", "sample_id", "instance_id", "qid", "problem_id",
        "question", "id", "index", "idx", "sample", "example", "problem", "instance")  # fmt: skip
RIGHT = ("pass1", "pass_1", "correct", "is_correct", "value", "score", "result", "acc", "accuracy", "exact_match",
         "passed", "pass", "resolved", "right", "em", "f1")  # fmt: skip
RIGHT_ANSWERS = ("answer", "gold", "label", "target", "correct_answer", "gold_answer", "answer_letter")
_SCORE_ENDS = (
    "lo",
    "hi",
    "low",
    "high",
    "lower",
    "upper",
    "err",
    "margin",
    "conf",
)  # benchmarks may end so: `mmlu_high`
_THINGS = frozenset(
    ("outputs", "errors", "comments", "asks", "timeouts", "windows", "responses", "cases", "calls", "turns", "attempts",
     "retries", "failures", "requests", "problems", "questions", "examples", "instances", "items")
)  # fmt: skip
SAYINGS = ("score", "left out", "about the models")  # what a reader may say of a column without a role
WITH_STEP = "model and step"  # in a reading, a column of models whose names end in steps of training
MODELS = "models"  # in a reading, one of models whose names may end so
FIRST = "first column"  # in a reading, one without a name
SCORE_COLUMNS = "columns of scores"  # in a reading, whose names are those of what: `model`, `benchmark` or `metric`
_LEFT = ("hf_path", "path", "url", "link", "type", "precision", "organization", "notes")

# what says something of a model, under the models sheet's names
_FACTS = {
    "tokens_per_step": re.compile(r"(.*_)?(batch_size_(in_)?tokens|tokens_per_(step|batch))"),
    "tokens_b": re.compile(
        r"((num|n|total|train(ing)?|pretrain(ing)?|throughput_total)_)?(g?tokens|(pre)?training_data_size)"
        r"(_seen|_trained)?(_[tbm]|_billions?|_trillions?)?"
    ),
    "parameters_b": re.compile(
        r"((num|n|total)_)?(params?|parameters?|param(eter)?_counts?|model_size|size(?=_))(_in)?(_[bm]|_billions?|_millions?)?"
    ),
    "family": re.compile(r"(model_)?family"),
}
# and under their own
_OTHER_FACT = re.compile(
    r"((peak|max)_)?lr|(.*_)?(learning_rate(_\w+)?|vocab(ulary)?_size|batch_size|((n|num)_)?(layers?|heads?)|(hidden|model)_(size|dim)|d_model|"
    r"(context|seq|sequence)_(len|length|window|size)|warmup(_\w+)?|weight_decay|epochs?|\w*flops?|(training_)?compute|date|year|"
    r"max_tokens|params_\w+|parameters_\w+|\w+_[mbg]?params|[mbg]params|release(d|_date)?|"
    r"(image|img|text|vision)_(size|width|dim)|crop_(pct|size|ratio)|(embed(ding)?|projection)_(dim|size))"
    r"|temperature|top_[pk]|repetition_penalty|(\w+_)?(sha|commit|hash)|label|size|architecture|training_data|instruction_tuned|rerun_of|licen[sc]e"
)

# pass@5, top-1, acc1, NDCG@10
_AT_A_NUMBER = re.compile(r"(pass|top)[-_]?@?\d|acc@?\d+$|(ndcg|map|mrr|recall|precision|hits?)(@|_at_)\d+$", re.I)
_OF_EMBEDDING = re.compile(r"embed(ding)?_dim|max_tokens|memory_usage")  # facts beside the scores of a board of these
_OF_ANY_SCORE = frozenset(("score", "scores", "best", "final", "result", "results", "value", "accuracy", "acc"))
_OF_CODE = re.compile(r"(\w+_)?(sha|commit|hash)")  # of a version; numbers are scores of a task (`code_commit`)


# Columns by which a sheet of ours is told from a table of scores
_SHEETS = {
    "models": ({"size_class", "dtype"}, {"in_compute_plot"}, {"in_compute_analysis"}, {"guessed", "instruction_tuned"}),
    "benchmarks": ({"output_type", "category"}, {"output_type", "metric"}),
    "language models": ({"language_model", "size_class"},),
    "models to be trained": ({"layers", "steps", "learning_rate", "studies"},),
    "cells to be computed": ({"round", "reason", "probability"},),
}


def is_sheet(header: list[str]) -> str | None:
    """What the rows of a sheet of ours with this header are; None for a table of scores."""
    names = {plain(name) for name in header}
    if "value" in names:
        return None
    return next((sheet for sheet, marks in _SHEETS.items() if any(mark <= names for mark in marks)), None)


def fact_column(name: str) -> str | None:
    """The column of the models sheet for a column of this name; None where it is a score's."""
    plain_name = plain(name)
    if names_average(name) or names_rank(name) or is_unbounded(name):
        return None
    fact_found = next((fact for fact, pattern in _FACTS.items() if pattern.fullmatch(plain_name)), None)
    return fact_found or (plain_name if _OTHER_FACT.fullmatch(plain_name) else None)


def in_billions(column_name: str, values: list[str | float | None]) -> list[str | float | None]:
    """Tokens or parameters in billions: by the unit in the column's plain name or behind a number (`7B`), else counts
    are told by their size."""
    scales = {"t": 1e3, "b": 1.0, "m": 1e-3}
    unit = re.search(r"_(t|trillions?|b|billions?|m|millions?)$", column_name)
    numbers = [value for value in values if isinstance(value, float)]
    scale = scales[unit[1][0]] if unit else 1e-9 if max(numbers, default=0) > 1e6 else 1.0
    scaled = list[str | float | None]()
    for value in values:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([tbm])", value, re.I) if isinstance(value, str) else None
        if match:
            scaled.append(float(match[1]) * scales[match[2].lower()])
        else:
            scaled.append(value * scale if isinstance(value, float) else value)
    return scaled


def is_setting(name: str) -> bool:
    """Whether a column says how or where a model is, and is neither a score nor a part of its name."""
    return plain(name) in _LEFT


def find_roles(header: list[str], roles_given: Mapping[str, str], taken: Iterable[str] = ()) -> dict[str, str]:
    """The column of each role that a header names; `roles_given` roles count first, `taken` columns have none."""
    roles = dict(roles_given)
    by_name = {
        name(column): column for name in (_bare, plain) for column in reversed(header) if not has_other_letters(column)
    }
    for role, synonyms in ROLES.items():
        named = next((by_name[name] for name in (role, *synonyms) if name in by_name), None)
        if role not in roles and named is not None and named not in (*roles.values(), *taken):
            roles[role] = named
    if "value" not in roles and "benchmark" not in roles_given and plain(roles.get("benchmark", "")) in _OF_LONG:
        del roles["benchmark"]
    return roles


def _bare(name: str) -> str:
    """A plain name without what stands in parentheses."""
    return "_".join(parts(name))


def roles_said(said_of: Mapping[str, str], header: list[str]) -> dict[str, str]:
    """The columns of a header to which the reader gives a role, by role."""
    roles = {
        ("model" if role in (WITH_STEP, MODELS) else role): name for name, role in said_of.items() if name in header
    }
    return {role: name for role, name in roles.items() if role in ROLES}


def check_column(column: str, header: list[str], where: object) -> None:
    """Raises InputError for a column that is not there; of a range `FIRST..LAST` for the end that is not."""
    if column not in header:
        column = next((end for end in column.split("..") if end not in header), column)
        hint = did_you_mean(column, header[:10_000], f"the columns are: {listing(header, 20)}.")
        raise InputError(f"{where}: no column {column!r}.", hint)


def telling(header: list[str], texts: Callable[[str], np.ndarray]) -> str | None:
    """The first column of texts that are all different: perhaps that of the models."""
    for name in header[:100]:
        cell_texts = texts(name)
        if (
            len(cell_texts)
            and len(set(cell_texts)) == len(cell_texts)
            and all(text and read_cell(text) is None for text in cell_texts)
        ):
            return name
    return None


@dataclass
class Columns:
    """What the columns beside those with a role are. scores: in order. variants: what columns of one
    benchmark say of it and of their metric. spreads: columns of errors by the column they
    belong to and their kind. facts: columns of the models sheet by column. decisions: what is left out, and why."""

    scores: list[str] = field(default_factory=list)
    variants: dict[str, Claim] = field(default_factory=dict)
    spreads: dict[str, dict[str, str]] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)

    def leave_out(self, name: str, reason: str, source: str) -> None:
        """Keep the decision that a column is not read."""
        self.decisions.append(Decision("column", name, "left out", source, LEFT_OUT, 1, "score", f"{name!r} {reason}"))


def classify(
    header: list[str],
    texts: Callable[[str], np.ndarray],
    roles: Mapping[str, str],
    sayings: Mapping[str, str],
    *,
    facts: bool = True,
) -> Columns:
    """What each column without a role is. `sayings`: what the reader says of a column (`score`, `left out`, `about the
    models`), or of all others (`left out`: they are no scores); `facts`: whether columns may say something of models.

    Left out are columns of which hardly a cell is a number; single cells that are none are missing scores.
    """
    named = [name for name in header if sayings.get(name) == "score"] if sayings.get(EVERY) == "left out" else None
    sayings = {name: saying for name, saying in sayings.items() if saying in SAYINGS and name not in (named or ())}
    columns, owners = Columns(), {plain(name): name for name in reversed(header) if name not in roles.values()}
    for name in list(owners.values()):  # x_mean beside x_std
        owners.setdefault(re.sub(r"_(mean|avg)$", "", plain(name)), name)
    for name in header:
        saying, spread = sayings.get(name), spread_of(name, owners)
        fact = (
            fact_column(name) if facts and not (_OF_CODE.fullmatch(plain(name)) and _are_shares(texts(name))) else None
        )
        if name in roles.values() or saying == "left out" or (saying == "about the models" and not fact):
            continue
        if saying is None and spread is not None and _is_numeric(texts(name)):
            columns.spreads.setdefault(spread.owner, {})[spread.kind] = name
            columns.decisions.append(
                Decision("column", name, f"{spread.kind} of {spread.owner}", "name", READ, 1, "score")
            )
        elif saying is None and (other := not_a_score(name, owners)):
            columns.leave_out(name, other, "name")
        elif saying is None and plain(name).endswith("_id") and _are_identifiers(texts(name)):
            columns.leave_out(name, "is an identifier", "name")
        elif fact and saying in (None, "about the models"):
            columns.facts[name] = fact
        elif saying == "score" or _may_be_scores(name, texts(name), columns):
            columns.scores.append(name)
    _averages_of_others(columns, sayings)
    _means_over_items(columns, header, roles, sayings, texts)
    _own_spreads(columns, sayings, texts)
    _whole_counts(columns, sayings, texts)
    of_one = variants([name for name in columns.scores if sayings.get(name) != "score"])
    for name, variant in of_one.items():
        decided = f"{variant['benchmark']}, {variant['metric']}"
        text = f"{name!r} is {variant['benchmark']} by {variant['metric']}"
        columns.decisions.append(Decision("column", name, decided, "name", CONVERTED, 1, "score", text))
    columns.variants = of_one
    columns.scores = columns.scores if named is None else named
    return columns


def _are_shares(cell_texts: np.ndarray) -> bool:
    """Whether cells hold numbers, and not whole ones above 100 as hashes of digits are."""
    return _is_numeric(cell_texts) and not _are_identifiers(cell_texts)


def _are_identifiers(cell_texts: np.ndarray) -> bool:
    """Whether cells hold whole numbers, some above 100: `xcopa_id`, Indonesian, has shares or percent."""
    numbers = [cell.value for text in cell_texts if (cell := read_cell(str(text))) is not None]
    return any(number > 100 for number in numbers) and all(number.is_integer() for number in numbers)


def _averages_of_others(columns: Columns, sayings: Mapping[str, str]) -> None:
    """Leave out names that say nothing but average and the last word of three other names and of at least half of them:
    `Avg. WER` beside `News WER`, `Talks WER` and `Calls WER`."""
    last_words = {name: (parts(name) or [""])[-1] for name in columns.scores}
    word_counts, total = Counter(last_words.values()), len(columns.scores) - 1
    for name in [name for name in columns.scores if name not in sayings]:
        of_others = {word: word_counts[word] - (word == last_words[name]) for word in parts(name)}
        own_words = [word for word in parts(name) if of_others[word] < max(3, total / 2)]
        if len(own_words) < len(parts(name)) and names_average(" ".join(own_words)):
            columns.scores.remove(name)
            columns.leave_out(name, "is an average", "name")


def _means_over_items(
    columns: Columns,
    header: list[str],
    roles: Mapping[str, str],
    sayings: Mapping[str, str],
    texts: Callable[[str], np.ndarray],
) -> None:
    """Averages count beside other scores or errors where no column names a benchmark (`mean_score` beside `Best
    score`): they are over items. A column of errors is that of the only one."""
    means = [
        name
        for name in header
        if names_average(name) and name not in (*roles.values(), *sayings, *columns.scores) and _is_numeric(texts(name))
    ]
    if not means or not (columns.scores or "stderr" in roles) or not all(map(names_no_benchmark, columns.scores)):
        return
    columns.decisions = [decision for decision in columns.decisions if decision.where not in means]
    columns.scores = [*means, *columns.scores]
    if len(means) == 1 and "stderr" in roles:
        columns.spreads.setdefault(means[0], {})["stderr"] = roles["stderr"]


def _own_spreads(columns: Columns, sayings: Mapping[str, str], texts: Callable[[str], np.ndarray]) -> None:
    """Spreads without a column of their own (`standard_error`, `rating_q025`, `Max Delta`): of the only score, where
    there is one; else left out."""
    bare = [name for name in columns.scores if sayings.get(name) != "score" and _is_spread(name)]
    owners = [name for name in columns.scores if name not in bare]
    if not owners or (len(owners) > 1 and len(bare) == len(columns.scores)):
        return
    for name in bare:
        columns.scores.remove(name)
        kind = names_spread(name)
        if len(owners) == 1 and kind is not None and _is_numeric(texts(name)):
            columns.spreads.setdefault(owners[0], {})[kind] = name
            columns.decisions.append(Decision("column", name, f"{kind} of {owners[0]}", "name", READ, 1, "score"))
        else:
            columns.leave_out(name, "is a spread of no column", "name")


def not_a_score(name: str, owners: Mapping[str, str]) -> str | None:
    """What a column is by its name beside others that is no score: `x Raw` beside `x`, a tracker's own, of training."""
    owner = owners.get(plain(name).removesuffix("_raw"))
    if plain(name).endswith("_raw") and owner is not None:
        return f"is before normalising, {owner!r} after it"
    if re.match(r"_(?!_)", name):
        return "is a tracker's own"
    if plain(name) == "zero_shot" and any(map(_OF_EMBEDDING.match, owners)):
        return "is the share of tasks that a model was not trained on"
    of_training = re.match(r"train/|(train_(loss|runtime)|grad_norm|total_flos)$", name)
    return "is of training" if of_training else None


def _whole_counts(columns: Columns, sayings: Mapping[str, str], texts: Callable[[str], np.ndarray]) -> None:
    """Leave out numbers of things (`error_outputs`): by a last word in the plural, and whole numbers where another
    column has decimals."""
    cells = {name: [read_cell(text) for text in texts(name) if not is_missing(text)] for name in columns.scores}
    integer_columns = {
        name for name, numbers in cells.items() if all(number is None or number.value % 1 == 0 for number in numbers)
    }
    if len(integer_columns) == len(columns.scores):
        return
    for name in [name for name in columns.scores if name in integer_columns and sayings.get(name) != "score"]:
        if parts(name)[-1:] and parts(name)[-1] in _THINGS and not any(n and n.percent for n in cells[name]):
            columns.scores.remove(name)
            columns.leave_out(name, "counts things", "name and values")


def _is_spread(name: str) -> bool:
    """Whether a name says by its end, in a word that benchmarks do not end in, that it is a spread or a difference."""
    last = parts(name)[-1:]
    is_named = names_spread(name) is not None and len(plain(name)) > 2 and last[0] not in _SCORE_ENDS
    return last == ["delta"] or is_named


def variants(names: Sequence[str]) -> dict[str, Claim]:
    """Benchmark, metric and number of solved examples of columns that are variants of one benchmark: two or more that
    are alike before a comma, which begins lm-eval's filter (`quiz_5_exact_match,strict-match`), or before the name of a
    metric (`quiz acc`, `quiz acc_norm`)."""
    variants_found: dict[str, Claim] = {}
    starts: dict[str, list[str]] = defaultdict(list)
    for name in names:
        start, comma, remainder = name.partition(",")
        if remainder[:1] == " ":  # a comma of words
            continue
        stem, metric = _stem_and_metric(start)
        fields: Claim
        if comma and is_metric(remainder):
            fields = {"benchmark": start, "metric": metric_key(plain(remainder))}
        elif comma:
            fields = {"benchmark": stem, "metric": f"{plain(metric) or 'score'},{remainder}"}
        elif metric and find_task_facts(name) is None:  # truthfulqa_mc1 is a task
            fields = {"benchmark": stem, "metric": metric_key(plain(metric))}
        else:
            continue
        shots = re.fullmatch(r"(.+)_(\d{1,2})", stem) if comma and metric else None
        if shots:
            fields |= {"benchmark": shots[1], "num_fewshot": int(shots[2])}
        variants_found[name] = fields
        starts[stem].append(name)
    return {name: variants_found[name] for several in starts.values() if len(several) > 1 for name in several}


def is_metric(name: str) -> bool:
    """Whether lm-eval's tasks have a metric of this name, which may end in `norm` or the like behind a comma."""
    return metric_direction(plain(name)) is not None


def by_metric(keys: Sequence[Claim]) -> list[Claim]:
    """The keys, with the metric behind a slash in a benchmark's name (`arc_easy/acc`) as the metric: where no key of
    such a name has a metric, and all names with the same start end in one (`sports/f1` beside `sports/golf` does not).
    """
    ends: dict[str, bool] = {}  # by what stands before the slash: whether a metric stands behind it in each name
    for key in keys:
        start, _, end = key.get("benchmark", "").rpartition("/")
        ends[start] = ends.get(start, True) and key.get("metric") is None and not end.isdigit() and is_metric(end)
    parted = [(key, *key.get("benchmark", "").rpartition("/")) for key in keys]
    return [
        key | {"benchmark": start, "metric": metric_key(end)} if start and ends[start] else key
        for key, start, _, end in parted
    ]


def names_metric(name: str) -> bool:
    """Whether a name is that of a usual metric: one of lm-eval's tasks, `accuracy`, `pass@5`."""
    return is_metric(name) or plain(name) == "accuracy" or _AT_A_NUMBER.match(name) is not None


def names_no_benchmark(name: str) -> bool:
    """Whether a name says only that something is a score: that of a metric, an average, `Best score`."""
    return names_metric(name) or names_average(name) is True or (bool(parts(name)) and {*parts(name)} <= _OF_ANY_SCORE)


def _stem_and_metric(name: str) -> tuple[str, str]:
    """What stands before a metric at the end of a name, and the metric; "" where it ends in none."""
    places = [match.start() for match in re.finditer(r"[-_ /:]", name)]
    index = next((index for index in places if index and is_metric(name[index + 1 :])), None)
    return (name, "") if index is None else (name[:index].rstrip("-_ /:"), name[index + 1 :])


def _may_be_scores(name: str, cells: np.ndarray, columns: Columns) -> bool:
    texts_known = [text for text in cells if not is_missing(text)]
    numbers = [text for text in texts_known if read_cell(text) is not None]
    if plain(name) in _LEFT or not texts_known or len(numbers) < max(1, 0.5 * len(texts_known)):
        columns.leave_out(name, "holds no numbers", "values")
    elif names_average(name) or names_rank(name) or names_cost(name) or names_count(name):
        columns.leave_out(name, "is an average, a rank, a cost or a count", "name")
    else:
        return True
    return False


def _is_numeric(cells: np.ndarray) -> bool:
    texts_known = [text for text in cells if not is_missing(text)]
    return all(read_cell(text) is not None for text in texts_known)


# ---- the header ------------------------------------------------------------------------------------------------------


def one_header(text: str) -> tuple[str, list[str]]:
    """The text with one header line: titles above it are left out, lines with fewer separators or with one cell only;
    two lines of names, of which the upper stands over several columns, become one, which is given too."""
    lines = text.split("\n")
    filled = [index for index, line in enumerate(lines[:50]) if line.strip(" ,;\t\r") and not line.startswith("#")]
    while len(filled) > 2 and _is_title(*(lines[index] for index in filled[:3])):
        lines[: filled[1]] = [""] * filled[1]
        del filled[0]
    mark = next((mark for mark in "\t,;" if filled and mark in lines[filled[0]]), ",")
    upper, lower, below = [*csv.reader((lines[index] for index in filled[:3]), delimiter=mark), [], [], []][:3]
    above = [name.strip() for name in upper]
    repeats = len(set(above)) < len(above) == len(lower) and set(above) != {""}
    if not repeats or any(map(read_cell, lower)) or not any(map(read_cell, below)):
        return "\n".join(lines), []
    over = ""
    for index, name in enumerate(above):  # the cell of a spreadsheet that is over several columns stands in the first
        over = above[index] = name or over
    once = Counter(map(plain, lower))
    header = [
        name
        if not addition or (name and once[plain(name)] == 1 and not is_metric(name))
        else f"{addition} {name}".strip()
        for addition, name in zip(above, map(str.strip, lower), strict=True)
    ]
    out = io.StringIO()
    csv.writer(out, delimiter=mark, lineterminator="").writerow(header)
    lines[filled[0]], lines[filled[1]] = out.getvalue(), ""
    return "\n".join(lines), header


def _is_title(line: str, *below: str) -> bool:
    """Whether a line is no header: it has one cell, the lines below have more."""
    cells, least = re.split(r"[,;\t]", line), min(len(re.findall(r"[^,;\t]+", line_below)) for line_below in below)
    return len(list(filter(str.strip, cells))) == 1 and least > 2
