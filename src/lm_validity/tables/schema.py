"""The columns of the tables. Everything downstream of the cells reads these and nothing else.

Null means unknown. `model` and `benchmark` are the short ids of the configuration's sheets (after an import:
the ids as in the imported file).
"""

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, TypedDict, cast, get_args, get_origin, get_type_hints

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from lm_validity.config.rows import Group, SheetRow, members, read_rows, with_columns
from lm_validity.config.sheets import BenchmarkFacts, ModelFacts, check_reruns
from lm_validity.errors import InputError, nearest
from lm_validity.files import absent, replace_file, unprintable

DIRECT, TRAINED = PROTOCOLS = ("direct", "train_before_test")

# ----------------------------------------------------------------------------------------------------------------------
# The records that formats yield, one type each: a claim (a score as it stands in a file), how it was made, an item.
# Their keys are columns, each with its meaning.
#
# A record holds only what a file says, so no key is required: an absent one is filled in later (`DEFAULTS`), a null one
# is unknown.


class Evaluation(TypedDict, total=False):
    """What was scored, and how far: the columns that claims and items have in common."""

    model: Annotated[str, "id, joined to the models sheet's `model`, or to its `path` where no row has that id"]
    checkpoint: Annotated[str | None, "`final`, or the name of a point of training"]
    iteration: Annotated[int | None, "optimizer steps of pretraining at that checkpoint"]
    tokens_b: Annotated[float | None, "pretraining tokens at that checkpoint, in billions"]
    benchmark: Annotated[str, "id, joined to the benchmarks sheet"]
    protocol: Annotated[str | None, "`direct` (the model as it is) or `train_before_test` (after fine-tuning)"]
    prompt: Annotated[str | None, "`plain` or `chat`"]
    prompt_variant: Annotated[
        str | None, "another wording: the id of its row in the benchmarks sheet; null: the task's own"
    ]
    num_fewshot: Annotated[int | None, "solved examples before each question; null: unknown"]
    seed: Annotated[int | None, "seed of the fine-tuning; null for direct rows"]
    run: Annotated[int | None, "run of sampled answers, from 0; null: one run, or the likeliest answers"]
    split: Annotated[str | None, "`test` or `validation`; null counts as test"]


class Settings(TypedDict, total=False):
    """How scores were made, as far as a file says so: the columns of SETTINGS beside those that name the score."""

    task_version: Annotated[str | None, "version of the task, as the program that scored calls it"]
    task_hash: Annotated[str | None, "that program's hash of the task's documents and prompts"]
    harness: Annotated[str | None, "the program that scored: `lm-eval`, `lighteval`, `inspect`, ..."]
    harness_version: Annotated[str | None, "its version, or its commit"]
    chat_template: Annotated[bool | None, "whether the model's chat template was applied"]
    system_instruction: Annotated[str | None, "the system message, or its hash; `none`: there was none"]
    limit: Annotated[float | None, "items scored at most, or below 1 their share; null: no limit, or unknown"]
    n_items_scored: Annotated[int | None, "items behind the score"]
    n_items_total: Annotated[int | None, "items of the task's test split"]
    temperature: Annotated[float | None, "of the sampling; 0: greedy"]
    top_p: Annotated[float | None, "of the sampling"]
    max_gen_toks: Annotated[int | None, "longest answer, in tokens"]
    seed: Annotated[int | None, "seed of the sampling or of the program that scored; not that of a fine-tuning"]
    backend: Annotated[str | None, "what ran the model: `hf`, `vllm`, an API, ..."]
    dtype: Annotated[str | None, "precision of the weights: `float32`, `bfloat16`, ..."]
    quantization: Annotated[str | None, "how the weights were quantized; `none`: they were not"]
    adapter: Annotated[str | None, "the user's own adapter on the model, a folder or a hub id; `none`: there was none"]


