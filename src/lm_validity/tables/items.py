"""Items: the documents of benchmarks, rows of answers, and arrays of them."""

import math
import numbers
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from lm_validity.errors import InputError
from lm_validity.files import absent
from lm_validity.tables.schema import DIRECT, DOCUMENTS, ITEMS, NULLABLE, readable, write_table
from lm_validity.tables.training import commonest, training_order
from lm_validity.words import Missing, Reason, ReasonCode

# ----------------------------------------------------------------------------------------------------------------------
# Rows of a table of items that belong to scores: opened as a data set, since it may be larger than memory.


_REQUIRED = ("model", "benchmark", "protocol", "doc_id", "correct")
NO_CHANCE = Missing(Reason("The benchmarks sheet names no chance level (column chance).", ReasonCode.NO_CHANCE))


def open_items(path: str | Path) -> ds.Dataset:
    """The items table. Raises InputError for a file that is none."""
    path = Path(path)
    if not path.is_file():
        raise absent(path, otherwise="check the path of the items table.")
    with readable(path):
        table = ds.dataset(path, format="parquet")
    for name in _REQUIRED:
        if name not in table.schema.names:
            raise InputError(f"{path}: no column {name!r}.", f"items have the columns {', '.join(_REQUIRED)}.")
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
    names = {"doc_id", "split", "correct", "metric_values"} & {*table.schema.names}
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
    names = sorted(tables, key=lambda name: -len(tables[name].ids))
    names = [name for name in names if len(tables[name].ids) >= FEWEST_SHARED]
    items = {name: np.array([f"{name}\0{doc_id}" for doc_id in tables[name].ids], dtype=object) for name in names}
    groups = {name: {name} for name in names}
    for index, name in enumerate(names):
        for larger in names[:index]:
            places = _places(tables[name], tables[larger])
            if places is not None:
                small, large = places
                items[name][small] = items[larger][large]
                groups |= dict.fromkeys(together := groups[name] | groups[larger], together)
    documents = {name: pd.Series(items[name], pd.MultiIndex.from_product([[name], tables[name].ids])) for name in names}
    shared = dict.fromkeys(tuple(sorted(group)) for group in groups.values() if len(group) > 1)
    return [Shared(group, pd.concat([documents[name] for name in group])) for group in shared]


