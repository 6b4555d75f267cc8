"""A filter recipe: a YAML file that names a benchmark and the filters to run on it, in order.

name: mmlu_rising            # of the exported task
benchmark: mmlu_var          # as in items.parquet
task: mmlu_continuation      # its lm-eval task, for samples.json; the benchmark's name where absent
score: confidence_margin     # item score whose curves are judged; `correct` is the benchmark's own metric
fit_models: [small-deep]     # models that fitted filters may look at; all where absent
filters:
  - subjects: {values: [college_physics]}
  - positive_slope: {score: confidence_margin}
  - any_of: [[{subjects: {values: [virology], complement: true}}], [{length_range: {maximum: 8}}]]
  - size_rule
export: {num_fewshot: 5, description: "Questions about {{subject}}.\\n\\n"}
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from lm_validity.errors import InputError, did_you_mean
from lm_validity.studies.signal.filters.base import AnyOf, ItemFilter
from lm_validity.studies.signal.filters.export import check_name
from lm_validity.studies.signal.filters.judge import UnanimousJudge
from lm_validity.studies.signal.filters.learning import PositiveSlope, SciScore, TopShare
from lm_validity.studies.signal.filters.lengths import LengthRange
from lm_validity.studies.signal.filters.quality import QualityGates
from lm_validity.studies.signal.filters.sampling import RandomSubset, SizeRule
from lm_validity.studies.signal.filters.settings import EXPORT_SETTINGS, JUDGE_SETTINGS, check_values
from lm_validity.studies.signal.filters.subjects import Subjects
from lm_validity.studies.signal.filters.text import Duplicates, Leakage

FILTERS = {
    "positive_slope": PositiveSlope,
    "top_share": TopShare,
    "sci_score": SciScore,
    "subjects": Subjects,
    "length_range": LengthRange,
    "quality_gates": QualityGates,
    "leakage": Leakage,
    "duplicates": Duplicates,
    "random_subset": RandomSubset,
    "size_rule": SizeRule,
}
_TEXT_KEYS = ("name", "benchmark", "task", "score")
_KEYS = ("name", "benchmark", "task", "score", "fit_models", "filters", "export")

# Makes the judge of an `llm_judge` step from its settings (a local model or an endpoint): (judge, its name)
MakeJudge = Callable[[dict[str, Any]], UnanimousJudge]


@dataclass(frozen=True)
class Recipe:
    """A recipe as checked: its filters are made, and keys that the file leaves out have their defaults."""

    name: str
    benchmark: str
    task: str
    score: str
    fit_models: tuple[str, ...]  # empty: all
    filters: tuple[ItemFilter, ...]
    export: dict[str, Any]
    settings: dict[str, Any]  # the file as read, for the record


def read_recipe(path: str | Path, make_judge: MakeJudge) -> Recipe:
    """Read a recipe. Raises InputError for unknown keys, filters or settings, with the nearest valid name, for
    a value of the wrong type, and for a name that no file can have."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file.", "give the path of a recipe.")
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(
            f"{path}: not valid YAML ({error}).", "see docs/reference/signal.md for an example."
        ) from error
    if not isinstance(settings, dict):
        raise InputError(f"{path}: not a mapping.", "see docs/reference/signal.md for an example.")
    _check_keys(settings, _KEYS, f"{path}")
    for key in ("name", "benchmark", "filters"):
        if not settings.get(key):
            raise InputError(f"{path}: key {key!r} is missing.", "see docs/reference/signal.md for an example.")
    check_values(settings, {key: str | int | float for key in _TEXT_KEYS}, f"{path}")
    check_values(settings, {"fit_models": list[str] | None, "export": dict | None}, f"{path}")
    export = settings.get("export") or {}
    _check_keys(export, EXPORT_SETTINGS, f"{path}: export")
    check_values(export, EXPORT_SETTINGS, f"{path}: export")
    return Recipe(
        name=check_name(str(settings["name"]), f"{path}, name: "),
        benchmark=str(settings["benchmark"]),
        task=str(settings.get("task") or settings["benchmark"]),
        score=str(settings.get("score") or "correct"),
        fit_models=tuple(settings.get("fit_models") or ()),
        filters=_chain(settings["filters"], f"{path}: filters", make_judge),
        export=export,
        settings=settings,
    )


def _chain(steps: object, where: str, make_judge: MakeJudge) -> tuple[ItemFilter, ...]:
    if not isinstance(steps, list):
        raise InputError(f"{where}: not a list.", "write one `- filter: {setting: value}` per step.")
    return tuple(_filter(step, f"{where}, step {number}", make_judge) for number, step in enumerate(steps, start=1))


def _filter(step: object, where: str, make_judge: MakeJudge) -> ItemFilter:
    if isinstance(step, str):
        step = {step: {}}
    if not isinstance(step, dict) or len(step) != 1:
        raise InputError(f"{where}: {step!r} is not one filter.", "write `- filter: {setting: value}`.")
    ((name, settings),) = step.items()
    if name == "any_of":
        if not isinstance(settings, list):
            raise InputError(f"{where}: any_of is not a list of chains.", "write a list of lists of filters.")
        return AnyOf(tuple(_chain(chain, f"{where}, any_of", make_judge) for chain in settings))
    settings = settings or {}
    if not isinstance(settings, dict):
        raise InputError(f"{where}: settings of {name!r} are not a mapping.", "write {setting: value}.")
    if name == "llm_judge":
        check_values(settings, JUDGE_SETTINGS, f"{where}, {name}")
        return make_judge(settings)
    if name not in FILTERS:
        known = [*FILTERS, "any_of", "llm_judge"]
        hint = did_you_mean(name, known, f"one of {', '.join(known)}.")
        raise InputError(f"{where}: unknown filter {name!r}.", hint)
    kind = FILTERS[name]
    _check_keys(settings, [field.name for field in fields(kind) if field.init], f"{where}, {name}")
    settings = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
    check_values(settings, get_type_hints(kind), f"{where}, {name}")
    try:
        return kind(**settings)
    except TypeError as error:
        raise InputError(f"{where}, {name}: {error}.", "see docs/reference/signal.md for the settings.") from error


def _check_keys(settings: Mapping[object, object], known: Collection[str], where: str) -> None:
    for key in settings:
        if key not in known:
            hint = did_you_mean(key, known, f"one of {', '.join(known)}.")
            raise InputError(f"{where}: unknown key {key!r}.", hint)
