"""Items: the documents of benchmarks, rows of answers, and arrays of them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from lm_validity.errors import InputError
from lm_validity.tables.schema import ITEMS, readable
from lm_validity.tables.sheets import fewshot_count

# ----------------------------------------------------------------------------------------------------------------------
# Rows of a table of items that belong to scores: opened as a data set, since it may be larger than memory.


def open_items(path: str | Path) -> ds.Dataset:
    """The items table. Raises InputError for a file that is none."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file.", "check the path of the items table.")
    with readable(path):
        table = ds.dataset(path, format="parquet")
    for name in ("model", "benchmark", "protocol", "doc_id", "correct"):
        if name not in table.schema.names:
            raise InputError(f"{path}: no column {name!r}.", "see docs/reference/tables.md for the columns of items.")
    return table


def items_of_scores(items: pd.DataFrame, scores: pd.DataFrame, key: Sequence[str]) -> pd.DataFrame:
    """The items of the test split with a value whose `key` some score has; an unknown subject is "".

    What is unknown on both sides (null) is the same: a prompt is plain, a checkpoint final.
    """
    items = items.assign(subject=items["subject"].fillna(""))
    items = items[(items["split"].isna() | (items["split"] == "test")) & items["correct"].notna()]
    return _comparable(items).merge(_comparable(scores[[*key]].drop_duplicates()), on=[*key])


def _comparable(frame: pd.DataFrame) -> pd.DataFrame:
    """The same value for what is unknown on both sides of a join."""
    numbers = {name: frame[name].astype("Float64").fillna(-1) for name in ("seed", "num_fewshot")}
    texts = {"prompt": "plain", "prompt_variant": "", "checkpoint": "final"}
    filled = {n: frame[n].astype(object).where(frame[n].notna(), other) for n, other in texts.items()}
    return frame.assign(**numbers, **filled)


# ----------------------------------------------------------------------------------------------------------------------
# items.parquet as arrays of one benchmark: models, checkpoints, items, choices (read by `read_items`).


def training_order(iterations: np.ndarray, tokens_b: np.ndarray) -> np.ndarray:
    """Indices that put checkpoints (n,) in order of training, by tokens, else by iteration (NaN: unknown).

    Where neither is known of all, those without an iteration come last: that is where a final checkpoint stands.
    """
    progress = iterations if np.isnan(tokens_b).any() else tokens_b
    return np.argsort(progress, kind="stable")


@dataclass(frozen=True)
class ModelItems:
    """One model's answers at its checkpoints, in order of training. Unknown numbers are NaN."""

    model: str
    checkpoints: tuple[str, ...]
    iterations: np.ndarray  # (checkpoints,)
    tokens_b: np.ndarray  # (checkpoints,)
    correct: np.ndarray  # (checkpoints, items): the item's value of the benchmark's metric
    loglikelihoods: np.ndarray | None  # (checkpoints, items, choices) nats; NaN beyond an item's choices
    unconditional: np.ndarray | None  # the same without the question, where it was computed
    tokens: np.ndarray | None  # (items, choices) length in this model's tokens
    scores: dict[str, np.ndarray] = field(default_factory=dict)  # (checkpoints, items) where already computed


