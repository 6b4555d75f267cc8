"""A task or group of tasks in a YAML file of the user's own: what a row of the benchmarks sheet has to say of it."""

from pathlib import Path
from typing import Any

from lm_validity.cells.lm_eval_internals import load_yaml
from lm_validity.cells.tasks.records import TaskRecord, build_task, find_task
from lm_validity.errors import InputError, first_line


def read_task_name(path: Path) -> str:
    """The name that an lm-eval YAML file gives its task, or its group of tasks.

    Raises InputError where there is no such file, lm-eval cannot read it, or it names neither.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file.", "give the YAML file of an lm-eval task.")
    config = _read(path)
    name = config.get("group") or config.get("task")
    if not isinstance(name, str):
        raise InputError(
            f"{path}: not an lm-eval task: it has no `task: NAME`.",
            "docs/how_to/own_models_and_benchmarks.md shows the least that a task needs.",
        )
    return name


def find_own_task(path: Path, name: str, folder: Path) -> tuple[TaskRecord, bool]:
    """The task `name` of the file, in `folder`, and whether it has documents to train on.

    Raises InputError as `find_task` does, and where another file of the folder declares the name.
    """
    record = find_task(name, folder)
    if record.path.name != path.name and not record.members:
        raise InputError(f"{path}: {record.path} declares the task {name!r} too.", "give one of them another name.")
    return record, all(_trains(one) for one in record.members or (record,))


def _trains(record: TaskRecord) -> bool:
    config = _read(record.path)
    if "class" in config:
        return build_task(record.task, record.path).has_training_docs()
    return bool(config.get("training_split"))


def _read(path: Path) -> dict[str, Any]:
    try:
        return load_yaml(path, resolve_func=False)
    except Exception as error:  # whatever the parser and what it includes raise
        raise InputError(f"{path}: lm-eval cannot read it ({first_line(error)}).", "correct the YAML file.") from error
