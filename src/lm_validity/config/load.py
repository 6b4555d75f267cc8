"""Reading a configuration: YAML to a validated `Run` (configuration and sheets), with errors a person can act on."""

import re
import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, TypeVar, get_origin

from pydantic import AfterValidator, BaseModel, Field, ValidationError, ValidationInfo

from lm_validity.config.rows import Group, Positive, SheetRow, Sheets, bad_value, list_rows, members, parse_group
from lm_validity.config.sections import BiasSettings, Configuration, MiniatureSettings
from lm_validity.config.sheets import Benchmark, BiasModel, Model, Task, read_benchmarks, read_bias_sheets, read_models
from lm_validity.errors import InputError, again, did_you_mean
from lm_validity.files import absent, read_json_or, unprintable
from lm_validity.words import count

if TYPE_CHECKING:
    from yaml import Node

PLANNED_SHEETS = "sheets.json"  # beside the configuration that a run wrote down: the texts of its sheets by path

# what pydantic expected, in YAML's words
_EXPECTED = {
    "tuple_type": "a list was expected, such as [a, b]",
    "model_type": "a mapping of keys was expected, such as {key: value}",
    "dict_type": "a mapping of keys was expected, such as {key: value}",
    "string_type": "a text was expected; quote what YAML reads as something else",
    "too_short": "at least one value was expected",
}
_KIND = re.compile(r"constrained-\w+|\w*\[.*\]|int|str|float|bool|none")
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")

EXPLAINED = "`lm-validity config --defaults` explains every key."

Settings = TypeVar("Settings", bound=BaseModel)
_WIDTH = 110  # of a configuration as it is printed


# ----------------------------------------------------------------------------------------------------------------------
# Plan sheets: of cells of the agreement study and of subsamples of the bias study, where not all are computed. Rounds
# are added one after the other, and a later one changes no job of an earlier one.

BLOCK = 3  # fewest models that are fine-tuned on a benchmark: below, nothing can be said of it
# reasons on which something depends: random cells check predictions; cells chosen by earlier scores are in no agreement
AUDIT, BY_SCORES, JOINS = "audit", "rank uncertainty", "joins"
RULED_OUT = "cannot succeed"  # a person writes it: the cell is not planned, and no command chooses it again


def _check_listed(name: str, info: ValidationInfo) -> str:
    known_names = (info.context or {}).get(f"{info.field_name}s")
    if known_names is not None and name not in known_names:
        listed = f"the plan may name {', '.join(list(known_names)[:8])}{' and others' if len(known_names) > 8 else ''}."
        hint = did_you_mean(name, known_names, listed)
        study = (info.context or {}).get("study", "agreement")
        hint += f" If the {info.field_name} has left the study, take its rows out of the plan."
        raise bad_value(f"no {info.field_name} of the {study} study", hint)
    return name


Listed = Annotated[str, AfterValidator(_check_listed)]


class Planned(SheetRow):
    """A row of a plan, of either study. Each has a column `round`."""


class PlannedCell(Planned):
    """A model that is fine-tuned on a benchmark. Direct scores are never planned: every model has all of them.

    reason: why the cell was chosen. probability: with which it was drawn, before the draw; null where a person chose.
    seed: of the draw.
    """

    identified_by: ClassVar[tuple[str, ...]] = ("model", "benchmark")

    model: Listed
    benchmark: Listed
    round: int = Field(1, ge=1)
    reason: str | None = None
    probability: float | None = Field(None, gt=0, le=1)
    seed: int | None = None

    @property
    def by_scores(self) -> bool:
        """Whether earlier scores decided on it: then it says something of ranks, and agreement would be flattered or
        harmed by it."""
        return self.reason in (BY_SCORES, JOINS)

    @property
    def ruled_out(self) -> bool:
        """Whether the cell is not planned and never to be chosen."""
        return self.reason == RULED_OUT


class PlannedBatch(Planned):
    """A further batch of a task: up to how many subsamples its language models, m and n then have, as far as the
    experiment asks for so many. half_width: of the interval that was too wide, as a fraction of accuracy."""

    identified_by: ClassVar[tuple[str, ...]] = ("experiment", "task", "round")

    experiment: Listed
    task: Listed
    round: int = Field(ge=2)
    subsamples: Positive
    half_width: float | None = Field(None, ge=0)


