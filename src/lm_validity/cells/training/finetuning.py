"""LoRA fine-tuning on a benchmark's training split: one plain loop, validated and saved after every epoch.

AdamW, linear decay to zero without warm-up, gradients clipped at norm 1, the token mean over an effective batch that
does not depend on memory. Everything random is a function of the seed, the epoch, the step and the layer, so
a resumed run, a halved micro-batch and an undisturbed run take the same steps (a resumed one on a CPU: the same
bytes). The base model is frozen and is given back as it was.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lm_validity.cells.models.language_model import LanguageModel
from lm_validity.cells.training.loop import Epoch, FinetuneSettings, Training, TrainingStopped, one_text_must_fit
from lm_validity.cells.training.lora import add_adapter, save_adapter
from lm_validity.cells.training.low_rank import BatchPosition
from lm_validity.cells.training.state import SavedState, fingerprint
from lm_validity.cells.training.targets import find_targets
from lm_validity.cells.training.text import Example

__all__ = ["Epoch", "FinetuneResult", "FinetuneSettings", "TrainingStopped", "finetune"]


@dataclass(frozen=True)
class FinetuneResult:
    """What a fine-tune did. best_epoch is null, and there is no adapter, where it diverged in its first epoch.

    diverged: why training ended early, or null. tokens: training tokens of one epoch. step_losses: one per step of
    the finished epochs.
    adapted_share: of the model's weights, those with an adapter (see `targets.Targets`).
    micro_batch, resumed_epochs: of this process only; they belong in the sidecar.
    """

    epochs: tuple[Epoch, ...]
    best_epoch: int | None
    diverged: str | None
    adapter_sha256: str | None
    target_modules: tuple[str, ...]
    adapted_share: float
    trainable_parameters: int
    examples: int
    truncated: int
    tokens: int
    steps: int
    step_losses: tuple[float, ...]
    micro_batch: int
    resumed_epochs: int


def finetune(
    lm: LanguageModel,
    examples: Sequence[Example],
    validate: Callable[[], float],
    settings: FinetuneSettings,
    *,
    seed: int,
    higher_is_better: bool,
    work: Path,
    adapter_output: Path,
    on_epoch: Callable[[Epoch], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> FinetuneResult:
    """Train an adapter on `examples` and write that of the best epoch to `adapter_output` in PEFT's format.

    validate: the benchmark's metric under the model as it stands, after each epoch; ties go to the earlier epoch.
    work: holds the last finished epoch; a second call with the same arguments goes on from there.
    stop: asked before each step; TrainingStopped is raised when it says so.
    Running out of memory halves the micro-batch and repeats the step.
    A loss or score that is not finite ends the training with the epochs so far and `diverged` set.
    Raises CellError where there is nothing to train on, the architecture has no layers for adapters, or memory runs
    out at one row.
    """
    position = BatchPosition(seed % 2**63)
    with contextlib.ExitStack() as stack:
        stack.enter_context(one_text_must_fit(lm, examples))
        model = add_adapter(lm, settings, settings.target_modules, position)
        stack.callback(model.unload)
        training = Training(lm, model, examples, settings, position)
        saved = SavedState(work / "training.safetensors", fingerprint(lm, examples, settings, seed))
        resumed = saved.restore(training)
        diverged = None
        while not training.is_done:
            diverged = training.run_epoch(len(training.epochs) + 1, validate, stop)
            if diverged:
                break
            training.keep_if_best(higher_is_better=higher_is_better)
            saved.save(training)
            if on_epoch:
                on_epoch(training.epochs[-1])
        digest = save_adapter(model, training.best_tensors, adapter_output) if training.best_tensors else None
    return _result(lm, training, examples, diverged, digest, resumed)


def _result(
    lm: LanguageModel,
    training: Training,
    examples: Sequence[Example],
    diverged: str | None,
    digest: str | None,
    resumed: int,
) -> FinetuneResult:
    targets = find_targets(lm, training.settings.target_modules)
    return FinetuneResult(
        epochs=tuple(training.epochs),
        best_epoch=training.best_epoch,
        diverged=diverged,
        adapter_sha256=digest,
        target_modules=targets.described,
        adapted_share=targets.share,
        trainable_parameters=sum(parameter.numel() for parameter in training.parameters.values()),
        examples=len(examples),
        truncated=sum(example.truncated > 0 for example in examples),
        tokens=sum(len(example.token_ids) for example in examples),
        steps=training.position.step,
        step_losses=tuple(training.step_losses),
        micro_batch=training.micro_batch,
        resumed_epochs=resumed,
    )
