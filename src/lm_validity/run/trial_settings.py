"""What the configuration and the sheets say about a batch of trials of the bias study.

Standard library and pydantic only: the Snakefile asks at parse time.
"""

from typing import Any, NamedTuple

from lm_validity.config.bias import BiasSettings
from lm_validity.config.load import Run

# what changes memory or time and no number: it neither enters a recipe nor reruns a job
COST_ONLY = ("micro_batch", "gradient_checkpointing")


class TrialCell(NamedTuple):
    """Subsamples `first` to `last` of one (experiment, language model, task, m, n)."""

    rule: str
    model: str
    experiment: str
    task: str
    m: int
    n: int
    first: int
    last: int

    @property
    def name(self) -> str:
        """The cell within its language model, e.g. `head.ag_news.m50.n200.subsamples1-25`."""
        return f"{self.experiment}.{self.task}.m{self.m}.n{self.n}.subsamples{self.first}-{self.last}"

    @property
    def subject(self) -> str:
        """The task."""
        return self.task

    @property
    def count(self) -> int:  # type: ignore[override] # a cell is no sequence, though a tuple has this name
        """Number of subsamples."""
        return self.last - self.first + 1


def shared_sizes(run: Run, cell: TrialCell) -> tuple[tuple[int, int], ...]:
    """(n, number of subsamples) of the other cells that have the same base arms."""
    experiment = run.bias.experiments[cell.experiment]
    return tuple((n, experiment.count_subsamples(cell.m, n)) for n in experiment.n if n != cell.n)


def plan_values(run: Run, cell: TrialCell) -> dict[str, Any]:
    """What the configuration and the sheets say that the cell's trials depend on, with the names of a trial's plan."""
    settings, row = run.bias, run.language_models[cell.model]
    experiment = settings.experiments[cell.experiment]
    zero_shot = experiment.method == "zero_shot"
    return {
        "experiment": cell.experiment,
        "language_model": cell.model,
        "architecture": row.architecture,
        "m": cell.m,
        "n": cell.n,
        "pretraining": _prompt_pretraining(run, cell) if zero_shot else _text_pretraining(run, cell),
        "classification": _prompting(settings) if zero_shot else _head(run, cell),
        "seeds": settings.seeds,
        "planted_leak": experiment.planted_leak,
        "drop_duplicate_texts": settings.drop_duplicate_texts,
        # where all weights are trained: in half precision most of AdamW's steps are smaller than a weight's last bit
        "dtype": row.dtype if zero_shot else "float32",
    }


def _text_pretraining(run: Run, cell: TrialCell) -> dict[str, Any]:
    settings = run.bias.pretraining
    masked = run.language_models[cell.model].architecture == "masked"
    own = run.bias.experiments[cell.experiment].pretraining_epochs
    return settings.model_dump(exclude={"masked_epochs", "causal_epochs", "batch_size"}) | {
        "epochs": own or (settings.masked_epochs if masked else settings.causal_epochs),
        "batch_size": run.tasks[cell.task].pretraining_batch or settings.batch_size,
        "adapter": None,
    }


def _prompt_pretraining(run: Run, cell: TrialCell) -> dict[str, Any]:
    settings, experiment = run.bias.zero_shot, run.bias.experiments[cell.experiment]
    values: dict[str, Any] = {
        "epochs": experiment.pretraining_epochs or settings.epochs,
        "batch_size": run.tasks[cell.task].pretraining_batch or settings.batch_size,
        "learning_rate": settings.learning_rate,
        "max_length": settings.max_length,
        "weight_decay": 0.0,
        "adapter": settings.model_dump(include={"rank", "alpha", "dropout", "quantization"}),
        **settings.model_dump(include=set(COST_ONLY)),
    }
    if experiment.packing:  # one packed sequence a step
        packed = {"packing": settings.packed_texts, "max_length": settings.packed_max_length, "batch_size": 1}
        return values | packed
    return values


def _head(run: Run, cell: TrialCell) -> dict[str, Any]:
    settings, task = run.bias.training, run.tasks[cell.task]
    masked = run.language_models[cell.model].architecture == "masked"
    return settings.model_dump() | {
        "method": "head",
        "epochs": task.training_epochs or settings.epochs,
        "batch_size": (task.masked_batch if masked else task.causal_batch) or settings.batch_size,
    }


def _prompting(settings: BiasSettings) -> dict[str, Any]:
    return {"method": "zero_shot", "prompt_characters": settings.zero_shot.prompt_characters}
