"""Items: the documents of benchmarks, rows of answers, and arrays of them."""

import math
import numbers
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from lm_validity.errors import InputError
from lm_validity.files import absent
from lm_validity.tables.schema import DIRECT, DOCUMENTS, ITEMS, NULLABLE, readable, write_table
from lm_validity.tables.training import commonest, training_order
from lm_validity.words import Missing, Reason, ReasonCode

# ----------------------------------------------------------------------------------------------------------------------
# Rows of a table of items that belong to scores: opened as a data set, since it may be larger than memory.


NO_CHANCE = Missing(Reason("The benchmarks sheet names no chance level (column chance).", ReasonCode.NO_CHANCE))


def open_items(path: str | Path) -> ds.Dataset:
    """The items table. Raises InputError for a file that is none."""
    path = Path(path)
    if not path.is_file():
        raise absent(path, otherwise="check the path of the items table.")
    with readable(path):
        table = ds.dataset(path, format="parquet")
    for name in ("model", "benchmark", "protocol", "doc_id", "correct"):
        if name not in table.schema.names:
            raise InputError(
                f"{path}: no column {name!r}.", "items have the columns model, benchmark, protocol, doc_id and correct."
            )
    return table


def with_chance(benchmarks: pd.DataFrame, items: str | Path | None) -> pd.DataFrame:
    """The benchmarks with `chance`, the score of guessing: the sheet's, else what the direct test items tell; NaN where
    neither says. All reports, pages and cards take it from here.

    Guessing among choices gives the mean of 1 / choices of an accuracy. Of items that are not right or wrong (1 or 0),
    and of a metric that is better when lower, it says nothing.
    """
    unknown = benchmarks["chance"].isna() & benchmarks["higher_is_better"].eq(other=True)
    table = None if items is None or not unknown.any() else open_items(items)
    if table is None or "choice_loglikelihoods" not in table.schema.names:
        return benchmarks
    chance = benchmarks["chance"].astype(float).copy()
    names = [name for name in ("doc_id", "split", "correct", "metric_values") if name in table.schema.names]
    columns = {name: pc.field(name) for name in names}
    columns["choices"] = pc.list_value_length(pc.field("choice_loglikelihoods"))
    for index, name, metric in benchmarks.loc[unknown, ["benchmark", "metric"]].itertuples():
        rows = table.to_table(columns, filter=(pc.field("benchmark") == name) & (pc.field("protocol") == DIRECT))
        answers = rows.select(["doc_id", "choices"]).to_pandas()
        answers["correct"] = item_values(rows, metric if isinstance(metric, str) else None).to_pandas()
        if "split" in columns:
            answers = answers[rows["split"].to_pandas().fillna("test").eq("test")]
        answers = answers.dropna(subset="correct")
        choices = answers.drop_duplicates("doc_id")["choices"]
        if len(choices) and answers["correct"].isin((0.0, 1.0)).all() and choices.gt(0).all():
            chance[index] = float((1.0 / choices).mean())
    return benchmarks.assign(chance=chance)


def items_of_scores(items: pd.DataFrame, scores: pd.DataFrame, key: Sequence[str]) -> pd.DataFrame:
    """The items of the test split with a value whose `key` some score has; an unknown subject is "".

    What is unknown on both sides (null) is the same: a prompt is plain, a checkpoint final. Of sampled runs those that
    scores are averaged over (`average_runs`): not the likeliest answers beside them, nor runs of fewer or more items.
    """
    items = items.assign(subject=items["subject"].fillna(""))
    items = items[(items["split"].isna() | (items["split"] == "test")) & items["correct"].notna()]
    return _averaged_runs(comparable(items).merge(comparable(scores[[*key]].drop_duplicates()), on=[*key]), key)


def _averaged_runs(items: pd.DataFrame, key: Sequence[str]) -> pd.DataFrame:
    """Without the likeliest answers of a score that has runs, and without runs of another number of items than most."""
    if "run" not in items or items["run"].isna().all():
        return items
    keys = [*key, "benchmark"] if "benchmark" in items and "benchmark" not in key else [*key]
    sampled = items["run"].notna()
    items = items[sampled | ~sampled.groupby([items[name] for name in keys]).transform("any")]
    sizes = items.groupby([*keys, "run"])["doc_id"].nunique()
    counts_used = sizes.groupby(level=keys).agg(commonest)
    odd = sizes[sizes != counts_used.reindex(sizes.index.droplevel("run")).to_numpy()]
    if odd.empty:
        return items
    return items[~pd.MultiIndex.from_frame(items[[*keys, "run"]]).isin(odd.index)]


