"""Scores and items of many files in one table each, each once: groups of tasks, units, directions, runs, and what
counts where files differ."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from lm_validity.errors import InputError
from lm_validity.files import Document
from lm_validity.tables import schema
from lm_validity.tables.formats.score_files import ImportLog, ScoreFile, date_text
from lm_validity.tables.metrics import lower_is_better, metric_direction
from lm_validity.tables.schema import CLAIMS, ITEMS, KEY, SCORES, SETTINGS, SETTINGS_KEY, Claim, Settings
from lm_validity.words import count, listing

_TYPES = {column.name: schema.NULLABLE.get(column.type, column.type.to_pandas_dtype()) for column in SCORES}
# Scores that differ by less are equal: files round differently, and another batch size changes the last digits
_SAME, _SAME_ERRORS = 1e-9, 0.01  # relative, and in standard errors
_FAR_TOO_LARGE = 3.0  # times the pooled error of a group's tasks
_FEWEST_EQUAL = 3  # scores that two names have in common, and all are equal


def ranked(files: Iterable[ScoreFile]) -> list[ScoreFile]:
    """The files, the best first."""
    return sorted(sorted(files, key=lambda file: str(file.path)), key=lambda file: file.rank, reverse=True)


def score_table(files: Iterable[ScoreFile], log: ImportLog) -> pd.DataFrame:
    """The columns of SCORES, sorted by key, each score once; what is left out goes to `log`.

    Of several files with different scores under one key the newest counts, if all are of the same weights and settings
    (`ScoreFile.replaces`). Raises InputError for all other such scores.
    """
    files = ranked(files)
    frame = score_frame(files)
    where = [f"{files[row.file].path}: {row.model!r} on {row.benchmark!r}" for row in frame.itertuples()]
    schema.check_values(frame[SCORES.names].set_axis(where), "scores")
    if missing := sum(file.missing for file in files):
        log.notes.append(f"No finite number, so left out: {count(missing, 'score')}.")
    if limited := sum(file.limited for file in files):
        log.notes.append(f"Not all documents were scored (--limit, or answers that failed): {count(limited, 'file')}.")
    log.notes += dict.fromkeys(note for file in files for note in file.notes)
    if by_path := sorted({str(file.common["model"]) for file in files if file.by_path}):
        log.notes.append(f"Named by their paths, since the files do not say it: {listing(by_path, 5)}.")
    for step in (_with_suites, _with_groups, _with_directions, _with_one_name):
        frame = step(frame, log)
    again = frame.duplicated(KEY)
    if again.any():
        _settle(frame, frame[again], files, log)
        frame = frame[~again]
    made = pd.DataFrame([*frame["made"]], index=frame.index, dtype=object)
    made = made.reindex(columns=[name for name in SETTINGS.names if name not in SETTINGS_KEY])
    settings = frame[list(SETTINGS_KEY)].join(made)[made.notna().any(axis=1)]
    log.settings = None if settings.empty else settings.drop_duplicates(list(SETTINGS_KEY), ignore_index=True)
    return frame[SCORES.names].sort_values(KEY, ignore_index=True, kind="stable")


def score_frame(files: list[ScoreFile]) -> pd.DataFrame:
    """The columns of SCORES of all rows of files, the further ones of claims, settings and the number of the file."""
    rows = list[Document]()
    for number, file in enumerate(files):
        common = schema.with_defaults(file.common)
        for row in file.rows:
            made = file.made | row.get("made", Settings())
            rows.append({**common, **row, "made": made, "file": number})
    further = [*CLAIMS, "made", "file"]
    frame = pd.DataFrame(rows, columns=[*SCORES.names, *further], dtype=object)
    return frame.astype(_TYPES)  # absent columns are null, and the types those that nulls leave as they are


# ----------------------------------------------------------------------------------------------------------------------
# What several files say together.


def _with_suites(frame: pd.DataFrame, log: ImportLog) -> pd.DataFrame:
    """The rows with the suite before a task's name where two suites have tasks of that name with equally many solved
    examples, in whatever file."""
    suites = frame[frame["suite"].notna()].groupby(["benchmark", "num_fewshot"], dropna=False)["suite"].nunique()
    several = sorted({name for (name, _), number in suites.items() if number > 1})
    if not several:
        return frame
    log.notes.append(f"Tasks of one name in several suites are kept apart: {listing(several)}.")
    own = frame["suite"].notna() & frame["benchmark"].isin(several)
    return frame.assign(benchmark=frame["benchmark"].mask(own, frame["suite"] + "|" + frame["benchmark"]))


def _with_groups(frame: pd.DataFrame, log: ImportLog) -> pd.DataFrame:
    """The rows with either a group's own scores or those of its tasks, for all models the same.

    The group's, where all models that have its tasks have them; else the tasks, where all that have the group have
    these; else what more models have. A group's error that its tasks' contradict by a factor of 3 is replaced by the
    pooled one.
    """
    group_of = frame.dropna(subset=["group"]).drop_duplicates("benchmark").set_index("benchmark")["group"]
    tasks_in = frame["benchmark"].map(group_of)
    out, left_out = pd.Series(data=False, index=frame.index), dict[str, int]()
    stderr = frame["stderr"].astype(float).copy()
    for group in (name for name in frame["group"].dropna().unique() if (frame["benchmark"] == name).any()):
        tasks = tasks_in == group
        whole = (frame["benchmark"] == group) & ~tasks
        with_tasks, with_whole = set(frame.loc[tasks, "model"]), set(frame.loc[whole, "model"])
        counts = f"{len(with_whole)} models have {group}, {len(with_tasks)} its tasks"
        if not with_tasks <= with_whole and (with_whole <= with_tasks or len(with_tasks) > len(with_whole)):
            out |= whole
            log.notes.append(f"{counts}: these count for all.")
            log.split.add(group)
            continue
        if not with_tasks <= with_whole:
            log.notes.append(f"{counts}: its own score counts for all.")
        out |= tasks
        left_out[group] = frame.loc[tasks, "benchmark"].nunique()
        pooled = _pooled_errors(frame[tasks])
        keys = pd.MultiIndex.from_frame(frame.loc[whole, ["file", "metric"]])
        expected = pd.Series(pooled.reindex(keys).to_numpy(), frame.index[whole])
        wrong = stderr[whole] > _FAR_TOO_LARGE * expected
        if wrong.any():
            times = (stderr[whole] / expected)[wrong].max()
            stderr[wrong.index[wrong]] = expected[wrong]
            text = f"{group}: standard errors {times:.1f} times what its tasks' give, pooled instead ({wrong.sum()})."
            log.notes.append(text)
    if left_out:
        names = [f"{number} tasks of {group}" for group, number in left_out.items()]
        log.notes.append(f"Left out, since the group's own score counts: {listing(names)}.")
    return frame.assign(stderr=stderr)[~out]


def _pooled_errors(tasks: pd.DataFrame) -> pd.Series:
    """The standard error of the mean over all items of tasks by file and metric, from their shares and errors:
    n_i = p_i (1 - p_i) / se_i^2 + 1; se = sqrt(sum (n_i se_i)^2) / sum n_i. NaN where a task does not tell its n."""
    shares, errors = tasks["value"].astype(float), tasks["stderr"].astype(float)
    items = (shares * (1 - shares) / errors**2 + 1).where((shares > 0) & (shares < 1) & (errors > 0))
    sums = tasks[["file", "metric"]].assign(n=items, squares=(items * errors) ** 2)
    groups = sums.groupby(["file", "metric"], dropna=False)
    pooled: pd.Series = np.sqrt(groups["squares"].sum(min_count=1)) / groups["n"].sum(min_count=1)
    return pooled.where(groups["n"].count() == groups.size())


def _with_directions(frame: pd.DataFrame, log: ImportLog) -> pd.DataFrame:
    """The rows with the directions that files say, if they are not against what tasks agree on of the metric, and of a
    metric that is called a loss lower."""
    known = {name: metric_direction(name) for name in frame["metric"].dropna().unique()}
    by_table, said = (column.astype("boolean") for column in (frame["metric"].map(known), frame["higher_is_better"]))
    against = (by_table != said).fillna(value=False).to_numpy(bool)
    if against.any():
        names = (frame["benchmark"] + ", " + frame["metric"])[against].unique()
        log.notes.append(f"Directions that files say are not those of the metrics, which count: {listing(names, 4)}.")
    losses = [name for name in known if known[name] is None and lower_is_better(name.partition(",")[0])]
    is_loss = said.isna() & frame["metric"].isin(losses)
    return frame.assign(higher_is_better=said.mask(against, by_table).mask(is_loss, other=False))


def _with_one_name(frame: pd.DataFrame, log: ImportLog) -> pd.DataFrame:
    """The rows with one name of models whose names differ in case or in `__` for `/` only, and no score contradicts, or
    in the owner, and three scores or more are the same and none differs. The name with an owner is used."""
    spelled = {name: name.replace("__", "/").strip("/ ").casefold().replace(" ", "-") for name in set(frame["model"])}
    names = defaultdict[str, list[str]](list)
    for name in sorted(spelled, key=lambda name: ("/" not in spelled[name], name != name.lower(), name)):
        names[spelled[name].rpartition("/")[2]].append(name)
    key, renamed = [name for name in KEY if name != "model"], dict[str, str]()
    for alike in (each for each in names.values() if len(each) > 1):
        own = frame[frame["model"].isin(alike)].drop_duplicates(KEY)
        scores = {name: dict(zip(map(str, rows[key].to_numpy().tolist()), rows["value"], strict=True))
                  for name, rows in own.groupby("model")}  # fmt: skip
        for place, name in enumerate(alike):
            for first in (first for first in alike[:place] if first not in renamed):
                both = scores[name].keys() & scores[first].keys()
                equal = all(abs(scores[name][each] - scores[first][each]) <= _SAME for each in both)
                if equal and (spelled[name] == spelled[first] or len(both) >= _FEWEST_EQUAL):
                    renamed[name] = first
                    break
    if not renamed:
        return frame
    log.notes.append(f"One model: {listing([f'{name} and {first}' for name, first in renamed.items()])}.")
    log.renamed |= renamed
    frame = frame.assign(model=frame["model"].replace(renamed))
    return frame[~frame.duplicated([*KEY, "value"])]


# ----------------------------------------------------------------------------------------------------------------------
# Runs of sampled answers.


def number_runs(files: list[ScoreFile]) -> None:
    """Write the number of its `run` into each row that is one of several runs of a score.

    Rows under one key, of files with the same weights and settings, are runs where all answers were sampled. Runs
    are in the order of seeds, then of dates. Files that are equal in these and in all scores are copies of one run. All
    else stays as it is, for `score_table` to settle: equal scores without sampling are copies, others a conflict.
    """
    groups = defaultdict[tuple[object, ...], list[tuple[ScoreFile, Claim]]](list)
    for file in files:
        common = schema.with_defaults(file.common)
        for row in file.rows:
            said = common | row
            if said.get("drawn") is not None if said.get("run") is None else file.log:
                groups[*map((said | Claim(run=None)).get, KEY), file.weights, file.settings].append((file, row))
    for rows in groups.values():
        when = [_when(file, row) for file, row in rows]
        order = {moment: run for run, moment in enumerate(sorted(set(when)))}
        if len(order) > 1 and (len({file.path for file, _ in rows}) > 1 or not rows[0][0].log):
            for (_, row), moment in zip(rows, when, strict=True):
                row["run"] = order[moment]


def _when(file: ScoreFile, row: Claim) -> tuple[object, ...]:
    """What orders the runs of a score: those that are equal in it are copies. Seeds that are numbers are in their
    order, before others."""
    seed = (file.common | row).get("drawn") or ""
    values = tuple(each["value"] for each in file.rows)
    first = (int(seed), "") if seed.isdigit() else (-1, seed)
    return first, file.date or 0.0, values, file.log, row.get("run") or 0


def _settle(frame: pd.DataFrame, again: pd.DataFrame, files: list[ScoreFile], log: ImportLog) -> None:
    """A sentence for each pair of files with scores in common; InputError with all pairs that no rule decides.

    again: the rows of the frame under whose key an earlier one is.
    """
    groups = frame.groupby(KEY, dropna=False, sort=False)
    pairs = again.assign(**{f"first {name}": groups[name].transform("first") for name in ("file", "value", "stderr")})
    errors = np.fmax(pairs["stderr"], pairs["first stderr"]).fillna(0.0)
    differences = (pairs["value"] - pairs["first value"]).abs()
    pairs["differs"] = differences > _SAME * pairs["value"].abs() + _SAME_ERRORS * errors + _SAME
    conflicts, last = list[str](), "remove one of the two, or name the column that tells them apart."
    for (lost, winner), scores in pairs.groupby(["file", "first file"]):
        worse, better, number = files[lost], files[winner], count(len(scores), "score")
        differ = scores[scores["differs"]]
        if len(differ) and (lost == winner or not better.replaces(worse)):
            row = differ.fillna({"metric": "that"}).iloc[0]
            conflicts.append(
                f"{better.path} and {worse.path}: {count(len(differ), 'score')}, such as {row['metric']} of "
                f"{row['model']} on {row['benchmark']} ({row['first value']:.4g} and {row['value']:.4g})"
            )
            if better.path != worse.path:
                last = "leave out what does not count, or give folders of two protocols as direct=... and the other."
            continue
        reason = "newer" if worse.limited == better.limited else "of all documents"
        how = f"which is {reason} ({len(differ)} differ)" if len(differ) else "with the same values but for rounding"
        dates = [f"{file.path} ({date_text(file.date)})" for file in (worse, better)]
        log.repeat(f"{dates[0]}: {number} also in {dates[1]}, {how}")
    if conflicts:
        problem = "different values under one name, and no newer run of the same weights and settings decides"
        raise InputError(f"{problem}: {'; '.join(conflicts)}.", last)


def check_identities(files: list[ScoreFile]) -> None:
    """Raises InputError where files of one model's name say different things of the model."""
    identities: dict[tuple[str, str], tuple[str, Path]] = {}
    for file, aspect, value in ((each, *pair) for each in files for pair in each.identity.items()):
        model = file.common["model"]
        identity_before, path = identities.setdefault((model, aspect), (value, file.path))
        if identity_before != value:
            problem = f"two different models are called {model}: {aspect} {identity_before} in {path}, {value} in "
            raise InputError(f"{problem}{file.path}.", f"name one of them: --model '{file.path}=another name'.")


