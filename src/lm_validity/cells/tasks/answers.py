"""What a document asks and which answer is right, by lm-eval's rules, and where those rules read it wrongly."""

import contextlib
import datetime
import logging
import random
import re
import unicodedata
from collections.abc import Iterator, Sequence, Sized
from functools import cache
from typing import NamedTuple, cast

import jinja2
import lm_eval.utils
from lm_eval.api.instance import Instance
from lm_eval.api.metrics import mean
from lm_eval.api.samplers import ContextSampler, FirstNSampler
from lm_eval.api.task import Task

from lm_validity.cells.lm_eval_internals import apply_filters, maybe_delimit
from lm_validity.cells.tasks import tasks
from lm_validity.cells.tasks.tasks import FEWSHOT_SEED, AnyTask, Doc, Documents, rows, task_of, tasks_in
from lm_validity.errors import InputError, Refusal
from lm_validity.run.cell import given

log = logging.getLogger(__name__)

# ----------------------------------------------------------------------------------------------------------------------
# The right choice of a multiple-choice document, and labels that lm-eval reads as something else.
#
# lm-eval takes whatever renders to digits for the place of a choice: an answer "3" among the choices 1 to 4 is then the
# fourth, a question "12" is the twelfth, and labels that count from one are all one off. It scores each without a word.


def gold_choice(task: Task, doc: Doc) -> int | None:
    """Index of a multiple-choice document's right choice, by lm-eval's rules; the first of several; None if
    unknown."""
    choices, gold = task.doc_to_choice(doc), _gold(task, doc)
    if isinstance(gold, str):
        gold = choices.index(gold) if gold in choices else None
    return int(gold) if gold is not None and 0 <= int(gold) < len(choices) else None


def taught_answer(task: Task, doc: Doc, start: str | None = None) -> str | None:
    """What training writes behind a generation prompt: the first of several targets, None where there is none.

    start: what stands before an answer that is a turn of its own; else the task's delimiter does, or what its
    `gen_prefix` asks for, which is the prompt's end.
    """
    target, prefix = task.doc_to_target(doc), task.doc_to_prefix(doc)
    if task.config.doc_to_choice is not None and isinstance(target, int):
        target = task.doc_to_choice(doc)[target]
    if target == []:
        return None
    text = str(target[0] if isinstance(target, list) else target)
    if prefix:
        return str(maybe_delimit(prefix, text))[len(prefix) :]
    if start is None:
        return f"{task.config.target_delimiter}{text}"
    return text if text[:1].isspace() else f"{start}{text}"


def _gold(task: Task, doc: Doc) -> str | float | None:
    """What lm-eval takes for the right choice, a place or a text; the first of several."""
    gold = task.doc_to_text(doc) if task.multiple_input else task.doc_to_target(doc)
    return (gold[0] if gold else None) if isinstance(gold, list) else gold


def check_answers(task: AnyTask, documents: Documents) -> None:
    """Raise InputError, with the document's address, where lm-eval would read a choice, a question or an answer as
    something else than it is. Documents without a right answer are counted in the log: lm-eval scores them as wrong.

    Refused: choices that are empty or no text, a question in digits, an answer in digits that is itself a choice at
    another place, labels that count from one, no right answer in any document. A task with a scoring function of its
    own decides itself what is right.
    """
    field = "doc_to_target" if task.OUTPUT_TYPE == "loglikelihood_rolling" else "doc_to_text"
    pairs = zip(documents.addresses, documents.docs, strict=True)
    empty = [address for address, doc in pairs if None in doc.values() and _prints_none(task_of(task, doc), field, doc)]
    hint = f"say None where a column is empty: leave them out, or write {{% if column %}} in {field}"
    _say(documents.task, hint, empty, documents)
    if task.OUTPUT_TYPE == "generate_until":
        _check_targets(task, documents)
    labels: list[_Label] = []
    hint = "check the columns of that row against the task's YAML file: choices are a column or a list of texts."
    for address, doc in zip(documents.addresses, documents.docs, strict=True):
        member, where = task_of(task, doc), f"{documents.task}: document {address}"
        if member.OUTPUT_TYPE != "multiple_choice":
            break
        with tasks.faults_of(where, "rendered", hint):
            choices = member.doc_to_choice(doc)
            if not choices:
                raise InputError(f"{where} has no choices.", "leave such rows out (process_docs), or give it some.")
            if callable(getattr(member.config, "process_results", None)) or not hasattr(member, "multiple_input"):
                continue
            if (fault := _fault(member, doc, choices)) is not None:
                raise InputError(f"{where}: {fault.problem}.", fault.hint)
            labels.append(_Label(address, cast("str | int", _gold(member, doc)), gold_choice(member, doc), choices))
    _check_labels(documents.task, labels)