def comparable(frame: pd.DataFrame) -> pd.DataFrame:
    """The same value for what is unknown on both sides of a join."""
    numbers = {name: frame[name].astype("Float64").fillna(-1) for name in ("seed", "num_fewshot")}
    texts = {"prompt": "plain", "prompt_variant": "", "checkpoint": "final"}
    filled = {n: frame[n].astype(object).where(frame[n].notna(), placeholder) for n, placeholder in texts.items()}
    return frame.assign(**numbers, **filled)


# ----------------------------------------------------------------------------------------------------------------------
# Benchmarks that share items: one set of answers under two names, other prompts of one set, a whole and its half.

FEWEST_SHARED = 20  # items, below which nothing is said of two benchmarks
LEAST_SHARE = 0.1  # of the smaller benchmark's items
COINCIDENCE = np.log(1e-9)  # of so many equal values; less likely is the same
ALIKE, SURELY = 0.3, 6.0  # correlation of answers to the items of one name, and its size in standard errors


class Shared(NamedTuple):
    """Benchmarks that share items. documents: the item of each (benchmark, doc_id), the same for shared ones."""

    benchmarks: tuple[str, ...]
    documents: pd.Series


class _Answered(NamedTuple):
    """The items of a benchmark, in order: ids, hashes and gold answers (None where one is unknown), the answers of the
    models (items, models), and whether others like these would hardly all equal them by chance."""

    ids: pd.Index
    hashes: pd.Index | None
    gold: np.ndarray | None
    correct: np.ndarray
    telling: bool


def shared_items(answers: pd.DataFrame) -> list[Shared]:
    """The groups of benchmarks that share items, by the answers of a few models to all of them.

    answers: `model, benchmark, doc_id, correct`, and where they are known `doc_hash` and `gold`; an item's answers are
    averaged. Two benchmarks share items where lm-eval's hashes of documents are equal; where the answers or the gold
    answers to items of the same name are all equal, or answers are correlated by more than .3 and 6 standard errors for
    every model, as under another prompt; and where the answers to the smaller one are found in one piece in those to
    the larger. Each of these has a chance below 1e-9 in benchmarks that have nothing to do with each other.
    """
    tables = {str(name): _answered(rows) for name, rows in answers.groupby("benchmark", sort=True)}
    names = sorted(
        (name for name in tables if len(tables[name].ids) >= FEWEST_SHARED), key=lambda n: -len(tables[n].ids)
    )
    items = {name: np.array([f"{name}\0{doc_id}" for doc_id in tables[name].ids], dtype=object) for name in names}
    groups: dict[str, list[str]] = {}
    for index, name in enumerate(names):
        groups[name] = [name]
        for larger in names[:index]:
            places = _places(tables[name], tables[larger])
            if places is not None:
                small, large = places
                items[name][small] = items[larger][large]
                if groups[name] is not groups[larger]:
                    groups[larger] += groups[name]
                    for member in groups[name]:
                        groups[member] = groups[larger]
    shared = {id(group): group for group in groups.values() if len(group) > 1}
    return [
        Shared(
            tuple(sorted(group)),
            pd.concat(
                [pd.Series(items[name], pd.MultiIndex.from_product([[name], tables[name].ids])) for name in group]
            ),
        )
        for group in shared.values()
    ]


def _answered(rows: pd.DataFrame) -> _Answered:
    """Of the models that answered any item; an item that one of them did not answer stays out."""
    means = rows
    if rows.duplicated(["model", "doc_id"]).any():
        means = rows.groupby(["model", "doc_id"], sort=False)["correct"].mean().reset_index()
    table = means.pivot(index="doc_id", columns="model", values="correct").reindex(means["doc_id"].unique()).dropna()
    facts = rows.drop_duplicates("doc_id").set_index("doc_id").reindex(table.index)
    hashes, gold = (
        facts[name] if name in facts and facts[name].notna().all() else None for name in ("doc_hash", "gold")
    )
    if hashes is not None:  # one document may stand there twice
        hashes = hashes.astype(str) + hashes.groupby(hashes).cumcount().astype(str)
    correct = table.to_numpy(dtype=float)
    telling = is_telling(np.unique(correct, axis=0, return_inverse=True)[1].reshape(-1))
    of_items = None if hashes is None else pd.Index(hashes), None if gold is None else gold.to_numpy(dtype=float)
    return _Answered(table.index.astype(str), *of_items, correct, telling)


