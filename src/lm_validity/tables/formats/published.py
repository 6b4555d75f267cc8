"""Files of studies and of agents: train before test, the early-training competition, trials, and lists of what is
resolved."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lm_validity.config.rows import read_text_rows
from lm_validity.config.sections import E2LM_BATCH_RAMP
from lm_validity.errors import InputError
from lm_validity.files import as_written
from lm_validity.tables.claims import DEFAULTS, Claim, Item
from lm_validity.tables.formats import checked
from lm_validity.tables.formats.engine import Place, Spec
from lm_validity.tables.formats.joining import typed_scores
from lm_validity.tables.formats.model_names import folder_name
from lm_validity.tables.formats.score_files import (
    ImportOptions,
    Opened,
    ScoreFile,
    check_rows,
    date_in,
    mean_of_items,
)
from lm_validity.words import count

# ---- train before test: {train_before_test | direct_eval}[_stderr] -> benchmark -> model id -> number ----------------

_BLOCKS = {"direct": "direct_eval", "train_before_test": "train_before_test"}
_AUTHORS_FILE = "is it the authors' notebooks/all_results.json?"


def _harmony(root: Place) -> Iterator[Place]:
    results = root.root
    blocks = {protocol: block for protocol, block in _BLOCKS.items() if isinstance(results, dict) and block in results}
    for protocol, block in (blocks or {"direct": "direct_eval"}).items():
        benchmarks = results[block] if blocks else None
        if not isinstance(benchmarks, dict) or not all(isinstance(scores, dict) for scores in benchmarks.values()):
            raise InputError(f"{root.path}: no object {block!r} of benchmarks with scores by model.", _AUTHORS_FILE)
        for benchmark, scores in benchmarks.items():
            errors = checked.part(results, f"{block}_stderr", benchmark)
            for model, value in scores.items():
                where = f"{root.path}, {block}, {benchmark}, {model}"
                cell: dict[str, Any] = {"value": checked.score(value, where, "remove the entry where it is unknown.")}
                cell |= {"model": model, "benchmark": benchmark, "protocol": protocol, "stderr": errors.get(model)}
                yield root.below(model, cell)


LM_HARMONY = Spec(
    "lm-harmony",
    lambda opened: isinstance(opened.document, dict) and bool(set(_BLOCKS.values()) & set(opened.document)),
    {name: name for name in ("model", "benchmark", "protocol", "value", "stderr")},
    _harmony,
    # whichever prompt was better on validation
    finish=lambda file, root, places: replace(file, rows=[row | Claim(prompt=None) for row in file.rows]),
)

# ---- the early-training competition: model, iteration, gtokens and a column a benchmark, or lists of them by model ---

_CURVE_KEYS = ("model", "iteration", "gtokens")
_LAYOUT = "the columns are model, iteration, gtokens and one column per benchmark."
_NO_BENCHMARKS = ("model_type", "experiment")  # texts beside the numbers of the organisers' file


def _curves(opened: Opened, options: ImportOptions) -> pd.DataFrame:
    """The file as text; the index is a row's line, or the number of a checkpoint through all models."""
    path = opened.path
    if path.suffix != ".json":
        rows = read_text_rows(path, _LAYOUT)
        for column in ("model", "iteration"):
            if column not in rows.header:
                raise InputError(f"{path}: column {column!r} is missing.", _LAYOUT)
        if "" in rows.header:
            number = rows.header.index("") + 1
            raise InputError(f"{path}: column {number} has no name.", "pandas writes no row numbers with index=False.")
        return rows.frame()
    frames = []
    for model, columns in checked.part(checked.read_json_file(path, _LAYOUT), "data").items():
        lists = {name: values for name, values in checked.part(columns).items() if name not in _NO_BENCHMARKS}
        if "iteration" not in lists or not all(isinstance(values, list) for values in lists.values()):
            raise InputError(f"{path}, {model!r}: not a list for each column, 'iteration' one of them.", _LAYOUT)
        for name, values in lists.items():
            if len(values) != (number := len(lists["iteration"])):
                problem = f"{path}, {model!r}, {name!r}: {len(values)} values for {number} checkpoints."
                raise InputError(problem, "write null where nothing was measured.")
        texts = {name: ["" if value is None else str(value) for value in values] for name, values in lists.items()}
        frames.append(pd.DataFrame({"model": model, **texts}, dtype=str))
    if not frames:
        raise InputError(f"{path}: no object 'data' of models with their curves.", _LAYOUT)
    curves = pd.concat(frames, ignore_index=True).fillna("")
    return curves.set_axis(curves.index + 1)