Plan = Mapping[tuple[str, str], PlannedCell]  # by (model, benchmark)
Line = TypeVar("Line", bound=Planned)


def read_sheet(path: str | Path, kind: type[Line], sheets: Sheets | None = None, **known: object) -> dict[Any, Line]:
    """The rows of a plan by what identifies them, in its order.

    `known`: the names that a column may hold, such as `models`; None takes any. Raises InputError for a row that names
    another one, is there twice, or has a value that cannot be.
    """
    rows = list_rows(path, kind, context={**known, "sheets": sheets})
    return {tuple(getattr(row, name) for name in kind.identified_by): row for row in rows}


def next_round(planned: Iterable[PlannedCell | PlannedBatch], first: int = 1) -> int:
    """The round after the last one; `first` where nothing is planned yet."""
    return 1 + max((row.round for row in planned), default=first - 1)


def read_cells(path: str | Path, sheets: Sheets | None = None, **names: object) -> Plan:
    """The cells of a sheet without what is ruled out; `names` as of `read_sheet`."""
    rows = read_sheet(path, PlannedCell, sheets, **names)
    return {pair: cell for pair, cell in rows.items() if not cell.ruled_out}


def read_plan(
    path: str | Path, models: Collection[str], benchmarks: Collection[str], sheets: Sheets | None = None
) -> Plan:
    """`read_cells` of a whole plan. Raises InputError also for a benchmark with fewer than `BLOCK` planned models."""
    sheets = sheets or Sheets()
    if sheets.text(path) is None:
        raise InputError(
            f"{path}: no such plan.",
            f"set `plan` to null, write it with {again(f'plan --output {path}')}, then name it again.",
        )
    plan = read_cells(path, sheets, models=models, benchmarks=benchmarks)
    block_side = min(BLOCK, len(models))
    for benchmark in benchmarks:
        planned = sum(benchmark == name for _, name in plan)
        if planned < block_side:
            raise InputError(
                f"{path}: benchmark {benchmark!r} is planned for {count(planned, 'model')}, fewer than {block_side}.",
                "add rows of further models, or leave agreement out of the benchmark's column studies.",
            )
    return plan


LEAST = 10  # subsamples of a task before the first look: widths of fewer say little of the width to come


