"""A model from its configuration alone: every width as it is, few layers or all of them, on a pretended GPU."""

import copy
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from lm_validity.cells.models.language_model import LanguageModel
from lm_validity.cells.models.model_files import DTYPES
from lm_validity.errors import InputError, first_line
from lm_validity.run.architectures import why_not_causal

WORDS = 1000  # of the stand-in tokenizer, where the vocabulary has as many
# how configurations say that every so many-th layer is of another kind
_PERIODS: tuple[str, ...] = (
    "attn_layer_period",
    "expert_layer_period",
    "full_attention_interval",
    "sliding_window_pattern",
)
_PERIODS += ("decoder_sparse_step", "interleave_moe_layer_step", "no_rope_layer_interval", "moe_every_n_layers")


def causal_config(name: str, values: dict[str, Any]) -> transformers.PretrainedConfig:
    """The configuration of a config.json. Raises InputError where it is not that of a causal language model."""
    wrong = why_not_causal(values)
    if wrong is not None:
        raise InputError(f"{name}: {wrong[0]}.", f"{wrong[1]}.")
    kind = values["model_type"]
    try:
        return transformers.CONFIG_MAPPING[kind].from_dict(values)
    except Exception as error:  # whatever an architecture's own checks raise
        raise InputError(
            f"{name}: config.json cannot be read as {kind} ({first_line(error)}).", "fetch the model again."
        ) from error


def rehearsed_depths(config: transformers.PretrainedConfig) -> tuple[int, ...]:
    """Two depths from which the full one follows, since layers repeat; or the full depth alone, where it is small."""
    text = config.get_text_config()
    layers = text.num_hidden_layers
    lists = [value for value in vars(text).values() if isinstance(value, list) and len(value) == layers]
    first = max([getattr(text, "first_k_dense_replace", 0) or 0, *(_prefix(one) for one in lists)])
    periods = [getattr(text, name, None) for name in _PERIODS] + [_period(one) for one in lists]
    period = math.lcm(*(one for one in periods if isinstance(one, int) and 1 <= one <= layers))
    shallow = first + max(period, 2)  # the first layer's inputs have no gradient: it keeps less than the others
    deep = shallow + period
    return (shallow, deep) if deep < layers else (layers,)


def _period(values: Sequence[object]) -> int:
    """After how many layers a list repeats itself, its beginning left out."""
    values = values[_prefix(values) :]
    for period in range(1, len(values)):
        if all(one == values[place % period] for place, one in enumerate(values)):
            return period
    return max(1, len(values))


def _prefix(values: Sequence[object]) -> int:
    """Layers at the beginning that differ from a uniform rest, e.g. dense ones before a mixture of experts."""
    first = next((place for place, one in enumerate(values) if one != values[0]), 0)
    return first if first and len({str(one) for one in values[first:]}) == 1 and first * 2 < len(values) else 0


def at_depth(config: transformers.PretrainedConfig, layers: int) -> transformers.PretrainedConfig:
    """The same model with its first layers only."""
    config = copy.deepcopy(config)
    text = config.get_text_config()
    full = text.num_hidden_layers
    for name, value in vars(text).items():
        if isinstance(value, list) and len(value) == full:
            setattr(text, name, value[:layers])
    text.num_hidden_layers = layers
    return config


def pretend_model(
    config: transformers.PretrainedConfig,
    name: str,
    *,
    dtype: str,
    device: str,
    batch_size: int,
    max_length: int | None,
) -> LanguageModel:
    """The model on `device`, its weights without values where that is a pretended one."""
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype]).eval()
    return LanguageModel(
        model.to(device),
        word_tokenizer(min(WORDS, config.get_text_config().vocab_size)),
        model_id=name,
        eval_batch_size=batch_size,
        max_length=max_length,
    )


@cache
def word_tokenizer(words: int) -> transformers.PreTrainedTokenizerFast:
    """`w1 w2 …`: one token per word."""
    known = {"</s>": 0} | {f"w{number}": number for number in range(1, words)}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token="</s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="</s>", bos_token="</s>", pad_token="</s>"
    )