def _e2lm(root: Place) -> Iterator[Place]:
    """The cells of benchmarks; an empty one is a checkpoint that was not evaluated on it."""
    curves, benchmarks = root.root, [name for name in root.root.columns if name not in _CURVE_KEYS]
    if not benchmarks:
        raise InputError(f"{root.path}: no benchmark column beside {', '.join(_CURVE_KEYS)}.", _LAYOUT)

    def number(line: Any, column: str, text: str) -> float:
        value = pd.to_numeric(text, errors="coerce")
        if not np.isfinite(value) or (column == "iteration" and (value < 0 or value % 1)):
            kind = "step count" if column == "iteration" else "finite number"
            hint = "leave the cell empty where nothing was measured." if column in benchmarks else "write a number."
            raise InputError(f"{root.path}: row {line}, column {column!r}: {text!r} is not a {kind}.", hint)
        return float(value)

    seen = set[tuple[str, int]]()
    for line, row in zip(curves.index, curves.to_dict("records"), strict=True):
        if not row["model"]:
            raise InputError(f"{root.path}: row {line}: column 'model' is empty.", _LAYOUT)
        step = int(number(line, "iteration", row["iteration"]))
        tokens = number(line, "gtokens", row["gtokens"]) if "gtokens" in row else E2LM_BATCH_RAMP.tokens_b(step)
        if (row["model"], step) in seen:
            problem = f"{root.path}: row {line}: a second row for model {row['model']!r} at iteration {step}."
            raise InputError(problem, "keep one row per model and checkpoint.")
        seen.add((row["model"], step))
        shared = {"model": row["model"], "checkpoint": f"iter_{step:07d}", "iteration": step, "tokens_b": tokens}
        for name in benchmarks:
            if row[name]:
                yield root.below(f"row {line}", shared | {"benchmark": name, "value": number(line, name, row[name])})


E2LM = Spec(
    "e2lm",
    lambda opened: (
        opened.head.lstrip(b"\xef\xbb\xbf").startswith(b"model,iteration,gtokens,")
        or any(
            isinstance(checked.part(columns).get("iteration"), list)
            for columns in checked.part(opened.document, "data").values()
        )
    ),
    {name: name for name in ("model", "checkpoint", "iteration", "tokens_b", "benchmark", "value")},
    _e2lm,
    load=_curves,
    suffixes=(".csv", ".json"),
)


def read_published(path: str | Path, spec: Spec) -> pd.DataFrame:
    """The columns of SCORES of a file of the train-before-test authors or of the competition, sorted.

    Metric, direction and numbers of items are not in the files: null, to be joined from the benchmarks sheet. Raises
    InputError, with the place, for a file that is none and for a score that is not a finite number.
    """
    path = Path(path)
    document = checked.read_json_file(path, _AUTHORS_FILE) if spec is LM_HARMONY else None
    (file,) = spec.read(Opened(path, named=True, document=document), ImportOptions())
    if not file.rows:
        raise InputError(f"{path}: no scores in it.", _AUTHORS_FILE if spec is LM_HARMONY else _LAYOUT)
    rows = typed_scores(pd.DataFrame([DEFAULTS | Claim(source=spec.name) | row for row in file.rows]))
    check_rows(rows, path)
    key = ["protocol", "benchmark", "model"] if spec is LM_HARMONY else ["model", "benchmark", "iteration"]
    return rows.sort_values(key, ignore_index=True, kind="stable")


read_lm_harmony = partial(read_published, spec=LM_HARMONY)
read_e2lm = partial(read_published, spec=E2LM)

# ---- trials of agents: tau-bench's list, tau2-bench's `simulations`, a reward for each task and trial ----------------

_DOMAINS = re.compile(r"(.+?)[-_ ](airline|retail|telecom|mock)(?![a-z])", re.I)  # in a file's name, behind the model


def _trials(document: object) -> list[dict[str, Any]]:
    return checked.objects(document.get("simulations") if isinstance(document, dict) else document)


def _of_name(path: Path, part: int, otherwise: str) -> str:
    return found[part] if (found := _DOMAINS.match(path.stem)) else otherwise


TRIALS = Spec(
    "trials",
    lambda opened: (
        bool(trials := _trials(opened.document)) and all({"task_id", "trial"} <= set(trial) for trial in trials)
    ),
    {"doc_id": "task_id", "run": "trial", "metric": "=reward,none", "value": "reward_info.reward|reward"},
    lambda root: (root.below(f"trial {number}", trial) for number, trial in enumerate(_trials(root.root))),
    common={
        "model": "^info.agent_info.llm",
        "benchmark": ("^info.environment_info.domain_name", "%",
                      lambda name, path: name or _of_name(path, 2, "tasks").lower()),
    },
    named_by=lambda opened: _of_name(opened.path, 1, opened.path.stem),
    of_file={"date": ("%", lambda path: date_in(path.stem))},
)  # fmt: skip