def _answered(rows: pd.DataFrame) -> _Answered:
    """Of the models that answered any item; an item that one of them did not answer stays out."""
    table = rows.pivot_table(index="doc_id", columns="model", values="correct")
    table = table.reindex(rows["doc_id"].unique()).dropna()
    facts = rows.drop_duplicates("doc_id").set_index("doc_id").reindex(index=table.index, columns=["doc_hash", "gold"])
    hashes, gold = (facts[name] if facts[name].notna().all() else None for name in facts)
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
    of_small = np.arange(len(small.ids))
    return None if start < 0 or start % width else (of_small, start // width + of_small)


def is_telling(values: np.ndarray, predecessors: np.ndarray | None = None) -> bool:
    """Whether others like these values (n,) would hardly all equal them by chance: the sum of their squared shares, to
    the power of their number, is below 1e-9. With `predecessors` (n,): among the values that follow the same one, so
    that an order which rotates or is sorted tells nothing."""
    groups = [values] if predecessors is None else [values[predecessors == value] for value in np.unique(predecessors)]
    counts = [np.unique(group, return_counts=True)[1] for group in groups if len(group)]
    return bool(sum(n.sum() * np.log(np.square(n / n.sum()).sum()) for n in counts) < COINCIDENCE)


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
# not fit into the memory of a laptop. Columns are therefore read one at a time, names as categories, and lists
# go straight into numpy.

_KEYS = [name for name in ITEMS.names[: ITEMS.names.index("correct")] if name not in ("benchmark", "seed")]
_DOCUMENT = ["model", "checkpoint", "doc_id"]


def item_benchmarks(path: str | Path) -> list[str]:
    """Names of the benchmarks in an items table, sorted."""
    with readable(path):
        names = open_items(path).to_table(["benchmark"]).column("benchmark").unique().to_pylist()
    return sorted(name for name in names if name is not None)


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
    loglikelihoods = None if gold is None else cells.loglikelihoods(gold)
    choices = None if loglikelihoods is None else np.count_nonzero(~np.isnan(loglikelihoods[0]), axis=-1)
    rows_of = {model: np.flatnonzero(cells.points["model"] == model) for model in cells.points["model"].unique()}
    firsts = np.array([rows[0] for rows in rows_of.values()])
    tokens = cells.lengths("choice_tokens", firsts, choices)
    characters = cells.lengths("choice_characters", firsts[:1], choices)
    correct = cells.correct(metric)
    iterations, tokens_b = (cells.points[name].to_numpy(float, na_value=np.nan) for name in ("iteration", "tokens_b"))
    models = []
    for index, (model, rows) in enumerate(rows_of.items()):
        rows = rows[training_order(iterations[rows], tokens_b[rows])]
        models.append(
            ModelItems(
                model=model,
                checkpoints=tuple(cells.points["checkpoint"].iloc[rows]),
                iterations=iterations[rows],
                tokens_b=tokens_b[rows],
                correct=correct[rows],
                loglikelihoods=_index(loglikelihoods, rows),
                tokens=None if tokens is None else tokens[index],
            )
        )
    return BenchmarkItems(
        benchmark=benchmark,
        doc_ids=cells.doc_ids,
        subjects=cells.rows["subject"].iloc[: len(cells.doc_ids)].to_numpy(dtype=str),
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
    """The rows of a benchmark that count, sorted: cells (model, checkpoint), each with the same documents.

    answers: the keys of the rows that count, whose index is the place among the benchmark's rows; unknown names are "".
    rows: these in order, of several runs those of the first. points: the first row of each cell.
    """

    def __init__(self, path: Path, benchmark: str, num_fewshot: int | None):
        self.path, self.where = path, f"{path}: benchmark {benchmark!r}"
        self.table, self.chosen = open_items(path), pc.field("benchmark") == benchmark
        keys = pd.DataFrame({name: self._key(name) for name in _KEYS})
        if keys.empty:
            raise InputError(f"{path}: no items of benchmark {benchmark!r}.", "check the benchmark's id.")
        for name in ("model", "doc_id"):
            if (keys[name] == "").any():
                raise InputError(f"{self.where}: rows without {name!r}.", f"fill in {name}.")
        self.answers = self._answers(keys, num_fewshot)
        self.rows = self.answers.sort_values(_DOCUMENT, kind="stable")
        if self.rows["run"].notna().any():
            self.rows = self.rows.drop_duplicates(_DOCUMENT)
        sizes = self.rows.groupby(_DOCUMENT[:2], observed=True, sort=True).size().to_numpy()
        starts = np.cumsum(sizes) - sizes
        self.points = self.rows.iloc[starts].astype({"model": str, "checkpoint": str})
        self.shape = (len(sizes), int(sizes[0]))
        self.doc_ids = self.rows["doc_id"].iloc[: sizes[0]].to_numpy(dtype=str)
        self._check_documents(starts)

    def _read(self, name: str) -> pa.ChunkedArray:
        """A column of the benchmark's rows, null where the table has none."""
        if name not in self.table.schema.names:
            return pa.chunked_array([pa.nulls(self.table.count_rows(filter=self.chosen), ITEMS.field(name).type)])
        with readable(self.path):
            return self.table.to_table([name], filter=self.chosen).column(name)

    def _key(self, name: str) -> pd.Series:
        """A key column: numbers, or categories in the order of their names, "" for null."""
        column = self._read(name).cast(ITEMS.field(name).type)
        if not pa.types.is_string(column.type):
            return column.to_pandas(types_mapper=NULLABLE.get)
        names = pc.fill_null(column, "").dictionary_encode().to_pandas()
        return names.cat.reorder_categories(sorted(names.cat.categories), ordered=True)

    def _answers(self, keys: pd.DataFrame, num_fewshot: int | None) -> pd.DataFrame:
        """The rows that count, with all runs where answers were sampled, else with the likeliest answers."""
        keys = keys[keys["protocol"].isin(["", DIRECT]) & keys["split"].isin(["", "test"])]
        for name, preferred in (("prompt", ["", "plain"]), ("prompt_variant", [""])):
            is_preferred = keys[name].isin(preferred)
            keys = keys[is_preferred] if is_preferred.any() else keys
        counts = keys["num_fewshot"]
        count_used = commonest(counts, min) if num_fewshot is None else num_fewshot
        keys = keys[(counts.isna() | (counts == count_used)).to_numpy(dtype=bool, na_value=True)]
        if keys.empty:
            problem = f"{self.where}: no row of the test split with protocol 'direct'."
            raise InputError(problem, "the signal study reads direct evaluations.")
        sampled = keys["run"].notna()
        if not sampled.any():
            return keys
        return keys[sampled | ~sampled.groupby([keys["model"], keys["checkpoint"]], observed=True).transform("any")]

    def _check_documents(self, starts: np.ndarray) -> None:
        for model, checkpoint, name in self.rows.loc[self.rows.duplicated(_DOCUMENT), _DOCUMENT].head(1).to_numpy():
            problem = f"{self.where}, model {model!r}, checkpoint {checkpoint!r}: document {name!r} occurs twice."
            raise InputError(problem, "keep one row per model, checkpoint and document.")
        codes = self.rows["doc_id"].cat.codes.to_numpy()
        first, *documents = np.split(codes, starts[1:])
        for cell, of_cell in enumerate(documents, 1):
            if not np.array_equal(of_cell, first):
                odd = self.rows["doc_id"].cat.categories[np.setxor1d(of_cell, first)[0]]
                problem = f"{self.where}, {self._name(cell)}: its documents differ from those of {self._name(0)} "
                problem += f"({len(of_cell)} and {len(first)}; {odd!r} is in one of them only)."
                raise InputError(problem, "evaluate all models and checkpoints on the same documents.")

    def _name(self, cell: int) -> str:
        return f"model {self.points['model'].iloc[cell]!r}, checkpoint {self.points['checkpoint'].iloc[cell]!r}"

    def _refuse(self, wrong: np.ndarray, column: str, problem: Callable[..., str], hint: str) -> None:
        """Raises InputError for the first place (cell, item[, choice]) that is wrong, if there is one."""
        for cell, item, *choice in np.argwhere(wrong)[:1]:
            where = f"{self.where}, {self._name(cell)}, document {self.doc_ids[item]!r}, column {column!r}"
            raise InputError(f"{where}: {problem(cell, item, *choice)}.", hint)

    def correct(self, metric: str | None) -> np.ndarray:
        """(cells, items) the values of the metric, means over runs."""
        values = item_values(pa.table({name: self._read(name) for name in ("correct", "metric_values")}), metric)
        of_rows = values.cast(pa.float64()).to_pandas()[self.answers.index]
        means = of_rows.groupby([self.answers[name] for name in _DOCUMENT], observed=True, sort=True).mean()
        correct: np.ndarray = means.to_numpy().reshape(self.shape)
        return correct

    def gold(self) -> np.ndarray | None:
        """(items,) the right choices; None where no row has one."""
        gold: np.ndarray = self.rows["gold"].to_numpy(float, na_value=np.nan).reshape(self.shape)
        if np.isnan(gold).all():
            return None
        self._refuse(
            np.isnan(gold) | (gold != gold[0]), "gold",
            lambda cell, item: f"{gold[cell, item]:g}, but {gold[0, item]:g} in {self._name(0)}",
            "a document has one right choice, the same for every model and checkpoint.",
        )  # fmt: skip
        right: np.ndarray = gold[0].astype(np.intp)
        return right

    def _lists(self, name: str, cells: np.ndarray) -> np.ma.MaskedArray | None:
        """(cells, items, longest) the values of a column's lists in some cells, masked beyond their ends; None where
        none has one."""
        rows = self.rows.index.to_numpy().reshape(self.shape)[cells]
        column = self._read(name).take(pa.array(rows.ravel())).combine_chunks()
        if column.null_count == len(column):
            return None
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).reshape(rows.shape)
        values = np.full((*rows.shape, lengths.max()), np.nan)
        is_value = np.arange(lengths.max()) < lengths[..., None]
        values[is_value] = column.flatten().to_numpy(zero_copy_only=False)
        return np.ma.MaskedArray(values, ~is_value)

    def loglikelihoods(self, gold: np.ndarray) -> np.ndarray | None:
        """(cells, items, choices) in nats, NaN beyond an item's choices; None where no row has them."""
        column = "choice_loglikelihoods"
        if (lists := self._lists(column, np.arange(self.shape[0]))) is None:
            return None
        choices, values = lists.count(axis=-1), lists.data
        self._refuse(
            (choices == 0) | (choices != choices[0]), column,
            lambda cell, item: f"{choices[cell, item]} choices, {choices[0, item]} in {self._name(0)}",
            "every choice of a document needs a log-likelihood in every cell.",
        )  # fmt: skip
        self._refuse(
            ((gold < 0) | (gold >= choices[0]))[None], "gold",
            lambda cell, item: f"{gold[item]} is out of range for {choices[0, item]} choices",
            "gold is the index of the right choice, from 0.",
        )  # fmt: skip
        self._refuse(
            ~np.isfinite(values) & ~lists.mask, column,
            lambda *cell: f"choice {cell[-1]} is {values[cell]}, not a finite number", "evaluate the cell again.",
        )  # fmt: skip
        return values

    def lengths(self, name: str, cells: np.ndarray, choices: np.ndarray | None) -> np.ndarray | None:
        """Lengths of the choices (items,) in some cells, (len(cells), items, choices); None where they are not known.
        A choice of no tokens or characters has no log-likelihood per token: NaN."""
        if choices is None or (lists := self._lists(name, cells)) is None:
            return None
        of_all = np.full(self.shape, choices)
        of_all[cells] = lists.count(axis=-1)
        self._refuse(
            of_all != choices, name, lambda cell, item: f"{of_all[cell, item]} lengths for {choices[item]} choices",
            "a length belongs to every choice.",
        )  # fmt: skip
        return np.where(lists.data > 0, lists.data, np.nan)


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
    by_id, names = documents.set_index("doc_id", drop=False), [*doc_ids]
    for name in (name for name in names if name not in by_id.index):
        problem = f"{path}: no document {str(name)!r}, which the items table has."
        raise InputError(problem, "give all the items' documents.")
    return by_id.loc[names].reset_index(drop=True)


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
