"""What a training step computes twice instead of keeping it: each layer, or the attention matrices alone."""

import contextlib
import functools
import logging
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils.checkpoint
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

log = logging.getLogger(__name__)

RECOMPUTED = "eager_recomputed"  # what transformers calls this attention


@contextlib.contextmanager
def less_memory(base: torch.nn.Module, *, layers: bool) -> Iterator[None]:
    """Inside the block the backward pass computes again what the forward pass did not keep: the same numbers.

    layers: every layer of the model keeps its input only. Otherwise eager attention alone, whose matrices grow with the
    square of a text, and which is what architectures get that need more than torch's own attention (Gemma 2's
    soft-capping).
    """
    with _layers_recomputed(base) if layers else _attention_recomputed(base):
        yield


@contextlib.contextmanager
def _layers_recomputed(base: torch.nn.Module) -> Iterator[None]:
    """transformers' own switch works only in training mode, in which some layers (OPT's, Falcon's) drop out residuals
    by the process's random numbers. Adapters are the only dropout there is, so each layer stays as it is and its
    `forward` is called by way of torch's checkpoint."""
    layers = [module for module in base.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        log.warning("gradient_checkpointing has no effect: %s has no layers that allow it", type(base).__name__)
    before = {layer: layer.__dict__.get("forward") for layer in layers}
    for layer in layers:
        layer.forward = functools.partial(torch.utils.checkpoint.checkpoint, layer.forward, use_reentrant=False)
    try:
        yield
    finally:
        for layer, forward in before.items():
            if forward is None:
                del layer.forward
            else:  # accelerate's, which brings a layer's inputs to its device
                layer.forward = forward


@contextlib.contextmanager
def _attention_recomputed(base: torch.nn.Module) -> Iterator[None]:
    """Only where an architecture takes its attention from transformers' table; the others stay as they are."""
    configs = {id(module.config): module.config for module in base.modules() if hasattr(module, "config")}
    if not hasattr(sys.modules[type(base).__module__], "eager_attention_forward"):
        configs = {}
    eager = [config for config in configs.values() if getattr(config, "_attn_implementation", None) == "eager"]
    for config in eager:
        config._attn_implementation = RECOMPUTED
    try:
        yield
    finally:
        for config in eager:
            config._attn_implementation = "eager"


def _eager_recomputed(
    module: torch.nn.Module, *tensors: torch.Tensor | None, **options: Any
) -> tuple[torch.Tensor | None, ...]:
    """The eager attention of the module's own architecture, which keeps queries, keys and values alone."""
    eager = sys.modules[type(module).__module__].eager_attention_forward
    if not torch.is_grad_enabled():
        return eager(module, *tensors, **options)
    return torch.utils.checkpoint.checkpoint(eager, module, *tensors, use_reentrant=False, **options)


ALL_ATTENTION_FUNCTIONS.register(RECOMPUTED, _eager_recomputed)
ALL_MASK_ATTENTION_FUNCTIONS.register(RECOMPUTED, eager_mask)
