"""Weights as transformers loads them, and what it would leave out without a word."""

import contextlib
import logging
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
import transformers
from safetensors import safe_open
from transformers.models.auto.auto_factory import _BaseAutoModelClass

from lm_validity.cells.models.head import keep_four_bits
from lm_validity.cells.models.weights import is_models_fault
from lm_validity.errors import CellError, first_line
from lm_validity.run.architectures import weight_files
from lm_validity.words import count

log = logging.getLogger(__name__)

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


class LoadedWeights(NamedTuple):
    """missing: tensors of the model that the files lack, which transformers draws at random. unread: tensors of the
    files that the model has no place for, and needs none (`say_unread`)."""

    model: transformers.PreTrainedModel
    missing: list[str]
    unread: list[str]


def load_weights(
    loader: type[_BaseAutoModelClass], folder: Path, name: str, kind: str, labels: int | None = None, **options: object
) -> LoadedWeights:
    """A model of a class of the library, from local safetensors and without remote code, as it is asked here.

    kind: of language model, for messages. labels: of a classifier. Raises CellError where it cannot be loaded, or where
    its configuration is not that of its weights: transformers would leave layers and biases out, and compute without.
    """
    local = {"local_files_only": True, "trust_remote_code": False}
    with names_what_fails(name, kind):
        try:
            configuration = transformers.AutoConfig.from_pretrained(
                folder, **({} if labels is None else {"num_labels": labels}), **local
            )
            _forget_flash(configuration, name)
            options |= {"config": configuration, "use_safetensors": True, **local}
            model, loading = loader.from_pretrained(folder, output_loading_info=True, **options)
        except RuntimeError as error:
            if "ignore_mismatched_sizes" not in str(error):
                raise
            raise _of_other_sizes(loader, folder, name, options) from error
    keep_four_bits(model)
    for part in (model.config, model.config.get_text_config()):
        part.return_dict = True  # some say false: a tuple, whose logits have no name
        if getattr(part, "output_router_logits", False):  # of training: a loss of routers, which padding breaks
            part.output_router_logits = False
    unread = sorted(loading["unexpected_keys"])
    _check_unread(model, unread, folder, name)
    return LoadedWeights(model, sorted(loading["missing_keys"]), unread)


@contextlib.contextmanager
def names_what_fails(name: str, kind: str) -> Iterator[None]:
    """Inside the block what a model's files make transformers raise is a CellError; the machine's faults stay."""
    try:
        yield
    except Exception as error:
        if not is_models_fault(error):
            raise
        hint = "it needs config.json, *.safetensors and a tokenizer of an architecture that is known."
        if isinstance(error, ImportError):
            hint = "install what it names into the environment of the jobs; or give quantized weights in bfloat16."
        elif isinstance(error, KeyError):
            hint = "a value of its config.json is not known: is it misspelt, or of a newer transformers?"
        elif "Unrecognized configuration class" in str(error):
            hint = "it is of another kind: correct `architecture` in the bias study's sheet, or leave the model out."
        raise CellError(f"{name}: cannot be loaded as a {kind} language model ({first_line(error)}).", hint) from error


def _forget_flash(configuration: transformers.PretrainedConfig, name: str) -> None:
    """Pass over a configuration's wish for FlashAttention, another way to the same numbers, where it is not installed:
    transformers would not load the model."""
    wish = str(getattr(configuration, "_attn_implementation", None) or "")
    installed = getattr(transformers.utils, f"is_{wish.replace('attention', 'attn')}_available", lambda: False)
    if wish.startswith("flash_attention") and not installed():
        log.warning("%s: its config.json asks for %s, which is not installed: computed without it", name, wish)
        configuration._attn_implementation = None


def _of_other_sizes(
    loader: type[_BaseAutoModelClass], folder: Path, name: str, options: dict[str, object]
) -> CellError:
    """Loads once more to learn what transformers only prints: which tensors have other sizes than the model."""
    _, loading = loader.from_pretrained(folder, output_loading_info=True, ignore_mismatched_sizes=True, **options)
    tensor, saved, expected = min(loading["mismatched_keys"])
    return CellError(
        f"{name}: {tensor} is {_size(saved)} in its weights, and {_size(expected)} by its config.json "
        f"({len(loading['mismatched_keys'])} such tensors).",
        "one of the two is of another model: copy both from where the model was saved.",
    )


def _size(shape: Collection[int]) -> str:
    return "x".join(map(str, shape))


def _check_unread(model: transformers.PreTrainedModel, unread: list[str], folder: Path, name: str) -> None:
    """Raise CellError where tensors that are not read are parts of such a model: layers after its last one, biases of
    layers without. Quantized weights bring more."""
    if not unread or getattr(model.config, "quantization_config", None):
        return
    parts = sorted(_own_parts(model, unread, folder))
    if parts:
        raise CellError(
            f"{name}: its weights have {len(parts)} tensors such as {parts[0]}, and by its config.json the model is "
            "without them.",
            "config.json is of another model, or was changed: copy the one that was saved with the weights.",
        )


def check_names(folder: Path, names: Collection[str], name: str) -> None:
    """Raise CellError as `load_weights` does for layers after the last one, from the names of the tensors and a model
    without values: before a job loads them. What transformers renames is left to the job."""
    try:
        configuration = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(configuration, trust_remote_code=False)
    except Exception:  # whatever building from a configuration raises: the job will load the model, and say it
        return
    passed_over = "|".join(getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ["(?!)"])
    surplus = sorted(set(names) - set(model.state_dict()))
    _check_unread(model, [tensor for tensor in surplus if not re.search(passed_over, tensor)], folder, name)


def say_unread(name: str, model: transformers.PreTrainedModel, unread: Collection[str]) -> None:
    """Say which tensors nobody reads, such as a value head or a tower for images."""
    if unread and not getattr(model.config, "quantization_config", None):
        log.warning("%s: %s of its files not read, such as %s", name, count(len(unread), "tensor"), min(unread))


def _own_parts(model: transformers.PreTrainedModel, unread: list[str], folder: Path) -> Iterator[str]:
    """Those of the tensors that have their like in the model."""
    patterns = {_NUMBER.sub("*", name) for name, _ in model.named_parameters(remove_duplicate=False)}
    text = model.config.get_text_config()
    # layers that predict further tokens stand behind the last one
    extra_layers = [
        value for key, value in text.to_dict().items() if re.search("nextn|mtp", key) and isinstance(value, int)
    ]
    last = getattr(text, "num_hidden_layers", 0) + max(extra_layers, default=0)
    for name in unread:
        if _NUMBER.sub("*", name) in patterns:
            if last <= max(map(int, _NUMBER.findall(name)), default=last):
                yield name
            continue
        layer, _, kind = name.rpartition(".")
        if kind == "bias" and _has_no_bias(model, layer) and _is_not_zero(folder, name):
            yield name


def _has_no_bias(model: torch.nn.Module, path: str) -> bool:
    try:
        layer = model.get_submodule(path)
    except AttributeError:
        return False
    return isinstance(getattr(layer, "weight", None), torch.Tensor) and getattr(layer, "bias", 0) is None


def _is_not_zero(folder: Path, name: str) -> bool:
    """Whether a tensor of the files is not zero; of one that is there under another name it is not known."""
    for path in weight_files(folder):
        with safe_open(path, "pt") as file:
            if name in file.keys():  # noqa: SIM118
                return bool(file.get_tensor(name).any())
    return True
