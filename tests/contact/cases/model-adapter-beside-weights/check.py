"""transformers would add the adapter to weights that hold it already: the folder is refused, by name."""

import json

import pytest
import torch
from safetensors.torch import save_file

from lm_validity.cells.models.prefetch import prefetch_model
from lm_validity.config.sheets import Model
from lm_validity.errors import InputError


def check(case, out):
    """Before its tokenizer or its tensors are looked at."""
    out.mkdir()
    save_file({"w": torch.zeros(2)}, out / "model.safetensors")
    (out / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
    (out / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    with pytest.raises(InputError, match=r"adapter_config\.json") as refused:
        prefetch_model(Model(model="ant-1b", path=str(out)))
    assert "ant-1b" in str(refused.value) and "`adapter`" in refused.value.hint
