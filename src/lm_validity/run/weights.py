"""Which safetensors of a folder are its model. Some come twice: Mistral's also as consolidated.safetensors."""

import json
from collections.abc import Collection
from pathlib import Path

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def weight_names(names: Collection[str], index: str | None) -> set[str]:
    """Of a folder's *.safetensors, those that transformers loads: model.safetensors, else the shards that the index
    (the text of model.safetensors.index.json) names; all where there is neither, or the index cannot be read."""
    if WHOLE in names:
        return {WHOLE}
    try:
        return {*names} if index is None else {*names} & {*json.loads(index)["weight_map"].values()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {*names}


def weight_files(folder: Path) -> list[Path]:
    """The weights of a local model, or of a checkpoint of it."""
    index = folder / INDEX
    names = [path.name for path in folder.glob("*.safetensors")]
    return [folder / name for name in sorted(weight_names(names, index.read_text() if index.is_file() else None))]
