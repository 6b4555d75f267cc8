"""A user's own PEFT adapter: added to the weights of its base model when that is loaded.

The result is an ordinary model, so that scoring, fine-tuning and writing answers need to know nothing of it. An adapter
can be taken off again, bit for bit, so that several adapters of one base share its load. LoRA only, DoRA and
rank-stabilised LoRA included.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from peft import PeftModel
from peft.tuners.lora.layer import ParamWrapper
from peft.tuners.tuners_utils import BaseTunerLayer
from transformers import PreTrainedModel

from lm_validity.errors import CellError, first_line

if TYPE_CHECKING:
    from lm_validity.cells.models.language_model import LanguageModel


class OwnAdapter:
    """An adapter in the weights of `model`. `keep`: also a copy on the CPU of the weights that it changes, by which
    `take_off` restores them."""

    def __init__(self, model: PreTrainedModel, folder: str | Path, name: str, keep: bool = False):
        """Raises CellError where the adapter does not fit the model, or is not the same once it is in the weights."""
        self._before: list[tuple[torch.nn.Module, torch.Tensor]] | None = None
        try:
            adapted = PeftModel.from_pretrained(model, str(folder), is_trainable=False).eval()
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise CellError(
                f"{name}: {folder} is no adapter of this base model ({first_line(error)}).",
                "check `path` and `adapter` in the models sheet: the adapter's configuration names its base.",
            ) from error
        expected = _logits(model)
        layers = [layer for layer in model.modules() if isinstance(layer, BaseTunerLayer)]
        configuration = adapted.peft_config["default"]
        alone = configuration.bias == "none" and not configuration.modules_to_save
        if keep and alone and not any(isinstance(layer, ParamWrapper) for layer in layers):
            bare = [layer.get_base_layer() for layer in layers]
            self._before = [(layer, layer.weight.detach().to("cpu", copy=True)) for layer in bare]
        adapted.merge_and_unload()
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


def exchange_adapter(lm: "LanguageModel", adapter: str | Path | None) -> bool:
    """Put another adapter (None: none) in place of a loaded model's; False where it has to be loaded anew."""
    if lm.own_adapter is not None and not lm.own_adapter.take_off():
        return False
    lm.own_adapter = OwnAdapter(lm.base, adapter, lm.model_id, keep=True) if adapter else None
    return True


def _logits(model: PreTrainedModel) -> torch.Tensor:
    rows = torch.arange(5, 13, device=model.device)[None] % model.config.get_text_config().vocab_size
    with torch.no_grad():
        return model(input_ids=rows, use_cache=False).logits.float()
