"""The bias study takes masked language models. The other studies refuse them."""

from types import SimpleNamespace

import pytest
from toy_texts import toy_model

from lm_validity.cells.models.prefetch import prefetch_language_model, prefetch_model
from lm_validity.config.sheets import BiasModel, Model
from lm_validity.errors import InputError


def prefetched(folder, architecture: str) -> dict:
    row = BiasModel(language_model="m", path=str(folder), architecture=architecture)
    return prefetch_language_model(SimpleNamespace(language_models={"m": row}), "m")


def test_a_masked_model_is_fetched_for_the_bias_study_only(tmp_path):
    folder = toy_model("bert", tmp_path / "bert", pooler=True)
    assert prefetched(folder, "masked")["checkpoints"]["final"]["digest"]
    with pytest.raises(InputError, match="BertForPreTraining"):
        prefetched(folder, "causal")
    with pytest.raises(InputError, match="BertForPreTraining"):
        prefetch_model(Model(model="m", path=str(folder)))


def test_a_causal_one_is_fetched(tmp_path):
    assert prefetched(toy_model("gpt2", tmp_path / "gpt2"), "causal")["checkpoints"]["final"]["digest"]
