"""Scoring documents of an lm-eval task, with lm-eval's own requests, filters, metrics and standard errors.

lm-eval's `evaluate` builds all requests anew at each call and takes its documents from the task. Here the
same methods of the task are driven over documents that we choose (a validation split carved from train,
say), and the requests are built once and scored many times: at each epoch, under each learning rate. Nothing
is reseeded. Tests hold the results against `lm_eval.simple_evaluate`.
"""

import contextlib
import hashlib
import io
import json
import math
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd
import torch
from lm_eval.api.instance import Instance
from lm_eval.api.metrics import mean, stderr_for_metric
from lm_eval.api.task import Task
from lm_eval.models.utils import normalize_gen_kwargs

from lm_validity.cells.language_model import LanguageModel, NonFiniteScore
from lm_validity.cells.tasks import Documents
from lm_validity.errors import CellError, nearest

Prompt = Literal["plain", "chat"]
SAMPLING_SEED = 1234  # lm-eval's default; used only by tasks that sample
# metrics whose per-document value is the pair (gold, predicted)
_PAIR_METRICS = ("mcc", "f1")


@dataclass(frozen=True)
class PreparedRequests:
    """The requests of documents under one prompt and tokenizer, one tuple a document, to score many times."""

    task: Task
    documents: Documents
    prompt: Prompt
    requests: tuple[tuple[Instance, ...], ...]


@dataclass(frozen=True)
class Evaluation:
    """metrics: lm-eval's key `name,filter` -> (value, standard error or None where lm-eval has none).
    items: one row a document in the order of the documents, the columns of ITEMS from `doc_id` on."""

    metrics: dict[str, tuple[float, float | None]]
    n_items: int
    items: pd.DataFrame
    prompt_sha256: str


def evaluate(
    lm: LanguageModel,
    task: Task,
    documents: Documents,
    *,
    metric: str,
    prompt: Prompt = "plain",
    system_instruction: str | None = None,
    limit: int | None = None,
    bootstrap_iterations: int = 1000,
) -> Evaluation:
    """Score `documents` zero-shot. `metric` is the key whose value per document becomes `correct`.

    Standard errors are lm-eval's: closed form for means, a bootstrap of `bootstrap_iterations` for mcc, f1
    and such (lm-eval's own default is 100,000), none for perplexities; 0 leaves all out.
    Raises CellError naming the document that cannot be rendered, NonFiniteScore naming one without a score.
    """
    prepared = prepare_requests(lm, task, documents.head(limit), prompt=prompt, system_instruction=system_instruction)
    values = _score(lm, prepared)
    _check_metric(task, metric, values)
    metrics = {key: _aggregate(task, key, found, bootstrap_iterations) for key, found in values.items()}
    items = _items(lm, prepared, values[metric], metric)
    return Evaluation(metrics, len(prepared.requests), items, prompt_digest(lm, prepared))


def prompt_digest(lm: LanguageModel, prepared: PreparedRequests) -> str:
    """sha256 over the token ids of all requests, in order: what the model was really shown."""
    digest = hashlib.sha256()
    for group in prepared.requests:
        for request in group:
            if request.request_type == "loglikelihood":
                tokens = lm.encode_request(*request.args)
            elif request.request_type == "loglikelihood_rolling":
                tokens = lm.document_tokens(request.args[0])
            else:
                tokens = lm.tok_encode(request.args[0])
            digest.update(json.dumps(tokens).encode())
    return digest.hexdigest()


def metric_value(lm: LanguageModel, prepared: PreparedRequests, metric: str) -> float:
    """One metric of prepared documents and nothing else: the validation of an epoch."""
    values = _score(lm, prepared)
    _check_metric(prepared.task, metric, values)
    return _aggregate(prepared.task, metric, values[metric], 0)[0]