# ----------------------------------------------------------------------------------------------------------------------
# items.parquet.

_EVALUATION = ITEMS.names[: ITEMS.names.index("doc_id")]  # the columns that name an evaluation


class _Part(NamedTuple):
    """The items of a file that count, of one benchmark; whether some right choice is unknown."""

    benchmark: str
    path: Path
    table: pa.Table
    lacks_gold: bool


def write_items(files: Iterable[ScoreFile], path: Path, log: ImportLog) -> int:
    """items.parquet at `path`, of files with items; how many rows. The best file's items of an evaluation count.

    Models have the names that their scores got, of which two may have become one; tasks of a group whose own score
    counts are its items, with the task before their documents' names. The right choices of a benchmark are left out
    where one file does not tell all of its own: with some of them the table would be no complete answer sheet.
    """
    group_of = {task: group for task, group in log.members.items() if group not in log.split}
    parts = [*_of_same_documents(_parts(files, log), log)]
    unknown = {group_of.get(part.benchmark, part.benchmark) for part in parts if part.lacks_gold}
    if unknown:
        log.notes.append(f"Right choices unknown, so no chance level and no margins: {', '.join(sorted(unknown))}.")
    with pq.ParquetWriter(path, ITEMS, compression="zstd") as writer:
        for task, _, table, _ in parts:
            benchmark = group_of.get(task, task)
            if benchmark in unknown:
                table = _with_column(table, "gold", [None] * len(table))
            if benchmark != task:  # tasks number their documents each from 0
                documents = [f"{task}/{name}" for name in table.column("doc_id").to_pylist()]
                columns = {"benchmark": [benchmark] * len(table), "doc_id": documents, "subject": [task] * len(table)}
                for name, values in columns.items():
                    table = _with_column(table, name, values)
            writer.write_table(table)
    return sum(len(part.table) for part in parts)