def _places(small: _Answered, large: _Answered) -> tuple[np.ndarray, np.ndarray] | None:
    """The places of the shared items in each of the two; None where they share none."""
    if small.correct.shape[1] != large.correct.shape[1]:
        return None
    fewest = max(FEWEST_SHARED, LEAST_SHARE * len(small.ids))
    for names, larger in ((small.hashes, large.hashes), (small.ids, large.ids)):
        if names is None or larger is None:
            continue
        positions = larger.get_indexer(names)
        matched = np.flatnonzero(positions >= 0)
        if len(matched) >= fewest and (names is small.hashes or _are_same(small, large, matched, positions[matched])):
            return matched, positions[matched]
    start = large.correct.tobytes().find(small.correct.tobytes()) if small.telling else -1
    width = small.correct.itemsize * small.correct.shape[1]
    return (
        None if start < 0 or start % width else (np.arange(len(small.ids)), start // width + np.arange(len(small.ids)))
    )


def is_telling(values: np.ndarray, predecessors: np.ndarray | None = None) -> bool:
    """Whether others like these values (n,) would hardly all equal them by chance: the sum of their squared shares, to
    the power of their number, is below 1e-9. With `predecessors` (n,): among the values that follow the same one, so
    that an order which rotates or is sorted tells nothing."""
    groups = [values] if predecessors is None else [values[predecessors == value] for value in np.unique(predecessors)]
    shares = [np.unique(group, return_counts=True)[1] / len(group) for group in groups if len(group)]
    logs = [len(group) * np.log(np.square(share).sum()) for group, share in zip(groups, shares, strict=False)]
    return bool(sum(logs) < COINCIDENCE)


def _are_same(small: _Answered, large: _Answered, of_small: np.ndarray, of_large: np.ndarray) -> bool:
    """Whether items of one name are the same items."""
    first, second = small.correct[of_small], large.correct[of_large]
    if np.array_equal(first, second) and is_telling(np.unique(first, axis=0, return_inverse=True)[1].reshape(-1)):
        return True
    if small.gold is not None and large.gold is not None:
        gold = small.gold[of_small].astype(int)
        if np.array_equal(gold, large.gold[of_large].astype(int)) and is_telling(gold[1:], gold[:-1]):
            return True
    centred = [values - values.mean(axis=0) for values in (first, second)]
    spread = np.sqrt((centred[0] ** 2).sum(axis=0) * (centred[1] ** 2).sum(axis=0))
    if not (spread > 0).all():
        return False
    correlation = (centred[0] * centred[1]).sum(axis=0) / spread
    return bool((correlation > ALIKE).all() and (correlation * np.sqrt(len(of_small)) > SURELY).all())


# ----------------------------------------------------------------------------------------------------------------------
# items.parquet as arrays of one benchmark: models, checkpoints, items, choices (read by `read_benchmark_items`).


@dataclass(frozen=True)
class ModelItems:
    """One model's answers at its checkpoints, in order of training. Unknown numbers are NaN."""

    model: str
    checkpoints: tuple[str, ...]
    iterations: np.ndarray  # (checkpoints,)
    tokens_b: np.ndarray  # (checkpoints,)
    correct: np.ndarray  # (checkpoints, items): the item's value of the benchmark's metric
    loglikelihoods: np.ndarray | None  # (checkpoints, items, choices) nats; NaN beyond an item's choices
    tokens: np.ndarray | None  # (items, choices) length in this model's tokens
    scores: dict[str, np.ndarray] = field(default_factory=dict)  # (checkpoints, items) where already computed

    def part(
        self, checkpoints: slice | np.ndarray = slice(None), items: slice | np.ndarray = slice(None)
    ) -> "ModelItems":
        """Only some checkpoints and items: indices, or for items boolean (items,)."""
        return replace(
            self,
            checkpoints=tuple(np.array(self.checkpoints, dtype=object)[checkpoints]),
            iterations=self.iterations[checkpoints],
            tokens_b=self.tokens_b[checkpoints],
            correct=self.correct[checkpoints][:, items],
            loglikelihoods=None if self.loglikelihoods is None else self.loglikelihoods[checkpoints][:, items],
            tokens=_index(self.tokens, items),
            scores={name: scores[checkpoints][:, items] for name, scores in self.scores.items()},
        )


@dataclass(frozen=True)
class BenchmarkItems:
    """All answers to one benchmark's items."""

    benchmark: str
    doc_ids: np.ndarray  # (items,) text
    subjects: np.ndarray  # (items,) text, "" where unknown
    gold: np.ndarray | None  # (items,) index of the right choice; None for generation and rolling tasks
    characters: np.ndarray | None  # (items, choices)
    models: tuple[ModelItems, ...]

    @property
    def choices(self) -> np.ndarray | None:
        """Number of choices of each item (items,)."""
        if self.models[0].loglikelihoods is None:
            return None
        result: np.ndarray | None = np.count_nonzero(~np.isnan(self.models[0].loglikelihoods[0]), axis=-1)
        return result

    def rows(self, rows: Iterable[tuple[int, Sequence[int] | np.ndarray]]) -> "BenchmarkItems":
        """Only the given checkpoints of the given models: pairs of a model's index and checkpoint indices."""
        return replace(
            self, models=tuple(self.models[model].part(np.asarray(rows_of_model)) for model, rows_of_model in rows)
        )

    def take(self, rows_kept: np.ndarray) -> "BenchmarkItems":
        """Only the kept items: boolean (items,) or indices."""
        return replace(
            self,
            doc_ids=self.doc_ids[rows_kept],
            subjects=self.subjects[rows_kept],
            gold=_index(self.gold, rows_kept),
            characters=_index(self.characters, rows_kept),
            models=tuple(model.part(items=rows_kept) for model in self.models),
        )


def _index(array: np.ndarray | None, rows_kept: slice | np.ndarray) -> np.ndarray | None:
    return None if array is None else array[rows_kept]


# ----------------------------------------------------------------------------------------------------------------------
# Read one benchmark's items into arrays, checking them on the way.
#
# Six models with sixty checkpoints of 15,000 items are 5.4 million rows; as pandas objects their lists would
# not fit into the memory of a laptop. Columns are therefore read one at a time with pyarrow and go straight
# into numpy.

_KEYS = [name for name in ITEMS.names[: ITEMS.names.index("correct")] if name not in ("benchmark", "seed")]


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
    is the value of `metric` where the table has several, and the mean over runs. Raises InputError, naming model,
    checkpoint and document, for duplicate documents, documents that some cells lack, a gold answer out of range or
    different between cells, missing or surplus choices, and log-likelihoods that are not finite.
    """
    cells = _Cells(Path(path), benchmark, num_fewshot)
    gold = cells.gold()
    loglikelihoods = cells.lists("choice_loglikelihoods", gold)
    choices = None if loglikelihoods is None else np.count_nonzero(~np.isnan(loglikelihoods[0]), axis=-1)
    tokens = cells.lengths("choice_tokens", cells.first_of_models, choices)
    characters = cells.lengths("choice_characters", cells.first_of_models[:1], choices)
    values = item_values(_read(cells.path, ["correct", "metric_values"], benchmark), metric)
    correct = cells.over_runs(_floats(values))[cells.order].reshape(cells.shape)
    subjects = cells.keys.column("subject").cast(pa.string()).take(pa.array(cells.order[: cells.items]))
    iterations, tokens_b = (
        _floats(cells.keys.column(name))[cells.order][:: cells.items] for name in ("iteration", "tokens_b")
    )
    models = []
    for index, model in enumerate(cells.models):
        cell_rows = np.flatnonzero(cells.cell_models == model)
        cell_rows = cell_rows[training_order(iterations[cell_rows], tokens_b[cell_rows])]
        models.append(
            ModelItems(
                model=str(cells.names["model"][model]),
                checkpoints=tuple(str(cells.names["checkpoint"][cells.cell_checkpoints[cell]]) for cell in cell_rows),
                iterations=iterations[cell_rows],
                tokens_b=tokens_b[cell_rows],
                correct=correct[cell_rows],
                loglikelihoods=_index(loglikelihoods, cell_rows),
                tokens=None if tokens is None else tokens[index],
            )
        )
    return BenchmarkItems(
        benchmark=benchmark,
        doc_ids=cells.doc_ids,
        subjects=np.array([text or "" for text in subjects.to_pylist()], dtype=str),
        gold=gold,
        characters=None if characters is None else characters[0],
        models=tuple(models),
    )


def item_values(items: pa.Table, metric: str | None) -> pa.ChunkedArray:
    """Each item's value of `metric`: of `metric_values` where a row has them, else `correct`; null where unknown."""
    correct = items.column("correct")
    if metric is None or "metric_values" not in items.column_names:
        return correct
    values = items.column("metric_values")
    of_metric = pc.map_lookup(values, query_key=metric, occurrence="first")
    return pc.if_else(values.is_null(), correct, of_metric)


class _Cells:
    """How the rows of a benchmark that count, sorted, fall into cells (model, checkpoint), each with the same
    documents."""

    def __init__(self, path: Path, benchmark: str, num_fewshot: int | None):
        self.path, self.benchmark, self.where = path, benchmark, f"{path}: benchmark {benchmark!r}"
        self.runs: tuple[np.ndarray, np.ndarray] | None = None  # rows of all runs, and the answer of each
        keys = _read(path, _KEYS, benchmark)
        self.used = self._rows_used(keys, num_fewshot)
        self.keys = keys.filter(pa.array(self.used))
        codes = {name: _codes(self.keys.column(name)) for name in ("model", "checkpoint", "doc_id")}
        self.names = {name: names for name, (_, names) in codes.items()}
        self.order = np.lexsort((codes["doc_id"][0], codes["checkpoint"][0], codes["model"][0]))
        model, checkpoint, document = (of_rows[self.order] for of_rows, _ in codes.values())
        starts = np.flatnonzero(np.r_[True, (np.diff(model) != 0) | (np.diff(checkpoint) != 0)])
        sizes = np.diff(np.r_[starts, len(model)])
        self.cell_models, self.cell_checkpoints = model[starts], checkpoint[starts]
        self.models = np.unique(self.cell_models)
        self.first_of_models = [int(np.argmax(self.cell_models == code)) for code in self.models]
        self.items = int(sizes[0])
        self.shape = (len(starts), self.items)
        self.doc_ids = self.names["doc_id"][document[: self.items]].astype(str)
        self._check_documents(starts, sizes, document)

    def _rows_used(self, keys: pa.Table, num_fewshot: int | None) -> np.ndarray:
        """Which rows of the benchmark count (boolean), by their key columns."""
        if len(keys) == 0:
            raise InputError(f"{self.path}: no items of benchmark {self.benchmark!r}.", "check the benchmark's id.")
        for name in ("model", "doc_id"):
            if keys.column(name).null_count:
                raise InputError(f"{self.where}: rows without {name!r}.", f"fill in {name}.")
        is_used = _equal_or_null(keys.column("protocol"), "direct") & _equal_or_null(keys.column("split"), "test")
        plain = _equal_or_null(keys.column("prompt"), "plain")
        for preferred in (plain, keys.column("prompt_variant").is_null().to_numpy()):
            if (is_used & preferred).any():
                is_used &= preferred
        counts = keys.column("num_fewshot").to_pandas(types_mapper=NULLABLE.get)
        fewshot_used = commonest(counts[is_used], min) if num_fewshot is None else num_fewshot
        is_used &= (counts.isna() | (counts == fewshot_used)).to_numpy(dtype=bool, na_value=True)
        if not is_used.any():
            raise InputError(
                f"{self.where}: no row of the test split with protocol 'direct'.",
                "the signal study reads direct evaluations.",
            )
        return self._one_run(keys, is_used)

    def _one_run(self, keys: pa.Table, is_used: np.ndarray) -> np.ndarray:
        """The rows of the first run that has a document, where answers were sampled; `over_runs` knows the others."""
        runs = keys.column("run").is_valid().to_numpy() & is_used
        if not runs.any():
            return is_used
        names = ["model", "checkpoint", "doc_id"]
        frame = keys.select(names).to_pandas().astype(object)
        cells = [frame[name] for name in names[:2]]
        is_used = runs | (is_used & ~pd.Series(runs).groupby(cells, dropna=False).transform("any").to_numpy(dtype=bool))
        self.runs = is_used, frame[is_used].groupby(names, dropna=False, sort=False).ngroup().to_numpy()
        first = is_used.copy()
        first[is_used] = ~frame[is_used].duplicated().to_numpy()
        return first

    def over_runs(self, values: np.ndarray) -> np.ndarray:
        """Values (rows of the benchmark,) of the rows that count, each with its mean over runs."""
        if self.runs is None:
            result: np.ndarray = values[self.used]
            return result
        rows, groups = self.runs
        return np.bincount(groups, values[rows]) / np.bincount(groups)

    def name(self, cell: int) -> str:
        """The model and the checkpoint of a cell."""
        model, checkpoint = self.cell_models[cell], self.cell_checkpoints[cell]
        return f"model {self.names['model'][model]!r}, checkpoint {self.names['checkpoint'][checkpoint]!r}"

    def place(self, cell: int, item: int, column: str) -> str:
        """Where a value stands, for errors."""
        return f"{self.where}, {self.name(cell)}, document {self.doc_ids[item]!r}, column {column!r}"

    def _check_documents(self, starts: np.ndarray, sizes: np.ndarray, document: np.ndarray) -> None:
        repeated = np.flatnonzero(document[1:] == document[:-1]) + 1
        for row in repeated[~np.isin(repeated, starts)]:
            cell = int(np.searchsorted(starts, row, side="right")) - 1
            raise InputError(
                f"{self.where}, {self.name(cell)}: document {self.names['doc_id'][document[row]]!r} occurs twice.",
                "keep one row per model, checkpoint and document.",
            )
        first = document[: sizes[0]]
        for cell, (start, size) in enumerate(zip(starts, sizes, strict=True)):
            documents_of_cell = document[start : start + size]
            if np.array_equal(documents_of_cell, first):
                continue
            odd = np.setxor1d(documents_of_cell, first)
            raise InputError(
                f"{self.where}, {self.name(cell)}: its documents differ from those of {self.name(0)}"
                f" ({size} and {sizes[0]}; {self.names['doc_id'][odd[0]]!r} is in one of them only).",
                "evaluate all models and checkpoints on the same documents.",
            )

    def _column(self, name: str) -> pa.Array:
        column = _read(self.path, [name], self.benchmark).column(name)
        return (column if self.used.all() else column.filter(pa.array(self.used))).combine_chunks()

    def gold(self) -> np.ndarray | None:
        """(items,) the right choices; None where no row has one."""
        gold = _floats(self.keys.column("gold"))[self.order].reshape(self.shape)
        if np.isnan(gold).all():
            return None
        for cell, item in np.argwhere(np.isnan(gold) | (gold != gold[0]))[:1]:
            raise InputError(
                f"{self.place(cell, item, 'gold')}: {gold[cell, item]:g}, but {gold[0, item]:g} in {self.name(0)}.",
                "a document has one right choice, the same for every model and checkpoint.",
            )
        result: np.ndarray | None = gold[0].astype(np.intp)
        return result

    def lists(self, name: str, gold: np.ndarray | None) -> np.ndarray | None:
        """A list column as (cells, items, choices), NaN beyond an item's choices; None where no row has it."""
        column = self._column(name)
        if column.null_count == len(column) or gold is None:
            return None
        counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
        values = column.flatten().to_numpy(zero_copy_only=False)
        of_cells = counts[self.order].reshape(self.shape)
        for cell, item in np.argwhere((of_cells == 0) | (of_cells != of_cells[0]))[:1]:
            raise InputError(
                f"{self.place(cell, item, name)}: {of_cells[cell, item]} choices, {of_cells[0, item]} in "
                f"{self.name(0)}.",
                "every choice of a document needs a log-likelihood in every cell.",
            )
        for item in np.flatnonzero((gold < 0) | (gold >= of_cells[0]))[:1]:
            raise InputError(
                f"{self.where}, document {self.doc_ids[item]!r}, column 'gold': {gold[item]} is out of range "
                f"for {of_cells[0, item]} choices.",
                "gold is the index of the right choice, from 0.",
            )
        if (counts == counts[0]).all():
            padded: np.ndarray = values.reshape(len(counts), counts[0])
        else:
            padded = np.full((len(counts), counts.max()), np.nan)
            padded[np.arange(counts.max()) < counts[:, None]] = values
        padded = padded[self.order].reshape(*self.shape, -1)
        beyond = np.arange(padded.shape[-1]) >= of_cells[..., None]
        for cell, item, choice in np.argwhere(~np.isfinite(padded) & ~beyond)[:1]:
            raise InputError(
                f"{self.place(cell, item, name)}: choice {choice} is {padded[cell, item, choice]}, not a finite "
                "number.",
                "evaluate the cell again.",
            )
        return padded

    def lengths(self, name: str, choice_numbers: list[int], choices: np.ndarray | None) -> np.ndarray | None:
        """Lengths of the choices in some cells, (len(which), items, choices); None where they are not known."""
        column = self._column(name)
        if choices is None or column.null_count == len(column):
            return None
        lengths = np.full((len(choice_numbers), self.items, int(choices.max())), np.nan)
        for index, cell in enumerate(choice_numbers):
            rows = column.take(pa.array(self.order[cell * self.items : (cell + 1) * self.items]))
            counts = pc.fill_null(pc.list_value_length(rows), 0).to_numpy(zero_copy_only=False)
            for item in np.flatnonzero(counts != choices)[:1]:
                raise InputError(
                    f"{self.place(cell, item, name)}: {counts[item]} lengths for {choices[item]} choices.",
                    "a length belongs to every choice.",
                )
            flat = rows.flatten().to_numpy(zero_copy_only=False).astype(float)
            lengths[index][np.arange(lengths.shape[-1]) < choices[:, None]] = flat
        # A choice of no tokens or characters has no log-likelihood per token
        return np.where(lengths > 0, lengths, np.nan)


def _read(path: Path, columns: list[str], benchmark: str | None = None) -> pa.Table:
    if not path.is_file():
        raise absent(path, otherwise="check the path of the items table.")
    with readable(path):
        present = set(pq.read_schema(path).names)
        if missing := {"model", "benchmark", "doc_id"} - present:
            raise InputError(
                f"{path}: column {min(missing)!r} is missing.", "items have the columns model, benchmark and doc_id."
            )
        table = pq.read_table(
            path,
            columns=[name for name in columns if name in present],
            filters=None if benchmark is None else pc.field("benchmark") == benchmark,
            read_dictionary=[name for name in columns if name in _KEYS and ITEMS.field(name).type == pa.string()],
        )
    for name in columns:
        if name not in present:
            table = table.append_column(name, pa.nulls(len(table), ITEMS.field(name).type))
    return table


def _equal_or_null(column: pa.ChunkedArray, value: str) -> np.ndarray:
    equal = pc.equal(column.cast(pa.string()), value)
    result: np.ndarray = pc.fill_null(equal, fill_value=True).to_numpy(zero_copy_only=False).astype(bool)
    return result


class _Codes(NamedTuple):
    """Integers that sort like the texts, and the sorted texts."""

    codes: np.ndarray
    texts: np.ndarray


def _codes(column: pa.ChunkedArray) -> _Codes:
    """Integers that sort like the texts, and the sorted texts; null is the empty text."""
    column = pc.fill_null(column.cast(pa.string()), "").combine_chunks().dictionary_encode()
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    names = np.array(column.dictionary.to_pylist(), dtype=object)
    rank = np.argsort(np.argsort(names.astype(str), kind="stable"), kind="stable").astype(np.int32)
    return _Codes(rank[column.indices.to_numpy(zero_copy_only=False)], np.array(sorted(names), dtype=object))


def _floats(column: pa.ChunkedArray | pa.Array) -> np.ndarray:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    result: np.ndarray = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
    return result


# ----------------------------------------------------------------------------------------------------------------------
# The texts of a benchmark's items, for filters that read them and for exporting what they keep.
#
# One row per document: `benchmark` (may be absent where the file holds one), `doc_id` as in items.parquet,
# `context` (the item's own prompt as lm-eval renders it, without description and few-shot examples), `choices`
# (list), `gold`, `subject`, and any further columns: `prompt` and `target_delimiter` as in a run's own
# results/<run>/splits/<benchmark>/documents.parquet, annotations such as `dclm`, `cosmo`, `tech`, `med`, `edu`,
# `sci`, `tokens`. JSON lines or parquet.

_OF_TEXTS = ("doc_id", "context", "choices", "gold")


class NoDocuments(InputError):
    """A table without a document of the benchmark."""


def read_documents(path: str | Path, benchmark: str | None = None) -> pd.DataFrame:
    """The documents of one benchmark, in the order of the file; `subject` is "" where unknown.

    Raises NoDocuments for a benchmark without any, and InputError, naming the row, for a missing column, a repeated id,
    no context, fewer than two choices, or a gold answer that is no number or out of range.
    """
    path = Path(path)
    if not path.is_file():
        raise absent(path, otherwise="give the path of a .jsonl or .parquet file.")
    try:
        is_parquet = path.suffix == ".parquet"
        documents = pd.read_parquet(path) if is_parquet else pd.read_json(path, lines=True, dtype=False)
    except (ValueError, OSError) as error:
        raise InputError(f"{path}: not readable ({error}).", "write JSON lines or parquet.") from error
    for column in _OF_TEXTS:
        if column not in documents.columns:
            raise InputError(f"{path}: column {column!r} is missing.", f"columns: {', '.join(_OF_TEXTS)}, subject.")
    if benchmark is not None and "benchmark" in documents.columns:
        documents = documents[documents["benchmark"] == benchmark]
    if documents.empty:
        raise NoDocuments(f"{path}: no documents of benchmark {benchmark!r}.", "check the benchmark's id.")
    documents = documents.reset_index(drop=True)
    documents["doc_id"] = documents["doc_id"].astype(str)
    _check_texts(path, documents)
    subjects = documents["subject"] if "subject" in documents.columns else pd.Series([""] * len(documents))
    choices = [[str(choice) for choice in of_document] for of_document in documents["choices"]]
    texts = {"subject": subjects.fillna("").astype(str), "context": documents["context"].astype(str)}
    return documents.assign(**texts, choices=choices, gold=documents["gold"].astype(int))


def write_no_documents(path: str | Path) -> None:
    """A documents table without rows, of a benchmark whose texts are not there."""
    write_table(pd.DataFrame(columns=DOCUMENTS.names), DOCUMENTS, path)


def match_documents(documents: pd.DataFrame, doc_ids: Iterable[object], path: str | Path) -> pd.DataFrame:
    """The documents in the order of `doc_ids`. Raises InputError for an id without a document."""
    by_id = documents.set_index("doc_id", drop=False)
    for doc_id in doc_ids:
        if doc_id not in by_id.index:
            raise InputError(
                f"{path}: no document {str(doc_id)!r}, which the items table has.", "give all the items' documents."
            )
    return by_id.loc[list(doc_ids)].reset_index(drop=True)


def questions(documents: pd.DataFrame) -> Iterator[tuple[str, list[str], int]]:
    """(context, choices, index of the right choice) of each document."""
    return zip(documents["context"], documents["choices"], documents["gold"], strict=True)


def _check_texts(path: Path, documents: pd.DataFrame) -> None:
    is_list = documents["choices"].map(lambda value: hasattr(value, "__len__") and not isinstance(value, str))
    sizes, gold = documents["choices"].where(is_list, "").map(len), documents["gold"]
    is_whole = gold.map(lambda value: isinstance(value, numbers.Real) and not (math.isfinite(value) and value % 1))
    is_choice = gold.where(is_whole).astype("float64").between(0, sizes, inclusive="left")  # null is none
    of_gold = "gold is the index of the right choice, from 0."
    for column, is_right, problem, hint in (
        ("doc_id", ~documents["doc_id"].duplicated(), "occurs twice", "keep one of the rows."),
        ("context", documents["context"].notna(), "no text", "write the question, or leave the row out."),
        ("choices", sizes > 1, "not a list of at least two", "list the choices' texts."),
        ("gold", is_whole, "not a whole number", of_gold),
        ("gold", is_choice, "out of range for its choices", of_gold),
    ):
        for index in np.flatnonzero(~is_right)[:1]:
            value = str(documents.at[index, column])[:60]
            where = f"{path}: row {index + 1}, document {documents.at[index, 'doc_id']!r}, column {column!r}"
            raise InputError(f"{where}, value {value!r}: {problem}.", hint)
