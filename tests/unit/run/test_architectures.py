"""A config.json that is not that of a causal language model is known from what transformers lists, without torch."""

import importlib.util
import subprocess
import sys

import pytest
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from lm_validity.run import inputs
from lm_validity.run.inputs import why_not_causal


def test_the_lists_are_transformers_own():
    found = inputs._lists()
    assert found["MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"] == modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    assert found["MODEL_FOR_MASKED_LM_MAPPING_NAMES"] == modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    # others are added where transformers is imported, none of them causal
    assert {*found["CONFIG_MAPPING_NAMES"]} < {*CONFIG_MAPPING_NAMES}


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
        {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]},
        {"model_type": "gpt2", "architectures": None},
        {"model_type": "gpt2", "architectures": ["GPT2Model"]},  # its embeddings are its head
        {"model_type": "gpt-sw3", "architectures": ["GPT2LMHeadModel"]},
        {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"]},
        {"model_type": "llama4", "architectures": ["Llama4ForConditionalGeneration"]},  # its text part is loaded
        {"model_type": "mpt", "architectures": ["MPTForCausalLM"]},  # its authors' own name
        {"model_type": "xlm", "causal": True},
        {"model_type": "bert", "architectures": ["BertLMHeadModel"], "is_decoder": True},
        {"model_type": "bart", "architectures": ["BartForCausalLM"]},
    ],
)
def test_causal_language_models_pass(config):
    assert why_not_causal(config) is None


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "t5"}, "causal language model (model_type t5)"),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "causal language model (BertForMaskedLM)"),
        ({"model_type": "roberta", "architectures": ["RobertaModel"]}, "RobertaModel"),
        ({"model_type": "llama", "architectures": ["LlamaForSequenceClassification"]}, "Classification"),
        ({"model_type": "bart", "architectures": ["BartForConditionalGeneration"]}, "ConditionalGeneration"),
        ({"model_type": "llama", "architectures": ["LlamaModel"], "tie_word_embeddings": False}, "LlamaModel"),
        ({"model_type": "xlnet", "architectures": ["XLNetLMHeadModel"]}, "XLNetLMHeadModel"),
        ({"model_type": "xlm", "architectures": ["XLMWithLMHeadModel"]}, "XLMWithLMHeadModel"),
        ({"model_type": "cpmant", "architectures": ["CpmAntForCausalLM"]}, "CpmAntForCausalLM"),
        ({"model_type": "no-such"}, "does not know model_type 'no-such'"),
        ({}, "does not know model_type None"),
        ([1], "not an object"),
        ({"model_type": "bert", "architectures": ["BertLMHeadModel"]}, "BertLMHeadModel"),
        ({"model_type": "xlm-roberta"}, "xlm-roberta"),
        ({"model_type": "qwen2", "is_causal": False}, "is_causal of its config.json"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "see those behind it"),
        ({"model_type": "gemma3", "text_config": {"use_bidirectional_attention": "all"}}, "see those behind it"),
    ],
)
def test_others_are_named_with_what_to_do(config, words):
    problem, hint = why_not_causal(config)
    assert words in problem and hint


def test_without_transformers_nothing_is_said(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    inputs._lists.cache_clear()
    try:
        assert why_not_causal({"model_type": "t5"}) is None
    finally:
        inputs._lists.cache_clear()


def test_asking_imports_neither_torch_nor_transformers():
    code = (
        "import sys; from lm_validity.run.inputs import why_not_causal as why;"
        "assert why({'model_type': 't5'}) and not why({'model_type': 'llama'});"
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