def _say(name: str, finding: str, addresses: Sequence[str], documents: Sized) -> None:
    """Count the documents of which something is found in the log."""
    if addresses:
        log.warning("%s: %d of %d documents %s (%s, say)", name, len(addresses), len(documents), finding, addresses[0])


def _prints_none(task: Task, field: str, doc: Doc) -> bool:
    """Whether a question (of a corpus: a text) has an empty column in it as `None`."""
    with contextlib.suppress(Exception):  # what cannot be rendered is refused elsewhere
        text, filled = getattr(task, field)(doc), {name: "" if value is None else value for name, value in doc.items()}
        return isinstance(text, str) and "None" in text and text != getattr(task, field)(filled)
    return False


def _fault(task: Task, doc: Doc, choices: Sequence[str]) -> Refusal | None:
    """What lm-eval would read wrongly in a multiple-choice document, and what to do about it."""
    for number, choice in enumerate(choices):
        if not isinstance(choice, str) or not choice:
            problem = "is empty" if choice == "" else f"is {choice!r}, no text"
            return Refusal(f"choice {number} {problem}", "give every choice a text.")
    text, target = task.doc_to_text(doc), task.doc_to_target(doc)
    # else the text is the place of the choice to put into a gap, and the target what follows it
    fills_gap = task.multiple_input and isinstance(target, str) and target not in choices
    if isinstance(text, int) and not (fills_gap and 0 <= text < len(choices)):
        hint = "begin doc_to_text with a word, such as `Question: {{question}}`."
        return Refusal(f"its question is the number {text}, which lm-eval takes for the place of a choice", hint)
    answer, gold, label = _value(task, doc), gold_choice(task, doc), _gold(task, doc)
    if not task.multiple_input and isinstance(answer, str) and answer in choices:
        place = choices.index(answer)
        hint = "let doc_to_target name the column itself, or say `{{choices.index(answer)}}`."
        by_template = task.config.doc_to_target not in task.features
        if by_template and answer.isdigit() and gold not in (None, place):
            taken = f"the place {gold}, which is {choices[gold]!r}"
            return Refusal(f"its answer {answer!r} is choice {place}, and lm-eval takes it for {taken}", hint)
        if isinstance(target, list):
            return Refusal(f"its answer {answer[:60]!r} is choice {place}, and lm-eval takes it for a list", hint)
    if label is None or isinstance(label, float):
        hint = "leave unlabelled rows out, and give whole numbers from 0 or texts: `{{label | int}}`."
        return Refusal(f"its label is {'missing' if label is None else label}", hint)
    return None


def _value(task: Task, doc: Doc) -> object:
    """What a column, or a template of one expression, has as a target before it is text; else an empty text."""
    template = task.config.doc_to_target
    if not isinstance(template, str):
        return ""
    if template in getattr(task, "features", ()):
        return doc[template]
    expression = re.fullmatch(r"\s*\{\{((?:(?!\}\}).)*)\}\}\s*", template, re.DOTALL)
    if expression is not None:
        with contextlib.suppress(jinja2.TemplateError):
            return _compiled(expression[1])(**doc)
    return ""


@cache
def _compiled(expression: str) -> jinja2.environment.TemplateExpression:
    """The same for every document of a task: compiling takes longer than answering."""
    environment: jinja2.Environment = lm_eval.utils.env
    return environment.compile_expression(expression, undefined_to_none=False)


def _check_targets(task: AnyTask, documents: Documents) -> None:
    """Of generation tasks that compare answers with targets themselves."""
    without: list[str] = []
    first: dict[tuple[str, bool], str] = {}  # of each task, the first target that is a text, and a text read as a list
    for address, doc in zip(documents.addresses, documents.docs, strict=True):
        member, where = task_of(task, doc), f"{documents.task}: document {address}"
        if callable(getattr(member.config, "process_results", None)):
            continue
        value = _value(member, doc)
        if value is None:
            raise InputError(f"{where}: it has no target.", "leave such rows out: answers would be compared with None.")
        if isinstance(value, datetime.date):
            problem = f"{where}: its target is a date, which the data library has made of a text ({value})."
            hint = "write the data as CSV or parquet with a column of texts, or let doc_to_target format it (strftime)."
            raise InputError(problem, hint)
        if any(callable(entry["metric"]) for entry in member.config.metric_list or ()):
            continue
        target = member.doc_to_target(doc)
        if isinstance(target, dict):
            problem = f"{where}: its target is an object with {', '.join(map(str, target))}."
            raise InputError(problem, "let doc_to_target name the part with the answers, such as `{{answers.text}}`.")
        without += [address] if target == [] else []
        if not isinstance(value, str) or not value:
            continue
        name, is_list = member.config.task, isinstance(target, list)
        first.setdefault((name, is_list), address)
        if (name, not is_list) in first or (is_list and not all(isinstance(part, str) for part in target)):
            raise InputError(
                f"{documents.task}: document {first[name, True]}: its target is a text in brackets, which lm-eval "
                "takes for a list of right answers.",
                "let doc_to_target name the column itself, without braces; several right answers are a list of texts.",
            )
    _say(documents.task, "have no target and count as wrong", without, documents)