class Claim(Evaluation, total=False):
    """A score as it stands in a file, or what several have in common: the columns of SCORES, and what is no column."""

    metric: Annotated[
        str | None, "lm-eval's key `name,filter`; `name` alone is `name,none`; null: the benchmark's metric"
    ]
    value: Annotated[float, "the score; accuracies are fractions; null: missing"]
    stderr: Annotated[float | None, "standard error of the score"]
    n_items: Annotated[int | None, "number of test documents"]
    higher_is_better: Annotated[bool | None, "direction of the metric; the benchmarks sheet overrides it, with a note"]
    selected: Annotated[bool | None, "whether reports read the row; null counts as selected"]
    source: Annotated[str | None, "`lm-validity`, or the name of the importer"]
    prepared_on: Annotated[
        str | None,
        "of train before test: the benchmarks (between commas) on whose training sets, or the data on which, the model "
        "was trained; null: the benchmark's own",
    ]
    group: str | None  # of tasks, in whose score this task's is
    suite: str | None  # that tells tasks of one name apart
    drawn: str | None  # the seed with which answers were drawn, "" where unknown; null: they were not
    made: Settings  # how this score was made, where the file says more of it than of the others


class Item(Evaluation, total=False):
    """The answer of a model to a document: columns of ITEMS."""

    doc_id: Annotated[str, "the document, within its benchmark"]
    subject: Annotated[str | None, "the document's subject, where the benchmark has subjects"]
    gold: Annotated[int | None, "index of the right choice; null where there are no choices"]
    correct: Annotated[float | None, "the document's value of the benchmark's metric"]
    choice_loglikelihoods: Annotated[list[float], "log-likelihood of each choice, in nats"]
    unconditional_loglikelihoods: Annotated[list[float], "the same without the question"]
    choice_tokens: Annotated[list[int], "tokens of each choice"]
    choice_characters: Annotated[list[int], "characters of each choice"]
    choice_bytes: Annotated[list[int], "bytes of each choice"]
    response: Annotated[str | None, "the answer that the model wrote, in generation tasks"]
    doc_hash: Annotated[str | None, "lm-eval's hash of the document, where it is known"]
    metric_values: Annotated[list[tuple[str, float]] | None, "values by lm-eval's key; `correct` is one of them"]


# ----------------------------------------------------------------------------------------------------------------------
# (name, type, meaning); docs/reference/columns.md is made from these

Columns = tuple[tuple[str, pa.DataType, str], ...]
_TYPES: dict[object, pa.DataType] = {
    str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_(),
    list[int]: pa.list_(pa.int64()), list[float]: pa.list_(pa.float64()),
    list[tuple[str, float]]: pa.map_(pa.string(), pa.float64()),
}  # fmt: skip


def _columns(record: type) -> Columns:
    """The keys of a record that are columns."""
    hints = get_type_hints(record, include_extras=True).items()
    columns = [(name, *get_args(hint)) for name, hint in hints if get_origin(hint) is Annotated]
    return tuple(
        (name, next(_TYPES[form] for form in (kind, *get_args(kind)) if form in _TYPES), meaning)
        for name, kind, meaning in columns
    )


_KEY, _SCORES, _ITEMS = _columns(Evaluation), _columns(Claim), _columns(Item)
# how scores were made: a row for each value of `SETTINGS_KEY` among the scores of a table beside it
SETTINGS_KEY = ("model", "checkpoint", "benchmark", "protocol", "prompt", "prompt_variant", "num_fewshot", "run")
_SETTINGS: Columns = (*(column for column in _KEY if column[0] in SETTINGS_KEY), *_columns(Settings))

REQUIRED_SCORES = ("model", "benchmark", "protocol", "value")

_DOCUMENTS: Columns = (
    ("benchmark", pa.string(), "id, as in items"),
    ("doc_id", pa.string(), "as in items"),
    ("subject", pa.string(), "as in items"),
    ("context", pa.string(), "the document's own prompt, without description and few-shot examples"),
    ("choices", pa.list_(pa.string()), "the choices; null where the answer is generated"),
    ("gold", pa.int64(), "index of the right choice"),
    ("prompt", pa.string(), "everything before a choice; null where it differs between the choices"),
    ("target_delimiter", pa.string(), "what is between prompt and choice"),
)

