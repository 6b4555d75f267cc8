"""The sheets of models, benchmarks and checkpoints: TSV files, checked row by row before any job starts.

Standard library only: the Snakefile reads this at parse time.
"""

import csv
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from lm_validity.config.sections import NAME
from lm_validity.config.training_tokens import BatchRamp
from lm_validity.errors import InputError, nearest

OUTPUT_TYPES = ("multiple_choice", "generate_until", "loglikelihood_rolling")
DTYPES = ("float32", "bfloat16", "float16")
DOCUMENT_BOS = ("once", "every", "lm-eval")
STUDIES = ("agreement", "signal", "bias")


@dataclass(frozen=True)
class Checkpoint:
    """A point of training: `final`, or a name with its iteration and tokens; where its weights lie."""

    checkpoint: str
    iteration: int | None = None
    tokens_b: float | None = None
    revision: str | None = None
    subfolder: str | None = None


FINAL = Checkpoint("final")


@dataclass(frozen=True)
class Model:
    """One row of the models sheet. `path` is a hub id or a folder in hub format; null means unknown."""

    model: str
    path: str
    revision: str | None = None
    family: str | None = None
    parameters_b: float | None = None
    tokens_b: float | None = None
    instruction_tuned: bool = False
    size_class: str = "small"
    dtype: str = "float32"
    checkpoints: tuple[Checkpoint, ...] = (FINAL,)
    studies: tuple[str, ...] = STUDIES
    size: str | None = None
    architecture: str | None = None
    training_data: str | None = None
    document_bos: str | None = None
    batch_ramp: str | None = None

    @property
    def is_local(self) -> bool:
        """A folder rather than a hub id: it starts with ./, / or results/, or exists."""
        return self.path.startswith((".", "/", "results/", "~")) or Path(self.path).is_dir()

    @property
    def folders(self) -> tuple[str, ...]:
        """Folders of its files as prefixes of their names: the root, and each checkpoint's subfolder."""
        return ("", *sorted({f"{point.subfolder}/" for point in self.checkpoints if point.subfolder}))


@dataclass(frozen=True)
class Benchmark:
    """One row of the benchmarks sheet: an lm-eval task or group of tasks with its metric ("name,filter").

    num_fewshot: solved examples before each question. mutual_information: each choice's log-likelihood without the
    question is scored too, for PMI.
    corpus: texts of the user's own, in the column `text_column`; a task is made of them when they are prefetched.
    """

    benchmark: str
    task: str
    include_path: str | None = None
    category: str | None = None
    metric: str = "acc,none"
    output_type: str = "multiple_choice"
    higher_is_better: bool = True
    studies: tuple[str, ...] = STUDIES
    num_fewshot: int = 0
    mutual_information: bool = False
    corpus: str | None = None
    text_column: str = "text"


@dataclass(frozen=True)
class Sheet:
    """Where a row comes from, for error messages."""

    path: Path
    rows: list = field(default_factory=list)

    def error(self, number: int, column: str, value, problem: str, hint: str) -> InputError:
        return InputError(f"{self.path}, row {number}, column {column!r}, value {value!r}: {problem}.", hint)


def read_models(
    path: str | Path, run: str, size_classes=(), batch_ramps: Mapping[str, BatchRamp] | None = None
) -> dict[str, Model]:
    """The models sheet by id, in the sheet's order. `{run}` in a path becomes the configuration's name."""
    sheet = _read_sheet(path, required=("model", "path"), known=_names(Model) | _EXTRA_MODEL_COLUMNS)
    models = {}
    for number, row in sheet.rows:
        model = Model(
            model=_identifier(sheet, number, row, "model", models),
            path=row["path"].replace("{run}", run),
            revision=row.get("revision"),
            family=row.get("family"),
            parameters_b=_number(sheet, number, row, "parameters_b"),
            tokens_b=_number(sheet, number, row, "tokens_b"),
            instruction_tuned=bool(_flag(sheet, number, row, "instruction_tuned", False)),
            size_class=row.get("size_class") or "small",
            dtype=_choice(sheet, number, row, "dtype", DTYPES, "float32"),
            checkpoints=_read_checkpoints(sheet, number, row),
            studies=_studies(sheet, number, row),
            size=row.get("size"),
            architecture=row.get("architecture"),
            training_data=row.get("training_data"),
            document_bos=_choice(sheet, number, row, "document_bos", DOCUMENT_BOS, None)
            if row.get("document_bos")
            else None,
            batch_ramp=row.get("batch_ramp"),
        )
        if size_classes and model.size_class not in size_classes:
            raise sheet.error(
                number,
                "size_class",
                model.size_class,
                "no such class in the configuration's size_classes",
                f"use one of {', '.join(size_classes)}, or add it to size_classes.",
            )
        models[model.model] = _count_tokens(sheet, number, model, batch_ramps or {})
    return models


