"""Values of settings, checked against the annotations of what they are settings of."""

from collections.abc import Mapping
from typing import Any, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from lm_validity.errors import InputError
from lm_validity.studies.signal.filters.judge import EndpointJudge

# Of a step `llm_judge`, whichever the judge: an endpoint's, a local model's and the filter's own
JUDGE_SETTINGS = {**get_type_hints(EndpointJudge), "dtype": str, "device": str, "max_new_tokens": int}
JUDGE_SETTINGS |= {"promptings": int, "cache": str}
EXPORT_SETTINGS = {"num_fewshot": int, "description": str, "target_delimiter": str}


def check_values(settings: Mapping[str, Any], annotations: Mapping[str, Any], where: str) -> None:
    """Raises InputError naming the first setting whose value is not of its annotated type, and the value.

    Strict: no number for a text, no text or boolean for a number; an integer for a fraction will do. `.nan`, which
    YAML takes for a number, compares with nothing and is refused.
    """
    for name, value in settings.items():
        if value != value:
            raise InputError(
                f"{where}, {name}: {value!r} is not a number.", "see docs/reference/signal.md for the settings."
            )
        if name not in annotations:  # other code says which names there are
            continue
        try:
            TypeAdapter(annotations[name], config=ConfigDict(strict=True)).validate_python(value)
        except ValidationError as error:
            reason = "; ".join(dict.fromkeys(problem["msg"] for problem in error.errors()))
            raise InputError(
                f"{where}, {name}: {value!r} ({reason}).", "see docs/reference/signal.md for the settings."
            ) from None