@dataclass(frozen=True)
class BiasPlan:
    """How the bias study's tasks are measured until their intervals are narrow.

    half_width: a task stops where that of its interval is at most this. batch: subsamples that a round adds.
    subsamples: by experiment, all that a task can have. rows: the batches after the first, by (experiment, task,
    round)."""

    half_width: float
    batch: int
    subsamples: Mapping[str, int]
    rows: Mapping[tuple[str, str, int], PlannedBatch]

    @property
    def first(self) -> int:
        """Subsamples of every task in round 1: whole batches of at least `LEAST` together."""
        return -(-LEAST // self.batch) * self.batch

    def totals(self, experiment: str, task: str) -> dict[int, int]:
        """Round -> subsamples of the task so far, at most all of the experiment's."""
        subsamples = self.asked(experiment, task)
        return {number: min(total, self.subsamples[experiment]) for number, total in subsamples.items()}

    def asked(self, experiment: str, task: str) -> dict[int, int]:
        """Round -> subsamples of the task so far as the plan has them: the experiment may have fewer since."""
        later = {
            row.round: row.subsamples for row in self.rows.values() if (row.experiment, row.task) == (experiment, task)
        }
        return dict(sorted(({1: self.first} | later).items()))

    def planned(self, experiment: str, task: str) -> int:
        """Subsamples of the task after its last round."""
        return max(self.totals(experiment, task).values())

    def may_stop(self, experiment: str, task: str, n_stored: int) -> bool:
        """Whether the task, of which so many subsamples are `n_stored`, has not all of the experiment's, planned or
        there: then its interval decides, or decided, on it."""
        return min(self.planned(experiment, task), n_stored) < self.subsamples[experiment]


def read_bias_plan(settings: BiasSettings, tasks: Iterable[str], sheets: Sheets | None = None) -> BiasPlan | None:
    """The plan that a configuration names, None where tasks have all subsamples. Without a sheet it has no rows: the
    first batch needs none.

    Raises InputError for a bad row, for batches that do not end where a cell of the store ends, and for a later round
    with no more subsamples than an earlier one.
    """
    batch, width = settings.subsamples_a_cell, settings.stop_at_half_width
    if settings.plan is None or width is None or batch == "all":
        return None
    maximum = {
        name: max(experiment.count_subsamples(n) for n in experiment.n)
        for name, experiment in settings.experiments.items()
    }
    rows, sheets = {}, sheets or Sheets()
    if sheets.text(settings.plan) is not None:
        known_names = {"experiments": tuple(settings.experiments), "tasks": tuple(tasks)}
        rows = read_sheet(settings.plan, PlannedBatch, sheets, study="bias", **known_names)
    plan = BiasPlan(width, batch, maximum, rows)
    for row in rows.values():
        where = f"{settings.plan}: experiment {row.experiment!r}, task {row.task!r}, round {row.round}"
        if row.subsamples % plan.batch and row.subsamples < maximum[row.experiment]:
            raise InputError(
                f"{where}: {row.subsamples} subsamples are no multiple of {plan.batch}.",
                "keep bias.subsamples_a_cell as it was when the plan was written; finished cells have that size.",
            )
        subsamples = plan.asked(row.experiment, row.task)
        if any(total >= row.subsamples for earlier, total in subsamples.items() if earlier < row.round):
            raise InputError(
                f"{where}: {row.subsamples} subsamples are no more than an earlier round's.",
                "give each round more subsamples than the one before.",
            )
    return plan


# ----------------------------------------------------------------------------------------------------------------------
# A run: the configuration and its sheets.


class AgreementNames(NamedTuple):
    """Names of the models and the benchmarks that the agreement study compares."""

    models: list[str]
    benchmarks: list[str]


@dataclass(frozen=True)
class Run:
    """A configuration with its sheets read; `results` is where everything it makes goes.

    `models` and `benchmarks` are of the agreement and signal studies, `language_models` and `tasks` of the bias study;
    each is empty where no study needs it. `plan`: the cells that are fine-tuned; None where all are. `ruled_out`: rows
    of the plan that are kept so that nobody chooses them again. `bias_plan`: how many subsamples each task has; None
    where all have all.
    """

    configuration: Configuration
    models: dict[str, Model]
    benchmarks: dict[str, Benchmark]
    language_models: dict[str, BiasModel] = field(default_factory=dict)
    tasks: dict[str, Task] = field(default_factory=dict)
    plan: Plan | None = None
    ruled_out: Plan = field(default_factory=dict)
    bias_plan: BiasPlan | None = None

    @property
    def name(self) -> str:
        """The configured name, which is also that of the run's folder."""
        return self.configuration.name

    @property
    def agreement_names(self) -> AgreementNames:
        """The models and the benchmarks of the agreement study, in the order of the sheets."""
        models = [name for name, row in self.models.items() if "agreement" in row.studies]
        rows = self.benchmarks.items()
        return AgreementNames(models, [name for name, row in rows if "agreement" in row.studies and not row.variant_of])

    @property
    def bias(self) -> BiasSettings:
        """The section of the bias study; the configuration has it where a run has that study's jobs."""
        assert self.configuration.bias is not None, "no study bias"
        return self.configuration.bias

    @property
    def plan_file(self) -> Path:
        """The sheet of the plan, where there is one."""
        assert self.configuration.plan is not None, "no plan"
        return Path(self.configuration.plan)

    @property
    def results(self) -> Path:
        """The folder of everything that the run makes: the run's name below the configured `results`."""
        return Path(self.configuration.results) / self.name

    def is_miniature(self, path: str | None) -> bool:
        """Whether a sheet's path is in the miniature world, which the run makes itself."""
        return path is not None and Path(path).is_relative_to(self.results / "miniature")


def load_run(path: str | Path) -> Run:
    """Read a configuration file and its sheets. Raises InputError naming file, key or row, and value."""
    run = build_run(read_values(path), str(path))
    check_curves(run)
    return run


def load_planned_run(path: str | Path) -> Run:
    """`load_run` for a job of the workflow: with the sheets as they were when the run was planned, whatever was edited
    since. They are beside the configuration that the run wrote down; beside another file there are none."""
    return build_run(read_values(path), str(path), planned_sheets(path))


def planned_sheets(path: str | Path) -> Sheets:
    """The sheets as they were when the run was planned, from beside its written configuration; none elsewhere. Raises
    InputError where their file is damaged: today's may be others."""
    written = Path(path).with_name(PLANNED_SHEETS)
    texts = read_json_or(written, None)
    if texts is None and written.is_file():
        hint = "run the workflow again, which writes it anew; or delete it, and the sheets are read as they are now."
        raise InputError(f"{written}: not a whole file.", hint)
    return Sheets(texts)


def read_values(path: str | Path) -> object:
    """What a configuration file holds, unchecked. Raises InputError where it is no YAML file."""
    import yaml

    path = Path(path)
    if not path.is_file():
        way = "start this in a study's folder (`lm-validity init` makes one), or pass --configfile."
        raise absent(path, "configuration", way)
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        if root is None:
            return None
        _check_node(root, set())
        return yaml.constructor.SafeConstructor().construct_document(root)
    except RecursionError:
        raise InputError(f"{path}: not valid YAML (too many levels).", "check the brackets.") from None
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError) as error:  # of `!!float x`, 2024-13-45
        message = " ".join(str(error).replace('in "<unicode string>", ', "").split())
        hint = "check the indentation, and quote texts that look like dates or numbers."
        if path.with_name(PLANNED_SHEETS).is_file():
            hint = "a run wrote it: give the file that the run was started with instead."
        raise InputError(f"{path}: not valid YAML ({message[:300]}).", hint) from error


