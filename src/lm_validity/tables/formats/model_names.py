"""What arguments, paths and file names say of a model: its name, and the point of its training that was evaluated."""

import re
from pathlib import Path
from typing import NamedTuple

from lm_validity.files import as_written
from lm_validity.tables.schema import Claim

# Optimizer steps in the name of a revision or folder: step1000, global_step-1000, iter_0001000; "step10k" is left alone
_STEPS = re.compile(r"(?<![a-z])(?:global_?)?(?:steps?|iter(?:ation)?s?)[-_]?(\d{1,15})(?![\da-z])", re.IGNORECASE)
_TOKENS = re.compile(r"(?<![a-z])tokens[-_]?(\d{1,9}(?:\.\d+)?)B(?![a-z])", re.IGNORECASE)
_LATER_STAGE = re.compile(r"(?<![a-z])stage[-_]?([2-9]|\d\d+)(?!\d)", re.IGNORECASE)
PARAMETERS = "number of parameters"  # in `ScoreFile.identity`
# Arguments from which lm-eval takes the model's name: that of an adapter before that of its base
NAMES = ("peft", "delta", "pretrained", "model", "path", "engine")
# A folder that holds a checkpoint: step_30, checkpoint-500, iter_0001000, global_step1000
_FOLDER = re.compile(
    r"(?:checkpoint|ckpt|(?:global_?)?steps?|iter(?:ation)?s?)[-_]?(\d{1,15})(?:[-_](?:hf|converted|fp16|bf16))?", re.I
)
_CACHE = re.compile(r"models--([^/]+?)--([^/]+)")  # of a hub id, in its cache
_FINISHED = frozenset(("", "main", "master", "none", "null", "final"))


class Point(NamedTuple):
    """A point of training: `checkpoint` is `final` for the finished model."""

    checkpoint: str = "final"
    iteration: int | None = None
    tokens_b: float | None = None

    def claim(self) -> Claim:
        """What claims of this point have in common."""
        return {"checkpoint": self.checkpoint, "iteration": self.iteration, "tokens_b": self.tokens_b}


def parse_arguments(arguments: object) -> dict[str, str]:
    """`model_args` as lm-eval records them: a text `a=b,c=d`, or an object. Values are texts; {} for anything else."""
    if isinstance(arguments, str):
        pairs = (part.split("=", 1) for part in arguments.split(",") if "=" in part)
        return {name.strip(): value.strip() for name, value in pairs}
    if isinstance(arguments, dict):
        return {str(name): "" if value is None else str(value) for name, value in arguments.items()}
    return {}


def training_point(arguments: dict[str, str], *, only_steps: bool = False) -> Point:
    """The point of training that `revision`, `subfolder` and `step` name; `final` for none of them and for `main`.

    The checkpoint has the revision's own name, so that two revisions of one model stay apart. Its iteration and its
    tokens are what that name says: `step1000`, `iter_1000`, `stage1-step1000-tokens4B`. Steps of a later stage of
    training are counted from that stage's beginning and give no iteration. `only_steps`: what names no step is `final`,
    and a step is the checkpoint's name.
    """
    names = [arguments.get(name, "") for name in ("revision", "subfolder")]
    names = [name for name in names if name.lower() not in _FINISHED]
    step = arguments.get("step", "")
    if step.isascii() and step.isdigit() and len(step) < 16:
        return Point("/".join([*names, f"step{int(step)}"]), int(step))
    names += [step] if step else []
    if not names:
        return Point()
    name = "/".join(names)
    later = _LATER_STAGE.search(name)
    steps, tokens = _STEPS.findall(name), _TOKENS.findall(name)
    iteration = int(steps[-1]) if steps and not later else None
    if only_steps:
        return Point() if iteration is None else Point(f"step{iteration}", iteration)
    return Point(name, iteration, float(tokens[-1]) if tokens and not later else None)


class ModelPlace(NamedTuple):
    """A model's name as its path gives it, the path without what does not tell models apart, and a checkpoint."""

    name: str
    path: str
    point: Point


def model_place(raw: str) -> ModelPlace:
    """The model that a name or path in a file means.

    A hub id stays as it is. Of a path, slashes at the end, the folders `snapshots/<hash>` and `model` and a folder of a
    checkpoint (`step_30`, `checkpoint-500`, `iter_0001000`, `global_step1000`) are taken off; the name is its last
    folder, or the hub id of a folder in the hub's cache.
    """
    parts = [part for part in raw.split("/") if part not in ("", ".")]
    point = Point()
    folder = _FOLDER.fullmatch(parts[-1]) if len(parts) > 1 else None
    if folder is not None:
        point = Point(parts.pop(), int(folder[1]))
    if not parts:  # the root of a disk, which has no name: `check_rows` asks for one
        return ModelPlace("", raw, point)
    local = raw.startswith(("/", "./", "../", "~")) or len(parts) > 2 or (folder is not None and len(parts) > 1)
    if not local:
        return ModelPlace("/".join(parts) or raw, "/".join(parts), point)
    if "snapshots" in parts[1:]:
        parts = parts[: parts.index("snapshots", 1)]
    elif parts[-1] == "model" and len(parts) > 1:
        parts.pop()
    path = "/" * raw.startswith("/") + "/".join(parts)
    cached = _CACHE.fullmatch(parts[-1])
    return ModelPlace("/".join(cached.groups()) if cached else parts[-1], path, point)


def folder_identity(path: Path) -> dict[str, str]:
    """The folder of a model that is named by it, unless it tells the model's owner."""
    folder = as_written(path).parent
    return {} if "__" in folder.name else {"folder": str(folder)}


def folder_name(path: Path) -> str:
    """A model's name from its folder, where lm-eval writes `__` for the `/` of a hub id."""
    return as_written(path).parent.name.replace("__", "/", 1)