@dataclass(frozen=True)
class BenchmarkItems:
    """All answers to one benchmark's items."""

    benchmark: str
    doc_ids: np.ndarray  # (items,) text
    subjects: np.ndarray  # (items,) text, "" where unknown
    gold: np.ndarray | None  # (items,) index of the right choice; None for generation and rolling tasks
    characters: np.ndarray | None  # (items, choices)
    bytes: np.ndarray | None  # (items, choices)
    models: tuple[ModelItems, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def choices(self) -> np.ndarray | None:
        """Number of choices of each item (items,)."""
        if self.models[0].loglikelihoods is None:
            return None
        return np.count_nonzero(~np.isnan(self.models[0].loglikelihoods[0]), axis=-1)

    def rows(self, rows: Iterable[tuple[int, Sequence[int] | np.ndarray]]) -> "BenchmarkItems":
        """Only the given checkpoints of the given models: pairs of a model's index and checkpoint indices."""
        return replace(self, models=tuple(_at(self.models[model], np.asarray(at)) for model, at in rows))

    def take(self, kept: np.ndarray) -> "BenchmarkItems":
        """Only the kept items: boolean (items,) or indices."""
        return replace(
            self,
            doc_ids=self.doc_ids[kept],
            subjects=self.subjects[kept],
            gold=_index(self.gold, kept),
            characters=_index(self.characters, kept),
            bytes=_index(self.bytes, kept),
            models=tuple(
                replace(
                    model,
                    correct=model.correct[:, kept],
                    loglikelihoods=_index(model.loglikelihoods, (slice(None), kept)),
                    unconditional=_index(model.unconditional, (slice(None), kept)),
                    tokens=_index(model.tokens, kept),
                    scores={name: scores[:, kept] for name, scores in model.scores.items()},
                )
                for model in self.models
            ),
        )


def _index(array: np.ndarray | None, kept: np.ndarray | tuple[slice, np.ndarray]) -> np.ndarray | None:
    return None if array is None else array[kept]


def _at(model: ModelItems, checkpoints: np.ndarray) -> ModelItems:
    return replace(
        model,
        checkpoints=tuple(model.checkpoints[index] for index in checkpoints),
        iterations=model.iterations[checkpoints],
        tokens_b=model.tokens_b[checkpoints],
        correct=model.correct[checkpoints],
        loglikelihoods=_index(model.loglikelihoods, checkpoints),
        unconditional=_index(model.unconditional, checkpoints),
        scores={name: scores[checkpoints] for name, scores in model.scores.items()},
    )


# ----------------------------------------------------------------------------------------------------------------------
# Read one benchmark's items into arrays, checking them on the way.
#
# Six models with sixty checkpoints of 15,000 items are 5.4 million rows; as pandas objects their lists would
# not fit into the memory of a laptop. Columns are therefore read one at a time with pyarrow and go straight
# into numpy.

_KEYS = (
    "model",
    "checkpoint",
    "iteration",
    "tokens_b",
    "protocol",
    "prompt",
    "prompt_variant",
    "num_fewshot",
    "split",
    "doc_id",
    "subject",
    "gold",
)
_TEXT_KEYS = ("model", "checkpoint", "protocol", "prompt", "prompt_variant", "split", "doc_id", "subject")


def item_benchmarks(path: str | Path) -> list[str]:
    """Names of the benchmarks in an items table, sorted."""
    column = _read(Path(path), ["benchmark"]).column("benchmark")
    return sorted(name for name in pc.unique(column).to_pylist() if name is not None)


def read_benchmark_items(
    path: str | Path, benchmark: str, num_fewshot: int | None = None, metric: str | None = None
) -> BenchmarkItems:
    """The direct answers on the test split to one benchmark's items.

    Rows of other protocols and splits are left out; of several prompts `plain` is read, of several wordings the task's
    own. Of several numbers of solved examples those with `num_fewshot` are read, by default the commonest. `correct`
    is the value of `metric` where the table has several. Raises InputError, naming model, checkpoint and document, for
    duplicate documents, documents that some cells lack, a gold answer out of range or different between cells, missing
    or surplus choices, and log-likelihoods that are not finite.
    """
    path = Path(path)
    keys, used = _keys(path, benchmark, num_fewshot)
    codes = {name: _codes(keys.column(name)) for name in ("model", "checkpoint", "doc_id")}
    order = np.lexsort((codes["doc_id"][0], codes["checkpoint"][0], codes["model"][0]))
    cells = _Cells(path, benchmark, codes, order)
    gold = _gold(keys.column("gold"), cells)
    lists = {
        name: _lists(path, benchmark, used, name, cells, gold)
        for name in ("choice_loglikelihoods", "unconditional_loglikelihoods")
    }
    choices = None
    if lists["choice_loglikelihoods"] is not None:
        choices = np.count_nonzero(~np.isnan(lists["choice_loglikelihoods"][0]), axis=-1)
    tokens = _lengths(path, benchmark, used, "choice_tokens", cells, cells.first_of_models, choices)
    characters = _lengths(path, benchmark, used, "choice_characters", cells, cells.first_of_models[:1], choices)
    width = _lengths(path, benchmark, used, "choice_bytes", cells, cells.first_of_models[:1], choices)
    correct = item_values(_read(path, ["correct", "metric_values"], benchmark), metric)
    correct = _floats(correct)[used][order].reshape(cells.shape)
    progress = {name: _floats(keys.column(name))[order][:: cells.items] for name in ("iteration", "tokens_b")}
    subjects = keys.column("subject").cast(pa.string()).take(pa.array(order[: cells.items]))
    return BenchmarkItems(
        benchmark=benchmark,
        doc_ids=cells.doc_ids,
        subjects=np.array([text or "" for text in subjects.to_pylist()], dtype=str),
        gold=gold,
        characters=None if characters is None else characters[0],
        bytes=None if width is None else width[0],
        models=tuple(
            _model_items(cells, index, progress, correct, lists, tokens) for index in range(len(cells.models))
        ),
    )


def item_values(items: pa.Table, metric: str | None) -> pa.ChunkedArray:
    """Each item's value of `metric`: of `metric_values` where a row has them, else `correct`; null where unknown."""
    correct = items.column("correct")
    if metric is None or "metric_values" not in items.column_names:
        return correct
    values = items.column("metric_values")
    found = pc.map_lookup(values, query_key=metric, occurrence="first")
    return pc.if_else(values.is_null(), correct, found)


class _Cells:
    """How the sorted rows of a benchmark fall into cells (model, checkpoint), each with the same
    documents."""

    def __init__(
        self, path: Path, benchmark: str, codes: Mapping[str, tuple[np.ndarray, np.ndarray]], order: np.ndarray
    ):
        self.where = f"{path}: benchmark {benchmark!r}"
        model, checkpoint, document = (codes[name][0][order] for name in ("model", "checkpoint", "doc_id"))
        self._names = {name: codes[name][1] for name in codes}
        starts = np.flatnonzero(np.r_[True, (np.diff(model) != 0) | (np.diff(checkpoint) != 0)])
        sizes = np.diff(np.r_[starts, len(model)])
        self.cell_models, self.cell_checkpoints = model[starts], checkpoint[starts]
        self._check_duplicates(starts, document)
        self.items = int(sizes[0])
        self._check_documents(starts, sizes, document)
        self.shape = (len(starts), self.items)
        self.order = order
        self.doc_ids = self._names["doc_id"][document[: self.items]].astype(str)
        self.models = np.unique(self.cell_models)
        self.first_of_models = [int(np.argmax(self.cell_models == code)) for code in self.models]

    def name(self, cell: int) -> str:
        model, checkpoint = self.cell_models[cell], self.cell_checkpoints[cell]
        return f"model {self._names['model'][model]!r}, checkpoint {self._names['checkpoint'][checkpoint]!r}"

    def model_name(self, index: int) -> str:
        return str(self._names["model"][self.models[index]])

    def checkpoint_name(self, cell: int) -> str:
        return str(self._names["checkpoint"][self.cell_checkpoints[cell]])

    def _check_duplicates(self, starts: np.ndarray, document: np.ndarray) -> None:
        repeated = np.flatnonzero(document[1:] == document[:-1]) + 1
        repeated = repeated[~np.isin(repeated, starts)]
        if repeated.size:
            cell = int(np.searchsorted(starts, repeated[0], side="right")) - 1
            raise InputError(
                f"{self.where}, {self.name(cell)}: document "
                f"{self._names['doc_id'][document[repeated[0]]]!r} occurs twice.",
                "keep one row per model, checkpoint and document.",
            )

    def _check_documents(self, starts: np.ndarray, sizes: np.ndarray, document: np.ndarray) -> None:
        first = document[: sizes[0]]
        for cell, (start, size) in enumerate(zip(starts, sizes, strict=True)):
            here = document[start : start + size]
            if np.array_equal(here, first):
                continue
            odd = np.setxor1d(here, first)
            raise InputError(
                f"{self.where}, {self.name(cell)}: its documents differ from those of {self.name(0)}"
                f" ({size} and {sizes[0]}; {self._names['doc_id'][odd[0]]!r} is in one of them only).",
                "evaluate all models and checkpoints on the same documents.",
            )


def _keys(path: Path, benchmark: str, num_fewshot: int | None) -> tuple[pa.Table, np.ndarray]:
    """The key columns of the rows that count, and which rows of the benchmark these are (boolean)."""
    keys = _read(path, list(_KEYS), benchmark)
    if len(keys) == 0:
        raise InputError(f"{path}: no items of benchmark {benchmark!r}.", "check the benchmark's id.")
    for name in ("model", "doc_id"):
        if keys.column(name).null_count:
            raise InputError(f"{path}: benchmark {benchmark!r}: rows without {name!r}.", f"fill in {name}.")
    used = _equal_or_null(keys.column("protocol"), "direct") & _equal_or_null(keys.column("split"), "test")
    plain = _equal_or_null(keys.column("prompt"), "plain")
    if (used & plain).any():
        used &= plain
    own = keys.column("prompt_variant").is_null().to_numpy()
    if (used & own).any():
        used &= own
    counts = keys.column("num_fewshot").to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    wanted = fewshot_count(counts[used]) if num_fewshot is None else num_fewshot
    used &= (counts.isna() | (counts == wanted)).to_numpy(dtype=bool, na_value=True)
    if not used.any():
        raise InputError(
            f"{path}: benchmark {benchmark!r}: no row of the test split with protocol 'direct'.",
            "the signal study reads direct evaluations.",
        )
    return keys.filter(pa.array(used)), used


def _read(path: Path, columns: list[str], benchmark: str | None = None) -> pa.Table:
    if not path.is_file():
        raise InputError(f"{path}: no such file.", "check the path of the items table.")
    with readable(path):
        present = set(pq.read_schema(path).names)
        if missing := {"model", "benchmark", "doc_id"} - present:
            raise InputError(f"{path}: column {min(missing)!r} is missing.", "see docs/reference/tables.md.")
        table = pq.read_table(
            path,
            columns=[name for name in columns if name in present],
            filters=None if benchmark is None else pc.field("benchmark") == benchmark,
            read_dictionary=[name for name in columns if name in _TEXT_KEYS],
        )
    for name in columns:
        if name not in present:
            table = table.append_column(name, pa.nulls(len(table), ITEMS.field(name).type))
    return table


def _column(path: Path, benchmark: str, used: np.ndarray, name: str) -> pa.Array:
    column = _read(path, [name], benchmark).column(name)
    return (column if used.all() else column.filter(pa.array(used))).combine_chunks()


def _equal_or_null(column: pa.ChunkedArray, value: str) -> np.ndarray:
    if pa.types.is_null(column.type):
        return np.ones(len(column), dtype=bool)
    column = column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column
    return pc.fill_null(pc.equal(column, value), fill_value=True).to_numpy(zero_copy_only=False).astype(bool)


def _codes(column: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """Integers that sort like the texts, and the sorted texts; null is the empty text."""
    column = pc.fill_null(column.cast(pa.string()), "").combine_chunks().dictionary_encode()
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    names = np.array(column.dictionary.to_pylist(), dtype=object)
    rank = np.argsort(np.argsort(names.astype(str), kind="stable"), kind="stable").astype(np.int32)
    return rank[column.indices.to_numpy(zero_copy_only=False)], np.array(sorted(names), dtype=object)


def _floats(column: pa.ChunkedArray | pa.Array) -> np.ndarray:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return column.cast(pa.float64()).to_numpy(zero_copy_only=False)


def _gold(column: pa.ChunkedArray, cells: _Cells) -> np.ndarray | None:
    gold = _floats(column)[cells.order].reshape(cells.shape)
    if np.isnan(gold).all():
        return None
    for cell, item in np.argwhere(np.isnan(gold) | (gold != gold[0]))[:1]:
        raise InputError(
            f"{cells.where}, {cells.name(cell)}, document {cells.doc_ids[item]!r}, column 'gold': "
            f"{gold[cell, item]:g}, but {gold[0, item]:g} in {cells.name(0)}.",
            "a document has one right choice, the same for every model and checkpoint.",
        )
    return gold[0].astype(np.intp)


def _lists(
    path: Path, benchmark: str, used: np.ndarray, name: str, cells: _Cells, gold: np.ndarray | None
) -> np.ndarray | None:
    """A list column as (cells, items, choices), NaN beyond an item's choices; None where no row has it."""
    column = _column(path, benchmark, used, name)
    if column.null_count == len(column) or gold is None:
        return None
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    values = column.flatten().to_numpy(zero_copy_only=False)
    sorted_counts = counts[cells.order].reshape(cells.shape)
    _check_choices(name, sorted_counts, cells, gold)
    if (counts == counts[0]).all():
        padded = values.reshape(len(counts), counts[0])[cells.order]
    else:
        padded = np.full((len(counts), counts.max()), np.nan)
        padded[np.arange(counts.max()) < counts[:, None]] = values
        padded = padded[cells.order]
    padded = padded.reshape(*cells.shape, -1)
    beyond = np.arange(padded.shape[-1]) >= sorted_counts[..., None]
    bad = ~np.isfinite(padded) & ~beyond
    if bad.any():
        cell, item, choice = np.argwhere(bad)[0]
        raise InputError(
            f"{cells.where}, {cells.name(cell)}, document {cells.doc_ids[item]!r}, column {name!r}: "
            f"choice {choice} is {padded[cell, item, choice]}, not a finite number.",
            "evaluate the cell again.",
        )
    return padded


def _check_choices(name: str, counts: np.ndarray, cells: _Cells, gold: np.ndarray) -> None:
    """Every cell has the same number of choices for a document, and gold is one of them."""
    for cell, item in np.argwhere((counts == 0) | (counts != counts[0]))[:1]:
        raise InputError(
            f"{cells.where}, {cells.name(cell)}, document {cells.doc_ids[item]!r}, column {name!r}: "
            f"{counts[cell, item]} choices, {counts[0, item]} in {cells.name(0)}.",
            "every choice of a document needs a log-likelihood in every cell.",
        )
    for item in np.flatnonzero((gold < 0) | (gold >= counts[0]))[:1]:
        raise InputError(
            f"{cells.where}, document {cells.doc_ids[item]!r}, column 'gold': {gold[item]} is out of range "
            f"for {counts[0, item]} choices.",
            "gold is the index of the right choice, from 0.",
        )


def _lengths(
    path: Path,
    benchmark: str,
    used: np.ndarray,
    name: str,
    cells: _Cells,
    which: list[int],
    choices: np.ndarray | None,
) -> np.ndarray | None:
    """Lengths of the choices in the given cells, (len(which), items, choices); None where they are not
    known."""
    column = _column(path, benchmark, used, name)
    if choices is None or column.null_count == len(column):
        return None
    lengths = np.full((len(which), cells.items, int(choices.max())), np.nan)
    for index, cell in enumerate(which):
        rows = column.take(pa.array(cells.order[cell * cells.items : (cell + 1) * cells.items]))
        counts = pc.fill_null(pc.list_value_length(rows), 0).to_numpy(zero_copy_only=False)
        for item in np.flatnonzero(counts != choices)[:1]:
            raise InputError(
                f"{cells.where}, {cells.name(cell)}, document {cells.doc_ids[item]!r}, column {name!r}: "
                f"{counts[item]} lengths for {choices[item]} choices.",
                "a length belongs to every choice.",
            )
        flat = rows.flatten().to_numpy(zero_copy_only=False).astype(float)
        lengths[index][np.arange(lengths.shape[-1]) < choices[:, None]] = flat
    # A choice of no tokens or characters has no log-likelihood per token
    return np.where(lengths > 0, lengths, np.nan)


def _model_items(
    cells: _Cells,
    index: int,
    progress: Mapping[str, np.ndarray],
    correct: np.ndarray,
    lists: Mapping[str, np.ndarray | None],
    tokens: np.ndarray | None,
) -> ModelItems:
    here = np.flatnonzero(cells.cell_models == cells.models[index])
    here = here[training_order(progress["iteration"][here], progress["tokens_b"][here])]

    def at(array: np.ndarray | None) -> np.ndarray | None:
        return None if array is None else array[here]

    return ModelItems(
        model=cells.model_name(index),
        checkpoints=tuple(cells.checkpoint_name(cell) for cell in here),
        iterations=progress["iteration"][here],
        tokens_b=progress["tokens_b"][here],
        correct=correct[here],
        loglikelihoods=at(lists["choice_loglikelihoods"]),
        unconditional=at(lists["unconditional_loglikelihoods"]),
        tokens=None if tokens is None else tokens[index],
    )