def prepare_requests(
    lm: LanguageModel,
    task: Task,
    documents: Documents,
    *,
    prompt: Prompt = "plain",
    system_instruction: str | None = None,
) -> PreparedRequests:
    """Render the requests of `documents` as lm-eval does, for prompt `chat` with the tokenizer's chat template.

    `system_instruction` is used under `chat` only.
    Raises CellError where there is no document, no chat template, or a document cannot be rendered.
    """
    if not len(documents):
        raise CellError(f"{documents.task}: the {documents.split} split is empty.", "check the task's data.")
    chat = prompt == "chat"
    if chat and not lm.has_chat_template:
        raise CellError(
            f"{lm.model_id}: the tokenizer has no chat template.",
            "mark the model as not instruction-tuned, or add chat_template.jinja to its folder.",
        )
    template = lm.apply_chat_template if chat else None
    built = []
    for number, (address, doc) in enumerate(zip(documents.addresses, documents.docs, strict=True)):
        try:
            context = task.fewshot_context(
                doc,
                num_fewshot=0,
                system_instruction=system_instruction if chat else None,
                apply_chat_template=chat,
                chat_template=template,
                gen_prefix=task.doc_to_prefix(doc),
            )
            requests = task.construct_requests(
                doc=doc,
                ctx=context,
                metadata=(documents.task, number, task.config.repeats),
                apply_chat_template=chat,
                chat_template=template,
            )
        except Exception as error:  # whatever a task's code or template raises
            raise CellError(
                f"{documents.task}: document {address} cannot be rendered ({type(error).__name__}: {error}).",
                "check the columns of that row against the task's YAML file.",
            ) from error
        requests = tuple(requests) if isinstance(requests, list) else (requests,)
        if chat and task.OUTPUT_TYPE == "multiple_choice" and not task.doc_to_prefix(doc):
            _begin_answers(requests, lm.answer_start)
        built.append(requests)
    prepared = PreparedRequests(task, documents, prompt, tuple(built))
    _check_generation_fits(lm, prepared)
    return prepared


def _begin_answers(requests: tuple[Instance, ...], start: str) -> None:
    """Under a chat template lm-eval drops the blank before a choice; the template may begin its answers with one."""
    for request in requests:
        context, choice = request.args
        if start and not choice[:1].isspace():
            request.arguments = (context, start + choice)


def _check_generation_fits(lm: LanguageModel, prepared: PreparedRequests) -> None:
    first = prepared.requests[0][0]
    if first.request_type != "generate_until":
        return
    longest = normalize_gen_kwargs(first.args[1], lm.max_gen_toks)["max_gen_toks"]
    if longest >= lm.max_length:
        raise CellError(
            f"{prepared.documents.task}: generates up to {longest} tokens, "
            f"but {lm.model_id} takes {lm.max_length} in all.",
            "set max_gen_toks in the task's generation_kwargs.",
        )


def _score(lm: LanguageModel, prepared: PreparedRequests) -> dict[str, list[Any]]:
    """Run the requests; metric key -> the value of each document, as the task's process_results gives it."""
    requests = [request for group in prepared.requests for request in group]
    for request in requests:
        request.resps, request.filtered_resps = [], {}
    try:
        with _sampling_apart(lm, requests):
            _run(lm, requests)
    except NonFiniteScore as error:
        raise NonFiniteScore(f"{prepared.documents.task}: {error.problem}", error.hint) from None
    lm.counters.evaluate_passes += 1
    _check_finite(prepared)
    task = prepared.task
    task._instances = requests
    task.apply_filters()
    values: dict[str, list[Any]] = defaultdict(list)
    for name in requests[0].filtered_resps:
        for doc, group in zip(prepared.documents.docs, prepared.requests, strict=True):
            found = task.process_results(doc, [request.filtered_resps[name] for request in group])
            for metric, value in found.items():
                values[f"{metric},{name}"].append(value)
    return dict(values)


def _run(lm: LanguageModel, requests: list[Instance]) -> None:
    by_type: dict[str, list[Instance]] = defaultdict(list)
    for request in requests:
        by_type[request.request_type].extend([request] * (request.repeats or 1))
    for request_type, repeated in by_type.items():
        for request, response in zip(repeated, getattr(lm, request_type)(repeated), strict=True):
            request.resps.append(response)


@contextlib.contextmanager
def _sampling_apart(lm: LanguageModel, requests: list[Instance]) -> Iterator[None]:
    # greedy scoring draws nothing; a task that samples draws from its own stream, not from the process's
    first = requests[0]
    if first.request_type != "generate_until" or not first.args[1].get("do_sample"):
        yield
        return
    with torch.random.fork_rng(devices=[lm.device] if lm.device.type == "cuda" else []):
        torch.manual_seed(SAMPLING_SEED)
        yield


def _check_finite(prepared: PreparedRequests) -> None:
    if prepared.requests[0][0].request_type == "generate_until":
        return
    for address, group in zip(prepared.documents.addresses, prepared.requests, strict=True):
        if not all(math.isfinite(_loglikelihood(request)) for request in group):
            raise NonFiniteScore(
                f"{prepared.documents.task}: document {address} has a log-likelihood that is not finite.",
                "the model diverged or its dtype overflows: try a smaller learning rate, or dtype float32.",
            )


def _loglikelihood(request: Instance) -> float:
    response = request.resps[0]
    return float(response[0] if isinstance(response, tuple) else response)