def _parts(files: Iterable[ScoreFile], log: ImportLog) -> Iterator[_Part]:
    """The items of each evaluation by its best file, a part for each benchmark of a file."""
    owners = dict[tuple[object, ...], Path]()
    for file in ranked(file for file in files if file.items is not None):
        try:
            rows = [*_rows(file, log)]
        except InputError as error:
            log.skip(file.path, error.problem, error.hint)
            continue
        by_benchmark, repeated = defaultdict[str, list[Document]](list), set[Path]()
        for row in rows:
            owner = owners.setdefault(tuple(map(row.get, _EVALUATION)), file.path)
            if owner is file.path:
                by_benchmark[row["benchmark"]].append(row)
            else:
                repeated.add(owner)
        if repeated and not file.rows:  # else the scores were said to be elsewhere
            text = f"the same documents are answered in {min(repeated)}"
            log.repeat(f"{file.path} ({date_text(file.date)}): {text}")
        for benchmark, rows in by_benchmark.items():
            lacks = any(len(row.get("choice_loglikelihoods") or ()) > 1 and row.get("gold") is None for row in rows)
            yield _Part(benchmark, file.path, pa.Table.from_pylist(rows, schema=ITEMS), lacks)


def _rows(file: ScoreFile, log: ImportLog) -> Iterator[Document]:
    """The columns of ITEMS of a file, with the runs that its scores have."""
    numbers = defaultdict[str, set[int]](set)
    for score in file.rows:
        numbers[score["benchmark"]] |= {run for run in [score.get("run")] if run is not None}
    common: Document = {**schema.with_defaults(file.common)}
    for item in file.items() if file.items is not None else ():
        row: Document = {name: common.get(name) for name in _EVALUATION} | {**item}
        runs = sorted(numbers[row["benchmark"]])
        if file.log if row["run"] is not None else len(runs) == 1:
            row["run"] = runs[row["run"] or 0]
        yield row | {"model": log.renamed.get(row["model"], row["model"])}


