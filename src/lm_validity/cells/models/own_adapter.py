"""A user's own PEFT adapter: added to the weights of its base model when that is loaded.

The result is an ordinary model, so that scoring, fine-tuning and writing answers need to know nothing of it. An adapter
can be taken off again, bit for bit, so that several adapters of one base share its load. LoRA only, DoRA and
rank-stabilised LoRA included.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from peft import PeftModel, get_peft_model_state_dict
from peft.tuners.lora.layer import ParamWrapper
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import SAFETENSORS_WEIGHTS_NAME
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel

from lm_validity.cells.models.memory import MORE_MEMORY, is_out_of_memory, must_fit
from lm_validity.errors import CellError, first_line

if TYPE_CHECKING:
    from lm_validity.cells.models.language_model import LanguageModel


# what PEFT and safetensors raise for an adapter that is damaged, or made for another model
UNFIT = (OSError, ValueError, KeyError, TypeError, RuntimeError, re.error, SafetensorError)


class OwnAdapter:
    """An adapter in the weights of `model`. `keep`: also a copy on the CPU of the weights that it changes, by which
    `take_off` restores them."""

    def __init__(self, model: PreTrainedModel, folder: str | Path, name: str, *, keep: bool = False):
        """Raises CellError where the adapter does not fit the model, or is not the same once it is in the weights."""
        self._before: list[tuple[torch.nn.Module, torch.Tensor]] | None = None
        try:
            adapted = PeftModel.from_pretrained(model, str(folder), is_trainable=False).eval()
            layers_only = _check_tensors(adapted, folder)
            expected = _logits(model)
            if keep and layers_only:
                layers = [layer.get_base_layer() for layer in model.modules() if isinstance(layer, BaseTunerLayer)]
                self._before = [(layer, layer.weight.detach().to("cpu", copy=True)) for layer in layers]
            adapted.merge_and_unload()
        except UNFIT as error:
            if isinstance(error, RuntimeError) and is_out_of_memory(error):
                raise
            raise CellError(
                f"{name}: {folder} is not an adapter of this base model ({first_line(error)}).",
                "check `path` and `adapter` in the models sheet: the adapter's configuration names its base.",
            ) from error
        difference, scale = (_logits(model) - expected).abs().max(), expected.abs().max()
        if not difference <= scale * (1e-4 if model.dtype == torch.float32 else 5e-2):
            raise CellError(
                f"{name}: {folder} computes something else once it is added to the weights.",
                "does it adapt an output layer that is tied to the embeddings? Give a merged, untied model as `path`.",
            )

    def take_off(self) -> bool:
        """Give the base model back as it was; False where that cannot be done and it has to be loaded again."""
        if self._before is None:
            return False
        for layer, weight in self._before:
            layer.weight.data.copy_(weight)
        return True


def _check_tensors(adapted: PeftModel, folder: str | Path) -> bool:
    """Whether the adapter changes nothing but the weights of its layers, so that it can be taken off again.

    Raises ValueError where its file lacks a tensor that the model needs, or holds one that the model has no place for:
    PEFT would go on with an adapter that reaches a part of the model, or none.
    """
    with safe_open(Path(folder) / SAFETENSORS_WEIGHTS_NAME, "pt") as file:
        given = set(file.keys())
    needed = set(get_peft_model_state_dict(adapted, save_embedding_layers=False))
    missing = needed - given
    surplus = given - set(get_peft_model_state_dict(adapted, save_embedding_layers=True))
    if missing or surplus:
        what, names = ("lacks", missing) if missing else ("has no place in the model for", surplus)
        raise ValueError(f"its file {what} {min(names)}" + (f" and {len(names) - 1} more" if len(names) > 1 else ""))
    configuration = adapted.peft_config["default"]
    fused = any(isinstance(layer, ParamWrapper) for layer in adapted.modules())
    others = configuration.bias != "none" or configuration.lora_bias or configuration.modules_to_save
    return given == needed and not fused and not others


def exchange_adapter(lm: "LanguageModel", adapter: str | Path | None) -> bool:
    """Put another adapter (None: none) in place of a loaded model's; False where it has to be loaded anew."""
    if lm.own_adapter is not None and not lm.own_adapter.take_off():
        return False
    with must_fit(lm.model_id, "its adapter to load", f"{MORE_MEMORY}."):
        lm.own_adapter = OwnAdapter(lm.base, adapter, lm.model_id, keep=True) if adapter else None
    return True


def _logits(model: PreTrainedModel) -> torch.Tensor:
    rows = torch.arange(5, 13, device=model.device)[None] % model.config.get_text_config().vocab_size
    with torch.no_grad():
        return model(input_ids=rows, use_cache=False).logits.float()
