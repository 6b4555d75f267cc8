"""Trials of agents (tau-bench, tau2-bench) -> scores by trial, and items.

tau-bench writes a list with a reward for each task and trial, which names neither model nor benchmark; tau2-bench an
object with `simulations`, and both names in `info`.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import partial

import numpy as np

from lm_validity.errors import InputError
from lm_validity.files import Document
from lm_validity.tables.claims import Claim, Item
from lm_validity.tables.formats import checked
from lm_validity.tables.formats.score_files import Format, ImportOptions, Opened, ScoreFile, date_in, mean_of_items

_HINT = "tau-bench writes such a file into ./results: a list with task_id, trial and reward."
_DOMAINS = re.compile(r"(.+?)[-_ ](airline|retail|telecom|mock)(?![a-z])", re.I)  # in a file's name, behind the model


def _recognises(opened: Opened) -> bool:
    trials = _trials(opened.document)
    return bool(trials) and all(isinstance(trial, dict) and {"task_id", "trial"} <= set(trial) for trial in trials)


def _trials(document: object) -> list[Document]:
    trials = document.get("simulations") if isinstance(document, dict) else document
    return trials if isinstance(trials, list) else []


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
        reward = checked.finite((_part(trial, "reward_info") or trial).get("reward", trial.get("reward")))
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
    agent, environment = (_part(_part(opened.document, "info"), name) for name in ("agent_info", "environment_info"))
    named = _DOMAINS.match(opened.path.stem)
    model = opened.model or agent.get("llm") or (named[1] if named else opened.path.stem)
    benchmark = environment.get("domain_name") or (named[2].lower() if named else "tasks")
    return {"model": str(model), "benchmark": str(benchmark)}


def _part(document: object, name: str) -> Document:
    """An object in an object; {} where there is none."""
    part = document.get(name) if isinstance(document, dict) else None
    return part if isinstance(part, dict) else {}


def _items(benchmark: str, rewards: dict[int, dict[str, float]]) -> Iterator[Item]:
    for run, rewards_of_run in sorted(rewards.items()):
        for task, reward in rewards_of_run.items():
            yield {"benchmark": benchmark, "run": run, "doc_id": task, "correct": reward}


FORMAT = Format("trials", (".json",), _recognises, _read)