def _check_node(node: "Node", seen: set[int]) -> None:
    """Raises YAMLError where a mapping has a key twice, of which YAML's own loader would take the last, and for a
    number that YAML 1.1 reads in base 8 or 60 as another than it looks like: 010 is 8, and 1:30 is 90."""
    import yaml

    if id(node) in seen:
        return
    seen.add(id(node))
    parts = node.value if isinstance(node, yaml.SequenceNode) else []
    if isinstance(node, yaml.MappingNode):
        times = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and times[key.value] > 1:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is there twice", key.start_mark)
        parts = [part for pair in node.value for part in pair]
    text = node.value.lstrip("+-").replace("_", "") if node.tag in _NUMBERS else ""
    if ":" in text or (text[:1] == "0" and text.isdigit() and int(text, 8) != int(text)):
        problem = f"{node.value} is a number of another base, which is not what it looks like"
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
    for part in parts:
        _check_node(part, seen)


def build_run(values: object, source: str, sheets: Sheets | None = None) -> Run:
    """Validate configuration values (a dict, as Snakemake merges it) and read the sheets they name."""
    configuration, sheets = validate(values, source, Configuration), sheets or Sheets()
    run, name = Run(configuration, {}, {}), configuration.name
    groups = list(map(parse_group, configuration.agreement.groups))
    context = {"results": configuration.results, "size_classes": configuration.size_classes, "sheets": sheets}
    if configuration.models is not None:
        run = replace(run, models=read_models(configuration.models, name, groups, **context))
    if configuration.benchmarks is not None:
        run = replace(run, benchmarks=read_benchmarks(configuration.benchmarks, name, **context))
    if "bias" in configuration.studies:
        language_models, tasks = read_bias_sheets(run.bias, name, **context)
        bias_plan = read_bias_plan(run.bias, tasks, sheets)
        run = replace(run, language_models=language_models, tasks=tasks, bias_plan=bias_plan)
    if configuration.plan is not None:
        plan = read_plan(configuration.plan, *run.agreement_names, sheets)
        rows = read_sheet(configuration.plan, PlannedCell, sheets)
        run = replace(run, plan=plan, ruled_out={pair: row for pair, row in rows.items() if row.ruled_out})
    if "agreement" in configuration.studies:
        _check_agreement(run, groups)
        _check_benchmarks(run)
    return run


