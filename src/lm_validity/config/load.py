"""Reading a configuration: YAML to a validated `Run` (configuration and sheets), with errors a person can act on."""

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar, get_origin, overload

from pydantic import BaseModel, ValidationError

from lm_validity.config.groups import members, parse_group
from lm_validity.config.plan import BiasPlan, Plan, PlannedCell, read_bias_plan, read_plan, read_sheet
from lm_validity.config.rows import Sheets
from lm_validity.config.sections import BiasSettings, Configuration
from lm_validity.config.sheets import (
    Benchmark,
    BiasModel,
    Model,
    Task,
    read_benchmarks,
    read_bias_sheets,
    read_models,
)
from lm_validity.errors import InputError, did_you_mean
from lm_validity.files import absent, read_json_or, unprintable

if TYPE_CHECKING:
    from yaml import CSafeLoader, Node, SafeLoader

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
_MOST_VALUES = 100_000  # of a configuration file


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
        text = path.read_text(encoding="utf-8")
        if not _is_json(text):
            return _parse(text, yaml.SafeLoader)
        text = text.replace("\t", " ")  # which may indent it; none of its texts holds one
        try:
            return _parse(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # each job reads what its run wrote
        except (yaml.YAMLError, ValueError):
            return _parse(text, yaml.SafeLoader)  # whose message shows the place
    except RecursionError:
        raise InputError(f"{path}: not valid YAML (too many levels).", "check the brackets.") from None
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError) as error:  # of `!!float x`, 2024-13-45
        message = " ".join(str(error).replace('in "<unicode string>", ', "").split())
        hint = "check the indentation, and quote texts that look like dates or numbers."
        if path.with_name(PLANNED_SHEETS).is_file():
            hint = "a run wrote it: give the file that the run was started with instead."
        raise InputError(f"{path}: not valid YAML ({message[:300]}).", hint) from error


def _parse(text: str, loader: "type[SafeLoader | CSafeLoader]") -> object:
    """What a YAML text holds, read once. Raises YAMLError or ValueError."""
    import yaml

    root = yaml.compose(text, loader)
    if root is None:
        return None
    _check_node(root, {})
    return yaml.constructor.SafeConstructor().construct_document(root)


def check_sources(folder: Path, configfiles: Iterable[str | Path]) -> None:
    """Raises InputError for what Snakemake itself would misread: braces in the path of the workflow's `folder`, which
    it takes for names of values, and a configuration with a key twice, of which it takes the last, or 010, its 8."""
    if re.search("[{}]", str(folder)):
        raise InputError(f"{folder}: Snakemake takes braces in a path for names of values.", "rename that folder.")
    for path in configfiles:
        read_values(path)


