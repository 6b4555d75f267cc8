"""Scores and items of a model on a split, and the texts that it is trained on, with lm-eval's own prompts, filters and
metrics."""

import contextlib
import hashlib
import io
import json
import logging
import math
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import pandas as pd
import torch
from lm_eval.api import metrics as harness
from lm_eval.api.instance import Instance
from lm_eval.api.task import Task

from lm_validity.cells.lm_eval_internals import apply_filters, normalize_gen_kwargs
from lm_validity.cells.models.language_model import LanguageModel, NonFiniteScore
from lm_validity.cells.tasks import tasks
from lm_validity.cells.tasks.answers import asked_text, check_answers, gold_choice, other_examples, taught_answer
from lm_validity.cells.tasks.tasks import AnyTask, Doc, Documents, TaskGroup, member_of, subject_of, task_of
from lm_validity.errors import CellError, did_you_mean
from lm_validity.run.cell import Prompt
from lm_validity.tables.schema import ITEMS

# ----------------------------------------------------------------------------------------------------------------------
# What is kept of each scored document: the rows of items.parquet.

# metrics whose per-document value is the pair (gold, predicted)
_PAIR_METRICS = ("mcc", "f1")
# what a task's process_results gives of a document for a metric
ItemValue: TypeAlias = float | str | tuple[object, ...] | list[object] | None


def _describe(lm: LanguageModel, task: Task, doc: Doc, group: tuple[Instance, ...]) -> dict[str, object]:
    """What there is of a document, by the output type of its task."""
    if task.OUTPUT_TYPE == "loglikelihood_rolling":
        (text,) = group[0].args
        return {
            "choice_loglikelihoods": [loglikelihood_of(group[0])],
            "choice_tokens": [len(lm.document_tokens(text))],
            "choice_characters": [len(text)],
            "choice_bytes": [len(text.encode())],
        }
    if task.OUTPUT_TYPE != "multiple_choice":
        return {"response": group[0].resps[0]}
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


def _item_value(task: Task, metric: str, value: ItemValue) -> float:
    """A document's own value of the metric: what is averaged, agreement of a (gold, predicted) pair, or the
    aggregation over this document alone (its bits per byte, say). NaN where it has none: a correlation, an empty
    document, or one that the task gave no value."""
    name = metric.partition(",")[0]
    if value is None or any(correlation in metric.lower() for correlation in ("pearson", "spearman", "kendall")):
        return math.nan
    if isinstance(value, tuple | list) and name in _PAIR_METRICS:
        return float(value[0] == value[1])
    try:
        return float(task.aggregation()[name]([value]) if isinstance(value, tuple | list) else value)
    except Exception:  # whatever the task's own aggregation raises where it is given one document
        return math.nan


def loglikelihood_of(request: Instance) -> float:
    """Log-likelihood of a request that has its response."""
    response = request.resps[0]
    return float(response[0] if isinstance(response, tuple) else response)


# ----------------------------------------------------------------------------------------------------------------------
# Scoring documents of an lm-eval task, with lm-eval's own requests, filters, metrics and standard errors.
#
# lm-eval's `evaluate` builds all requests anew at each call and takes its documents from the task. Here the
# same methods of the task are driven over documents that we choose (a validation split carved from train,
# say), and the requests are built once and scored many times: at each epoch, under each learning rate. Nothing
# is reseeded. Tests hold the results against `lm_eval.simple_evaluate`.

log = logging.getLogger(__name__)

SAMPLING_SEED = 1234  # lm-eval's default; used only by tasks that sample
RESAMPLES = 1000
os.environ["DISABLE_MULTIPROC"] = "1"  # else lm-eval's bootstrap forks a process for each CPU of the node


class Prepared(NamedTuple):
    """The requests of documents under one prompt and tokenizer, one tuple per document, to score many times."""

    task: AnyTask
    documents: Documents
    requests: tuple[tuple[Instance, ...], ...]