def _of_same_documents(parts: Iterable[_Part], log: ImportLog) -> Iterator[_Part]:
    """The parts of the same documents. A document's place in the task names it, so all files of a task must mean the
    same documents by the same numbers. Their hashes tell, where lines have them; the same documents in another order
    are named as in the first file."""
    firsts = dict[str, tuple[Path, dict[str, str]]]()
    for part in sorted(parts, key=lambda part: (part.benchmark, str(part.path))):
        benchmark, path, table, _ = part
        pairs = zip(table.column("doc_id").to_pylist(), table.column("doc_hash").to_pylist(), strict=True)
        hashes = {name: hashed for name, hashed in pairs if hashed}
        first, expected = firsts.setdefault(benchmark, (path, hashes)) if hashes else (path, hashes)
        in_both = hashes.keys() & expected.keys()
        differ = sum(hashes[name] != expected[name] for name in in_both)
        numbers = {hashed: name for name, hashed in expected.items()}
        if differ and len(numbers) == len(expected) and set(hashes.values()) == set(numbers):
            log.note("Documents in another order than in the task's first file, told by their hashes", path)
            table = _with_column(table, "doc_id", [numbers[hashed] for hashed in table.column("doc_hash").to_pylist()])
        elif differ:
            problem = f"{path}: {differ} of {len(in_both)} documents differ from those in {first}: another version of "
            log.skip(path, f"{problem}the task; its items are left out", "import it into another folder.")
            continue
        yield part._replace(table=table)


def _with_column(table: pa.Table, name: str, values: Sequence[object]) -> pa.Table:
    return table.set_column(ITEMS.names.index(name), ITEMS.field(name), pa.array(values, ITEMS.field(name).type))