class _Label(NamedTuple):
    """A document's label as lm-eval reads it, the place that is then right, and its choices."""

    address: str
    label: str | int
    gold: int | None
    choices: Sequence[str]


def _check_labels(name: str, labels: Sequence[_Label]) -> None:
    numbers = [label.label for label in labels if isinstance(label.label, int)]
    beyond = next((label.address for label in labels if label.label == len(label.choices)), None)
    if beyond is not None and min(numbers) >= 1:
        problem = f"{name}: the labels count from 1: document {beyond} has as its label the number of its choices."
        raise InputError(problem, "count from 0, or let doc_to_target be `{{label - 1}}` with the column's name.")
    missing = [label for label in labels if label.gold is None]
    if missing and len(missing) == len(labels):
        raise InputError(
            f"{name}: no document has a right answer among its choices (document {missing[0].address}, say: "
            f"{str(missing[0].label)[:60]!r}).",
            "check doc_to_target: a place is `{{label | int}}`, a letter `{{'ABCD'.index(label)}}`, a text is written "
            "as the choice is; the labels of a test split are often not public.",
        )
    _say(name, "have no right answer among their choices: wrong", [label.address for label in missing], labels)
    # of equal choices lm-eval takes the first
    twice = [item.address for item in labels if item.gold and item.choices[item.gold] in item.choices[: item.gold]]
    _say(name, "have their right answer twice, with the label on the second: wrong", twice, labels)


# ----------------------------------------------------------------------------------------------------------------------
# What identifies a document to a reader, and solved examples that are the question itself.


def asked_text(task: AnyTask, doc: Doc) -> str:
    """The question with its choices in sorted order (of a corpus: the text), without what re-typing changes: Unicode
    form, case, white space. The answer is not part of it."""
    task = task_of(task, doc)
    if task.OUTPUT_TYPE == "multiple_choice":
        # where the choices are put into the text, the text is a number and the target what follows the gap
        question = task.doc_to_target(doc) if task.multiple_input else task.doc_to_text(doc)
        parts = [str(question), *sorted(str(choice) for choice in task.doc_to_choice(doc))]
    elif task.OUTPUT_TYPE == "loglikelihood_rolling":
        parts = [str(task.doc_to_target(doc))]
    else:
        parts = [str(task.doc_to_text(doc))]
    normalised = unicodedata.normalize("NFKC", "\n".join(parts)).casefold()
    return re.sub(r"\s+", " ", normalised).strip()


class Examples(ContextSampler):
    """lm-eval's sampler of solved examples, but that none of them asks what the document at hand asks.

    lm-eval looks for the very row only, and only where both are of one split. Another example is drawn in its place,
    by a generator of its own, so that all other draws stay lm-eval's.
    """

    def __init__(self, task: Task):
        self.task, self.inner = task, task.sampler
        self.question: str | None = None

    @property
    def df(self) -> Sequence[Doc]:
        """The documents that examples are drawn from."""
        result: Sequence[Doc] = self.inner.df
        return result

    def set_rnd(self, rnd: int | None) -> "Examples":
        """Begin lm-eval's draws of examples anew, from the generator that it gives."""
        self.inner.set_rnd(rnd)
        return self

    def sample(self, n: int, eval_doc: Doc | None = None, **options: object) -> Sequence[Doc]:
        """`n` examples; raises InputError where there are not enough that ask something else."""
        drawn: Sequence[Doc] = self.inner.sample(n=n, eval_doc=eval_doc, **options)
        repeats = [index for index, doc in enumerate(drawn) if self._asks_the_same(doc)]
        if not repeats:
            return drawn
        pool, chosen = [doc for doc in self.df if doc not in drawn and not self._asks_the_same(doc)], list(drawn)
        if len(pool) < len(repeats):
            problem = f"{self.task.config.task}: too few solved examples ask something else than the question at hand."
            raise InputError(problem, "lower num_fewshot, or give the task another fewshot_split.")
        if not isinstance(self.inner, FirstNSampler):
            pool = random.Random(f"{FEWSHOT_SEED} {self.question}").sample(pool, len(repeats))
        for index, doc in zip(repeats, pool, strict=False):
            chosen[index] = doc
        return chosen

    def _asks_the_same(self, doc: Doc) -> bool:
        try:  # examples that the task's file lists itself may lack columns of its documents
            return self.question is not None and asked_text(self.task, doc) == self.question
        except Exception:
            return False