_SELECTIONS: Columns = (
    ("model", pa.string(), "id in the models sheet"),
    ("benchmark", pa.string(), "id in the benchmarks sheet"),
    ("seed", pa.int64(), "seed of the fine-tuning"),
    ("prompt", pa.string(), "`plain` or `chat`"),
    ("learning_rate", pa.string(), "as written in the configuration; null for the untouched model"),
    ("epoch", pa.int64(), "from 1; null for the untouched model"),
    ("metric", pa.string(), "the metric that the choice was made by"),
    ("validation_value", pa.float64(), "its value on validation"),
    ("direct_validation_value", pa.float64(), "the untouched model's value on validation"),
    ("diverged", pa.bool_(), "whether the loss was not a number at some step"),
    ("selected", pa.bool_(), "whether this candidate was chosen"),
    (
        "adapted_share",
        pa.float64(),
        "of the weights that a text goes through (no embeddings, no output layer), the share with an adapter; "
        "null: unknown, or the untouched model",
    ),
)

_LOSSES: Columns = (
    *((name, kind, text) for name, kind, text in _SELECTIONS if name in ("model", "benchmark", "seed", "prompt")),
    ("learning_rate", pa.string(), "as written in the configuration"),
    ("epoch", pa.int64(), "from 1; only finished epochs"),
    ("step", pa.int64(), "optimizer steps since the start, up to the last one of the mean"),
    (
        "loss",
        pa.float32(),
        "mean training loss in nats per predicted token, dropout on: of the step; in an epoch of more "
        "than 50 steps, of one of 50 equal parts (the cell's own file has every step)",
    ),
    ("validation_value", pa.float64(), "the benchmark's metric on validation, at the end of an epoch; else null"),
)

_TRIALS: Columns = (
    ("experiment", pa.string(), "name in the configuration"),
    ("language_model", pa.string(), "id in the sheet of language models"),
    ("task", pa.string(), "id in the sheet of tasks"),
    ("m", pa.int64(), "labelled training texts"),
    ("n", pa.int64(), "unlabelled texts, and test texts"),
    ("subsample", pa.int64(), "the random draw of texts, from 0"),
    ("arm", pa.string(), "pretraining: `base` (none), `extra` (other texts), `test` (the test texts)"),
    ("correct", pa.int64(), "test texts that were classified right"),
    ("total", pa.int64(), "test texts"),
    ("pretraining_loss", pa.float64(), "mean of the last epoch in nats per predicted token; null for `base`"),
    ("test_hash", pa.string(), "tells test sets apart"),
)

_PROBABILITIES: Columns = (
    *_TRIALS[: [name for name, *_ in _TRIALS].index("arm") + 1],
    ("row", pa.int64(), "place of the text in the task's source, from 0"),
    ("label", pa.int64(), "index of the right class"),
    ("probabilities", pa.list_(pa.float32()), "of the classes, in the order of the labels"),
)

COLUMNS = {
    "scores.parquet": _SCORES,
    "settings.parquet": _SETTINGS,
    "items.parquet": _ITEMS,
    "documents.parquet": _DOCUMENTS,
    "selections.parquet": _SELECTIONS,
    "losses.parquet": _LOSSES,
    "trials.parquet": _TRIALS,
    "probabilities.parquet": _PROBABILITIES,
}


# Integers and booleans with nulls stay integers and booleans in pandas
NULLABLE = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
SCORES, SETTINGS, ITEMS, DOCUMENTS, SELECTIONS, LOSSES, TRIALS, PROBABILITIES = (
    pa.schema([(name, kind) for name, kind, _ in columns]) for columns in COLUMNS.values()
)


# What makes two scores scores of one thing
KEY = [name for name in SCORES.names[: SCORES.names.index("value")] if name not in ("iteration", "tokens_b")]

# Values that a column may have, in every table that has it: names, and numbers from ... to
_NAMES = ("model", "benchmark", "checkpoint", "prompt", "prompt_variant", "split", "metric", "source", "prepared_on",
          "experiment", "language_model", "task", "protocol")  # fmt: skip
LARGEST_SCORE = 1e100  # whose square is a number too
_RANGES: dict[str, tuple[float, float]] = {
    "value": (-LARGEST_SCORE, LARGEST_SCORE),
    "stderr": (0, LARGEST_SCORE),
    "tokens_b": (0, LARGEST_SCORE),
    "n_items": (1, 2**53),
    **dict.fromkeys(("iteration", "num_fewshot", "seed", "run"), (0, 2**53)),
}


