"""The format of every_eval_ever, an interchange format for scores (github.com/evaleval/every_eval_ever).

A file is one evaluation of a model: `model_info`, `source_metadata`, `eval_library` and a list `evaluation_results`,
each with a name, a metric and a score. Its JSON schema is not part of this project: it is that of the installed package
`every_eval_ever`, or a file that is named.
"""

import functools
import importlib.util
import json
from pathlib import Path
from typing import Any, NamedTuple

from lm_validity.errors import InputError

VERSION = "0.3.0"  # of the schema that exported files follow
OWN = "lm_validity_"  # begins the keys of what the format has no place for


class Metric(NamedTuple):
    """What a metric of lm-eval is called there, its bounds, and which scores are better."""

    identifier: str
    low: float
    high: float | str
    higher_is_better: bool


# Others are given without bounds
METRICS = {
    "acc": Metric("accuracy", 0, 1, higher_is_better=True),
    "acc_norm": Metric("acc_norm", 0, 1, higher_is_better=True),
    "exact_match": Metric("exact_match", 0, 1, higher_is_better=True),
    "em": Metric("exact_match", 0, 1, higher_is_better=True),
    "f1": Metric("f1", 0, 1, higher_is_better=True),
    "mc1": Metric("mc1", 0, 1, higher_is_better=True),
    "mc2": Metric("mc2", 0, 1, higher_is_better=True),
    "mcc": Metric("mcc", -1, 1, higher_is_better=True),
    "bits_per_byte": Metric("bits_per_byte", 0, "Infinity", higher_is_better=False),
    "byte_perplexity": Metric("byte_perplexity", 1, "Infinity", higher_is_better=False),
    "word_perplexity": Metric("word_perplexity", 1, "Infinity", higher_is_better=False),
    "perplexity": Metric("perplexity", 1, "Infinity", higher_is_better=False),
    "ppl": Metric("perplexity", 1, "Infinity", higher_is_better=False),
}


@functools.cache
def find_schema(named: Path | None) -> dict[str, Any] | None:
    """The JSON schema in the file that is named, else that of the installed package, else None."""
    path = named
    if path is None:
        package = importlib.util.find_spec("every_eval_ever")
        if package is None or package.origin is None:
            return None
        path = Path(package.origin).parent / "schemas" / "eval.schema.json"
        if not path.is_file():
            return None
    try:
        schema = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: not a readable JSON schema ({error}).", "every_eval_ever has eval.schema.json."
        ) from error
    if not isinstance(schema, dict) or "evaluation_results" not in schema.get("properties", {}):
        raise InputError(f"{path}: no schema of every_eval_ever's files.", "every_eval_ever has eval.schema.json.")
    return schema


def check_schema(document: dict[str, Any], schema: dict[str, Any] | None, where: str) -> None:
    """Raises InputError, with the first error and its place, for a document that does not fit the schema."""
    if schema is None:
        return
    import jsonschema

    found = jsonschema.validators.validator_for(schema)(schema).iter_errors(document)
    error = min(found, key=lambda each: (len(each.absolute_path), str(each.message)), default=None)
    if error is not None:
        place = "/".join(map(str, error.absolute_path)) or "the file"
        raise InputError(
            f"{where}: {place}: {error.message[:200]}.", "see eval.schema.json of every_eval_ever for what it may hold."
        )