class EvaluationResult(NamedTuple):
    """metrics: lm-eval's key `name,filter` -> (value, standard error or None where lm-eval has none).
    valued: how many documents each metric is of: a task's own scoring may leave one out of some documents.
    items: one row per document in the order of the documents, the columns of ITEMS from `doc_id` on.
    truncated_requests: those longer than the model, which lost context on the left."""

    metrics: Mapping[str, tuple[float, float | None]]
    valued: Mapping[str, int]
    items: pd.DataFrame
    prompt_sha256: str
    truncated_requests: int


def score_prepared(lm: LanguageModel, prepared: Prepared, *, metric: str) -> EvaluationResult:
    """Score documents whose requests may have been built for another checkpoint. `metric` is the key whose value per
    document becomes `correct`; another one that has no value on these documents (the perplexity of a word where a word
    is a whole page, as in Chinese) is left out.

    A group's metrics are those that all its tasks have, aggregated over tasks by lm-eval's rules for groups.
    Standard errors are lm-eval's: closed form for means, a bootstrap of RESAMPLES for mcc, f1 and such (lm-eval's own
    default is 100,000), none for perplexities.
    Raises CellError naming the document that cannot be scored, NonFiniteScore naming one without a score.
    """
    truncated_before = lm.counters["truncated_requests"]
    values = _score(lm, prepared, metric)
    truncated = lm.counters["truncated_requests"] - truncated_before
    metrics = {}
    for key, by_place in values.items():
        try:
            metrics[key] = _aggregate(prepared, key, by_place, RESAMPLES)
        except CellError as error:
            if key == metric:
                raise
            log.info("%s; the metric is left out", error.problem)
    valued, documents = {key: len(values[key]) for key in metrics}, len(prepared.documents)
    if partial := [f"{key} of {count}" for key, count in valued.items() if count < documents]:
        log.info("%s: of %d documents the task scores %s", prepared.documents.task, documents, ", ".join(partial))
    rows, task = [], prepared.task
    requests = zip(prepared.documents.addresses, prepared.documents.docs, prepared.requests, strict=True)
    for index, (address, doc, group) in enumerate(requests):
        member = task_of(task, doc)
        row = _describe(lm, member, doc, group) | {"doc_id": address, "subject": subject_of(task, doc)}
        rows.append(row | {"correct": _item_value(member, metric, values[metric].get(index))})
    items = pd.DataFrame(rows).reindex(columns=ITEMS.names[ITEMS.names.index("doc_id") :]).astype({"gold": "Int64"})
    return EvaluationResult(metrics, valued, items, prompt_digest(lm, prepared), truncated)


def prompt_digest(lm: LanguageModel, prepared: Prepared) -> str:
    """sha256 over the token ids of all requests, in order: what the model was really shown."""
    digest = hashlib.sha256()
    for group in prepared.requests:
        for request in group:
            if request.request_type == "loglikelihood":
                tokens: object = lm.encode_request(*request.args)
            elif request.request_type == "loglikelihood_rolling":
                tokens = lm.document_tokens(request.args[0])
            else:
                tokens = lm.tok_encode(request.args[0])
            digest.update(json.dumps(tokens).encode())
    return digest.hexdigest()


def metric_value(lm: LanguageModel, prepared: Prepared, metric: str) -> float:
    """One metric of prepared documents and nothing else: the validation of an epoch."""
    return _aggregate(prepared, metric, _score(lm, prepared, metric)[metric], 0)[0]