CHECKED = (*_NAMES, *_RANGES)  # the columns of which `may_hold` says something


def check_values(rows: pd.DataFrame, source: object) -> None:
    """Raises InputError for a value that its column cannot have: in every table of ours, and in all that is imported.

    Numbers outside their range, names that are blank, have blanks around them or hold a control character, other
    protocols. Null is allowed. The index says where a row stands in `source`: its number, or words.
    """
    for name in (name for name in rows if name in CHECKED):
        values = rows[name]
        wrong = values[values.isin([value for value in values.dropna().unique() if _problem(name, value)])]
        for row, value in wrong.head(1).items():
            where = row if isinstance(row, str) else f"row {row}"
            text = repr(value)[:60] if isinstance(value, str) else value
            problem = f"{source}, {where}, column {name!r}: {text} {_problem(name, value)}."
            raise InputError(problem, "correct it, or leave it empty where it is unknown.")


def may_hold(column: str, value: Any) -> bool:
    """Whether a column can have a value: what `check_values` asks of a table, of one value. Null is allowed."""
    is_of_kind = column not in _RANGES or isinstance(value, int | float)
    return value is None or value != value or column not in CHECKED or (is_of_kind and _problem(column, value) is None)


@lru_cache(maxsize=100_000)
def _problem(column: str, value: Any) -> str | None:
    """What is wrong with a number or a name; None where nothing is."""
    if column in _RANGES:
        low, high = _RANGES[column]
        return None if low <= value <= high else f"is not from {low:g} to {high:g}"
    text = str(value)
    if column == "protocol":
        return None if text in PROTOCOLS else f"is no protocol ({', '.join(PROTOCOLS)})"
    if not text.strip():
        return "is blank"
    if (character := unprintable(text)) is not None:
        return f"holds the character {character!r}"
    return "has blanks around it" if text != text.strip() else None


