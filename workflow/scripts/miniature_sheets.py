"""Write the sheets of the miniature's models, checkpoints and benchmarks, with parameters and tokens counted.

    python workflow/scripts/miniature_sheets.py config/config.yaml        # those that the configuration names
    python workflow/scripts/miniature_sheets.py config/test.yaml cloze table    # of benchmarks these only

The sheets belong to the pool and the seed of the configuration; a test fails where they do not.
"""

import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from lm_validity.config.load import read_values, validate
from lm_validity.config.sections import MiniatureSettings
from lm_validity.config.sheets import MiniatureModel, read_pool
from lm_validity.files import write_text
from lm_validity.miniature.build import BENCHMARKS, CONTEXT_LENGTH, METRICS, tokens_at, vocabulary
from lm_validity.miniature.world import make_world

BILLION = 1e9


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
    counted = lru_cache(maxsize=None)(lambda name: tokens_at(settings, world, pool[name]))
    for row in pool.values():
        if row.studies == "bias":  # these have a sheet of their own, with nothing to count
            continue
        tokens = counted(row.model)
        if row.tuned_from:  # the tokens of its parent's training count as well
            pretraining = counted(row.tuned_from)[pool[row.tuned_from].steps]
            tokens = {step: seen + pretraining for step, seen in tokens.items()}
        checkpoints = f"checkpoints/{row.model}.tsv" if row.checkpoints else ""
        rows.append(
            {
                "model": row.model,
                "path": f"results/{{run}}/miniature/models/{row.model}",
                "revision": "",
                "family": row.family,
                "parameters_b": count_parameters(row, len(vocabulary(world))) / BILLION,
                "tokens_b": tokens[row.steps] / BILLION,
                "instruction_tuned": int(row.tuned_from is not None),
                "size_class": "miniature",
                "dtype": "float32",
                "checkpoints": checkpoints,
                "studies": row.studies,
                "size": row.size,
                "architecture": row.architecture,
                "training_data": row.training_data,
            }
        )
        if row.checkpoints:
            sheets[checkpoints] = _table(
                [
                    {
                        "checkpoint": step,
                        "iteration": step,
                        "tokens_b": tokens[step] / BILLION,
                        "revision": "",
                        "subfolder": f"checkpoint-{step}",
                    }
                    for step in row.checkpoints
                ]
            )
    return {"": _table(rows), **sheets}


def benchmarks_sheet(names: tuple[str, ...] = ()) -> str:
    """Text of the benchmarks sheet: those named, or all."""
    rows = [
        {
            "benchmark": benchmark.name,
            "task": benchmark.task,
            "include_path": "results/{run}/miniature/tasks",
            "category": benchmark.category,
            "metric": f"{METRICS[benchmark.output_type][0]},none",
            "output_type": benchmark.output_type,
            "higher_is_better": int(benchmark.output_type != "loglikelihood_rolling"),
            "studies": ",".join(benchmark.studies),
        }
        for benchmark in BENCHMARKS
        if not names or benchmark.name in names
    ]
    return _table(rows)


def _table(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows by column as a tab-separated sheet; numbers to nine digits after the point."""
    lines = [
        [f"{value:.9f}".rstrip("0") if isinstance(value, float) else str(value) for value in row.values()]
        for row in rows
    ]
    return "".join("\t".join(line) + "\n" for line in ([*rows[0]], *lines))


if __name__ == "__main__":
    configuration = validate(read_values(sys.argv[1]), sys.argv[1])
    settings, models, benchmarks = configuration.miniature, configuration.models, configuration.benchmarks
    if settings is None or models is None or benchmarks is None:
        sys.exit(f"{sys.argv[1]}: it needs the keys miniature, models and benchmarks.")
    for name, text in model_sheets(settings, read_pool(settings.pool)).items():
        write_text(Path(models).parent / name if name else models, text)
    write_text(benchmarks, benchmarks_sheet(tuple(sys.argv[2:])))
