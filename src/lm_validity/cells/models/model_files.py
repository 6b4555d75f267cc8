"""Where a model's files are on this machine, and the precisions that it can be loaded in. Imports no lm_eval."""

import os
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.constants import HF_HUB_CACHE
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from safetensors import SafetensorError

from lm_validity.errors import CellError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


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


def model_folder(path: str | Path, *, revision: str | None = None, subfolder: str | None = None) -> Path:
    """The local folder of a model: `path` itself, or the cached snapshot of a hub id, and `subfolder` in it.

    Raises CellError where there is none, or where it has no safetensors.
    """
    folder = Path(path)
    if not os.path.isdir(folder) and folder.parent.name == "snapshots":
        folder = Path(HF_HUB_CACHE, *folder.parts[-3:])  # recorded by another user: the same commit in one's own cache
    if not os.path.isdir(folder):
        try:
            folder = Path(snapshot_download(str(path), revision=revision, local_files_only=True))
        except (LocalEntryNotFoundError, HFValidationError, HfHubHTTPError, OSError) as error:
            raise CellError(
                f"{path}: neither a folder nor a model in the local hub cache.",
                "check the path in the models sheet, or prefetch the model on a machine with network.",
            ) from error
    folder = folder / (subfolder or "")
    if not any(folder.glob("*.safetensors")):
        raise CellError(
            f"{path}: no *.safetensors in {subfolder or 'the folder'}.",
            "only safetensors are loaded: convert the weights with model.save_pretrained(folder).",
        )
    return folder


def own_tokenizer(adapter: str | Path | None) -> Path | None:
    """The folder of an adapter that comes with a tokenizer; None for one without, whose base model's is used."""
    return Path(adapter) if adapter and any(Path(adapter).glob("tokenizer*")) else None


def model_and_tokenizer_folder(
    path: str | Path, *, revision: str | None = None, subfolder: str | None = None
) -> tuple[Path, Path]:
    """`model_folder`, and where the tokenizer is: a checkpoint's subfolder may hold the weights alone."""
    folder = model_folder(path, revision=revision, subfolder=subfolder)
    root = folder.parents[len(Path(subfolder).parts) - 1] if subfolder else folder
    return folder, folder if any(folder.glob("tokenizer*")) else root


def check_on_gpus(name: str, device_map: dict[str, object]) -> None:
    """Raise CellError where accelerate left layers to the processor or the disk: slow, and nothing to train on."""
    left = sorted({str(place) for place in device_map.values()} & {"cpu", "disk"})
    if left:
        raise CellError(
            f"{name}: does not fit the GPUs of the job (layers on {', '.join(left)}).",
            "give its size class more GPUs (`gpu`), or GPUs with more memory.",
        )