def prepare_requests(lm: LanguageModel, task: AnyTask, documents: Documents, prompt: Prompt = "plain") -> Prepared:
    """Render the requests of `documents` as lm-eval does, for prompt `chat` with the tokenizer's chat template, and the
    model's `system_instruction`. A task that draws its examples at random draws them anew for each
    document, in order, from lm-eval's seed: the same ones as lm-eval where the same documents are scored.
    Raises CellError where there is no chat template, a document cannot be rendered, or it asks for more tokens than the
    model takes.
    """
    chat = prompt == "chat"
    described = any(task_of(task, doc).config.description for doc in documents.docs[:1])
    if chat and (lm.system_instruction or described) and lm.loses_system_message():
        lost_part = "system_instruction" if lm.system_instruction else "the task's description"
        words = "%s, %s: the chat template prints no system message; prompts lack %s."
        log.warning(words, lm.model_id, documents.task, lost_part)
    built: list[tuple[Instance, ...]] = []
    hint = "check the columns of that row against the task's YAML file; with several right answers num_fewshot is 0."
    with tasks.cell_fails(), other_examples(task) as examples:
        check_answers(task, documents)
        for number, (address, doc) in enumerate(zip(documents.addresses, documents.docs, strict=True)):
            member = task_of(task, doc)
            with tasks.faults_of(f"{documents.task}: document {address}", "rendered", hint):
                if member.config.task in examples:
                    examples[member.config.task].question = asked_text(member, doc)
                built.append(_requests_of(lm, member, doc, prompt, number))
    for doc, group in zip(documents.docs, built, strict=True):
        if chat and task.OUTPUT_TYPE == "multiple_choice" and not task_of(task, doc).doc_to_prefix(doc):
            # lm-eval drops the blank before a choice; the template may begin its answers with one
            for request in group:
                prompt_text, choice = request.args
                request.arguments = (prompt_text, choice if choice[:1].isspace() else lm.answer_start + choice)
    _encode(lm, documents, built)
    _check_room(lm, documents.task, [group[0] for group in built])
    return Prepared(task, documents, tuple(built))


def _encode(lm: LanguageModel, documents: Documents, built: Sequence[tuple[Instance, ...]]) -> None:
    """Tokenise each choice with what is before it, which is kept for scoring. Raises CellError naming the document
    where there is no token to score, or more than the model takes; and the task where all documents have choices that
    are the same tokens, as unknown words are: the scores tie, and the first choice would count."""
    tied: list[str] = []
    for address, group in zip(documents.addresses, built, strict=True):
        texts: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[str, str]] = {}  # by their tokens
        for request in group:
            if request.request_type != "loglikelihood":
                continue
            where = f"{documents.task}: document {address}"
            try:
                context, continuation = lm.encode_request(*request.args)
            except CellError as error:
                raise CellError(f"{where}: {error.problem}", error.hint) from error
            if not context or not 0 < len(continuation) <= lm.max_length:
                raise CellError(
                    f"{where}: {request.args[1][:60]!r} has {len(continuation)} tokens after {len(context)} of the "
                    f"question; {lm.model_id} takes {lm.max_length}.",
                    "every choice needs a token, and must fit into the model.",
                )
            if texts.setdefault((tuple(context), tuple(continuation)), request.args) != request.args:
                tied += [] if tied[-1:] == [address] else [address]
    if not tied:
        return
    finding = f"{lm.model_id} has the same tokens for unlike choices of {len(tied)} of {len(built)} documents"
    if len(tied) == len(built):
        hint = "its tokenizer lacks their words: leave the model or the benchmark out."
        raise CellError(f"{documents.task}: {finding}: their scores tie, and the first would count.", hint)
    log.warning("%s: %s, such as %s: their scores tie, and the first counts.", documents.task, finding, tied[0])


def _check_room(lm: LanguageModel, task: str, requests: Sequence[Instance]) -> None:
    room = min(
        (lm.room_for_prompt(request) for request in requests if request.request_type == "generate_until"), default=1
    )
    if room < 1:
        problem = f"{task}: generates up to {lm.max_length - room} tokens, but {lm.model_id} takes {lm.max_length}."
        raise CellError(problem, "set max_gen_toks in the task's generation_kwargs.")
    for options in (request.args[1] for request in requests if request.request_type == "generate_until"):
        ends = options.get("until", [])
        ends = [ends] if isinstance(ends, str) else ends
        stops = (
            isinstance(ends, list) and all(isinstance(text, str) and text for text in ends) and "stop" not in options
        )
        if not stops or normalize_gen_kwargs(options, lm.max_gen_toks)["max_gen_toks"] < 1:
            problem = f"{task}: its generation_kwargs have stop strings that are no texts, or empty, or no tokens."
            raise CellError(problem, "`until` takes a list of texts, `max_gen_toks` at least 1; there is no `stop`.")


