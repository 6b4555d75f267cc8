"""The columns of the tables. Everything downstream of the cells reads these and nothing else.

Null means unknown. `model` and `benchmark` are the short ids of the configuration's sheets (after an import:
the ids as in the imported file).
"""

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from lm_validity.errors import InputError, nearest
from lm_validity.files import replace_file

PROTOCOLS = ("direct", "train_before_test")

_cell = [
    ("model", pa.string()),
    ("checkpoint", pa.string()),  # "final", or the name of a point of training
    ("iteration", pa.int64()),  # optimizer steps of pretraining at that checkpoint
    ("tokens_b", pa.float64()),  # pretraining tokens at that checkpoint, in billions
    ("benchmark", pa.string()),
    ("protocol", pa.string()),  # direct | train_before_test
    ("prompt", pa.string()),  # plain | chat
    ("prompt_variant", pa.string()),  # null: the task's own wording
    ("num_fewshot", pa.int64()),  # solved examples before each question; null: unknown
    ("seed", pa.int64()),  # null for direct rows
    ("split", pa.string()),  # validation | test
]

SCORES = pa.schema(
    [
        *_cell,
        ("metric", pa.string()),  # lm-eval's key "name,filter"
        ("value", pa.float64()),  # accuracies are fractions
        ("stderr", pa.float64()),
        ("n_items", pa.int64()),
        ("higher_is_better", pa.bool_()),
        ("selected", pa.bool_()),  # reports read the selected rows of the test split
        ("source", pa.string()),  # "lm-validity", or the name of the importer
    ]
)

REQUIRED_SCORES = ("model", "benchmark", "protocol", "value")

ITEMS = pa.schema(
    [
        *_cell,
        ("doc_id", pa.string()),
        ("subject", pa.string()),
        ("gold", pa.int64()),  # index of the right choice; null for generation and rolling tasks
        ("correct", pa.float64()),  # the item's value of the benchmark's metric
        ("choice_loglikelihoods", pa.list_(pa.float64())),
        ("unconditional_loglikelihoods", pa.list_(pa.float64())),
        ("choice_tokens", pa.list_(pa.int64())),
        ("choice_characters", pa.list_(pa.int64())),
        ("choice_bytes", pa.list_(pa.int64())),
        ("response", pa.string()),
        ("doc_hash", pa.string()),  # lm-eval's hash of the document, where it is known
        ("metric_values", pa.map_(pa.string(), pa.float64())),  # by lm-eval's key; `correct` is one of them
    ]
)

DOCUMENTS = pa.schema(
    [
        ("benchmark", pa.string()),
        ("doc_id", pa.string()),  # as in ITEMS
        ("subject", pa.string()),
        ("context", pa.string()),  # the document's own prompt, without description and few-shot examples
        ("choices", pa.list_(pa.string())),  # null for generation
        ("gold", pa.int64()),
        ("prompt", pa.string()),  # all that stands before a choice; null where it differs between the choices
        ("target_delimiter", pa.string()),  # what stands between prompt and choice
    ]
)

SELECTIONS = pa.schema(
    [
        ("model", pa.string()),
        ("benchmark", pa.string()),
        ("seed", pa.int64()),
        ("prompt", pa.string()),
        ("learning_rate", pa.string()),  # as written in the configuration; null for the direct candidate
        ("epoch", pa.int64()),  # 1-based; null for the direct candidate
        ("metric", pa.string()),
        ("validation_value", pa.float64()),
        ("direct_validation_value", pa.float64()),
        ("diverged", pa.bool_()),
        ("selected", pa.bool_()),
        (
            "adapted_share",
            pa.float64(),
        ),  # of the weights that a text goes through, those with an adapter; null: unknown
    ]
)

TRIALS = pa.schema(
    [
        ("experiment", pa.string()),
        ("language_model", pa.string()),
        ("task", pa.string()),
        ("m", pa.int64()),
        ("n", pa.int64()),
        ("subsample", pa.int64()),
        ("arm", pa.string()),  # base | extra | test
        ("correct", pa.int64()),
        ("total", pa.int64()),
        ("pretraining_loss", pa.float64()),
        ("test_hash", pa.string()),
    ]
)

# beside trials.parquet: one row an observation of a test set and arm
PROBABILITIES = pa.schema(
    [
        *(TRIALS.field(name) for name in TRIALS.names[: TRIALS.names.index("arm") + 1]),
        ("row", pa.int64()),  # place of the observation in the task's source, from 0
        ("label", pa.int64()),
        ("probabilities", pa.list_(pa.float32())),  # of the classes, in the order of the labels
    ]
)


def write_table(frame: pd.DataFrame, schema: pa.Schema, path: str | Path) -> None:
    """Write `frame` with exactly the columns of `schema` (absent ones as null), atomically.

    The same rows give the same bytes: no pandas metadata, no time stamps.
    """
    columns = []
    for field in schema:
        if field.name not in frame or frame[field.name].isna().all():
            columns.append(pa.nulls(len(frame), field.type))  # pandas gives an empty column some other type
        else:
            columns.append(pa.Array.from_pandas(frame[field.name], type=field.type))
    table = pa.table(columns, schema=schema)
    with replace_file(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def read_scores(path: str | Path) -> pd.DataFrame:
    """Read a table of scores; the index counts the file's rows from 0.

    Raises InputError for an absent column of `REQUIRED_SCORES` and for a row without a model or a benchmark, which no
    sheet could be joined to. A null `value` stays: a score that is missing.
    """
    rows = read_table(path, SCORES, REQUIRED_SCORES)
    for column in ("model", "benchmark"):
        unnamed = rows.index[rows[column].isna() | (rows[column] == "")]
        if len(unnamed):
            raise InputError(
                f"{path}, row {unnamed[0]}, column {column!r}: empty ({len(unnamed)} of {len(rows)} rows).",
                f"each score needs its {column}: fill it in, or remove the row.",
            )
    return rows


def read_table(path: str | Path, schema: pa.Schema, required: tuple[str, ...] = ()) -> pd.DataFrame:
    """Read a table and check it against `schema`: absent columns become null, wrong types are an InputError.

    So is an absent column of `required`.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file.", "check the path, or run the rule that makes it.")
    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(
            f"{path}: not a readable parquet file ({error}).", "write it with pandas or pyarrow."
        ) from error
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
            raise InputError(
                f"{path}: column {field.name!r} cannot be read as {field.type} ({error}).",
                "see docs/reference/tables.md for the columns and their types.",
            ) from error
    return pa.table(columns, schema=schema).to_pandas(types_mapper=_nullable)


REPLAY = "replay:"  # begins the source of a score that was served from a file instead of running a model


def replay_notes(scores: pd.DataFrame) -> list[str]:
    """What every page says whose scores (columns of SCORES) were served rather than computed."""
    sources = scores["source"].dropna()
    served = sources.str.startswith(REPLAY)
    if not served.any():
        return []
    names = ", ".join(sorted({name.split(":")[1] for name in sources[served].unique()}))
    return [f"A replay: {served.sum()} of {len(scores)} scores were served from a file ({names}); no model was run."]


def _nullable(kind: pa.DataType):
    """Integers and booleans with nulls stay integers and booleans in pandas."""
    if pa.types.is_integer(kind):
        return pd.Int64Dtype()
    if pa.types.is_boolean(kind):
        return pd.BooleanDtype()
    return None
