"""One line of lm-eval's samples_*.jsonl: what it says of a document and of the model's answer to it.

Lines differ between versions: log-likelihoods are numbers or texts, requests a list or an object, and the metrics and
the filter are named since 0.4.5 only.
"""

import math
from typing import Any, NamedTuple

from lm_validity.tables.formats.json_values import finite
from lm_validity.tables.schema import LARGEST_SCORE

_NO_METRICS = frozenset(
    ("doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics", "doc_hash", "prompt_hash",
     "target_hash")
)  # fmt: skip
_PAIRS = ("mcc", "f1")  # metrics whose value of a document is the pair (gold, predicted)
_WEIGHTED = {"bits_per_byte": lambda each: -each / math.log(2), "byte_perplexity": lambda each: math.exp(-each)}
_WEIGHTED["word_perplexity"] = _WEIGHTED["byte_perplexity"]


class Sample(NamedTuple):
    """One answer. `item` has columns of ITEMS; `gold_known`: whether the right choice of a multiple choice is known.

    `values`: the document's value of each metric, a number.
    """

    doc_id: str
    filter: str | None  # None where the line does not say
    item: dict[str, Any]
    gold_known: bool
    values: dict[str, float]


def read_sample(line: dict[str, Any]) -> Sample:
    """Raises KeyError, TypeError or ValueError for what is no sample."""
    names = line.get("metrics")
    if not isinstance(names, list):
        names = [name for name in line if name not in _NO_METRICS]
    found = {name: _value(name, line.get(name)) for name in names}
    values = {name: value for name, value in found.items() if value is not None and abs(value) <= LARGEST_SCORE}
    document = line.get("doc")
    subject = document.get("subject") if isinstance(document, dict) else None
    item: dict[str, Any] = {
        "doc_id": _text(line["doc_id"]),
        "doc_hash": _text(line.get("doc_hash")),
        "subject": _text(subject),
    }
    requests = _requests(line.get("arguments"))
    answers = [each[0] for each in line["resps"]]
    known = True
    if isinstance(answers[0], list) and len(answers) > 1:
        choices, known = _choices(line, requests, answers, values)
        item |= choices
    elif isinstance(answers[0], list) or _is_rolling(requests):
        item["choice_loglikelihoods"] = [_loglikelihood(answers[0])]
    else:
        item["response"] = _text(answers[0])
    return Sample(item["doc_id"], line.get("filter"), item, known, values)


def _choices(
    line: dict[str, Any], requests: list[list[Any]], answers: list[Any], values: dict[str, float]
) -> tuple[dict[str, Any], bool]:
    """Log-likelihoods and lengths of the choices, and whether the right one is known."""
    loglikelihoods = [_loglikelihood(answer) for answer in answers]
    texts = [str(request[1]) for request in requests] if all(len(request) > 1 for request in requests) else []
    found: dict[str, Any] = {}
    half = len(answers) // 2
    contexts = [str(request[0]) for request in requests]
    if len(texts) == len(answers) == 2 * half and texts[:half] == texts[half:] and not any(contexts[half:]):
        # acc_mutual_info: the same choices again, without the question
        found["unconditional_loglikelihoods"] = loglikelihoods[half:]
        loglikelihoods, texts = loglikelihoods[:half], texts[:half]
    found["choice_loglikelihoods"] = loglikelihoods
    if len(texts) == len(loglikelihoods):
        texts = [text.removeprefix(" ") for text in texts]  # lm-eval's target delimiter, which its lengths leave out
        found["choice_characters"] = [len(text) for text in texts]
        found["choice_bytes"] = [len(text.encode(errors="replace")) for text in texts]
    gold = _gold(line.get("target"), texts, loglikelihoods, values.get("acc"))
    return found | {"gold": gold}, gold is not None


def _gold(target: object, texts: list[str], loglikelihoods: list[float], accuracy: float | None) -> int | None:
    """The right choice: the target as its place or its text, and not at odds with whether the answer was right.

    An `acc` that contradicts every reading of the target is no share of right answers (truthfulqa_mc2, say).
    """
    chosen = loglikelihoods.index(max(loglikelihoods))
    named = str(target).strip()
    places = [int(named)] if named.isascii() and named.isdigit() else []
    same = [place for place, text in enumerate(texts) if text.strip() == named]
    places += same if len(same) == 1 else []
    places = [place for place in places if place < len(loglikelihoods)]
    if accuracy == 1.0 and (chosen in places or not places):
        return chosen
    if accuracy == 0.0 and not places and len(loglikelihoods) == 2:
        return 1 - chosen
    wrong = chosen if accuracy == 0.0 else None
    return next((place for place in places if place != wrong), places[0] if places else None)


def _value(name: str, value: object) -> float | None:
    """A document's own value of a metric; None where it has none."""
    if isinstance(value, bool):
        return float(value)
    if not isinstance(value, list):
        return finite(value)
    if len(value) != 2:
        return None
    if name in _PAIRS:
        return float(value[0] == value[1])
    if name in _WEIGHTED:
        total, weight = finite(value[0]), finite(value[1])
        try:
            return None if total is None or not weight else _WEIGHTED[name](total / weight)
        except OverflowError:
            return None
    return None


def _text(value: object) -> str | None:
    """A text that a table can hold: half a pair of surrogates becomes a question mark."""
    return None if value is None else str(value).encode(errors="replace").decode()


def _requests(arguments: object) -> list[list[Any]]:
    """The arguments of each request; [] where the line has none."""
    if isinstance(arguments, dict):
        arguments = list(arguments.values())
    if not isinstance(arguments, list):
        return []
    return [list(each.values()) if isinstance(each, dict) else list(each) for each in arguments]


def _is_rolling(requests: list[list[Any]]) -> bool:
    """Whether the requests are texts alone: the log-likelihood of a whole document."""
    return bool(requests) and len(requests[0]) == 1


def _loglikelihood(answer: Any) -> float:
    """From `-1.5`, `"-1.5"`, `[-1.5, false]` or `["-1.5", "False"]`."""
    return float(answer[0] if isinstance(answer, list) else answer)
