"""What a model's files bring along that would change its prompts and answers from day to day, or from model to model.

Chat templates may print the date of today: it is one fixed date here. A generation_config.json may set a repetition
penalty or a longest answer: what a task says is all that counts here, so only the special tokens are read from it.
"""

import contextlib
import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

CHAT_DATE = datetime.date(2024, 7, 26)  # which Llama 3.2's template itself falls back to
# of a generation_config.json; the ones for sampling change no greedy answer
TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
# of a config.json, however the architecture calls them
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts")
HARMLESS = ("do_sample", "temperature", "top_p", "top_k", "max_length", "transformers_version", "use_cache")


def prints_date(chat_template: object) -> bool:
    """Whether a chat template (or one of several by name) prints the date of today, unless it is given another."""
    return any(word in str(chat_template or "") for word in ("date_string", "strftime_now"))


@contextlib.contextmanager
def fixed_date() -> Iterator[None]:
    """Inside the block chat templates are rendered on CHAT_DATE. transformers hands templates a function that asks its
    own module for the time, and takes no other."""
    import transformers.utils.chat_template_utils as rendering

    before, rendering.datetime = rendering.datetime, _ChatDate
    try:
        yield
    finally:
        rendering.datetime = before


class _ChatDate(datetime.datetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Self:
        return cls.combine(CHAT_DATE, datetime.time())


def read_chat_template(folder: Path) -> str | None:
    """The chat template(s) among a tokenizer's files, None where there is none."""
    for name in ("chat_template.jinja", "chat_template.json"):
        if (folder / name).is_file():
            return (folder / name).read_text(encoding="utf-8")
    found = _read_json(folder / "tokenizer_config.json").get("chat_template")
    return str(found) if found else None


def ignored_generation_settings(folder: Path) -> list[str]:
    """Names of a generation_config.json's settings that would change greedy answers, sorted."""
    found = _read_json(folder / "generation_config.json")
    set_there = (name for name, value in found.items() if value is not None and not name.startswith(("_", "output_")))
    return sorted(name for name in set_there if name not in (*TOKENS, *HARMLESS))


def adapts_otherwise(configuration: dict[str, Any]) -> bool:
    """Whether all-linear means other weights of this config.json's model than all of its linear layers: experts too, no
    routers, no towers for images or sounds, no state-space layers that kernels read past."""
    parts = [part for part in (configuration, configuration.get("text_config")) if isinstance(part, dict)]
    experts = any((part.get(key) or 0) > 1 for part in parts for key in EXPERT_COUNTS if isinstance(part.get(key), int))
    tower = any(name.removesuffix("_config") in ("vision", "audio") for name in configuration)
    kinds = " ".join(str(part.get("model_type")) for part in parts)
    return (
        experts
        or tower
        or any(kind in kinds for kind in ("mamba", "jamba", "zamba", "bamba", "nemotron_h", "falcon_h1"))
    )


def position_switch(configuration: dict[str, Any]) -> int | None:
    """The length beyond which this config.json's model encodes positions by the longest text of a batch (longrope,
    dynamic scaling); None where it never does."""
    for part in (configuration, configuration.get("text_config") or {}):
        tables = part.get("rope_parameters") or part.get("rope_scaling") or {}
        for table in (tables, *(one for one in tables.values() if isinstance(one, dict))):
            kind = str(table.get("rope_type") or table.get("type") or "")
            longest = part.get("max_position_embeddings")
            if kind in ("longrope", "su"):
                name = "original_max_position_embeddings"
                return table.get(name) or part.get(name) or longest
            if "dynamic" in kind:
                return longest
    return None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