def _check_metric(task: Task, metric: str, values: dict[str, list[Any]]) -> None:
    if metric not in values:
        similar = nearest(metric, values)
        raise CellError(
            f"{task.config.task}: has no metric {metric!r}.",
            f"it has {', '.join(values)}" + (f"; did you mean {similar!r}?" if similar else "."),
        )


def _aggregate(task: Task, key: str, values: list[Any], bootstrap_iterations: int) -> tuple[float, float | None]:
    """A metric's value and standard error, by the task's aggregation and lm-eval's rules."""
    aggregation = task.aggregation().get(key.partition(",")[0], mean)
    value = float(aggregation(values))
    if not math.isfinite(value):
        raise NonFiniteScore(
            f"{task.config.task}: {key} is {value}.", "check the model's outputs and the task's metric."
        )
    standard_error = stderr_for_metric(metric=aggregation, bootstrap_iters=bootstrap_iterations)
    if standard_error is None or len(values) < 2:
        return value, None
    with _one_quiet_process():
        error = float(standard_error(values))
    return value, error if math.isfinite(error) else None


@contextlib.contextmanager
def _one_quiet_process() -> Iterator[None]:
    # lm-eval's bootstrap prints, and forks a process for each CPU of the node unless this variable is set
    before = os.environ.get("DISABLE_MULTIPROC")
    os.environ["DISABLE_MULTIPROC"] = "1"
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        if before is None:
            del os.environ["DISABLE_MULTIPROC"]
        else:
            os.environ["DISABLE_MULTIPROC"] = before


def _items(lm: LanguageModel, prepared: PreparedRequests, values: list[Any], metric: str) -> pd.DataFrame:
    task, output_type = prepared.task, prepared.task.OUTPUT_TYPE
    describe = {"multiple_choice": _choice_item, "loglikelihood_rolling": _rolling_item}.get(
        output_type, _response_item
    )
    rows = []
    for address, doc, group, value in zip(
        prepared.documents.addresses, prepared.documents.docs, prepared.requests, values, strict=True
    ):
        row = {"doc_id": address, "subject": _subject(doc), "correct": _item_value(task, metric, value)}
        rows.append(row | describe(lm, task, doc, group))
    columns = (
        "doc_id subject gold correct choice_loglikelihoods unconditional_loglikelihoods "
        "choice_tokens choice_characters choice_bytes response"
    )
    items = pd.DataFrame(rows).reindex(columns=columns.split())
    return items.astype({"gold": "Int64"})


def _choice_item(lm: LanguageModel, task: Task, doc: dict, group: tuple[Instance, ...]) -> dict:
    choices = task.doc_to_choice(doc)
    conditional, unconditional = group[: len(choices)], group[len(choices) :]
    return {
        "gold": gold_choice(task, doc),
        "choice_loglikelihoods": [_loglikelihood(request) for request in conditional],
        "unconditional_loglikelihoods": [_loglikelihood(request) for request in unconditional] or None,
        "choice_tokens": [len(lm.encode_request(*request.args)[1]) for request in conditional],
        "choice_characters": [len(choice) for choice in choices],
        "choice_bytes": [len(choice.encode()) for choice in choices],
    }


def _rolling_item(lm: LanguageModel, task: Task, doc: dict, group: tuple[Instance, ...]) -> dict:
    (text,) = group[0].args
    return {
        "choice_loglikelihoods": [_loglikelihood(group[0])],
        "choice_tokens": [len(lm.document_tokens(text))],
        "choice_characters": [len(text)],
        "choice_bytes": [len(text.encode())],
    }


def _response_item(lm: LanguageModel, task: Task, doc: dict, group: tuple[Instance, ...]) -> dict:
    return {"response": group[0].resps[0]}


def gold_choice(task: Task, doc: dict) -> int | None:
    """Index of a multiple-choice document's right choice, by lm-eval's rules; the first of several; None if
    unknown."""
    choices = task.doc_to_choice(doc)
    gold = task.doc_to_text(doc) if task.multiple_input else task.doc_to_target(doc)
    if isinstance(gold, list):
        gold = gold[0] if gold else None
    if isinstance(gold, str):
        gold = choices.index(gold) if gold in choices else None
    return int(gold) if gold is not None and 0 <= int(gold) < len(choices) else None


def _item_value(task: Task, metric: str, value: Any) -> float:
    """A document's own value of the metric: what is averaged, agreement of a (gold, predicted) pair, or the
    aggregation over this document alone (its bits per byte, say)."""
    name = metric.partition(",")[0]
    if isinstance(value, (tuple, list)):
        return float(value[0] == value[1]) if name in _PAIR_METRICS else float(task.aggregation()[name]([value]))
    return float(value)


def _subject(doc: dict) -> str | None:
    subject = doc.get("subject")
    return None if subject is None else str(subject)