# ---- Terminal-Bench: {"results": [{"task_id", "is_resolved", "trial_name"}, ...]} in DATASET/MODEL/RUN ---------------

_TRIAL = re.compile(r"\.(\d+)-of-\d+\.(.+)")  # TASK.2-of-5.RUN
_TIMES = re.compile(r"\d{4}-\d\d-\d\d__\d\d-\d\d-\d\d")  # a run that nobody named


def _terminal(root: Place) -> Iterator[Place]:
    """Each attempt at a task, which is a run. One that ended without a result was not resolved, as in the file's own
    accuracy."""
    seen = defaultdict[int, set[str]](set)
    for number, trial in enumerate(root.root["results"]):
        named, task = _TRIAL.search(str(trial.get("trial_name"))), str(trial["task_id"])
        run = int(named[1]) - 1 if named else sum(task in tasks for tasks in seen.values())
        if task in seen[run]:
            problem = f"{root.path}, results {number}: {task} is there twice in attempt {run + 1}."
            raise InputError(problem, "keep one.")
        seen[run].add(task)
        yield root.below(
            f"results {number}", {"doc_id": task, "run": run, "value": float(trial["is_resolved"] is True)}
        )


def _terminal_folder(path: Path, trials: Sequence[Mapping[str, Any]] = ()) -> Path:
    """The folder of the model, above those of its runs."""
    runs, folder = {found[2] for trial in trials if (found := _TRIAL.search(str(trial.get("trial_name"))))}, path.parent
    folder = as_written(folder)
    while folder.name in runs or _TIMES.search(folder.name):
        folder = folder.parent
    return folder


def _terminal_benchmark(path: Path, trials: Sequence[Mapping[str, Any]]) -> str:
    """The folder of the models, without the version."""
    above = re.split(r"[:@]|==", _terminal_folder(path, trials).parent.name)[0]
    return above if "bench" in above.lower() else "terminal-bench"


def _terminal_file(file: ScoreFile, root: Place, places: list[Place]) -> ScoreFile:
    trials = root.root["results"]
    unknown = sum(trial["is_resolved"] is None for trial in trials)
    name = folder_name(_terminal_folder(root.path, trials) / "x") if file.by_path else file.common["model"]
    text = f"{name}: {count(unknown, 'trial')} without a result count as not resolved, as in the file's accuracy."
    return replace(file, common=file.common | Claim(model=name), notes=(text,) if unknown else ())


TERMINAL = Spec(
    "terminal-bench",
    lambda opened: bool(trials := checked.objects(checked.part(opened.document).get("results")))
    and all({"task_id", "is_resolved"} <= set(trial) for trial in trials),
    {"doc_id": "doc_id", "run": "run", "metric": "=resolved", "value": "value"},
    _terminal,
    common={"benchmark": ("%", "^results", _terminal_benchmark)},
    of_file={
        "date": ("%", lambda path: date_in(path.parent.name) or date_in(path.stem)),
        "log": ("^id", "%", lambda name, path: str(name or path)),
    },
    named_by=lambda opened: _terminal_folder(opened.path).name,
    finish=_terminal_file,
)  # fmt: skip

# ---- SWE-bench: lists of ids, of which only the resolved ones are sure to be there -----------------------------------

_RESOLVED = ("resolved", "resolved_ids")
# Lists of items beside these and those whose name ends in `_ids`; others are of containers, images and such
_OF_ITEMS = frozenset(
    ("resolved", "unresolved", "generated", "no_generation", "with_logs", "no_logs", "applied", "no_apply",
     "install_fail", "reset_failed", "test_errored", "test_timeout")
)  # fmt: skip
_BY_REPOSITORY, _BY_TIME = "resolved_by_repo.json", "resolved_by_time.json"


@dataclass(frozen=True)
class ListFile(ScoreFile):
    """A file that lists which items are right. named: all that it lists. total: how many there are, None: not said."""

    right: frozenset[str] = frozenset()
    named: frozenset[str] = frozenset()
    total: int | None = None


def _ids(value: object) -> frozenset[str] | None:
    """The ids of a list of texts; None for what is none."""
    return frozenset(value) if isinstance(value, list) and all(isinstance(entry, str) for entry in value) else None


