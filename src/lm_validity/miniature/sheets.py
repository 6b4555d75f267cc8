"""The sheets of models, checkpoints and benchmarks, generated from the pool and the world.

Parameters and tokens are counted, not typed in. The committed sheets belong to the committed configuration
(its seed); a test fails when they drift.
"""

from collections.abc import Sequence

from lm_validity.config.miniature import MiniatureSettings
from lm_validity.config.pool import MiniatureModel
from lm_validity.miniature.tasks import BENCHMARKS
from lm_validity.miniature.tokenizer import CONTEXT_LENGTH, vocabulary
from lm_validity.miniature.training_rows import tokens_at
from lm_validity.miniature.world import World, make_world

BILLION = 1e9
MODELS_HEADER = (
    *("model", "path", "revision", "family", "parameters_b", "tokens_b", "instruction_tuned", "size_class"),
    *("dtype", "checkpoints", "studies", "size", "architecture", "training_data"),
)
CHECKPOINTS_HEADER = ("checkpoint", "iteration", "tokens_b", "revision", "subfolder")
BENCHMARKS_HEADER = (
    *(
        "benchmark",
        "task",
        "include_path",
        "category",
        "metric",
        "output_type",
        "higher_is_better",
        "studies",
    ),
)


def count_parameters(row: MiniatureModel, vocabulary_size: int) -> int:
    """Trainable parameters of a pool row's model, embeddings (tied with the output layer) included."""
    width, inner = row.hidden_size, row.feedforward_size
    if row.architecture == "llama":
        block = 4 * width**2 + 3 * width * inner + 2 * width
        return vocabulary_size * width + row.layers * block + width
    attention = 4 * width**2 + 4 * width
    feedforward = 2 * width * inner + inner + width
    return (vocabulary_size + CONTEXT_LENGTH) * width + row.layers * (attention + feedforward + 4 * width) + 2 * width


def model_sheets(settings: MiniatureSettings, pool: dict[str, MiniatureModel]) -> dict[str, str]:
    """Text of the models sheet (key "") and of the checkpoints sheets (key: path beside the models sheet)."""
    world = make_world(settings)
    sheets, rows = {}, []
    for row in pool.values():
        if row.studies == "bias":  # these have a sheet of their own, with nothing to count
            continue
        tokens = tokens_at(settings, world, row)
        if row.tuned_from:  # the tokens of its parent's training count as well
            parent = pool[row.tuned_from]
            tokens = {step: seen + tokens_at(settings, world, parent)[parent.steps] for step, seen in tokens.items()}
        rows.append(_model_row(row, world, tokens))
        if row.checkpoints:
            points = [(str(step), step, tokens[step] / BILLION, "", f"checkpoint-{step}") for step in row.checkpoints]
            sheets[_checkpoints_path(row)] = _table(CHECKPOINTS_HEADER, points)
    return {"": _table(MODELS_HEADER, rows), **sheets}


def benchmarks_sheet(names: tuple[str, ...] = ()) -> str:
    """Text of the benchmarks sheet: those named, or all."""
    rows = [
        (
            benchmark.name,
            benchmark.task,
            "results/{run}/miniature/tasks",
            benchmark.category,
            benchmark.metric,
            benchmark.output_type,
            int(benchmark.output_type != "loglikelihood_rolling"),
            ",".join(benchmark.studies),
        )
        for benchmark in BENCHMARKS
        if not names or benchmark.name in names
    ]
    return _table(BENCHMARKS_HEADER, rows)


def _model_row(row: MiniatureModel, world: World, tokens: dict[int, int]) -> tuple[object, ...]:
    return (
        row.model,
        f"results/{{run}}/miniature/models/{row.model}",
        "",
        row.family,
        count_parameters(row, len(vocabulary(world))) / BILLION,
        tokens[row.steps] / BILLION,
        int(row.tuned_from is not None),
        "miniature",
        "float32",
        _checkpoints_path(row) if row.checkpoints else "",
        row.studies,
        row.size,
        row.architecture,
        row.training_data,
    )


def _checkpoints_path(row: MiniatureModel) -> str:
    return f"checkpoints/{row.model}.tsv"


def _table(header: tuple[str, ...], rows: Sequence[tuple[object, ...]]) -> str:
    lines = ["\t".join(header)]
    lines += ["\t".join(_cell(value) for value in row) for row in rows]
    return "\n".join(lines) + "\n"


def _cell(value: object) -> str:
    return f"{value:.9f}".rstrip("0") if isinstance(value, float) else str(value)
