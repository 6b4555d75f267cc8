"""The weights of a model's folder: all there, whole, and with a head of their own or not. Headers alone are read, and
where two tensors have to be compared, these."""

import hashlib
import json
import re
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError

from lm_validity.errors import InputError
from lm_validity.files import Document, read_json
from lm_validity.run.architectures import INDEX, WHOLE

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
TWO_IN_ONE = (  # transformers would add the adapter to weights that may hold it already
    "holds weights and an adapter (adapter_config.json) beside each other",
    "are they merged? Then remove the adapter's files; else name the base as `path` and the adapter as `adapter`",
)
_POINTER = b"version https://git-lfs"
_NO_HEAD = re.compile(r"\.\d+\.|pos|wpe")  # in a layer, or of positions
_OF_BITSANDBYTES = re.compile(r"\.SCB$|absmax|quant_state")  # scales beside its weights
INTEGERS = re.compile(r"F8|F4|I8|U8|I4|I16|I32|U32|I64")
FIRST_BYTES = 2**12  # of a tensor, which two trainings do not share


class SavedTensor(NamedTuple):
    """A tensor of a safetensors file: its dtype by the format's name, its shape, and the bytes [start, end) of it."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    def digest(self, limit: int | None = None) -> str:
        """sha256 of its bytes, or of so many of the first."""
        start, end = self.start, self.end if limit is None else min(self.end, self.start + limit)
        digest = hashlib.sha256()
        with self.path.open("rb") as file:
            file.seek(start)
            while start < end:
                part = file.read(min(end - start, 2**24))
                digest.update(part)
                start += len(part)
        return digest.hexdigest()


Tensors = dict[str, SavedTensor]  # by name


def is_models_fault(error: Exception) -> bool:
    """Whether what `from_pretrained` raised is in the model's files. A full disk, a GPU that fails or memory that runs
    out is the machine's: the job must fail, so that retries apply."""
    if getattr(error, "errno", None) is not None:
        return False
    if isinstance(error, RuntimeError):  # of transformers' own: tensors of another shape, or that cannot be converted
        return any(
            words in str(error) for words in ("state_dict", "ignore_mismatched_sizes", "conversion of the weights")
        )
    return isinstance(error, (OSError, ValueError, KeyError, ImportError, SafetensorError))


def check_weights(where: str, folder: Path) -> Tensors:
    """The tensors of a model folder's weights. Raises InputError, naming the file, where one is missing, cut or only
    the pointer that git leaves in place of a large file."""
    hint = "fetch or copy the file again."
    if (folder / ADAPTER_FILES[0]).is_file():
        raise InputError(f"{where}: {folder} {TWO_IN_ONE[0]}.", f"{TWO_IN_ONE[1]}.")
    names = {path.name for path in folder.glob("*.safetensors")} - {*ADAPTER_FILES}
    index = folder / INDEX
    if WHOLE in names:
        files_expected = {WHOLE}
    elif index.is_file():
        weights = read_saved(where, index, hint).get("weight_map")
        files_expected = {*weights.values()} if isinstance(weights, dict) else set()
    else:
        raise InputError(
            f"{where}: neither {WHOLE} nor {INDEX} in {folder}, which has {', '.join(sorted(names)[:3])}.",
            f"call the file {WHOLE} where it is the whole model in transformers' format; else {hint}",
        )
    missing = sorted(files_expected - names)
    if missing or not files_expected:
        problem = f"{missing[0]} is not in {folder}" if missing else f"{index} names no file"
        remainder = f", nor are {len(missing) - 1} more files" if missing[1:] else ""
        raise InputError(f"{where}: {problem}{remainder}.", hint)
    tensors: Tensors = {}
    for name in sorted(files_expected):
        of_file = read_tensors(where, folder / name, hint)
        if (twice := _differing(tensors, of_file)) is not None:
            raise InputError(
                f"{where}: {folder / name} and a file before it hold different weights under one name ({twice}).",
                "save the model again: which of the two is meant is not known.",
            )
        tensors |= of_file
    if WHOLE in names and index.is_file():
        _check_one_model(where, folder, tensors, names)
    return tensors