@contextlib.contextmanager
def other_examples(task: AnyTask) -> Iterator[dict[str, Examples]]:
    """Inside the block no solved example asks what `Examples.question` asks; samplers of tasks that show examples, by
    name. Draws begin anew."""
    drawing = [member for member in tasks_in(task).values() if member.config.num_fewshot and hasattr(member, "sampler")]
    examples = {member.config.task: Examples(member) for member in drawing}
    for member in drawing:
        member.sampler = examples[member.config.task]
    for member in tasks_in(task).values():
        member.set_fewshot_seed(FEWSHOT_SEED)
    try:
        yield examples
    finally:
        for member in drawing:
            member.sampler = examples[member.config.task].inner


# ----------------------------------------------------------------------------------------------------------------------
# What a task's own scoring gives an empty answer, and what it gives the answers that are trained.


MOST_LOOKED_AT = 50  # training answers that need be scored


def metrics_of_an_answer(task: AnyTask) -> dict[str, bool | None]:
    """lm-eval's keys `name,filter` of the metrics that each task gives its first document, and whether higher is
    better (None: nobody says); none where its code takes no empty answer. Raises InputError where lm-eval has found no
    aggregation of one, and keeps None."""
    by_answer = []
    for member in tasks_in(task).values():
        doc = rows(member, "test" if member.has_test_docs() else "validation")[0]
        answers: list[object] = [-1.0 if member.OUTPUT_TYPE == "loglikelihood_rolling" else ""]
        try:
            if member.OUTPUT_TYPE == "multiple_choice":
                answers = [(-1.0, False) for _ in member.doc_to_choice(doc)]
                answers *= 1 + ("acc_mutual_info" in member.higher_is_better())
            names = {name: name.partition(",")[0] for name in _score(member, doc, answers)}
        except Exception:  # whatever a task's own code raises of an empty answer
            return {}
        if lacking := [metric for metric in names.values() if member.aggregation().get(metric, mean) is None]:
            raise InputError(
                f"{member.config.task}: lm-eval has no aggregation for {lacking[0]!r}.", "correct metric_list."
            )
        better = member.higher_is_better()
        by_answer.append({name: better.get(metric) for name, metric in names.items()})
    return {name: better for name, better in by_answer[0].items() if all(name in further for further in by_answer)}


def _score(task: Task, doc: Doc, answers: list[object]) -> dict[str, object]:
    """By `name,filter` what the task gives a document with these answers to its requests."""
    repeats = task.config.repeats or 1
    requests = [
        Instance("generate_until", doc, ("", {}), number, resps=[answer] * repeats)
        for number, answer in enumerate(answers)
    ]
    apply_filters(task, requests)
    return {
        f"{metric},{name}": value
        for name in requests[0].filtered_resps
        for metric, value in task.process_results(doc, [request.filtered_resps[name] for request in requests]).items()
    }


def check_training_answers(task: AnyTask, documents: Documents, metric: str, *, higher_is_better: bool) -> None:
    """Raise InputError where what a generation task would be trained to write scores no better than an empty answer by
    its own scoring: a target that names no answer, or one that a stop string or a filter takes away.

    A blank before the answer is tried with and without, since tokenizers differ in writing it. What the task's
    code cannot score is not looked at, and no correlation of answers that are all the same.
    """
    if task.OUTPUT_TYPE != "generate_until":
        return
    written, answers = dict[str, list[object]](), set[str]()
    for doc in documents.docs:
        member = task_of(task, doc)
        try:
            answer, ends = given(taught_answer(member, doc)), (member.config.generation_kwargs or {}).get("until") or []
            for end in [ends] if isinstance(ends, str) else ends:  # as far as generation would come
                answer = answer.partition(end)[0]
            for kind, text in {"whole": answer, "stripped": answer.strip(), "empty": ""}.items():
                written.setdefault(kind, []).append(_score(member, doc, [text])[metric])
            answers.add(answer)
        except Exception:  # whatever a task's own code raises
            return
    aggregation = next(iter(tasks_in(task).values())).aggregation().get(metric.partition(",")[0], mean)
    if aggregation is not mean and len(answers) < 2:
        return
    try:
        totals = {kind: float(aggregation(values)) for kind, values in written.items()}
    except Exception:  # the task's own code, of few documents
        return
    sign = 1 if higher_is_better else -1
    # where one is NaN nothing is known
    if all(sign * totals[kind] <= sign * totals["empty"] for kind in ("whole", "stripped")):
        raise InputError(
            f"{documents.task}: {metric} of its training answers is {totals['whole']:.3g}, and {totals['empty']:.3g} "
            "of empty ones: it would be trained on something else than it scores.",
            "let doc_to_target give the answer that the task counts as right, without its stop strings; or use the "
            "task in studies that only evaluate.",
        )
