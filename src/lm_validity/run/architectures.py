"""Models before they are loaded: what is fetched of them, which of their files are weights, and which are causal."""

import ast
import contextlib
import importlib.util
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

from lm_validity.errors import Refusal
from lm_validity.files import Document, read_json


class HubModel(NamedTuple):
    """A model on the hub; `folders` of it, as prefixes of file names, that are fetched."""

    path: str
    revision: str | None = None
    folders: tuple[str, ...] = ("",)


# ----------------------------------------------------------------------------------------------------------------------
# Which safetensors of a folder are its model. Some come twice: Mistral's also as consolidated.safetensors.

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def weight_files(folder: Path) -> list[Path]:
    """The weights of a local model, or of a checkpoint of it, as transformers loads them: model.safetensors, else the
    shards that the index names; all *.safetensors where there is neither, or the index cannot be read."""
    names = {path.name for path in folder.glob("*.safetensors")}
    if WHOLE in names:
        return [folder / WHOLE]
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        names &= {*read_json(folder / INDEX)["weight_map"].values()}
    return [folder / name for name in sorted(names)]


# ----------------------------------------------------------------------------------------------------------------------
# Whether a config.json is that of a causal language model, by what transformers lists of architectures.
#
# The lists are read from its source: importing it takes seconds a model, and a login node may have no torch.

Lists: TypeAlias = dict[str, dict[str, str | tuple[str, ...]]]  # name -> {model_type: class or classes}

_CAUSAL, _MASKED = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_MASKED_LM_MAPPING_NAMES"
_SEQ_TO_SEQ = "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES"
# of models for other work; some of them load as causal ones, with weights drawn at random or with eyes for the answer
_OTHER_WORK = (
    *(_MASKED, _SEQ_TO_SEQ),
    *(f"MODEL_FOR_{work}_MAPPING_NAMES" for work in ("MULTIPLE_CHOICE", "SEQUENCE_CLASSIFICATION")),
    *(f"MODEL_FOR_{work}_MAPPING_NAMES" for work in ("TOKEN_CLASSIFICATION", "QUESTION_ANSWERING")),
)
SEEN_AHEAD: dict[str, tuple[object, ...]] = {"use_bidirectional_attention": (True, "all"), "is_causal": (False,)}
SEE_AHEAD = ("xlnet", "cpmant")  # listed as causal; each position sees those behind it

UNKNOWN = "models are loaded without remote code: choose a model of a known architecture, or update transformers"
TAKE_OUT = (
    "take the model out of the sheet, or choose one with a language modelling head; a masked language model can take "
    "part in the bias study (`language_models`)"
)


def why_not_causal(config: object) -> Refusal | None:
    """(what is wrong with a config.json, what to do), or None for a causal language model. None also where transformers
    is not installed, or keeps its lists elsewhere: loading the model will say it then."""
    if not isinstance(config, dict):
        return Refusal("config.json is not an object", "a model folder is what save_pretrained writes")
    lists = _lists()
    if lists is None:
        return None
    kind, named, causal = config.get("model_type"), config.get("architectures") or [], lists[_CAUSAL]
    if kind not in lists["CONFIG_MAPPING_NAMES"] and kind not in causal:
        return Refusal(f"transformers does not know model_type {kind!r} of its config.json", UNKNOWN)
    if key := _key_that_sees_ahead(config):
        return Refusal(f"{key} of its config.json lets each position see those behind it", TAKE_OUT)
    other_work = {name for key in _OTHER_WORK for name in _classes(lists[key].values())} - _classes(causal.values())
    if (
        (kind not in causal or kind in SEE_AHEAD or (kind == "xlm" and not config.get("causal")))
        or (kind in _encoders(lists) and not config.get("is_decoder"))
        or (named and (named[0] in other_work or _has_no_head(config, named[0], lists)))
    ):
        words = ", ".join(named) or f"model_type {kind}"
        return Refusal(f"config.json is not that of a causal language model ({words})", TAKE_OUT)
    return None


def _key_that_sees_ahead(config: Document) -> str | None:
    """The key by which a config.json's causal class sees ahead, as for embeddings of whole texts; None for others."""
    parts = [part for part in (config, config.get("text_config")) if isinstance(part, dict)]
    return next((key for part in parts for key, values in SEEN_AHEAD.items() if part.get(key) in values), None)


def _encoders(lists: Lists) -> set[str]:
    """Architectures such as BERT, whose causal class still sees all tokens unless `is_decoder` is set."""
    return set(lists[_MASKED]) & set(lists[_CAUSAL]) - set(lists[_SEQ_TO_SEQ]) - {"xlm"}


def _has_no_head(config: Document, name: str, lists: Lists) -> bool:
    """A model's body alone: without tied embeddings nothing stands for its head."""
    body = name in _classes([lists["MODEL_MAPPING_NAMES"].get(config["model_type"], ())])
    return body and (config["model_type"] in lists[_MASKED] or config.get("tie_word_embeddings") is False)


def _classes(entries: Iterable[str | tuple[str, ...]]) -> set[str]:
    return {name for entry in entries for name in ((entry,) if isinstance(entry, str) else entry)}


@cache
def _lists() -> Lists | None:
    """What the source of transformers lists; None where that has not all of them."""
    lists: Lists = {}
    try:
        spec = importlib.util.find_spec("transformers")
        if spec is None or spec.submodule_search_locations is None:
            return None
        (folder,) = spec.submodule_search_locations
        for file in ("modeling_auto.py", "auto_mappings.py"):
            text = (Path(folder) / "models" / "auto" / file).read_text(encoding="utf-8")
            lists |= {name: dict(ast.literal_eval(pairs)) for name, pairs in _ordered(ast.parse(text))}
    except (AttributeError, ValueError, OSError, SyntaxError):
        return None
    list_names = {"CONFIG_MAPPING_NAMES", "MODEL_MAPPING_NAMES", _CAUSAL, *_OTHER_WORK}
    return lists if list_names <= set(lists) else None


def _ordered(module: ast.Module) -> Iterator[tuple[str, ast.List]]:
    """(name, list of pairs) of each `NAME = OrderedDict([...])` that is written out."""
    for node in module.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(args=[ast.List(elts=pairs) as listed])):
                if all(isinstance(pair, ast.Tuple) for pair in pairs):
                    yield name, listed