def write_table(frame: pd.DataFrame, schema: pa.Schema, path: str | Path) -> None:
    """Write `frame` with exactly the columns of `schema` (absent ones as null), atomically.

    The same rows give the same bytes: no pandas metadata, no time stamps.
    """
    columns = []
    for field in schema:
        column = frame.get(field.name)
        if column is None or column.isna().all():
            columns.append(pa.nulls(len(frame), field.type))  # pandas gives an empty column some other type
        else:
            columns.append(pa.Array.from_pandas(column, type=field.type))
    table = pa.table(columns, schema=schema)
    with replace_file(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def read_scores(path: str | Path) -> pd.DataFrame:
    """Read a table of scores; the index counts the file's rows from 0.

    Raises InputError for an absent column of `REQUIRED_SCORES` and for a row without a model, a benchmark or a
    protocol, which no sheet could be joined to. A null `value` stays: a score that is missing.
    """
    rows = read_table(path, SCORES, REQUIRED_SCORES)
    for column in ("model", "benchmark", "protocol"):
        unnamed = rows.index[rows[column].isna() | (rows[column] == "")]
        if len(unnamed):
            problem = f"{path}, row {unnamed[0]}, column {column!r}: empty ({len(unnamed)} of {len(rows)} rows)."
            raise InputError(problem, f"each score needs its {column}: fill it in, or remove the row.")
    return rows


_MANY_ROWS = 5_000_000


@contextlib.contextmanager
def readable(path: str | Path) -> Iterator[None]:
    """Raises InputError where what runs inside cannot read a parquet file, and for one of very many rows of nothing:
    with less than a bit each they would fill the memory."""
    try:
        rows = pq.read_metadata(path).num_rows if os.path.isfile(path) else 0
        if rows > _MANY_ROWS and rows > 8 * os.path.getsize(path):
            problem = f"{path}: {rows:,} rows in {os.path.getsize(path):,} bytes, less than a bit each."
            raise InputError(problem, "give a table whose rows say something.")
        yield
    except (pa.ArrowException, OSError, UnicodeError) as error:
        hint = "copy it again, write it with pandas or pyarrow or, where it is a run's table, by `lm-validity merge`."
        raise InputError(f"{path}: not a readable parquet file ({error}).", hint) from error


def read_table(path: str | Path, schema: pa.Schema, required: tuple[str, ...] = ()) -> pd.DataFrame:
    """Read a table and check it against `schema`: absent columns become null, wrong types are an InputError.

    So are an absent column of `required` and values that a column cannot have (`check_values`).
    """
    path = Path(path)
    if not path.is_file():
        raise absent(path, otherwise="check the path, or run the rule that makes it.")
    with readable(path):
        table = pq.read_table(path)
        table.validate(full=True)
    for name in required:
        if name not in table.column_names:
            like = nearest(name, table.column_names)
            hint = f"rename {like!r} to {name!r}." if like else f"the columns are: {', '.join(table.column_names)}."
            raise InputError(f"{path}: no column {name!r}.", hint)
    columns = []
    for field in schema:
        if field.name not in table.column_names:
            columns.append(pa.nulls(len(table), field.type))
            continue
        try:
            columns.append(table.column(field.name).combine_chunks().cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            problem = f"{path}: column {field.name!r} cannot be read as {field.type} ({error})."
            raise InputError(problem, f"write its values as {field.type}.") from error
    rows = pa.table(columns, schema=schema).to_pandas(types_mapper=NULLABLE.get)
    check_values(rows, path)
    return rows


OWN = "lm-validity"  # the source of scores that a run of the workflow computed


def trained_here(scores: pd.DataFrame) -> bool:
    """Whether a run of the workflow made all fine-tunes behind the train-before-test rows of SCORES: by one recipe."""
    trained = scores["protocol"] == TRAINED
    return bool((scores.loc[trained, "source"] == OWN).all())


PREPARED = (OWN, "lm-harmony")  # sources whose train-before-test scores are of models fine-tuned on that benchmark
REPLAY = "replay:"  # begins the source of a score that was served from a file instead of running a model


def replay_notes(scores: pd.DataFrame) -> list[str]:
    """What every page says whose scores (columns of SCORES) were served rather than computed."""
    sources = scores["source"].dropna()
    served = sources.str.startswith(REPLAY)
    if not served.any():
        return []
    names = ", ".join(sorted({name.split(":")[1] for name in sources[served].unique()}))
    return [f"A replay: {served.sum()} of {len(scores)} scores were served from a file ({names}); no model was run."]


# ----------------------------------------------------------------------------------------------------------------------
# Records, before they are tables.

# Columns of the models sheet that a file fills, by name
Facts = dict[str, str | float]
# Columns of claims beside those of SCORES and `made`
CLAIMS = tuple(name for name in Claim.__annotations__ if name not in (*SCORES.names, "made"))
# What holds of a score where its file does not say otherwise
DEFAULTS: Claim = {
    "checkpoint": "final", "protocol": "direct", "prompt": "plain", "split": "test", "selected": True,
}  # fmt: skip


def with_defaults(common: Claim) -> Claim:
    """What the scores of a file have in common, with `DEFAULTS` where the file says nothing or null."""
    return DEFAULTS | cast(Claim, {name: value for name, value in common.items() if value is not None})


# ----------------------------------------------------------------------------------------------------------------------
# The sheets as the reports read them: what is known about each model and benchmark beside its scores.

NO_STUDY = "none"  # in the column `studies`: in no comparison of models
NUMBERS = ("parameters_b", "tokens_b", "tokens_per_step", "n_items", "chance", "num_fewshot", "training_examples")
_MARKS = {
    "models": {"family", "parameters_b", "params_B", "instruction_tuned"},
    "benchmarks": {"output_type", "higher_is_better"},
}  # columns by which a file beside results is a sheet
_BOOLEANS = ("instruction_tuned", "in_compute_analysis", "in_perplexity_analysis", "higher_is_better")


def sheets_in(folder: Path) -> dict[str, Path]:
    """The sheets that lie in a folder beside results: `models` and `benchmarks`, CSV or TSV, told by their columns."""
    found = dict[str, Path]()
    for name, marks in _MARKS.items():
        for path in (folder / f"{name}.csv", folder / f"{name}.tsv"):
            with contextlib.suppress(OSError, UnicodeDecodeError), path.open(encoding="utf-8") as handle:
                if marks & set(handle.readline().strip().split("," if path.suffix == ".csv" else "\t")):
                    found[name] = path
    return found


def read_model_facts(path: str | Path, groups: Sequence[Group] = ()) -> pd.DataFrame:
    """One row per model with the fields of `ModelFacts` and the columns of `groups`; unknown values are null.

    Raises InputError for an unreadable file, a missing `model` column, an empty or repeated id, a value
    that is not of its column's kind, a `rerun_of` that names no first training.
    """
    kind = with_columns(ModelFacts, groups)
    rows = read_rows(path, kind)
    check_reruns(path, rows)
    return sheet_frame(rows.values(), kind)


def group_members(sheet: pd.DataFrame, group: Group, path: str | Path) -> list[bool | None]:
    """Which models of the sheet are in the group, None where that is unknown; `path`: of the sheet, for errors.

    Raises InputError as `members`.
    """
    facts = sheet.reindex(columns=["parameters_b", "tokens_b", "in_compute_analysis", group.column]).astype(object)
    facts = facts.where(facts.notna(), None)
    has_compute = facts["parameters_b"].notna() & facts["tokens_b"].notna() & (facts["in_compute_analysis"] != 0)
    return members(group, facts[group.column].tolist(), has_compute.tolist(), path)


def read_benchmark_facts(path: str | Path) -> pd.DataFrame:
    """One row per benchmark with the fields of `BenchmarkFacts`; a bare metric name gets the filter `none`.

    Other wordings of a benchmark (`variant_of`) are no rows: scores name them in `prompt_variant`. Raises InputError as
    `read_model_facts` does.
    """
    rows = read_rows(path, BenchmarkFacts).values()
    return sheet_frame((row for row in rows if row.variant_of is None), BenchmarkFacts)


def sheet_frame(sheet_rows: Iterable[SheetRow], kind: type[SheetRow]) -> pd.DataFrame:
    """Rows of a sheet as a table with the fields of `kind`, but for `variant_of`; unknown values are null."""
    rows = [row.model_dump() for row in sheet_rows]
    types = dict.fromkeys(NUMBERS, "float64") | dict.fromkeys(_BOOLEANS, "boolean")
    columns = {
        name: pd.Series([row[name] for row in rows], dtype=types.get(name, "object"))
        for name in kind.model_fields
        if name != "variant_of"
    }
    columns["studies"] = columns["studies"].map(lambda names: ",".join(names) or None)
    return pd.DataFrame(columns)


def as_in_scores(sheet: pd.DataFrame, names: set[str]) -> pd.DataFrame:
    """The models sheet with the ids that scores or items use, `names`: imported ones name a model by its `path`."""
    by_path = ~sheet["model"].isin(names) & sheet["path"].isin(names) & ~sheet["path"].duplicated(keep=False)
    label = sheet["label"].where(sheet["label"].notna() | ~by_path, sheet["model"])
    ids = sheet["model"].where(~by_path, sheet["path"])
    renamed = dict(zip(sheet["model"], ids, strict=True))
    return sheet.assign(model=ids, label=label, rerun_of=sheet["rerun_of"].map(renamed, na_action="ignore"))


def reruns_of(sheet: pd.DataFrame) -> dict[str, str]:
    """The model of which each rerun is another training, by the rerun's id."""
    is_rerun = sheet["rerun_of"].notna().to_numpy()
    return dict(zip(sheet["model"][is_rerun], sheet["rerun_of"][is_rerun], strict=True)) if is_rerun.any() else {}


def of_study(sheet: pd.DataFrame, study: str) -> np.ndarray:
    """Which rows (n,) of a sheet take part in a study: those that name it, and those that name none."""
    return np.array([pd.isna(names) or study in names.replace(" ", "").split(",") for names in sheet["studies"]], bool)


def unique_labels(labels: pd.Series, models: pd.Series) -> pd.Series:
    """Labels for figures; the model's id where there is none or where several models have the same."""
    labels = labels.where(labels.notna(), models)
    return labels.where(~labels.duplicated(keep=False), models)