def _check_agreement(run: Run, groups: list[Group]) -> None:
    """Models are compared under equal conditions: one dtype, unless the configuration says otherwise; the final scores
    of a model have one prompt, while curves of signal are plain; a group has models of known compute on both sides.
    """
    configuration = run.configuration
    rows = [run.models[name] for name in run.agreement_names.models]
    first = {row.dtype: row.model for row in reversed(rows)}
    if len(first) > 1 and not configuration.evaluation.mixed_dtypes:
        example = ", ".join(f"{model} {dtype}" for dtype, model in first.items())
        raise InputError(
            f"{configuration.models}: column 'dtype': models of one comparison differ in precision ({example}).",
            "give all the same, or set evaluation.mixed_dtypes to true.",
        )
    if "signal" in configuration.studies and configuration.evaluation.instruction_tuned_prompts != ("plain",):
        for row in (row for row in rows if row.instruction_tuned and "signal" in row.studies):
            raise InputError(
                f"{configuration.models}: model {row.model!r}, column 'studies': an instruction-tuned model in both "
                "agreement and signal would have final scores under two prompts.",
                "give it two rows in the models sheet, or name one study in its `studies` column.",
            )
    has_compute = [bool(row.parameters_b and row.tokens_b and row.in_compute_analysis is not False) for row in rows]
    for group in groups:
        members(group, [getattr(row, group.column) for row in rows], has_compute, configuration.models or "")


def _check_benchmarks(run: Run) -> None:
    """The agreement study asks without examples, which train before test replaces; another wording of a benchmark is
    scored as that one is."""
    for benchmark in run.benchmarks.values():
        where = f"{run.configuration.benchmarks}: benchmark {benchmark.benchmark!r}, column"
        if benchmark.num_fewshot and "agreement" in benchmark.studies:
            raise InputError(
                f"{where} 'num_fewshot', value {benchmark.num_fewshot}: the agreement study is zero-shot, before "
                "fine-tuning and after.",
                "give the few-shot benchmark a row of its own, with `signal` in the column studies.",
            )
        if benchmark.variant_of is None:
            continue
        original = run.benchmarks.get(benchmark.variant_of)
        if (
            original is None
            or original.benchmark not in run.agreement_names.benchmarks
            or original.output_type == "loglikelihood_rolling"
        ):
            raise InputError(
                f"{where} 'variant_of', value {benchmark.variant_of!r}: no benchmark of the agreement study with a "
                "prompt.",
                "name another row of the sheet that is no corpus and no variant itself.",
            )
        for column in ("metric", "output_type", "higher_is_better", "num_fewshot"):
            if getattr(benchmark, column) != getattr(original, column):
                raise InputError(
                    f"{where} {column!r}, value {getattr(benchmark, column)!r}: {benchmark.variant_of} has "
                    f"{getattr(original, column)!r}.",
                    "two wordings of one benchmark are scored alike.",
                )


def check_curves(run: Run) -> None:
    """Refuse the signal study, which is of scores along training, without a model that has two checkpoints."""
    models = [model for model in run.models.values() if "signal" in model.studies]
    if "signal" in run.configuration.studies and not any(len(model.checkpoints) > 1 for model in models):
        raise InputError(
            f"{run.configuration.models}: no model of the study signal has a checkpoint beside its final one.",
            "name its sheet of checkpoints in the column 'checkpoints', or leave signal out of `studies`.",
        )


def validate(values: object, source: str, kind: type[Settings]) -> Settings:
    """A `Configuration` (or a section, `kind`), or one InputError for the first thing that is wrong with it."""
    if not isinstance(values, dict):
        raise InputError(f"{source}: a mapping of keys was expected.", "write `key: value`.")
    _check_printable(values, source, set())
    if kind is Configuration:  # options of a command may set what is no key of a run
        _check_keys(values, kind, source)
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise _input_error(error, source) from None


def key_values(section: BaseModel) -> dict[str, object]:
    """The keys of a section and of those inside it, as they are written down and read again. A field without a
    description is no key: it has one value."""
    values = {name: getattr(section, name) for name, field in type(section).model_fields.items() if field.description}
    plain = section.model_dump(mode="json", include={*values})
    return plain | {name: key_values(value) for name, value in values.items() if isinstance(value, BaseModel)}