def _count_tokens(sheet: Sheet, number: int, model: Model, ramps: Mapping[str, BatchRamp]) -> Model:
    """The model with the tokens of checkpoints that have an iteration only, by the ramp that its row names."""
    if model.batch_ramp is None:
        return model
    if model.batch_ramp not in ramps:
        raise sheet.error(
            number,
            "batch_ramp",
            model.batch_ramp,
            "no such ramp in the configuration's batch_ramps",
            f"use one of {', '.join(ramps)}, or add it to batch_ramps." if ramps else "add it to batch_ramps.",
        )
    ramp = ramps[model.batch_ramp]
    points = tuple(
        point
        if point.tokens_b is not None or point.iteration is None
        else replace(point, tokens_b=ramp.tokens_b(point.iteration))
        for point in model.checkpoints
    )
    final = next(point for point in points if point.checkpoint == "final")
    tokens = final.tokens_b if model.tokens_b is None else model.tokens_b
    return replace(model, checkpoints=points, tokens_b=tokens)


def read_benchmarks(path: str | Path, run: str) -> dict[str, Benchmark]:
    """The benchmarks sheet by id, in the sheet's order. A bare metric name means `name,none`."""
    sheet = _read_sheet(path, required=("benchmark",), known=_names(Benchmark) | _EXTRA_BENCHMARK_COLUMNS)
    benchmarks = {}
    for number, row in sheet.rows:
        identifier = _identifier(sheet, number, row, "benchmark", benchmarks)
        if row.get("corpus"):
            row = _as_task(sheet, number, row, identifier)
        metric = row.get("metric") or "acc"
        output_type = _choice(sheet, number, row, "output_type", OUTPUT_TYPES, "multiple_choice")
        benchmarks[identifier] = Benchmark(
            benchmark=identifier,
            task=row.get("task") or identifier,
            include_path=(row.get("include_path") or "").replace("{run}", run) or None,
            category=row.get("category"),
            metric=metric if "," in metric else f"{metric},none",
            output_type=output_type,
            higher_is_better=bool(_flag(sheet, number, row, "higher_is_better", True)),
            studies=_studies(sheet, number, row),
            num_fewshot=_fewshot_count(sheet, number, row, output_type),
            mutual_information=_mutual_information(sheet, number, row, output_type),
            corpus=row.get("corpus"),
            text_column=row.get("text_column") or "text",
        )
    return benchmarks


def _fewshot_count(sheet: Sheet, number: int, row: dict, output_type: str) -> int:
    value = row.get("num_fewshot") or "0"
    if not value.isdigit():
        raise sheet.error(number, "num_fewshot", value, "not a count", "0 or empty: no examples before a question.")
    if int(value) and output_type == "loglikelihood_rolling":
        raise sheet.error(number, "num_fewshot", value, "a perplexity corpus has no examples", "leave it empty.")
    return int(value)


def _mutual_information(sheet: Sheet, number: int, row: dict, output_type: str) -> bool:
    wanted = bool(_flag(sheet, number, row, "mutual_information", False))
    if wanted and output_type != "multiple_choice":
        raise sheet.error(
            number, "mutual_information", row["mutual_information"], f"{output_type} has no choices", "leave it empty."
        )
    return wanted


def _as_task(sheet: Sheet, number: int, row: dict, identifier: str) -> dict:
    """A row that names texts of the user's own, as a row of the lm-eval task that is made of them."""
    made = {
        "task": f"corpus_{identifier}",
        "include_path": f"results/{{run}}/corpora/{identifier}",
        "metric": "bits_per_byte,none",
        "output_type": "loglikelihood_rolling",
        "higher_is_better": "0",
    }
    fixed = {key: made[key] for key in ("task", "include_path", "output_type")}
    for column, value in fixed.items():
        if row.get(column) not in (None, value):
            raise sheet.error(number, column, row[column], "not for a corpus", "leave it empty: its task is made.")
    return row | {key: row.get(key) or value for key, value in made.items()}


# Columns that only reports or readers use; any other unknown column is a typing error.
_EXTRA_MODEL_COLUMNS = {
    "display_name",
    "in_compute_plot",
    "chat",
    "tokens_status",
    "in_perplexity_analysis",
    "flops",
}
_EXTRA_BENCHMARK_COLUMNS = {"training_examples", "display_name", "description", "selected", "exclusion"}


