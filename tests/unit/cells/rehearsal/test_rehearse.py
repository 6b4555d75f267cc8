"""A rehearsal's figures: at every depth those of the whole model, and its verdict; bad input is refused in a line."""

import pytest
import torch
import transformers

from lm_validity.cells.rehearsal import rehearse
from lm_validity.config.load import load_run
from lm_validity.errors import InputError
from lm_validity.run.rehearsals import RehearsalInput, known_shapes

SETTINGS = {
    "dtype": "bfloat16",
    "batch_size": 4,
    "scorer": "auto",
    "max_length": None,
    "trains": True,
    "rolls": True,
    "writes": True,
    "effective_batch": 4,
    "micro_batch": 2,
    "rank": 4,
    "loss": "all",
    "target_modules": "all-linear",
    "training_tokens": 64,
}
LLAMA = {"model_type": "llama", "vocab_size": 500, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6}
LLAMA |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}


@pytest.mark.slow
def test_a_small_llama():
    found = rehearse.rehearse("m", RehearsalInput(LLAMA, SETTINGS, True))
    assert found.details["rehearsed_layers"] == [2, 3]
    # embeddings and head; attention's q, o and k, v; a gated layer; three norms of 64
    layer = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96 + 2 * 64
    assert found.parameters == 2 * 500 * 64 + 6 * layer + 64
    assert found.weights == pytest.approx(2 * found.parameters, rel=0.02)  # in blocks of 512 bytes
    assert sorted(found.training) == sorted(found.checkpointed) == [1, 2]
    assert found.training[1] < found.training[2] and found.checkpointed[2] < found.training[2]


DEEP = {
    "llama": LLAMA,
    "gpt_neox": LLAMA,
    "gemma2": LLAMA | {"head_dim": 16, "num_hidden_layers": 8},
    "mixtral": LLAMA | {"num_local_experts": 4},
    "gpt2": {"n_layer": 6, "n_embd": 64, "n_head": 4, "vocab_size": 500, "n_positions": 128},
    "opt": LLAMA | {"ffn_dim": 160, "word_embed_proj_dim": 64},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", DEEP)
def test_the_line_through_two_depths_meets_the_whole_model(kind, monkeypatch):
    """Every figure: peaks, launches, operations, reads."""
    question = RehearsalInput(DEEP[kind] | {"model_type": kind}, SETTINGS, True)
    found = rehearse.rehearse("m", question).details
    assert len(found["rehearsed_layers"]) == 2
    monkeypatch.setattr(rehearse, "rehearsed_depths", lambda config: (found["layers"],))
    assert found["figures"] == pytest.approx(rehearse.rehearse("m", question).details["figures"], rel=1e-4)


@pytest.mark.parametrize(
    ("values", "depths"),
    [
        ({"model_type": "llama", "num_hidden_layers": 32}, (2, 3)),
        ({"model_type": "llama", "num_hidden_layers": 3}, (3,)),
        ({"model_type": "gemma2", "num_hidden_layers": 26}, (2, 4)),  # every other layer looks at a window only
        ({"model_type": "jamba", "num_hidden_layers": 32}, (8, 16)),
    ],
)
def test_depths_hold_whole_periods(values, depths):
    assert rehearse.rehearsed_depths(rehearse.causal_config("m", values)) == depths


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"model_type": "t5"}, "not that of a causal language model"),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "BertForMaskedLM"),
        ({"model_type": "llama", "architectures": ["LlamaForSequenceClassification"]}, "Classification"),
        ({"model_type": "no-such"}, "'no-such'"),
        ({}, "None"),
    ],
)
def test_what_is_no_causal_language_model_is_refused(values, words):
    with pytest.raises(InputError, match=words) as refused:
        rehearse.causal_config("model 'm'", values)
    assert refused.value.problem.startswith("model 'm'") and refused.value.hint


def test_known_shapes_have_the_parameters_of_the_published_sheet():
    """To two per cent of what the sheet says; every published model has one. GPT-2's files on the hub also hold a mask
    of positions for each layer, which the sheet counts."""
    counted: dict[int, float] = {}
    for row in load_run("config/paper/train_before_test.yaml").models.values():
        shape = known_shapes()[row.path]
        if id(shape) not in counted:
            masks = shape["n_layer"] * shape["n_positions"] ** 2 if shape["model_type"] == "gpt2" else 0
            counted[id(shape)] = parameters(rehearse.causal_config(row.model, shape)) + masks
        assert counted[id(shape)] == pytest.approx(row.parameters_b * 1e9, rel=0.02), row.model


def parameters(config: transformers.PretrainedConfig) -> float:
    """Of the whole model, from one and two layers of it."""
    with torch.device("meta"):
        made = [transformers.AutoModelForCausalLM.from_config(rehearse.at_depth(config, depth)) for depth in (1, 2)]
    one, two = (sum(weight.numel() for weight in model.parameters()) for model in made)
    return one + (two - one) * (config.num_hidden_layers - 1)


def test_a_question_is_known_by_its_shape_and_settings():
    one = RehearsalInput(LLAMA, SETTINGS, True)
    assert one.key == RehearsalInput(LLAMA | {"transformers_version": "9"}, SETTINGS, False).key
    assert one.key != RehearsalInput(LLAMA | {"hidden_size": 32}, SETTINGS, True).key
    assert one.key != RehearsalInput(LLAMA, SETTINGS | {"training_tokens": 32}, True).key
