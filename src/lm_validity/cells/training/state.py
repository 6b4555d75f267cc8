"""The last finished epoch of a fine-tune on disk, from which it goes on after an interruption."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from lm_validity.cells.models.language_model import LanguageModel
from lm_validity.cells.training.loop import Epoch, FinetuneSettings, Training
from lm_validity.cells.training.text import Example
from lm_validity.files import replace_file


def fingerprint(lm: LanguageModel, examples: Sequence[Example], settings: FinetuneSettings, seed: int) -> str:
    """What a saved state must agree on with the run that resumes from it."""
    same = settings.model_dump(exclude={"micro_batch", "gradient_checkpointing"})
    if not same["early_stop"]:
        del same["early_stop"]  # states of before there was one
    digest = hashlib.sha256(json.dumps([lm.model_id, str(lm.base.dtype), same, seed]).encode())
    for example in examples:
        digest.update(np.asarray([example.completion_start, *example.token_ids], dtype="<i8").tobytes())
    return digest.hexdigest()


class SavedState:
    """The last finished epoch on disk: weights, optimizer, best adapter and history in one file, replaced whole."""

    def __init__(self, path: Path, fingerprint: str):
        self.path, self.fingerprint = path, fingerprint

    def save(self, training: Training) -> None:
        """Replace the file by the training's state after its last finished epoch."""
        tensors = {f"best.{name}": tensor for name, tensor in training.best_tensors.items()}
        tensors["step_losses"] = torch.tensor(training.step_losses, dtype=torch.float64)
        for name, parameter in training.parameters.items():
            tensors[f"weight.{name}"] = parameter.detach().cpu()
            for key, value in training.optimizer.state[parameter].items():
                tensors[f"{key}.{name}"] = value.cpu()
        history = {
            "fingerprint": self.fingerprint,
            "best_epoch": training.best_epoch,
            "micro_batch": training.micro_batch,
            "epochs": [asdict(epoch) for epoch in training.epochs],
        }
        with replace_file(self.path) as temporary:
            # not `save_file`, whose error on a full disk is no OSError
            temporary.write_bytes(save(tensors, metadata={"history": json.dumps(history)}))

    def restore(self, training: Training) -> int:
        """Number of epochs restored; 0 where there is no state of this very fine-tune."""
        if not self.path.is_file():
            return 0
        try:
            with safe_open(self.path, framework="pt") as file:
                history = json.loads(file.metadata()["history"])
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (no dict)
        except (SafetensorError, OSError, ValueError, KeyError):
            return 0
        if history["fingerprint"] != self.fingerprint:
            return 0
        for name, parameter in training.parameters.items():
            with torch.no_grad():
                parameter.copy_(tensors[f"weight.{name}"])
            if f"step.{name}" in tensors:  # a layer that no text reaches never gets a gradient, nor a state
                training.optimizer.state[parameter] = {
                    key: tensors[f"{key}.{name}"].to(parameter.device) for key in ("step", "exp_avg", "exp_avg_sq")
                }
        training.epochs = [Epoch(**epoch) for epoch in history["epochs"]]
        training.step_losses = tensors["step_losses"].tolist()
        training.best_epoch = history["best_epoch"]
        training.best_tensors = {key[5:]: value for key, value in tensors.items() if key.startswith("best.")}
        training.micro_batch = min(training.micro_batch, history["micro_batch"])
        training.position.step = len(training.epochs) * training.steps_per_epoch
        return len(training.epochs)
