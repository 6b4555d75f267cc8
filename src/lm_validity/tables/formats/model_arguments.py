"""What lm-eval's `model_args` say of a model: its name, and the point of its training that was evaluated."""

import re
from typing import NamedTuple

# Optimizer steps in the name of a revision or folder: step1000, global_step-1000, iter_0001000; "step10k" is left alone
_STEPS = re.compile(r"(?<![a-z])(?:global_?)?(?:steps?|iter(?:ation)?s?)[-_]?(\d{1,15})(?![\da-z])", re.IGNORECASE)
_TOKENS = re.compile(r"(?<![a-z])tokens[-_]?(\d{1,9}(?:\.\d+)?)B(?![a-z])", re.IGNORECASE)
_LATER_STAGE = re.compile(r"(?<![a-z])stage[-_]?([2-9]|\d\d+)(?!\d)", re.IGNORECASE)
_NAMES = ("peft", "delta", "pretrained", "model", "path", "engine")
_FINISHED = frozenset(("", "main", "master", "none", "null", "final"))


class Point(NamedTuple):
    """A point of training: `checkpoint` is `final` for the finished model."""

    checkpoint: str = "final"
    iteration: int | None = None
    tokens_b: float | None = None


def parse_arguments(arguments: object) -> dict[str, str]:
    """`model_args` as lm-eval records them: a text `a=b,c=d`, or an object. Values are texts; {} for anything else."""
    if isinstance(arguments, str):
        pairs = (part.split("=", 1) for part in arguments.split(",") if "=" in part)
        return {name.strip(): value.strip() for name, value in pairs}
    if isinstance(arguments, dict):
        return {str(name): "" if value is None else str(value) for name, value in arguments.items()}
    return {}


def model_name(arguments: dict[str, str]) -> str | None:
    """The model's name as lm-eval takes it from the arguments: that of an adapter before that of its base."""
    return next((arguments[name] for name in _NAMES if arguments.get(name)), None)


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