def _check_node(node: "Node", sizes: dict[int, int]) -> int:
    """The number of values in a part of a document, those of an alias as often as it stands there.

    Raises YAMLError where a mapping has a key twice (YAML's own loader would take the last), for a part that holds
    itself, and for too many values: thirty aliases that double are a thousand million. `sizes`: of known parts, 0 for
    one that is being counted.
    """
    import yaml

    if id(node) in sizes:
        if not sizes[id(node)]:
            raise yaml.constructor.ConstructorError(None, None, "it holds itself", node.start_mark)
        return sizes[id(node)]
    sizes[id(node)] = 0
    parts: list[Node] = []
    if isinstance(node, yaml.MappingNode):
        times = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        for key, _ in node.value:
            _check_base(key)
            if times[key.value if isinstance(key, yaml.ScalarNode) else None] > 1:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is there twice", key.start_mark)
        parts = [value for _, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        parts = node.value
    _check_base(node)
    sizes[id(node)] = 1 + sum(_check_node(part, sizes) for part in parts)
    if sizes[id(node)] > _MOST_VALUES:
        raise yaml.constructor.ConstructorError(None, None, f"more than {_MOST_VALUES} values", node.start_mark)
    return sizes[id(node)]


def _is_json(text: str) -> bool:
    """Whether a text is JSON."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _check_base(node: "Node") -> None:
    """Raises YAMLError for a number that YAML 1.1 reads in base 8 or 60 as another than it looks like: 010 is 8, and
    1:30 is 90."""
    import yaml

    text = node.value.lstrip("+-").replace("_", "") if node.tag in _NUMBERS else ""
    if ":" in text or (text[:1] == "0" and text.isdigit() and int(text, 8) != int(text)):
        problem = f"{node.value} is a number of another base, which is not what it looks like"
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def build_run(values: object, source: str, sheets: Sheets | None = None) -> Run:
    """Validate configuration values (a dict, as Snakemake merges it) and read the sheets they name."""
    configuration, sheets = validate(values, source), sheets or Sheets()
    models: dict[str, Model] = {}
    benchmarks: dict[str, Benchmark] = {}
    language_models: dict[str, BiasModel] = {}
    tasks: dict[str, Task] = {}
    bias_plan = None
    results = configuration.results
    if configuration.models is not None:
        classes = configuration.size_classes
        groups = [parse_group(text) for text in configuration.agreement.groups]
        models = read_models(configuration.models, configuration.name, classes, results, sheets, groups)
    if configuration.benchmarks is not None:
        benchmarks = read_benchmarks(configuration.benchmarks, configuration.name, results, sheets)
    if "bias" in configuration.studies and configuration.bias is not None:
        bias, classes = configuration.bias, configuration.size_classes
        language_models, tasks = read_bias_sheets(bias, configuration.name, classes, results, sheets)
        bias_plan = read_bias_plan(bias, tasks, sheets)
    run = Run(configuration, models, benchmarks, language_models, tasks, bias_plan=bias_plan)
    if configuration.plan is not None:
        plan = read_plan(configuration.plan, *run.agreement_names, sheets)
        rows = read_sheet(configuration.plan, PlannedCell, sheets)
        run = replace(run, plan=plan, ruled_out={pair: row for pair, row in rows.items() if row.ruled_out})
    _check_precision(run)
    _check_benchmarks(run)
    _check_one_prompting(run)
    _check_generation_backend(run)
    _check_groups(run)
    return run


def _check_groups(run: Run) -> None:
    """A group needs models of known compute inside and outside; `members` refuses others."""
    if "agreement" not in run.configuration.studies:
        return
    rows = [run.models[name] for name in run.agreement_names[0]]
    has_compute = [bool(row.parameters_b and row.tokens_b and row.in_compute_analysis is not False) for row in rows]
    for group in map(parse_group, run.configuration.agreement.groups):
        members(group, [getattr(row, group.column) for row in rows], has_compute, run.configuration.models or "")


def _check_generation_backend(run: Run) -> None:
    """vLLM writes on a GPU: every model that is asked to write needs a size class that has one."""
    configuration = run.configuration
    if configuration.evaluation.generation_backend != "vllm" or configuration.replay:
        return
    generated = [row for row in run.benchmarks.values() if row.output_type == "generate_until"]
    for model in run.models.values():
        studies = set(model.studies) & set(configuration.studies)
        written = [row for row in generated if studies & set(row.studies)]
        if written and not configuration.size_classes[model.size_class].gpu:
            raise InputError(
                f"{configuration.models}: model {model.model!r}, column 'size_class', value {model.size_class!r}: it "
                f"has no GPU, and vLLM is to write the answers of {written[0].benchmark!r}.",
                "set evaluation.generation_backend to transformers, or the class's gpu to 1.",
            )
        if written and model.adapters:
            raise InputError(
                f"{configuration.models}: model {model.model!r}, column 'adapter': vLLM, which is to write the answers "
                f"of {written[0].benchmark!r}, would load the model without it.",
                "set evaluation.generation_backend to transformers, or give the merged model as `path`.",
            )


def _check_benchmarks(run: Run) -> None:
    """Models are fine-tuned and compared on questions without examples: train before test replaces them. Another
    wording of a benchmark has that benchmark's questions and metric, and is scored beside it."""
    for row in run.benchmarks.values():
        if row.num_fewshot and {"agreement"} & set(run.configuration.studies) & set(row.studies):
            raise InputError(
                f"{run.configuration.benchmarks}: benchmark {row.benchmark!r}, column 'num_fewshot', value "
                f"{row.num_fewshot}: the agreement study is zero-shot, before fine-tuning and after.",
                "give the few-shot benchmark a row of its own, with `signal` in the column studies.",
            )
        if row.variant_of is None:
            continue
        original = run.benchmarks.get(row.variant_of)
        where = f"{run.configuration.benchmarks}: benchmark {row.benchmark!r}, column"
        if (
            original is None
            or original.variant_of
            or "agreement" not in original.studies
            or original.output_type == "loglikelihood_rolling"
        ):
            raise InputError(
                f"{where} 'variant_of', value {row.variant_of!r}: no benchmark of the agreement study with a prompt.",
                "name another row of the sheet that is no corpus and no variant itself.",
            )
        for column in ("metric", "output_type", "higher_is_better", "num_fewshot"):
            if getattr(row, column) != getattr(original, column):
                raise InputError(
                    f"{where} {column!r}, value {getattr(row, column)!r}: {row.variant_of} has "
                    f"{getattr(original, column)!r}.",
                    "two wordings of one benchmark are scored alike.",
                )


def _check_one_prompting(run: Run) -> None:
    """Signal curves are plain at every checkpoint; agreement may choose another prompt for the same final scores."""
    both_studies = {"agreement", "signal"}
    if not both_studies <= set(run.configuration.studies):
        return
    if run.configuration.evaluation.instruction_tuned_prompts == ("plain",):
        return
    for model in run.models.values():
        if model.instruction_tuned and both_studies <= set(model.studies):
            raise InputError(
                f"{run.configuration.models}: model {model.model!r}, column 'studies': an instruction-tuned model in "
                "both agreement and signal would have final scores under two prompts.",
                "give it two rows in the models sheet, or name one study in its `studies` column.",
            )


def check_curves(run: Run) -> None:
    """Refuse the signal study, which is of scores along training, without a model that has two checkpoints."""
    models = [model for model in run.models.values() if "signal" in model.studies]
    if "signal" in run.configuration.studies and not any(len(model.checkpoints) > 1 for model in models):
        raise InputError(
            f"{run.configuration.models}: no model of the study signal has a checkpoint beside its final one.",
            "name its sheet of checkpoints in the column 'checkpoints', or leave signal out of `studies`.",
        )


def _check_precision(run: Run) -> None:
    """Equal conditions: models that are compared have one dtype, unless the configuration says otherwise."""
    if "agreement" not in run.configuration.studies or run.configuration.evaluation.mixed_dtypes:
        return
    first: dict[str, str] = {}
    for model in run.models.values():
        if "agreement" in model.studies:
            first.setdefault(model.dtype, model.model)
    if len(first) > 1:
        example = ", ".join(f"{model} {dtype}" for dtype, model in first.items())
        raise InputError(
            f"{run.configuration.models}: column 'dtype': models of one comparison differ in precision ({example}).",
            "give all the same, or set evaluation.mixed_dtypes to true.",
        )


@overload
def validate(values: object, source: str) -> Configuration: ...
@overload
def validate(values: object, source: str, kind: type[Settings]) -> Settings: ...
def validate(values: object, source: str, kind: type[BaseModel] = Configuration) -> BaseModel:
    """A `Configuration` (or a section, `kind`), or one InputError for the first thing that is wrong with it."""
    if not isinstance(values, dict):
        raise InputError(f"{source}: a mapping of keys was expected.", "write `key: value`.")
    _check_printable(values, source, set())
    if kind is Configuration:  # options of a command may set what is no key of a run
        _refuse_constants(values, kind, source)
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise _input_error(error, source, kind) from None


def key_values(section: BaseModel) -> dict[str, object]:
    """The keys of a section and of those inside it, as they are written down and read again. A field without a
    description is no key: it has one value."""
    values = {name: getattr(section, name) for name, field in type(section).model_fields.items() if field.description}
    plain = section.model_dump(mode="json", include={*values})
    return plain | {name: key_values(value) for name, value in values.items() if isinstance(value, BaseModel)}


def _refuse_constants(values: dict[str, object], kind: type[BaseModel], source: str, path: str = "") -> None:
    """Raises InputError for a field that is no key."""
    for name, value in values.items():
        field = kind.model_fields.get(name)
        if field is not None and field.description is None:
            known_keys = ", ".join(_known_keys(kind, ()))
            raise InputError(f"{source}: unknown key {path + name!r}.", f"known keys here: {known_keys}.")
        inner = section_of(field.annotation) if field is not None else None
        if inner is not None and isinstance(value, dict):
            _refuse_constants(value, inner, source, f"{path}{name}.")


def _check_printable(part: object, source: str, seen: set[int]) -> None:
    """Raises InputError for a text with a control character, which is in no name; ends of lines may be in a prompt."""
    if isinstance(part, str) and (odd := unprintable(part, allowed="\t\r\n")) is not None:
        raise InputError(f"{source}: {part[:60]!r} holds the character {odd!r}.", "remove it.")
    if isinstance(part, dict | list) and id(part) not in seen:
        seen.add(id(part))
        for item in [*part, *part.values()] if isinstance(part, dict) else part:
            _check_printable(item, source, seen)


def _input_error(error: ValidationError, source: str, kind: type[BaseModel]) -> InputError:
    first = error.errors()[0]
    # without pydantic's words for the kinds that a value may have
    key_path = ".".join(part for part in map(str, first["loc"]) if not _KIND.fullmatch(part))
    message = _EXPECTED.get(first["type"], first["msg"].removeprefix("Value error, "))
    if not first["loc"]:  # about the configuration as a whole
        return InputError(
            f"{source}: {message}.",
            first.get("ctx", {}).get("hint", EXPLAINED),
        )
    if first["type"] == "extra_forbidden":
        known_keys = _known_keys(kind, first["loc"][:-1])
        hint = did_you_mean(first["loc"][-1], known_keys, f"known keys here: {', '.join(known_keys)}.")
        if len(first["loc"]) == 1 and (places := _places(kind, first["loc"][0])):
            hint = f"it is {' or '.join(places)}."
        return InputError(f"{source}: unknown key {key_path!r}.", hint)
    if first["type"] == "missing":
        return InputError(f"{source}: key {key_path!r} is missing.", EXPLAINED)
    return InputError(
        f"{source}: key {key_path!r}, value {first['input']!r}: {message}.",
        first.get("ctx", {}).get("hint", EXPLAINED),
    )


def _known_keys(section: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """The keys of the section at `location` in another, walking the models' annotations."""
    for part in location:
        field = section.model_fields.get(str(part))
        inner = section_of(field.annotation) if field else None
        if inner is None:
            continue  # a step through a dict's key or a union's tag
        section = inner
    return [name for name, field in section.model_fields.items() if field.description]


def _places(section: type[BaseModel], key: int | str) -> list[str]:
    """Where a section has a key of this name, with the names of the sections above it."""
    places = [name for name, info in section.model_fields.items() if name == key and info.description]
    for name, info in section.model_fields.items():
        if (inner := section_of(info.annotation)) is not None:
            above = f"{name}.<name>" if get_origin(info.annotation) is dict else name
            places += [f"{above}.{inner_path}" for inner_path in _places(inner, key)]
    return places


def section_of(annotation: object) -> type[BaseModel] | None:
    """The section that a field of this type holds, itself or in a mapping; None for a value."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        inner = section_of(argument)
        if inner is not None:
            return inner
    return None
