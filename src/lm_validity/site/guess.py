"""What result files do not say and names tell: models, benchmarks, tasks."""

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas as pd

from lm_validity.tables.counted import under_metric
from lm_validity.tables.metrics import (
    TaskFacts,
    choose_metric,
    distinct_metrics,
    find_task_facts,
    known_directions,
    metric_direction,
)
from lm_validity.tables.schema import LARGEST_SCORE, NO_STUDY, NUMBERS, of_study
from lm_validity.tables.training import last_iterations
from lm_validity.words import count, listing

# ----------------------------------------------------------------------------------------------------------------------
# The two sheets guessed from scores: what names, the table of lm-eval's tasks and the files themselves say.
#
# A guess is a value that nobody gave. The column `guessed` of each sheet names the columns of a row that are guesses.

MODEL_SHEET = (
    "model", "label", "family", "parameters_b", "tokens_b", "tokens_per_step", "instruction_tuned", "studies",
    "guessed",
)  # fmt: skip
BENCHMARK_SHEET = (
    "benchmark", "category", "metric", "output_type", "higher_is_better", "choices", "chance", "num_fewshot",
    "prepared_on", "studies", "guessed",
)  # fmt: skip
_ACCURACIES = ("acc", "acc_norm")
_KINDS = ("model", "benchmark")

# 1.4b, 125m, and Bloom's 7b1; after "1_" it may be the decimals of a number
_SIZE = re.compile(r"(?<![a-z\d.])(?<!\d_)(\d+(?:\.\d+(?![bm]\d))?)([bm])(\d?)(?![a-z\d])", re.IGNORECASE)
# Words of a model's name after which nothing names its family
_NOT_FAMILY = re.compile(
    r"(?<![a-z])(v?\d|base|chat|instruct|it|hf|deduped|small|medium|large|xl|xxl|mini|tiny|alpha|beta|preview)"
    r"(?![a-z])|[-_.]?\d",
    re.IGNORECASE,
)
# A word and its number, which is no size and, as in 1024x28, no width
_NUMBERED = re.compile(r"[a-z]+[-_ ]?v?\d+(?:\.\d+)?(?![\d.]*[bm]?\d|[\d.]*[bm](?![a-z])|[\d.]*x\d)")
LEAST_NUMBERED = 6
_INSTRUCTED = re.compile(r"(?<![a-z])(chat|instruct|instruction|it|sft|dpo|rlhf)(?![a-z])", re.IGNORECASE)
_BATCH = re.compile(r"(\d+(?:\.\d+)?)MtokBS", re.IGNORECASE)  # Pythia's runs with other batches
# Tokens in a step of pretraining, by family: Pythia's is 1024 sequences of 2048 tokens (Biderman et al., 2023)
_TOKENS_PER_STEP = {"pythia": 2**21}