def _read_list(file: ScoreFile, root: Place, places: list[Place]) -> ListFile:
    """A file without its share of items: it is that of `with_totals`, which sees all files."""
    path, document = root.path, root.root
    right, key = next((ids, name) for name in _RESOLVED if (ids := _ids(document.get(name))) is not None)
    if len(right) < len(document[key]):
        raise InputError(f"{path}: ids stand several times in {key!r}: attempts in one list.", "write one for each.")
    lists = (value for name, value in document.items() if name in _OF_ITEMS or name.endswith("_ids"))
    total = checked.whole(document.get("total_instances"), f"{path}, total_instances", 1)
    if total is None and path.with_name(_BY_REPOSITORY).is_file():
        parts = checked.read_json_file(path.with_name(_BY_REPOSITORY), "leave it out.")
        numbers = [number for each in parts.values() if type(number := checked.part(each).get("total")) is int]
        total = sum(numbers) if len(numbers) == len(parts) else None
    folder = path.parent.parent if path.parent.name == "results" else path.parent
    of_harness = key == "resolved_ids"  # MODEL.RUN.json
    row = Claim(benchmark=(path if of_harness else folder).absolute().parent.name, metric="resolved", value=0.0)
    return ListFile(
        path, [row], file.common, date_in(folder.name), by_path=file.by_path, made=file.made,
        right=right, named=right.union(*filter(None, map(_ids, lists))), total=total,
    )  # fmt: skip


def _list_model(path: Path) -> str:
    folder = path.parent.parent if path.parent.name == "results" else path.parent
    of_harness = path.stem.rpartition(".")[0] if path.name != "results.json" else ""
    return (of_harness or folder.name or path.stem).replace("__", "/", 1)


LISTS = Spec(
    "lists",
    lambda opened: (opened.path.name in (_BY_REPOSITORY, _BY_TIME) and opened.path.with_name("results.json").is_file())
    or any(_ids(checked.part(opened.document).get(name)) is not None for name in _RESOLVED),
    {},
    lambda root: (),
    named_by=lambda opened: _list_model(opened.path),
    beside=(_BY_REPOSITORY, _BY_TIME),
    finish=_read_list,
    suffixes=(".json", ".yaml", ".yml"),
)  # fmt: skip


def with_totals(files: Sequence[ScoreFile]) -> list[ScoreFile]:
    """The files, those of lists with their shares and items: of as many items as files say, else of those that the
    lists of all files of a benchmark name. An item that no list names was resolved by no model.

    Raises InputError where files name more items than they say that there are.
    """
    benchmarks = defaultdict[str, list[ListFile]](list)
    for file in files:
        if isinstance(file, ListFile):
            benchmarks[file.rows[0]["benchmark"]].append(file)
    items: dict[str, tuple[list[str], str]] = {}
    for benchmark, lists in benchmarks.items():
        named = sorted(frozenset[str]().union(*(file.named for file in lists)))
        stated = sorted({file.total for file in lists if file.total})
        if stated and stated[-1] < len(named):
            odd = next((file for file in lists if len(file.named) > (file.total or stated[-1])), None)
            where = f"{lists[0].path.parent}: all lists" if odd is None else f"{odd.path}: its lists"
            number = len(named) if odd is None else len(odd.named)
            problem = f"{where} name {number} items, of {stated[-1] if odd is None else odd.total} that there are."
            raise InputError(problem, "keep files of one set of items in a folder.")
        total = stated[-1] if stated else len(named)
        if not total:
            raise InputError(f"{lists[0].path}: its lists, and those beside it, name no item.", "leave it out.")
        text = f"{benchmark}: shares are of {total} items"
        text += ", those that the files name; perhaps there are more." if not stated else ""
        text += f", though files count {stated[0]} to {stated[-1]}." if len(stated) > 1 else ""
        names = named + [f"unlisted {number}" for number in range(1, total - len(named) + 1)]
        items[benchmark] = names, text if len(stated) != 1 else ""
    return [
        _with_total(file, *items[file.rows[0]["benchmark"]]) if isinstance(file, ListFile) else file for file in files
    ]


def _with_total(file: ListFile, names: list[str], text: str) -> ScoreFile:
    row = file.rows[0]
    values = mean_of_items(np.array([float(name in file.right) for name in names]))
    items = partial(_listed, row["benchmark"], names, file.right)
    return replace(file, rows=[row | values], items=items, notes=(text,) if text else ())


def _listed(benchmark: str, names: list[str], right: frozenset[str]) -> Iterator[Item]:
    for name in names:
        yield {"benchmark": benchmark, "doc_id": name, "correct": float(name in right)}