def _names(kind) -> set[str]:
    return {one.name for one in fields(kind)}


def _read_sheet(path: str | Path, required: tuple[str, ...], known: set[str]) -> Sheet:
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such sheet.", "check `models` and `benchmarks` in the configuration.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 (byte {error.start}).", "save the sheet as UTF-8.") from None
    # rows are named by their line in the file, blank lines and comments counted
    lines = [
        (number, line)
        for number, line in enumerate(text.splitlines(keepends=True), start=1)
        if line.strip() and not line.startswith("#")
    ]
    reader = csv.DictReader([line for _, line in lines], delimiter="," if path.suffix == ".csv" else "\t", restkey="+")
    header = reader.fieldnames or []
    for column in required:
        if column not in header:
            raise InputError(
                f"{path}: column {column!r} is missing (found: {', '.join(header) or 'nothing'}).",
                "sheets are tab-separated with a header line.",
            )
    for column in header:
        if column not in known and not column.startswith("published_"):
            raise InputError(
                f"{path}: unknown column {column!r}.",
                f"did you mean {nearest(column, known) or sorted(known)}?",
            )
    sheet = Sheet(path)
    for row in reader:
        number = lines[reader.line_num - 1][0]
        if "+" in row or None in row.values():
            raise InputError(
                f"{path}, row {number}: {len(header)} columns expected, not as many found.",
                "separate the columns by single tabs, also where a value is empty.",
            )
        row = {column: value.strip() or None for column, value in row.items()}
        for column in required:
            if row[column] is None:
                raise sheet.error(number, column, "", "empty", "every row needs one.")
        sheet.rows.append((number, row))
    if not sheet.rows:
        raise InputError(f"{path}: no rows.", "add at least one.")
    return sheet


def _identifier(sheet, number, row, column, seen) -> str:
    value = row[column]
    if not re.match(NAME, value) or value.startswith(("all-", "group-")):
        raise sheet.error(
            number,
            column,
            value,
            "not a usable id",
            "ids become file names: letters, digits, '.', '_' and '-'; hub ids go into `path`.",
        )
    if value in seen:
        raise sheet.error(number, column, value, "this id occurs twice", "give each row its own id.")
    return value


def _number(sheet, number, row, column) -> float | None:
    value = row.get(column)
    if value is None:
        return None
    try:
        found = float(value)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise sheet.error(number, column, value, "not a number", "leave it empty where it is unknown.")
    return found


def _flag(sheet, number, row, column, default) -> bool:
    value = row.get(column)
    if value is None:
        return default
    flags = {"0": False, "1": True, "false": False, "true": True}
    if value.lower() not in flags:
        raise sheet.error(number, column, value, "not a yes or no", "use 0/1 or true/false.")
    return flags[value.lower()]


def _choice(sheet, number, row, column, choices, default) -> str:
    value = row.get(column) or default
    if value not in choices:
        hint = f"did you mean {nearest(value, choices)}?" if nearest(value, choices) else f"use one of {choices}."
        raise sheet.error(number, column, value, "unknown", hint)
    return value


def _studies(sheet, number, row) -> tuple[str, ...]:
    """Studies a row takes part in: a comma-separated list; empty is every study of the configuration."""
    if not row.get("studies"):
        return STUDIES
    names = tuple(name.strip() for name in row["studies"].split(","))
    for name in names:
        if name not in STUDIES:
            raise sheet.error(number, "studies", name, "unknown study", f"use some of {', '.join(STUDIES)}.")
    return names


def _read_checkpoints(sheet, number, row) -> tuple[Checkpoint, ...]:
    """Checkpoints in the order of their sheet, then `final` unless the sheet has a row for it. The path is relative
    to the models sheet."""
    if not row.get("checkpoints"):
        return (FINAL,)
    path = sheet.path.parent / row["checkpoints"]
    inner = _read_sheet(path, required=("checkpoint", "iteration"), known=_names(Checkpoint))
    seen, found = set(), []
    for line, entry in inner.rows:
        name = _identifier(inner, line, entry, "checkpoint", seen)
        seen.add(name)
        iteration = _number(inner, line, entry, "iteration")
        found.append(
            Checkpoint(
                name,
                int(iteration) if iteration is not None else None,
                _number(inner, line, entry, "tokens_b"),
                entry.get("revision"),
                entry.get("subfolder"),
            )
        )
    return tuple(found) if "final" in seen else (*found, FINAL)