def guess_models(scores: pd.DataFrame, facts: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """A row of `MODEL_SHEET` for each model of the scores, and a column for each other of `facts`.

    Family, size and tuning are read from the name; `facts`: columns that result files give, by model, which count
    before it. Tokens are those of the last iteration, where the tokens in a step are known.
    """
    extra_columns = dict.fromkeys(
        column for columns in facts.values() for column in columns if column not in MODEL_SHEET
    )
    last = last_iterations(scores)
    rows = []
    for model in sorted(scores["model"].unique(), key=str.lower):
        name = model.rstrip("/").rpartition("/")[2]
        family = guess_family(name)
        directions = {
            column: value
            for column, value in facts.get(model, {}).items()
            if value is not None
            # a column of sizes may hold texts
            and (column not in NUMBERS or (isinstance(value, int | float) and 0 < value < LARGEST_SCORE))
        }
        step = directions.get("tokens_per_step", guess_tokens_per_step(name, family))
        tokens = None if step is None or pd.isna(last[model]) else float(last[model]) * step / 1e9
        row = {
            "model": model,
            "label": name,
            "family": family,
            "parameters_b": guess_size(name),
            "tokens_b": tokens,
            "tokens_per_step": step,
            "instruction_tuned": 1 if _INSTRUCTED.search(name) else None,
        }
        rows.append(_marked(row | directions, columns_known=("model", "label", *directions)))
    if not any("family" in columns for columns in facts.values()):
        _number_families(rows)
    return pd.DataFrame(rows, columns=[*MODEL_SHEET, *extra_columns], dtype=object)


def guess_benchmarks(scores: pd.DataFrame, groups: Mapping[str, str] | None = None) -> pd.DataFrame:
    """A row of `BENCHMARK_SHEET` for each benchmark of the scores.

    The metric is as `choose_metric` says; a benchmark of which that is unsure is in no study. Its direction
    is what the scores say, else the table's. Chance is one over the number of choices, for accuracies. `groups`: a task
    of each group of like tasks, whose facts are the group's.
    """
    rows = []
    for benchmark, rows_of_benchmark in scores.groupby("benchmark", sort=True):
        facts = find_task_facts(benchmark) or find_task_facts((groups or {}).get(benchmark, "")) or TaskFacts()
        names = [name for name in rows_of_benchmark["metric"].unique() if isinstance(name, str)]
        metric = choose_metric(facts, names)
        if metric is None and len(names) > 1:
            metric = choose_metric(facts, distinct_metrics(rows_of_benchmark))
        directions = rows_of_benchmark.loc[
            under_metric(rows_of_benchmark["metric"], metric), "higher_is_better"
        ].dropna()
        direction = bool(directions.iloc[0]) if len(directions) else _direction(facts, metric)
        choices = int(facts.choices) if facts.choices else None
        accurate = metric is not None and metric.partition(",")[0] in _ACCURACIES
        row = {
            "benchmark": benchmark,
            "category": facts.category or None,
            "metric": metric,
            "output_type": facts.output_type or None,
            "higher_is_better": None if direction is None else int(direction),
            "choices": choices,
            "chance": round(1 / choices, 4) if choices and accurate else None,
            "studies": NO_STUDY if metric is None and len(names) > 1 else None,
        }
        rows.append(
            _marked(row, columns_known=("benchmark", "studies") + (("higher_is_better",) if len(directions) else ()))
        )
    return pd.DataFrame(rows, columns=list(BENCHMARK_SHEET), dtype=object)


def guess_family(name: str) -> str | None:
    """What stands in a model's name before its first number or word of another kind: `Llama` of `Llama-2-7b-hf`."""
    stem = _NOT_FAMILY.split(name.lower().removeprefix("meta-"), maxsplit=1)[0]
    return stem.strip("-_. ") or None


def _number_families(rows: Sequence[dict[str, object]]) -> None:
    """Families are told apart by number, `fam0` to `fam39`, where by word alone all models are of one, and several
    models have one number; a few numbers are generations of one family."""
    numbered = [_NUMBERED.match(str(row["label"]).lower()) for row in rows]
    names = Counter(match[0] for match in numbered if match)
    if len({row["family"] for row in rows}) == 1 and all(numbered) and LEAST_NUMBERED <= len(names) <= len(rows) / 2:
        for row, match in zip(rows, numbered, strict=True):
            row["family"] = match and match[0]


def guess_size(name: str) -> float | None:
    """Billions of parameters as a name says them, `1.4b` or `125m`; None where it says none or several (8x7B)."""
    sizes = {
        float(f"{number}.{suffix}" if suffix else number) / (1 if unit in "bB" else 1000)
        for number, unit, suffix in _SIZE.findall(name)
    }
    return round(sizes.pop(), 6) if len(sizes) == 1 else None


def guess_tokens_per_step(name: str, family: str | None) -> int | None:
    """Tokens in a step of pretraining, for families where that is published; None: unknown."""
    tokens_known = next(
        (tokens for part, tokens in _TOKENS_PER_STEP.items() if part in (family or "").split("-")), None
    )
    batch = _BATCH.search(name)
    return int(float(batch[1]) * 2**20) if tokens_known and batch else tokens_known


def leave_sparse_out(
    models: pd.DataFrame,
    benchmarks: pd.DataFrame,
    scores: pd.DataFrame,
    given_names: Collection[str] = (),
    to_include: str = "empty its cell in the column `studies` of",
) -> list[str]:
    """Take benchmarks with scores of fewer than half of the models out of their comparison, then such models.

    Writes `studies` of the two sheets, in place; one sentence for each kind left out. Of `given_names` rows, the
    reader has decided. `to_include`: what a reader does to a row in the sheet to take it back.
    """
    notes = []
    has_score = pd.crosstab(scores["model"], scores["benchmark"]) > 0
    along = scores.groupby("model")["checkpoint"].nunique().max() > 1
    for sheet, key, other_kind in ((benchmarks, "benchmark", "models"), (models, "model", "benchmarks")):
        counts, all_others = (
            has_score.sum(axis=0 if key == "benchmark" else 1),
            has_score.shape[0 if key == "benchmark" else 1],
        )
        open_rows = set(sheet[key]) - set(given_names)
        sparse = sorted(open_rows & set(counts.index[counts < math.ceil(all_others / 2)]))
        if len(sparse) == len(counts):
            continue
        sheet.loc[sheet[key].isin(sparse), "studies"] = "signal" if along else NO_STUDY
        kept_names = set(sheet.loc[of_study(sheet, "agreement"), key])
        has_score = (
            has_score.loc[:, has_score.columns.isin(kept_names)]
            if key == "benchmark"
            else has_score.loc[has_score.index.isin(kept_names)]
        )
        if not sparse:
            continue
        notes.append(
            f"Left out of the comparison of models, with scores on fewer than half of the {all_others} {other_kind}: "
            f"{len(sparse)} {key}{'s' if len(sparse) > 1 else ''} ({listing(sparse, 3)}). To include one, "
            f"{to_include} {key}s.tsv."
        )
    return notes


def guess_lines(models: pd.DataFrame, benchmarks: pd.DataFrame, scores: pd.DataFrame) -> list[str]:
    """How many rows of the sheets have guesses, and which benchmarks have no known direction, for a terminal."""
    guessed = {
        kind: int(sheet["guessed"].notna().sum()) for kind, sheet in zip(_KINDS, (models, benchmarks), strict=True)
    }
    lines = [
        f"Guessed for {count(number, kind)}: the column `guessed` of {kind}s.tsv."
        for kind, number in guessed.items()
        if number
    ]
    undirected = benchmarks.loc[known_directions(benchmarks, scores).isna(), "benchmark"]
    if len(undirected):
        lines.append(
            f"Direction unknown, so a higher score is taken as better: {listing(undirected, 4)} (column "
            "`higher_is_better` of benchmarks.tsv)."
        )
    return lines


def _marked(row: dict[str, object], columns_known: tuple[str, ...]) -> dict[str, object]:
    """The row with the names of its guessed columns."""
    return row | {
        "guessed": ",".join(name for name, value in row.items() if value is not None and name not in columns_known)
        or None
    }


def _direction(facts: TaskFacts, metric: str | None) -> bool | None:
    if metric is not None and metric.partition(",")[0] == facts.metric.partition(",")[0] and facts.higher_is_better:
        return facts.higher_is_better == "1"
    return metric_direction(metric) if metric else None


def shared_categories(sheet: pd.DataFrame) -> pd.DataFrame:
    """The benchmarks with categories that two of those compared share, if there are two such; else without any."""
    counts = sheet.loc[sheet["studies"].isna(), "category"].value_counts()
    shared = counts.index[counts > 1]
    categories_kept = sheet["category"].where(sheet["category"].isin(shared if len(shared) > 1 else []), None)
    guessed = [
        ",".join(name for name in (text or "").split(",") if name != "category" or category is not None) or None
        for text, category in zip(sheet["guessed"], categories_kept, strict=True)
    ]
    return sheet.assign(category=categories_kept, guessed=guessed)
