"""What is kept of each scored document: the rows of items.parquet."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
from lm_eval.api.instance import Instance
from lm_eval.api.task import Task

from lm_validity.cells.models.language_model import LanguageModel
from lm_validity.cells.tasks.groups import Document
from lm_validity.cells.tasks.tasks import AnyTask, Documents, gold_choice, subject_of, task_of
from lm_validity.run.scoring import has_item_values

# metrics whose per-document value is the pair (gold, predicted)
_PAIR_METRICS = ("mcc", "f1")


def describe_items(
    lm: LanguageModel,
    task: AnyTask,
    documents: Documents,
    requests: tuple[tuple[Instance, ...], ...],
    values: Mapping[int, Any],
    metric: str,
) -> pd.DataFrame:
    """One row per document in their order, the columns of ITEMS from `doc_id` on. `requests` have their responses;
    `values` are the values of `metric`, by the documents' places."""
    output_type = task.OUTPUT_TYPE
    describe = {"multiple_choice": _choice_item, "loglikelihood_rolling": _rolling_item}.get(
        output_type, _response_item
    )
    rows = []
    for place, (address, doc, group) in enumerate(zip(documents.addresses, documents.docs, requests, strict=True)):
        own, value = task_of(task, doc), values.get(place)
        row = {"doc_id": address, "subject": subject_of(task, doc), "correct": _item_value(own, metric, value)}
        rows.append(row | describe(lm, own, doc, group))
    columns = (
        "doc_id subject gold correct choice_loglikelihoods unconditional_loglikelihoods "
        "choice_tokens choice_characters choice_bytes response"
    )
    items = pd.DataFrame(rows).reindex(columns=columns.split())
    return items.astype({"gold": "Int64"})


def _choice_item(lm: LanguageModel, task: Task, doc: Document, group: tuple[Instance, ...]) -> dict[str, Any]:
    choices = task.doc_to_choice(doc)
    conditional, unconditional = group[: len(choices)], group[len(choices) :]
    return {
        "gold": gold_choice(task, doc),
        "choice_loglikelihoods": [loglikelihood_of(request) for request in conditional],
        "unconditional_loglikelihoods": [loglikelihood_of(request) for request in unconditional] or None,
        "choice_tokens": [len(lm.encode_request(*request.args)[1]) for request in conditional],
        "choice_characters": [len(choice) for choice in choices],
        "choice_bytes": [len(choice.encode()) for choice in choices],
    }


def _rolling_item(lm: LanguageModel, task: Task, doc: Document, group: tuple[Instance, ...]) -> dict[str, Any]:
    (text,) = group[0].args
    return {
        "choice_loglikelihoods": [loglikelihood_of(group[0])],
        "choice_tokens": [len(lm.document_tokens(text))],
        "choice_characters": [len(text)],
        "choice_bytes": [len(text.encode())],
    }


def _response_item(lm: LanguageModel, task: Task, doc: Document, group: tuple[Instance, ...]) -> dict[str, Any]:
    return {"response": group[0].resps[0]}


def _item_value(task: Task, metric: str, value: Any) -> float:
    """A document's own value of the metric: what is averaged, agreement of a (gold, predicted) pair, or the
    aggregation over this document alone (its bits per byte, say). NaN where it has none: a correlation, an empty
    document, or one that the task gave no value."""
    name, several = metric.partition(",")[0], isinstance(value, (tuple, list))
    if value is None or not has_item_values(metric):
        return math.nan
    if several and name in _PAIR_METRICS:
        return float(value[0] == value[1])
    try:
        return float(task.aggregation()[name]([value]) if several else value)
    except Exception:  # whatever the task's own aggregation raises where it is given one document
        return math.nan


def loglikelihood_of(request: Instance) -> float:
    """Log-likelihood of a request that has its response."""
    response = request.resps[0]
    return float(response[0] if isinstance(response, tuple) else response)
