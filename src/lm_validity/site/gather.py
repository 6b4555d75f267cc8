"""Everything that a command was given, in one place: result files imported, tables of ours read, scores joined; and the
two sheets of a site, given or guessed from what names, the table of lm-eval's tasks and the files themselves say."""

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import join, quote
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from lm_validity.config.rows import parse_group
from lm_validity.config.sections import CARDS, REPORTS, Agreement, Cards, Reports
from lm_validity.errors import InputError, nearest
from lm_validity.files import as_written, made_of_results, read_json_or, write_text
from lm_validity.tables import metrics, schema
from lm_validity.tables.counted import check_metrics, under_metric
from lm_validity.tables.formats.import_files import import_files
from lm_validity.tables.formats.score_files import ImportOptions
from lm_validity.tables.schema import KEY, SCORES, read_scores
from lm_validity.tables.settings import joined_settings
from lm_validity.tables.training import last_iterations
from lm_validity.words import count, listing

MODELS, BENCHMARKS = "models.tsv", "benchmarks.tsv"
NO_ERRORS = (
    "No standard errors. If the scores are shares of right answers, say so: --columns '..., error=COLUMN(items)'."
)
# A table of ours by the columns that only it has
_MARKS = {
    "scores": {"benchmark", "protocol", "value"},
    "items": {"benchmark", "doc_id", "correct"},
    "trials": {"experiment", "arm", "correct"},
    "selections": {"learning_rate", "direct_validation_value"},
    "losses": {"learning_rate", "step", "loss"},  # which no report reads
    "settings": {"task_version", "harness", "n_items_scored"},  # read where it lies beside scores
}


@dataclass(frozen=True)
class Given:
    """What a reader may give beside the results. `options`: how files are imported; `splits` and `source`: as cards
    take them; `plan`: the sheet of what was to be fine-tuned, other cells are not missing. `single_file`: as
    `build_site` takes it; `mix_versions`: unlike versions of a task, and unlike parts of its items, are compared.
    `since`: an earlier report; `without`: a file of items to leave out."""

    models: Path | None = None
    benchmarks: Path | None = None
    beside: Path | None = None
    options: ImportOptions = field(default_factory=ImportOptions)
    section: Reports = REPORTS
    cards: Cards = CARDS
    splits: Path | None = None
    source: str = ""
    plan: Path | None = None
    agreement: Agreement = field(default_factory=Agreement)
    single_file: bool = False
    mix_versions: bool = False
    since: Path | None = None
    without: Path | None = None


class Sheets(NamedTuple):
    """The models sheet and the benchmarks sheet of a site."""

    models: pd.DataFrame
    benchmarks: pd.DataFrame


@dataclass
class Gathered:
    """Tables by kind. `facts`: columns of the models sheet that result files say, by model. `groups`: of each benchmark
    that is a group of tasks, one of these. `settings`: how the scores were made."""

    scores: pd.DataFrame | None = None
    items: Path | None = None
    trials: Path | None = None
    selections: Path | None = None
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)
    settings: pd.DataFrame | None = None
    line: str = ""  # what was read of tables, for the first page
    lines: list[str] = field(default_factory=list)

    @property
    def own_models(self) -> tuple[str, ...]:
        """The models of the scores, sorted."""
        return () if self.scores is None else tuple(sorted(self.scores["model"].unique()))


