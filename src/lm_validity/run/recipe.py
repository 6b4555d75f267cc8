"""Recipes: everything that determines a cell's numbers, and nothing else, hashed into the name of its folder.

Batch sizes, devices, library versions and file paths are not in a recipe: they are recorded beside the result.
A rule's `recipe_version` is one, bumped by hand when a change of code changes numbers.
"""

import hashlib
import json
from collections.abc import Mapping


def recipe_hash(recipe: Mapping[str, object]) -> str:
    """Twelve hex digits of the SHA-256 of the recipe's canonical JSON."""
    text = json.dumps(recipe, sort_keys=True, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def scale_settings(dtype: str) -> dict[str, str]:
    """What a recipe says of the loss that an adapter is trained with: only under float16 it has a scale. Before, it had
    none there either."""
    return {"loss_scale": "predicted tokens"} if dtype == "float16" else {}


def derive_seed(*parts: object) -> int:
    """A seed in [0, 2^63) from the parts of a cell's key; the same on every machine."""
    text = json.dumps([str(part) for part in parts])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
