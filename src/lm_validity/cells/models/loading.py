"""Weights as transformers loads them: what it would leave out, draw at random or put elsewhere without a word, and
whether what came of them is a causal language model."""

import contextlib
import logging
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
import transformers
from safetensors import SafetensorError, safe_open
from transformers.models.auto.auto_factory import _BaseAutoModelClass

from lm_validity.cells.models.passes import is_out_of_memory
from lm_validity.errors import CellError, first_line
from lm_validity.run.inputs import weight_files
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
        configuration = transformers.AutoConfig.from_pretrained(
            folder, **({} if labels is None else {"num_labels": labels}), **local
        )
        _forget_flash(configuration, name)
        options |= {"config": configuration, "use_safetensors": True, "ignore_mismatched_sizes": True, **local}
        model, loading = loader.from_pretrained(folder, output_loading_info=True, **options)
    if loading["mismatched_keys"]:
        tensor, *shapes = min(loading["mismatched_keys"])
        saved, expected = ("x".join(map(str, shape)) for shape in shapes)
        raise CellError(
            f"{name}: {tensor} is {saved} in its weights, and {expected} by its config.json "
            f"({len(loading['mismatched_keys'])} such tensors).",
            "one of the two is of another model: copy both from where the model was saved.",
        )
    keep_four_bits(model)
    for part in (model.config, model.config.get_text_config()):
        part.return_dict = True  # some say false: a tuple, whose logits have no name
        if getattr(part, "output_router_logits", False):  # of training: a loss of routers, which padding breaks
            part.output_router_logits = False
    unread = sorted(loading["unexpected_keys"])
    parts = [] if getattr(model.config, "quantization_config", None) else sorted(_own_parts(model, unread, folder))
    if parts:  # quantized weights bring more
        raise CellError(
            f"{name}: its weights have {len(parts)} tensors such as {parts[0]}, and by its config.json the model is "
            "without them.",
            "config.json is of another model, or was changed: copy the one that was saved with the weights.",
        )
    return LoadedWeights(model, sorted(loading["missing_keys"]), unread)


@contextlib.contextmanager
def names_what_fails(name: str, kind: str) -> Iterator[None]:
    """Inside the block what a model's files make transformers raise is a CellError. A full disk, a GPU that fails or
    memory that runs out is the machine's fault: the job must fail, so that retries apply."""
    try:
        yield
    except (OSError, ValueError, KeyError, ImportError, SafetensorError, RuntimeError) as error:
        # of transformers' own RuntimeErrors: tensors that cannot be converted
        of_files = not isinstance(error, RuntimeError) or re.search("state_dict|conversion of the weights", str(error))
        if not of_files or getattr(error, "errno", None) is not None:
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


def say_unread(name: str, model: transformers.PreTrainedModel, unread: Collection[str]) -> None:
    """Say which tensors nobody reads, such as a value head or a tower for images."""
    if unread and not getattr(model.config, "quantization_config", None):
        log.warning("%s: %s of its files not read, such as %s", name, count(len(unread), "tensor"), min(unread))


def _own_parts(model: transformers.PreTrainedModel, unread: list[str], folder: Path) -> Iterator[str]:
    """Those of the tensors that have their like in the model: layers after its last one, biases of layers without."""
    patterns = {_NUMBER.sub("*", name) for name, _ in model.named_parameters(remove_duplicate=False)}
    text = model.config.get_text_config()
    # layers that predict further tokens stand behind the last one
    extra_layers = [
        value for key, value in text.to_dict().items() if re.search("nextn|mtp", key) and isinstance(value, int)
    ]
    last = getattr(text, "num_hidden_layers", 0) + max(extra_layers, default=0)
    modules = dict(model.named_modules())
    for name in unread:
        if _NUMBER.sub("*", name) in patterns:
            if last <= max(map(int, _NUMBER.findall(name)), default=last):
                yield name
            continue
        layer = modules.get(name.removesuffix(".bias"))
        without = isinstance(getattr(layer, "weight", None), torch.Tensor) and getattr(layer, "bias", 0) is None
        if name.endswith(".bias") and without and _is_not_zero(folder, name):
            yield name


def _is_not_zero(folder: Path, name: str) -> bool:
    """Whether a tensor of the files is not zero; of one that is there under another name it is not known."""
    for path in weight_files(folder):
        with safe_open(path, "pt") as file:
            if name in file.keys():  # noqa: SIM118
                return bool(file.get_tensor(name).any())
    return True


# ----------------------------------------------------------------------------------------------------------------------
# Loaded weights as they were saved, and in their place.