def gather(paths: Iterable[str | Path], folder: Path, options: ImportOptions) -> Gathered:
    """Import what is to be imported into `folder`, read the tables among the paths, and join the scores.

    A folder that holds scores.parquet or trials.parquet (itself or in `tables/`) counts as those tables; any other is
    searched for files of the known formats. Raises InputError for a path that is not there, two tables of items, trials
    or selections, different scores of one thing in two tables, and as `import_files` does.
    """
    tables, gathered = _sorted_out(paths), Gathered()
    score_tables, results = tables.get("scores", []), tables.get("", [])
    _check_options(options, score_tables, results)
    frames = [read_scores(path) for path in score_tables]
    gathered.lines += [f"{path}: no rows." for path, frame in zip(score_tables, frames, strict=True) if frame.empty]
    for kind in ("items", "trials", "selections"):
        if kind in tables:
            setattr(gathered, kind, _only(kind, tables[kind]))
    for path in score_tables:
        facts = read_json_or(path.with_name("import.json"), {}).get("facts")  # what an import wrote of the models
        gathered.facts = {**gathered.facts, **(facts if isinstance(facts, dict) else {})}
        if gathered.items is None and path.with_name("items.parquet").is_file():
            gathered.lines.append(f"{path.parent}/items.parquet is not read: give the folder, {path.parent}.")
    if results:
        scores, imported = import_files(results, folder, options)
        frames.append(scores)
        gathered.lines += imported.lines(scores)
        gathered.facts, gathered.groups = {**gathered.facts, **imported.facts}, imported.groups
        gathered.line = imported.line
        if imported.items:
            gathered.items = _only("items", [*([gathered.items] if gathered.items else []), folder / "items.parquet"])
    if any(map(len, frames)):
        names = [*map(str, score_tables), *(["the files"] if results else [])]
        gathered.scores = _joined(frames, names, gathered.lines)
        gathered.settings = joined_settings([*score_tables, folder / "scores.parquet"])
        schema.write_table(gathered.scores, SCORES, folder / "scores.parquet")
        if results and not gathered.items and scores["stderr"].isna().all() and scores["n_items"].notna().any():
            gathered.lines.append(NO_ERRORS)
    elif frames and not (gathered.items or gathered.trials):
        raise InputError(f"{score_tables[0]}: no rows.", "give a table with scores.")
    return gathered


def table_kind(path: Path) -> str | None:
    """Which of our tables a parquet file is: scores, items, trials or selections; None for one of others."""
    with schema.readable(path):
        columns = set(pq.read_schema(path).names)
    return next((kind for kind, marks in _MARKS.items() if marks <= columns), None)


def _check_options(options: ImportOptions, tables: Iterable[Path], results: Collection[Path]) -> None:
    """Raises InputError for what is said of result files where tables written by lm-validity are given."""
    for path in tables:
        if options.protocols.keys() & {as_written(path), *as_written(path).parents}:
            raise InputError(
                f"{path}: a table written by lm-validity has the protocol of each score.", "leave out PROTOCOL=."
            )
    settings: dict[str, object] = {"--protocol": options.protocol, "--prepared-on": options.prepared_on}
    settings |= {"--columns": options.columns, "--reading": options.reading}
    typed = [f"{name} {quote(str(value))}" for name, value in settings.items() if value is not None]
    typed += [f"--model {quote(f'{path}={name}')}" for path, name in options.names.items()]
    if not results and typed:
        raise InputError(
            f"{typed[0]}: tables written by lm-validity are read as they are.",
            f"leave it out, or make new ones: lm-validity import {join(map(str, tables))} {typed[0]} --output FOLDER.",
        )


def _sorted_out(paths: Iterable[str | Path]) -> dict[str, list[Path]]:
    """Our tables among the paths by kind, told by their columns, and under "" the rest, which is imported."""
    sorted_paths = dict[str, list[Path]]()
    for path in map(Path, paths):
        tables = [path] if path.is_file() and path.suffix == ".parquet" else []
        for folder in (path, path / "tables") if path.is_dir() else ():
            held = [table for kind in _MARKS if (table := folder / f"{kind}.parquet").is_file()]
            tables = tables or (held if any(table.stem in ("scores", "trials") for table in held) else [])
        kinds = {table: kind for table in tables if (kind := table_kind(table))}
        for table, kind in kinds.items():
            sorted_paths.setdefault(kind, []).append(table)
        if kinds:
            continue
        is_report = (path / "page.json").is_file() and (path / "results.parquet").is_file()
        if path.is_dir() and (is_report or made_of_results(path)):
            raise InputError(
                f"{path}: a report that this program wrote, not the scores it is of.",
                "give scores.parquet of the site, or the run's folder.",
            )
        sheets = schema.sheets_in(path) if path.is_dir() else {}
        sorted_paths.setdefault("", []).extend(sorted({*path.iterdir()} - {*sheets.values()}) if sheets else [path])
    return sorted_paths