def _check_one_model(where: str, folder: Path, tensors: Tensors, names: set[str]) -> None:
    """Raise InputError where the shards that the index names, as far as they are there, hold other weights than the one
    file with all `tensors`, which would be loaded without a word. Each tensor's shape and first bytes are compared."""
    hint = "remove the files that do not belong to the model, or give the two models folders of their own."
    weights = read_saved(where, folder / INDEX, hint).get("weight_map")
    for name in sorted({*weights.values()} & names - {WHOLE} if isinstance(weights, dict) else set()):
        of_shard = read_tensors(where, folder / name, hint)
        differing = next((tensor for tensor in of_shard if tensor not in tensors), _differing(tensors, of_shard))
        if differing is not None:
            raise InputError(f"{where}: {WHOLE} and {name} in {folder} hold different weights ({differing}).", hint)


def _differing(tensors: Tensors, others: Tensors) -> str | None:
    """The first tensor that is in both, and not with the same type, shape and first bytes."""
    for name in others.keys() & tensors.keys():
        one, other = tensors[name], others[name]
        same_form = (one.dtype, one.shape) == (other.dtype, other.shape)
        if not same_form or one.digest(FIRST_BYTES) != other.digest(FIRST_BYTES):
            return name
    return None


def read_tensors(where: str, path: Path, hint: str) -> Tensors:
    """The tensors of one safetensors file. Raises InputError where it is cut, damaged or a pointer of Git LFS."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(len(_POINTER))
        if start == _POINTER:
            raise InputError(
                f"{where}: {path} is a pointer of Git LFS, not the weights.", "run `git lfs pull` in that folder."
            )
        file.seek(0)
        length = int.from_bytes(file.read(8), "little")
        try:
            header = json.loads(file.read(length) if 8 + length <= size else b"")
            tensors = {
                name: SavedTensor(
                    path,
                    str(about["dtype"]),
                    (*about["shape"],),
                    *(8 + length + offset for offset in about["data_offsets"]),
                )
                for name, about in header.items()
                if name != "__metadata__"
            }
        except (ValueError, AttributeError, KeyError, TypeError):
            raise InputError(f"{where}: {path} is damaged or cut: its header cannot be read.", hint) from None
    ends = max((tensor.end for tensor in tensors.values()), default=8 + length)
    if ends != size:
        raise InputError(f"{where}: {path} is not complete: {size} of {ends} bytes.", hint)
    return tensors


def check_quantized(where: str, tensors: Tensors, configuration: Document) -> None:
    """Raise InputError for weights in integers or eight bits whose config.json does not say what they are multiplied
    by: they would be read as they are."""
    text = configuration.get("text_config") or {}
    settings = configuration.get("quantization_config") or text.get("quantization_config") or {}
    if str(settings.get("quant_method")) == "bitsandbytes" and not any(
        _OF_BITSANDBYTES.search(name) for name in tensors
    ):
        raise InputError(
            f"{where}: config.json says that bitsandbytes quantized the weights, and the file has none of its scales.",
            "take quantization_config out of config.json where the weights are whole.",
        )
    if any(part.get(key) for part in (configuration, text) for key in ("quantization_config", "compression_config")):
        return
    for name, tensor in tensors.items():
        if len(tensor.shape) == 2 and name.endswith("weight") and INTEGERS.match(tensor.dtype):
            raise InputError(
                f"{where}: {name} in {tensor.path} is quantized ({tensor.dtype}), and config.json has no "
                "quantization_config.",
                "copy config.json of the quantized model, or give the model in bfloat16.",
            )


def has_own_head(tensors: Tensors, sizes: set[int]) -> bool:
    """Whether weights that are said to be tied hold embeddings and a head that differ: tensors of one shape, one of
    these vocabulary sizes by the width, outside of the layers."""
    by_shape: dict[tuple[int, ...], list[SavedTensor]] = {}
    for name, tensor in tensors.items():
        if len(tensor.shape) == 2 and tensor.shape[0] in sizes and not _NO_HEAD.search(name):
            by_shape.setdefault(tensor.shape, []).append(tensor)
    return any(len({tensor.digest() for tensor in alike}) > 1 for alike in by_shape.values() if alike[1:])


def read_saved(where: str, path: Path, hint: str) -> Document:
    """A JSON file among a model's. Raises InputError where it cannot be read."""
    try:
        content: Document = read_json(path)
        return content
    except (OSError, ValueError) as error:
        raise InputError(f"{where}: {path} cannot be read ({error}).", hint) from None