def keep_saved_head(model: torch.nn.Module) -> None:
    """Have the configuration of a model just loaded say so where its file holds a head of its own, although config.json
    ties it to the embeddings. Loading keeps both; but whoever ties weights later (lm-eval, PEFT) would put the
    embeddings in the place of the head."""
    root = next((part for part in model.modules() if isinstance(part, transformers.PreTrainedModel)), None)
    if root is None:
        return
    untied = set(root.get_expanded_tied_weights_keys(all_submodels=True)) - set(root.all_tied_weights_keys)
    for part in root.modules() if untied else ():
        if isinstance(part, transformers.PreTrainedModel):
            part.config.tie_word_embeddings = part.config.get_text_config().tie_word_embeddings = False


def keep_four_bits(model: torch.nn.Module) -> None:
    """Leave weights of four bits as they are stored. On CPUs with AVX-512 for bfloat16 bitsandbytes packs them anew at
    the first forward pass, which takes only matrices whose rows are a multiple of 32 and leaves other tensors in the
    place of those that were loaded; and such a CPU would round otherwise than others."""
    for part in model.modules():
        if hasattr(part, "support_avx512bf16_for_cpu"):
            part.support_avx512bf16_for_cpu = False


def check_on_gpus(name: str, device_map: Mapping[str, object]) -> None:
    """Raise CellError where accelerate left layers to the processor or the disk: slow, and nothing to train on."""
    not_on_gpu = sorted({str(device) for device in device_map.values()} & {"cpu", "disk"})
    if not_on_gpu:
        raise CellError(
            f"{name}: does not fit the GPUs of the job (layers on {', '.join(not_on_gpu)}).",
            "give its size class more GPUs (`gpu`), or GPUs with more memory.",
        )


def check_saved_ends(model: transformers.PreTrainedModel, folder: Path, name: str) -> None:
    """Raise CellError where embeddings or head in memory are not those of the checkpoint, by some rows of the tensors
    that the file has under the same name."""
    parameters = [*model.named_parameters(remove_duplicate=False)]
    for part in (model.get_input_embeddings(), model.get_output_embeddings()):
        weight = getattr(part, "weight", None)
        if weight is None or weight.ndim != 2 or weight.is_meta or not weight.is_floating_point():
            continue
        names = {key for key, parameter in parameters if parameter is weight}
        rows = torch.linspace(0, len(weight) - 1, min(len(weight), 16)).long().tolist()
        for file in weight_files(folder):
            with safe_open(file, "pt") as tensors:
                for key in names & set(tensors.keys()):
                    saved = tensors.get_slice(key)
                    if tuple(saved.get_shape()) != tuple(weight.shape):
                        continue
                    rows_in_file = torch.cat([saved[row : row + 1] for row in rows]).to(weight.dtype)
                    if not torch.equal(weight[rows].cpu(), rows_in_file):
                        raise CellError(
                            f"{name}: {key} in memory is not that of {file}.",
                            "this is a fault of loading: report it with the model's config.json.",
                        )


def takes_rows(model: transformers.PreTrainedModel, name: str) -> bool:
    """Whether a forward pass can have several rows: the code of some architectures (xLSTM) takes few shapes.

    Raises CellError where it cannot even have one, and where a token's logits depend on the tokens behind it: an
    encoder (RoBERTa, say) loads as a causal model, but every choice would be scored by a model that sees it. Tried on
    two rows that differ in the last token: what configurations say of it (is_decoder) holds for some only.
    """
    rows = torch.tensor([[5, 6, 7, 8], [5, 6, 7, 9]], device=model.device)
    rows = rows % model.config.get_text_config().vocab_size
    for batches in ([rows], [*rows.split(1)]):
        try:
            with torch.no_grad():
                logits = torch.cat([model(input_ids=batch).logits for batch in batches]).float()
            break
        except (ValueError, TypeError, AttributeError, LookupError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and (is_out_of_memory(error) or model.device.type != "cpu"):
                raise  # a GPU's fault may be the machine's
            failed = error
    else:
        raise CellError(
            f"{name}: {type(model).__name__} cannot compute a text ({first_line(failed)}).",
            "is its config.json that of its weights? Else take it out, or use a transformers that has it repaired.",
        )
    difference, scale = (logits[0, :-1] - logits[1, :-1]).abs().max(), logits.abs().max()
    if difference > scale * (1e-4 if model.dtype == torch.float32 else 2e-2):
        raise CellError(
            f"{name}: {type(model).__name__} sees the tokens that it is to predict: it is an encoder, not a decoder.",
            "a masked language model can take part in the bias study (`language_models`); models are causal.",
        )
    return len(batches) == 1