def _requests_of(lm: LanguageModel, task: Task, doc: Doc, prompt: Prompt, number: int) -> tuple[Instance, ...]:
    """lm-eval's requests of a document, the `number`th, by the chat template where it is asked so."""
    chat = prompt == "chat"
    rendering = {"apply_chat_template": chat, "chat_template": lm.apply_chat_template if chat else None}
    context = task.fewshot_context(
        doc,
        num_fewshot=task.config.num_fewshot or 0,
        system_instruction=lm.system_instruction if chat else None,
        fewshot_as_multiturn=bool(task.config.num_fewshot),
        gen_prefix=task.doc_to_prefix(doc),
        **rendering,
    )
    metadata = (task.config.task, number, task.config.repeats)
    requests = task.construct_requests(doc=doc, ctx=context, metadata=metadata, **rendering)
    return tuple(requests) if isinstance(requests, list) else (requests,)


def _score(lm: LanguageModel, prepared: Prepared, metric: str) -> dict[str, dict[int, ItemValue]]:
    """Run the requests; metric key -> document's place -> its value, as the task's process_results gives it. Where that
    leaves a metric out, the document has no value of it. `metric` is one that must be there."""
    first = prepared.requests[0][0]
    # greedy scoring draws nothing; a task that samples draws from its own stream, not from the process's
    samples = first.request_type == "generate_until" and bool(
        normalize_gen_kwargs(first.args[1], lm.max_gen_toks).get("do_sample")  # also where only a temperature is
    )
    own_stream = torch.random.fork_rng([lm.device] if lm.device.type == "cuda" else [], enabled=samples)
    try:
        with own_stream, lm.counters.phase(prepared.documents.split):
            if samples:
                torch.manual_seed(SAMPLING_SEED)
            _run(lm, prepared)
            lm.counters["evaluate_passes"] += 1
    except NonFiniteScore as error:
        raise NonFiniteScore(f"{prepared.documents.task}: {error.problem}", error.hint) from None
    task = prepared.task
    _apply_filters(prepared)
    values: dict[str, dict[int, ItemValue]] = defaultdict(dict)
    for index, (doc, group) in enumerate(zip(prepared.documents.docs, prepared.requests, strict=True)):
        for name in group[0].filtered_resps:
            answers = [request.filtered_resps[name] for request in group]
            with _scoring(prepared, index):
                results = task_of(task, doc).process_results(doc, answers)
            for member, value in results.items():
                values[f"{member},{name}"][index] = value
    if isinstance(task, TaskGroup):  # what only some of the tasks have is no metric of the group
        members = [member_of(doc) for doc in prepared.documents.docs]
        values = {
            key: by_place for key, by_place in values.items() if {members[index] for index in by_place} == {*members}
        }
    if metric not in values:
        hint = did_you_mean(metric, values, f"it has {', '.join(values) or 'none'}.")
        raise CellError(f"{task.config.task}: has no metric {metric!r}.", hint)
    return values


def _apply_filters(prepared: Prepared) -> None:
    """Each task's filters over its own requests. Where one raises, the first document with which it does so alone is
    the cause."""
    by_task: dict[str, tuple[Task, list[int]]] = {}
    for index, doc in enumerate(prepared.documents.docs):
        member = task_of(prepared.task, doc)
        by_task.setdefault(member.config.task, (member, []))[1].append(index)
    for member, places in by_task.values():
        requests = [request for index in places for request in prepared.requests[index]]
        try:
            apply_filters(member, requests)
        except Exception:  # whatever the task's own filter raises
            for index in places:
                with _scoring(prepared, index):
                    apply_filters(member, [*prepared.requests[index]])
            with _scoring(prepared, None):
                apply_filters(member, requests)