def _check_keys(values: dict[str, object], section: type[BaseModel], source: str, path: str = "") -> None:
    """Raises InputError for what is no key of the section, or of one inside it: an unknown name, or a field that has
    one value in every run."""
    fields = {name: field for name, field in section.model_fields.items() if field.description}
    for name, value in values.items():
        if name not in fields:
            hint = did_you_mean(name, fields, f"known keys here: {', '.join(fields)}.")
            if not path and (paths := _paths_of(section, name)):
                hint = f"it is {' or '.join(paths)}."
            raise InputError(f"{source}: unknown key {f'{path}{name}'!r}.", hint)
        inner, annotation = section_of(fields[name].annotation), fields[name].annotation
        if inner is None or not isinstance(value, dict):
            continue
        named = value.items() if get_origin(annotation) is dict else [(None, value)]
        for key, part in named:
            if isinstance(part, dict):
                _check_keys(part, inner, source, f"{path}{name}." if key is None else f"{path}{name}.{key}.")


def _check_printable(part: object, source: str, seen: set[int]) -> None:
    """Raises InputError for a text with a control character, which is in no name; ends of lines may be in a prompt."""
    if isinstance(part, str) and (odd := unprintable(part, allowed="\t\r\n")) is not None:
        raise InputError(f"{source}: {part[:60]!r} holds the character {odd!r}.", "remove it.")
    if isinstance(part, dict | list) and id(part) not in seen:
        seen.add(id(part))
        for item in [*part, *part.values()] if isinstance(part, dict) else part:
            _check_printable(item, source, seen)


def _input_error(error: ValidationError, source: str) -> InputError:
    first = error.errors()[0]
    # without pydantic's words for the kinds that a value may have
    key_path = ".".join(part for part in map(str, first["loc"]) if not _KIND.fullmatch(part))
    message = _EXPECTED.get(first["type"], first["msg"].removeprefix("Value error, "))
    where = f"{source}: key {key_path!r}, value {first['input']!r}" if key_path else source
    if first["type"] == "missing":
        where, message = source, f"key {key_path!r} is missing"
    return InputError(f"{where}: {message}.", first.get("ctx", {}).get("hint", EXPLAINED))


def _paths_of(section: type[BaseModel], key: str) -> list[str]:
    """Where a section has a key of this name, with the names of the sections above it."""
    paths = [name for name, info in section.model_fields.items() if name == key and info.description]
    for name, info in section.model_fields.items():
        if (inner := section_of(info.annotation)) is not None:
            above = f"{name}.<name>" if get_origin(info.annotation) is dict else name
            paths += [f"{above}.{path}" for path in _paths_of(inner, key)]
    return paths


def section_of(annotation: object) -> type[BaseModel] | None:
    """The section that a field of this type holds, itself or in a mapping; None for a value."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        inner = section_of(argument)
        if inner is not None:
            return inner
    return None


# ----------------------------------------------------------------------------------------------------------------------
# A configuration as YAML, each key under its description.


def render_yaml(configuration: Configuration) -> str:
    """The configuration as YAML, each key under its description."""
    return "\n".join(_section_lines(configuration, 0))[1:] + "\n"


def render_defaults() -> str:
    """Every key with its default as YAML, those too of the sections that not every configuration has."""
    return render_yaml(Configuration.model_construct(name="my-run", bias=BiasSettings(), miniature=MiniatureSettings()))


def _section_lines(section: BaseModel, depth: int) -> list[str]:
    lines = []
    for name, info in type(section).model_fields.items():
        if info.description is None:  # one value in every run
            continue
        value = getattr(section, name)
        indent = "  " * depth
        if depth == 0:
            lines.append("")
        comment, default = " ".join(info.description.split()), ""
        sections = any(isinstance(setting, BaseModel | dict) for setting in (value, info.default))
        if not (info.is_required() or sections or info.default == value):
            default = f" (Default: {_inline(info.default)})"
        lines += [f"{indent}# {line}" for line in textwrap.wrap(comment + default, _WIDTH - len(indent) - 2)]
        if isinstance(value, BaseModel):
            lines += [f"{indent}{name}:", *_section_lines(value, depth + 1)]
        elif isinstance(value, dict) and all(isinstance(entry, BaseModel) for entry in value.values()):
            lines.append(f"{indent}{name}:")
            lines += [f"{indent}  {key}: {_inline(entry.model_dump(mode='json'))}" for key, entry in value.items()]
        else:
            lines.append(f"{indent}{name}: {_inline(value)}")
    return lines


def _inline(value: object) -> str:
    import yaml

    text = yaml.safe_dump(
        list(value) if isinstance(value, tuple) else value, default_flow_style=True, width=10_000, sort_keys=False
    )
    return text.strip().removesuffix("...").strip()
