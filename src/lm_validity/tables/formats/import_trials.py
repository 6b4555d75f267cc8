"""Trials of agents (tau-bench, tau2-bench, Terminal-Bench) -> scores by trial, and items.

tau-bench writes a list with a reward for each task and trial, which names neither model nor benchmark; tau2-bench an
object with `simulations`, and both names in `info`. Terminal-Bench writes a folder a run, in that of the model.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Set
from functools import partial

import numpy as np

from lm_validity.errors import InputError
from lm_validity.files import Document, as_written
from lm_validity.tables.claims import Claim, Item
from lm_validity.tables.decisions import CONVERTED, Decision
from lm_validity.tables.formats import checked
from lm_validity.tables.formats.lm_eval_results import folder_name
from lm_validity.tables.formats.score_files import Format, ImportOptions, Opened, ScoreFile, date_in, mean_of_items
from lm_validity.words import count

_HINT = "tau-bench writes such a file into ./results: a list with task_id, trial and reward."
_DOMAINS = re.compile(r"(.+?)[-_ ](airline|retail|telecom|mock)(?![a-z])", re.I)  # in a file's name, behind the model


def _recognises(opened: Opened) -> bool:
    trials = _trials(opened.document)
    return bool(trials) and all({"task_id", "trial"} <= set(trial) for trial in trials)


def _trials(document: object) -> list[Document]:
    return checked.objects(document.get("simulations") if isinstance(document, dict) else document)


def _read(opened: Opened, options: ImportOptions) -> list[ScoreFile]:
    """A score for each trial, which is a run. The model is that of the file, else of its name (`gpt-airline.json`).

    Raises InputError for a trial without a reward, and for two different rewards of one task in one trial.
    """
    path = opened.path
    if not _recognises(opened):
        raise InputError(f"{path}: no list of trials.", _HINT)
    rewards: dict[int, dict[str, float]] = defaultdict(dict)
    for index, trial in enumerate(_trials(opened.document)):
        where = f"{path}, trial {index}"
        run = checked.whole(trial["trial"], f"{where}, 'trial'", 0)
        reward = checked.finite((checked.part(trial, "reward_info") or trial).get("reward", trial.get("reward")))
        if run is None or reward is None:
            raise InputError(f"{where}: no {'number' if run is None else 'reward'}.", "run that task again.")
        if rewards[run].setdefault(str(trial["task_id"]), reward) != reward:
            raise InputError(
                f"{where}: another reward of task {trial['task_id']} in trial {run}.", "keep one, or number the trials."
            )
    named = _names(opened)
    benchmark = named["benchmark"]
    rows: list[Claim] = [
        {
            "benchmark": benchmark,
            "metric": "reward,none",
            "run": run,
            **mean_of_items(np.array(list(rewards_of_run.values()))),
        }
        for run, rewards_of_run in sorted(rewards.items())
    ]
    common: Claim = {"model": named["model"], "unit": "own"}
    return [ScoreFile(path, rows, common, date_in(path.stem), items=partial(_items, benchmark, dict(rewards)))]


def _names(opened: Opened) -> Claim:
    """The model and the benchmark."""
    agent, environment = (checked.part(opened.document, "info", name) for name in ("agent_info", "environment_info"))
    named = _DOMAINS.match(opened.path.stem)
    model = opened.model or agent.get("llm") or (named[1] if named else opened.path.stem)
    benchmark = environment.get("domain_name") or (named[2].lower() if named else "tasks")
    return {"model": str(model), "benchmark": str(benchmark)}


def _items(benchmark: str, rewards: dict[int, dict[str, float]]) -> Iterator[Item]:
    for run, rewards_of_run in sorted(rewards.items()):
        for task, reward in rewards_of_run.items():
            yield {"benchmark": benchmark, "run": run, "doc_id": task, "correct": reward}


# ---- Terminal-Bench: {"results": [{"task_id", "is_resolved", "trial_name"}, ...]} in DATASET/MODEL/RUN ---------------

_TRIAL = re.compile(r"\.(\d+)-of-\d+\.(.+)")  # TASK.2-of-5.RUN
_TIMES = re.compile(r"\d{4}-\d\d-\d\d__\d\d-\d\d-\d\d")  # a run that nobody named


def _is_terminal(opened: Opened) -> bool:
    trials = checked.objects(checked.part(opened.document).get("results"))
    return bool(trials) and all({"task_id", "is_resolved"} <= set(trial) for trial in trials)


def _read_terminal(opened: Opened, options: ImportOptions) -> list[ScoreFile]:
    """A score for each attempt at all tasks, which is a run; files of one model have further ones. A trial that ended
    without a result was not resolved, as in the file's own accuracy. Raises InputError for an attempt that is there
    twice."""
    path, unknown, runs = opened.path, 0, set[str]()
    resolved: dict[int, dict[str, float]] = defaultdict(dict)
    for index, trial in enumerate(opened.document["results"]):
        named, task = _TRIAL.search(str(trial.get("trial_name"))), str(trial["task_id"])
        attempt = int(named[1]) - 1 if named else sum(task in tasks for tasks in resolved.values())
        if task in resolved[attempt]:
            raise InputError(f"{path}, results {index}: {task} is there twice in attempt {attempt + 1}.", "keep one.")
        runs |= {named[2]} if named else set()
        resolved[attempt][task] = float(trial["is_resolved"] is True)
        unknown += trial["is_resolved"] is None
    model, benchmark = _places(opened, runs)
    rows: list[Claim] = [
        {"benchmark": benchmark, "metric": "resolved", "run": run, **mean_of_items(np.array([*tasks.values()]))}
        for run, tasks in sorted(resolved.items())
    ]
    text = f"{model}: {count(unknown, 'trial')} without a result count as not resolved, as in the file's accuracy"
    decisions = (Decision("cell", str(path), "wrong", "values", CONVERTED, unknown, "", text),) if unknown else ()
    return [
        ScoreFile(
            path,
            rows,
            Claim(model=model, unit="share"),
            date_in(path.parent.name) or date_in(path.stem),
            items=partial(_items, benchmark, dict(resolved)),
            decisions=decisions,
            log=str(opened.document.get("id") or path),
        )
    ]


def _places(opened: Opened, runs: Set[str]) -> tuple[str, str]:
    """The model, by the folder of its runs, and the benchmark, by the folder of its models without the version."""
    folder = as_written(opened.path).parent
    while folder.name in runs or _TIMES.search(folder.name):
        folder = folder.parent
    above = re.split(r"[:@]|==", folder.parent.name)[0]
    return opened.model or folder_name(folder / "x"), above if "bench" in above.lower() else "terminal-bench"


TERMINAL = Format("terminal-bench", (".json",), _is_terminal, _read_terminal)
FORMAT = Format("trials", (".json",), _recognises, _read)