@contextlib.contextmanager
def _scoring(prepared: Prepared, index: int | None) -> Iterator[None]:
    """Inside the block what the task's code raises is a CellError of a document, or of all."""
    subject = "its documents" if index is None else f"document {prepared.documents.addresses[index]}"
    hint = "correct the filters or process_results of the task, or that row of its data."
    with tasks.cell_fails(), tasks.faults_of(f"{prepared.documents.task}: {subject}", "scored", hint):
        yield


def _run(lm: LanguageModel, prepared: Prepared) -> None:
    """Have each request answered. Raises NonFiniteScore, naming the document."""
    by_type: dict[str, list[Instance]] = defaultdict(list)
    for request in (request for group in prepared.requests for request in group):
        request.resps, request.filtered_resps = [], {}
        by_type[request.request_type].extend([request] * (request.repeats or 1))
    for request_type, repeated in by_type.items():
        for request, response in zip(repeated, getattr(lm, request_type)(repeated), strict=True):
            request.resps.append(response)
    for address, group in zip(prepared.documents.addresses, prepared.requests, strict=True):
        if "generate_until" not in by_type and not all(math.isfinite(loglikelihood_of(request)) for request in group):
            hint = "the model diverged or its dtype overflows: try a smaller learning rate, or dtype float32."
            raise NonFiniteScore(f"document {address} has a log-likelihood that is not finite.", hint)


class _Aggregate(NamedTuple):
    """A metric's value over documents, and its standard error where it has one."""

    value: float
    stderr: float | None


def _aggregate(prepared: Prepared, key: str, values: Mapping[int, ItemValue], resamples: int) -> _Aggregate:
    """A metric's value and standard error, by lm-eval's rules: the mean over a group's tasks, weighted by their
    documents unless the group's file says otherwise."""
    task = prepared.task
    if not isinstance(task, TaskGroup):
        return _aggregate_task(task, key, [*values.values()], resamples)
    by_task: dict[str, list[ItemValue]] = defaultdict(list)
    for index, value in values.items():
        by_task[member_of(prepared.documents.docs[index])].append(value)
    aggregates = [_aggregate_task(task.members[name], key, member, resamples) for name, member in by_task.items()]
    scores, errors = [value for value, _ in aggregates], [error for _, error in aggregates]
    sizes = [len(member) for member in by_task.values()]
    by_size = task.by_size.get(key.partition(",")[0], True)
    value = float(harness.aggregate_subtask_metrics(scores, sizes, by_size))
    if None in errors or sum(sizes) <= len(sizes):
        return _Aggregate(value, None)
    error = float(harness.pooled_sample_stderr(errors, sizes) if by_size else harness.unweighted_mean_stderr(errors))
    return _Aggregate(value, error)


def _aggregate_task(task: Task, key: str, values: list[ItemValue], resamples: int) -> _Aggregate:
    """A metric's value and standard error, by the task's aggregation and lm-eval's rules."""
    aggregation = task.aggregation().get(key.partition(",")[0], harness.mean)
    try:
        value = float(aggregation(values))
    except Exception as error:  # the task's own code, or a perplexity too large for a number
        problem = f"{task.config.task}: {key} cannot be computed ({type(error).__name__}: {error})."
        raise CellError(problem, "check the task's metric; another one of the task may have a value.") from error
    if not math.isfinite(value):
        raise NonFiniteScore(
            f"{task.config.task}: {key} is {value}.", "check the model's outputs and the task's metric."
        )
    standard_error = harness.stderr_for_metric(metric=aggregation, bootstrap_iters=resamples)
    if standard_error is None or len(values) < 2:
        return _Aggregate(value, None)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):  # it shows its progress
        deviation = float(standard_error(values))
    return _Aggregate(value, deviation if math.isfinite(deviation) else None)


# ----------------------------------------------------------------------------------------------------------------------
# What a model is fine-tuned on: the very tokens that evaluation scores, with the right answer, and an end of text.
#
# Each example is made from the document's own lm-eval request, so description, delimiters, chat template and BOS are
# those of the evaluation by construction, and the context's tokens are a prefix of the example's.