def _only(kind: str, paths: list[Path]) -> Path:
    if len(paths) > 1:
        raise InputError(f"{paths[1]}: a second table of {kind}, beside {paths[0]}.", f"give one table of {kind}.")
    return paths[0]


def _joined(frames: list[pd.DataFrame], names: list[str], lines: list[str]) -> pd.DataFrame:
    """The scores of all tables, each once. Raises InputError, with the `names` of two tables, for different ones."""
    if len(frames) == 1:
        return frames[0]
    parts = [frame.dropna(axis=1, how="all").assign(table=name) for frame, name in zip(frames, names, strict=True)]
    frame = pd.concat(parts, ignore_index=True).reindex(columns=[*SCORES.names, "table"])
    key = list(KEY)
    again = frame.duplicated(key)
    first = frame.groupby(key, dropna=False, sort=False)[["value", "table"]].transform("first")
    contradicts = again & ~np.isclose(
        frame["value"].astype(float), first["value"].astype(float), rtol=1e-9, equal_nan=True
    )
    if contradicts.any():
        row = frame[contradicts].iloc[0]
        raise InputError(
            f"{count(int(contradicts.sum()), 'score')} with different values in {first.at[row.name, 'table']} and "
            f"{row['table']}, such as {row['model']} on {row['benchmark']}.",
            "give one of the two, or name the models of result files otherwise: --model PATH=NAME.",
        )
    if again.any():
        lines.append(f"Scores that an earlier table has too are left out: {int(again.sum())}.")
    return frame[~again].drop(columns="table").reset_index(drop=True)


# ----------------------------------------------------------------------------------------------------------------------
# The two sheets of a site: given, or guessed from scores. The column `guessed` names the columns of a row that are
# guesses, values that nobody gave.

MODEL_SHEET = (
    "model", "label", "family", "parameters_b", "tokens_b", "tokens_per_step", "instruction_tuned", "studies",
    "guessed",
)  # fmt: skip
BENCHMARK_SHEET = (
    "benchmark", "category", "metric", "output_type", "higher_is_better", "choices", "chance", "num_fewshot",
    "prepared_on", "studies", "guessed",
)  # fmt: skip
_ACCURACIES = ("acc", "acc_norm")

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
# Tokens in a step of Pythia's pretraining: 1024 sequences of 2048 (Biderman et al., 2023), or as a run's name says
_PYTHIA_STEP, _BATCH = 2**21, re.compile(r"(\d+(?:\.\d+)?)MtokBS", re.IGNORECASE)


