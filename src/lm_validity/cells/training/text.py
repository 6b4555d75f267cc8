"""What a model is fine-tuned on: the very tokens that evaluation scores, with the right answer, and an end of
text.

Each example is made from the document's own lm-eval request, so description, delimiters, chat template and
BOS are those of the evaluation by construction, and the context's tokens are a prefix of the example's.
"""

from dataclasses import dataclass

from lm_eval.api.instance import Instance
from lm_eval.api.task import Task

from lm_validity.cells.lm_eval_internals import maybe_delimit
from lm_validity.cells.models.language_model import LanguageModel
from lm_validity.cells.tasks.evaluation import Prompt, prepare_requests
from lm_validity.cells.tasks.tasks import AnyTask, Document, Documents, gold_choice, task_of
from lm_validity.errors import CellError


@dataclass(frozen=True)
class Example:
    """Token ids of one training text. The completion (the answer, or a whole document after its BOS) begins
    at `completion_start`; `truncated` tokens were left out."""

    token_ids: tuple[int, ...]
    completion_start: int
    truncated: int = 0


def training_examples(
    lm: LanguageModel,
    task: AnyTask,
    documents: Documents,
    *,
    prompt: Prompt = "plain",
    system_instruction: str | None = None,
    max_length: int = 1024,
) -> list[Example]:
    """One example a document, in the documents' order, of at most `max_length` tokens (and the model's own
    limit).

    - multiple choice: context and continuation of the right choice's request, as they are scored;
    - generation: the prompt, the delimiter, the target (the first of several);
    - rolling: BOS and the document.
    The tokenizer's end of text is appended. A question that is too long loses tokens on the left, as in
    scoring, so that its answer stays; a document of a corpus loses its end.
    Raises CellError naming a document without a right answer.
    """
    limit = min(max_length, lm.max_length)
    prepared = prepare_requests(lm, task, documents, prompt=prompt, system_instruction=system_instruction)
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
            context, completion = _prompt_and_target(lm, task_of(task, doc), doc, group[0], prompt, where)
        examples.append(_example(lm, context, completion, limit, keep="end"))
    return examples


def _example(lm: LanguageModel, context: list[int], completion: list[int], limit: int, keep: str) -> Example:
    tokens = [*context, *completion]
    if tokens[-1] != lm.eot_token_id or not completion:
        tokens.append(lm.eot_token_id)
    surplus = max(0, len(tokens) - limit)
    if keep == "start":
        return Example(tuple(tokens[:limit]), len(context), surplus)
    return Example(tuple(tokens[surplus:]), max(0, len(context) - surplus), surplus)


def _prompt_and_target(
    lm: LanguageModel, task: Task, doc: Document, request: Instance, prompt: Prompt, where: str
) -> tuple[list[int], list[int]]:
    """Token ids of a generation prompt as it is fed to the model, and of the target after it."""
    context, target = request.args[0], _first_target(task, doc, where)
    prefix = task.doc_to_prefix(doc)
    if prefix:
        completion = maybe_delimit(prefix, target)[len(prefix) :]
    else:  # under a chat template the answer is a turn of its own
        start = lm.answer_start if prompt == "chat" else task.config.target_delimiter
        completion = target if prompt == "chat" and target[:1].isspace() else f"{start}{target}"
    context_tokens = lm.tok_encode(context) or [lm.prefix_token_id]
    together = lm.tok_encode(context + completion)
    if together[: len(context_tokens)] == context_tokens:
        return context_tokens, together[len(context_tokens) :]
    # the tokenizer merges across the border: the prompt's tokens stay those that generation starts from
    return context_tokens, lm.tok_encode(completion, add_special_tokens=False)


def _first_target(task: Task, doc: Document, where: str) -> str:
    target = task.doc_to_target(doc)
    if task.config.doc_to_choice is not None and isinstance(target, int):
        target = task.doc_to_choice(doc)[target]
    if isinstance(target, list):
        if not target:
            raise CellError(f"{where} has no target.", "check its answers; unlabelled rows cannot train.")
        target = target[0]
    return str(target)