class Example(NamedTuple):
    """Token ids of one training text. The completion (the answer, or a whole document after its BOS) begins
    at `completion_start`; `truncated` tokens were left out, `answer_lost` of them at the beginning of the answer, which
    then has no question either."""

    token_ids: tuple[int, ...]
    completion_start: int
    truncated: int = 0
    answer_lost: int = 0


def training_examples(
    lm: LanguageModel, task: AnyTask, documents: Documents, prompt: Prompt = "plain", max_length: int = 1024
) -> list[Example]:
    """One example a document, in the documents' order, of at most `max_length` tokens (and the model's own
    limit).

    - multiple choice: context and continuation of the right choice's request, as they are scored;
    - generation: the prompt, the delimiter, the target (the first of several);
    - rolling: BOS and the document.
    The tokenizer's end of text is appended. A question that is too long loses tokens on the left, as in
    scoring, so that its answer stays; a document of a corpus loses its end. An answer that is too long by itself
    loses its beginning, which the log says.
    Raises CellError naming a document without a right answer, and where every answer is too long.
    """
    limit = min(max_length, lm.max_length)
    prepared = prepare_requests(lm, task, documents, prompt)
    examples = []
    for address, doc, group in zip(documents.addresses, documents.docs, prepared.requests, strict=True):
        if task.OUTPUT_TYPE == "loglikelihood_rolling":
            context, completion = [lm.prefix_token_id], lm.document_tokens(group[0].args[0])
            examples.append(_example(lm, context, completion, limit, keep="start"))
            continue
        where = f"{documents.task}: document {address}"
        if task.OUTPUT_TYPE == "multiple_choice":
            gold = gold_choice(task_of(task, doc), doc)
            if gold is None:
                hint = "check its label; unlabelled rows cannot train."
                raise CellError(f"{where} has no right answer among its choices.", hint)
            context, completion = lm.encode_request(*group[gold].args)
        else:
            start = lm.answer_start if prompt == "chat" else None
            if (target := taught_answer(task_of(task, doc), doc, start)) is None:
                raise CellError(f"{where} has no target.", "check its answers; unlabelled rows cannot train.")
            context = lm.tok_encode(group[0].args[0]) or [lm.prefix_token_id]
            completion = lm.tok_encode(group[0].args[0] + target)[len(context) :]
            if lm.tok_encode(group[0].args[0] + target) != [*context, *completion]:
                # the tokenizer merges across the border: the prompt's tokens stay those that generation starts from
                completion = lm.tok_encode(target, add_special_tokens=False)
        examples.append(_example(lm, context, completion, limit, keep="end"))
    _check_answers_fit(lm, documents.task, examples, limit)
    return examples


def _check_answers_fit(lm: LanguageModel, task: str, examples: Sequence[Example], limit: int) -> None:
    """Say how many answers have lost their beginning. Raise CellError where all have: nothing is left to learn."""
    cut = [example for example in examples if example.answer_lost]
    if not cut:
        return
    longest = max(len(example.token_ids) + example.answer_lost for example in cut)
    if limit < lm.max_length:
        hint = f"set finetuning.max_length to at least {longest}, and more for their questions."
    else:
        hint = f"{lm.model_id} reads {limit} tokens: leave the benchmark out of the agreement study (column studies)."
    if len(cut) == len(examples):
        raise CellError(f"{task}: each of the {len(cut)} training answers has more than {limit} tokens.", hint)
    finding = "%s: %d of %d training answers have more than %d tokens: they lose their question and their beginning; %s"
    log.warning(finding, task, len(cut), len(examples), limit, hint)


def _example(lm: LanguageModel, context: list[int], completion: list[int], limit: int, keep: str) -> Example:
    tokens = [*context, *completion]
    if tokens[-1] != lm.eot_token_id or not completion:
        tokens.append(lm.eot_token_id)
    surplus = max(0, len(tokens) - limit)
    if keep == "start":
        return Example(tuple(tokens[:limit]), len(context), surplus)
    start = len(context) - surplus
    return Example(tuple(tokens[surplus:]), max(0, start), surplus, answer_lost=max(0, -start))