def guess_models(scores: pd.DataFrame, facts: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """A row of `MODEL_SHEET` for each model of the scores, and a column for each other of `facts`.

    Family, size and tuning are read from the name; `facts`: columns that result files give, by model, which count
    before it. Tokens are those of the last iteration, where the tokens in a step are known.
    """
    last, rows = last_iterations(scores), []
    for model in sorted(scores["model"].unique(), key=str.lower):
        name = model.rstrip("/").rpartition("/")[2]
        from_files = {
            column: value
            for column, value in facts.get(model, {}).items()
            if value is not None
            # a column of sizes may hold texts
            and (column not in schema.NUMBERS or (isinstance(value, int | float) and 0 < value < schema.LARGEST_SCORE))
        }
        family, step = guess_family(name), None
        if "pythia" in (family or "").split("-"):
            step = int(float(batch[1]) * 2**20) if (batch := _BATCH.search(name)) else _PYTHIA_STEP
        step = from_files.get("tokens_per_step", step)
        guesses = {
            "family": family,
            "parameters_b": guess_size(name),
            "tokens_b": None if step is None or pd.isna(last[model]) else float(last[model]) * step / 1e9,
            "tokens_per_step": step,
            "instruction_tuned": 1 if _INSTRUCTED.search(name) else None,
        }
        rows.append({"model": model, "label": name} | _marked(guesses, from_files))
    if not any("family" in columns for columns in facts.values()):
        _number_families(rows)
    further = dict.fromkeys(column for columns in facts.values() for column in columns if column not in MODEL_SHEET)
    return pd.DataFrame(rows, columns=[*MODEL_SHEET, *further], dtype=object)


def _marked(guesses: Mapping[str, object], facts: Mapping[str, object]) -> dict[str, object]:
    """Guesses and, before them, facts as cells of a row, with the names of the guesses that count."""
    names = ",".join(name for name, value in guesses.items() if value is not None and name not in facts)
    return {**guesses, **facts, "guessed": names or None}


def guess_benchmarks(scores: pd.DataFrame, groups: Mapping[str, str] | None = None) -> pd.DataFrame:
    """A row of `BENCHMARK_SHEET` for each benchmark of the scores.

    The metric is as `choose_metric` says; a benchmark of which that is unsure is in no study. Its direction
    is what the scores say, else the table's. Chance is one over the number of choices, for accuracies. `groups`: a task
    of each group of like tasks, whose facts are the group's.
    """
    rows, group_tasks = [], groups or {}
    for benchmark, part in scores.groupby("benchmark", sort=True):
        tasks = map(metrics.find_task_facts, (benchmark, group_tasks.get(benchmark, "")))
        facts = next(filter(None, tasks), metrics.TaskFacts())
        names = [name for name in part["metric"].unique() if isinstance(name, str)]
        metric = metrics.choose_metric(facts, names)
        if metric is None and len(names) > 1:
            metric = metrics.choose_metric(facts, metrics.distinct_metrics(part))
        metric_name = metric and metric.partition(",")[0]
        directions = part.loc[under_metric(part["metric"], metric), "higher_is_better"].dropna()
        direction: bool | None
        if len(directions):
            direction = bool(directions.iloc[0])
        elif facts.higher_is_better and metric_name == facts.metric.partition(",")[0]:
            direction = facts.higher_is_better == "1"
        else:
            direction = metrics.metric_direction(metric) if metric else None
        better = {"higher_is_better": None if direction is None else int(direction)}
        choices = int(facts.choices) if facts.choices else None
        guesses = {
            "category": facts.category or None,
            "metric": metric,
            "output_type": facts.output_type or None,
            **better,
            "choices": choices,
            "chance": round(1 / choices, 4) if choices and metric_name in _ACCURACIES else None,
        }
        row = {"benchmark": benchmark, "studies": schema.NO_STUDY if metric is None and len(names) > 1 else None}
        rows.append(row | _marked(guesses, better if len(directions) else {}))
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


def leave_sparse_out(
    models: pd.DataFrame, benchmarks: pd.DataFrame, scores: pd.DataFrame, decided: Collection[str] = ()
) -> list[str]:
    """Take benchmarks with scores of fewer than half of the models out of their comparison, then such models.

    Writes `studies` of the two sheets, in place; one sentence for each kind left out. Of `decided` rows, by name, the
    reader has said whether they take part.
    """
    notes, has_score = [], pd.crosstab(scores["model"], scores["benchmark"]) > 0
    along = scores.groupby("model")["checkpoint"].nunique().max() > 1
    for sheet, key, other_kind in ((benchmarks, "benchmark", "models"), (models, "model", "benchmarks")):
        has_score = has_score.T  # a row for each name of the sheet
        counts, number = has_score.sum(axis=1), has_score.shape[1]
        sparse = sorted({*sheet[key]}.difference(decided) & {*counts.index[counts < math.ceil(number / 2)]})
        if len(sparse) == len(counts):
            continue
        sheet.loc[sheet[key].isin(sparse), "studies"] = "signal" if along else schema.NO_STUDY
        has_score = has_score[has_score.index.isin(sheet.loc[schema.of_study(sheet, "agreement"), key])]
        if sparse:
            notes.append(
                f"Left out of the comparison of models, with scores on fewer than half of the {number} {other_kind}: "
                f"{count(len(sparse), key)} ({listing(sparse, 3)}). To include one, empty its cell in the column "
                f"`studies` of {key}s.tsv."
            )
    return notes


def guess_lines(models: pd.DataFrame, benchmarks: pd.DataFrame, scores: pd.DataFrame) -> list[str]:
    """How many rows of the sheets have guesses, and which benchmarks have no known direction, for a terminal."""
    lines = []
    for kind, sheet in (("model", models), ("benchmark", benchmarks)):
        if number := int(sheet["guessed"].notna().sum()):
            lines.append(f"Guessed for {count(number, kind)}: the column `guessed` of {kind}s.tsv.")
    undirected = benchmarks.loc[metrics.known_directions(benchmarks, scores).isna(), "benchmark"]
    if len(undirected):
        lines.append(
            f"Direction unknown, so a higher score is taken as better: {listing(undirected, 4)} (column "
            "`higher_is_better` of benchmarks.tsv)."
        )
    return lines


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


def write_sheets(
    scores: pd.DataFrame, gathered: Gathered, inputs: Given, folder: Path, tell: Callable[..., None]
) -> Sheets:
    """The sheets given, guesses where none is, which are written into `folder`. Models that a given sheet lacks are
    guessed. `tell` gets lines on what is guessed, and what may be misspelt."""
    models, benchmarks = guess_models(scores, gathered.facts), guess_benchmarks(scores, gathered.groups)
    groups = [parse_group(text) for text in inputs.agreement.groups]
    decided, notes = list[str](), list[str]()
    if inputs.models is not None:
        names = {*scores["model"]}
        sheet = schema.as_in_scores(schema.read_model_facts(inputs.models, groups), names)
        notes += _check_names(sheet["model"], names, inputs.models, "models")
        models = pd.concat([sheet, models[~models["model"].isin(sheet["model"])]], ignore_index=True)
        decided += sheet["model"].tolist()
    if inputs.benchmarks is not None:
        benchmarks = schema.read_benchmark_facts(inputs.benchmarks).assign(guessed=None)
        check_metrics(scores, benchmarks, inputs.benchmarks)
        notes += _check_names(benchmarks["benchmark"], {*scores["benchmark"]}, inputs.benchmarks, "benchmarks")
        decided += benchmarks["benchmark"].tolist()
    notes += leave_sparse_out(models, benchmarks, scores, decided)
    if inputs.benchmarks is None:
        benchmarks = shared_categories(benchmarks)
    for group in groups:
        schema.group_members(models[models["model"].isin(scores["model"])], group, inputs.models or MODELS)
    for sheet, name in ((models, MODELS), (benchmarks, BENCHMARKS)):
        plain = sheet.astype(object).map(lambda value: int(value) if isinstance(value, bool) else value)
        write_text(folder / name, plain.to_csv(sep="\t", index=False, lineterminator="\n", float_format="%.12g"))
    tell(*guess_lines(models, benchmarks, scores), *notes)
    return Sheets(models, benchmarks)


def _check_names(names: pd.Series, scored: Collection[str], path: Path, noun: str) -> list[str]:
    """A line for each name without scores that is nearly one with scores. Raises InputError if no name has scores."""
    if not names.isin(scored).any():
        raise InputError(
            f"{path}: names none of the {noun} that have scores ({', '.join(sorted(scored)[:3])}, ...).",
            "write their names as in the results, or leave the sheet out to have one guessed.",
        )
    unlisted = sorted({*scored} - {*names})
    near = {name: nearest(name, unlisted) for name in names if name not in scored}
    return [f"{path}: {name} has no scores. Did you mean {close}?" for name, close in near.items() if close]
