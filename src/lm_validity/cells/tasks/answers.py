"""What a document asks and which answer is right, by lm-eval's rules, and where those rules read it wrongly."""

import contextlib
import datetime
import logging
import random
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import jinja2
import jinja2.meta
import lm_eval.utils
from lm_eval.api.instance import Instance
from lm_eval.api.metrics import mean
from lm_eval.api.samplers import ContextSampler, FirstNSampler
from lm_eval.api.task import Task

from lm_validity.cells.lm_eval_internals import apply_filters, maybe_delimit, metric_functions
from lm_validity.cells.tasks.tasks import FEWSHOT_SEED, AnyTask, Doc, Documents, rows, task_of, tasks_in
from lm_validity.errors import InputError, first_line

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
    _say_printed_none(task, documents)
    if task.OUTPUT_TYPE == "generate_until":
        _check_targets(task, documents)
    if task.OUTPUT_TYPE != "multiple_choice":
        return
    golds: list[_Label] = []
    for address, doc in zip(documents.addresses, documents.docs, strict=True):
        task_of_document = task_of(task, doc)
        where = f"{documents.task}: document {address}"
        try:
            if not task_of_document.doc_to_choice(doc):
                raise InputError(f"{where} has no choices.", "leave such rows out (process_docs), or give it some.")
            if callable(getattr(task_of_document.config, "process_results", None)) or not hasattr(
                task_of_document, "multiple_input"
            ):
                continue
            choices = _checked_choices(task_of_document, doc, where)
            _check_question(task_of_document, doc, choices, where)
            gold = gold_choice(task_of_document, doc)
            _check_digits(task_of_document, doc, choices, gold, where)
            _check_list(task_of_document, doc, choices, where)
            label = _gold(task_of_document, doc)
            if label is None or isinstance(label, float):
                raise InputError(
                    f"{where}: its label is {'missing' if label is None else label}.",
                    "leave unlabelled rows out, and give whole numbers from 0 or texts: `{{label | int}}`.",
                )
            golds.append(_Label(address, label, gold, choices))
        except InputError:
            raise
        except Exception as error:  # whatever a task's code or template raises
            raise InputError(
                f"{where} cannot be rendered ({type(error).__name__}: {first_line(error)}).",
                "check the columns of that row against the task's YAML file.",
            ) from error
    _check_labels(documents.task, golds)


def _checked_choices(task: Task, doc: Doc, where: str) -> list[str]:
    try:
        choices = task.doc_to_choice(doc)
    except (ValueError, SyntaxError) as error:  # a list in a template goes through its text
        columns = [f"{name} ({type(value).__name__})" for name, value in doc.items() if not _is_plain(value)]
        raise InputError(
            f"{where}: its choices cannot be read from {task.config.doc_to_choice!r}.",
            f"write dates and other values as text: {', '.join(columns)}."
            if columns
            else "doc_to_choice has to be a column, or to render to a list of texts.",
        ) from error
    if not isinstance(choices, list | tuple):
        raise InputError(
            f"{where} cannot be rendered: its choices are {choices!r}, not a list.",
            "doc_to_choice has to give a list of texts.",
        )
    for number, choice in enumerate(choices):
        if not isinstance(choice, str) or not choice:
            problem = "is empty" if choice == "" else f"is {choice!r}, no text"
            raise InputError(f"{where}: choice {number} {problem}.", "give every choice a text.")
    return [*choices]


def _is_plain(value: object) -> bool:
    """Whether a value survives being written as text and read again."""
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | int | float)


def _check_question(task: Task, doc: Doc, choices: Sequence[str], where: str) -> None:
    text = task.doc_to_text(doc)
    if not isinstance(text, int):
        return
    # else the text is the place of the choice to put into a gap, and the target what follows it
    target = task.doc_to_target(doc)
    if not task.multiple_input or not isinstance(target, str) or target in choices or not 0 <= text < len(choices):
        raise InputError(
            f"{where}: its question is the number {text}, which lm-eval takes for the place of a choice.",
            "begin doc_to_text with a word, such as `Question: {{question}}`.",
        )


def _check_digits(task: Task, doc: Doc, choices: Sequence[str], gold: int | None, where: str) -> None:
    text = _rendered_text(task, doc)
    if gold is None or text is None or text not in choices or choices.index(text) == gold:
        return
    raise InputError(
        f"{where}: its answer {text!r} is choice {choices.index(text)}, and lm-eval takes it for the place {gold}, "
        f"which is {choices[gold]!r}.",
        "let doc_to_target name the column itself, or say `{{choices.index(answer)}}`.",
    )


def _rendered_text(task: Task, doc: Doc) -> str | None:
    """An answer in digits that its template takes from a text: of `{{answer}}` with the answer "3", not of one whose
    value is a number."""
    template = task.config.doc_to_target
    if task.multiple_input or (isinstance(template, str) and template in task.features):
        return None
    value = _value(task, doc)
    return value if isinstance(value, str) and value.isdigit() else None


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


def _check_list(task: Task, doc: Doc, choices: Sequence[str], where: str) -> None:
    text = _value(task, doc)
    if isinstance(text, str) and text in choices and isinstance(_target(task, doc), list):
        raise InputError(
            f"{where}: its answer {text[:60]!r} is choice {choices.index(text)}, and lm-eval takes it for a list of "
            "answers.",
            "let doc_to_target name the column itself, or say `{{choices.index(answer)}}`.",
        )


def _target(task: Task, doc: Doc) -> object:
    return None if task.multiple_input else task.doc_to_target(doc)


def _check_targets(task: AnyTask, documents: Documents) -> None:
    """Of generation tasks that compare answers with targets themselves."""
    without: list[str] = []
    lists: dict[str, str] = {}  # of each task the first document whose target is a text that lm-eval reads as a list
    texts: dict[str, str] = {}  # and the first whose target is another text
    for address, doc in zip(documents.addresses, documents.docs, strict=True):
        member = task_of(task, doc)
        if callable(getattr(member.config, "process_results", None)):
            continue
        where = f"{documents.task}: document {address}"
        value = _value(member, doc)
        _check_target(value, where)
        if any(callable(entry["metric"]) for entry in member.config.metric_list or ()):
            continue
        target = member.doc_to_target(doc)
        if isinstance(target, dict):
            raise InputError(
                f"{where}: its target is an object with {', '.join(map(str, target))}, with which no answer is equal.",
                "let doc_to_target name the part that holds the answers, such as `{{answers.text}}`.",
            )
        if target == []:
            without.append(address)
        if not isinstance(value, str) or not value:
            continue
        (lists if isinstance(target, list) else texts).setdefault(member.config.task, address)
        if isinstance(target, list) and not all(isinstance(part, str) for part in target):
            raise _taken_for_a_list(where, value)
    for name in lists.keys() & texts.keys():
        raise _taken_for_a_list(f"{documents.task}: document {lists[name]}", "[...]")
    if without:
        log.warning(
            "%s: %d of %d documents have no target and count as wrong (%s, say)",
            *(documents.task, len(without), len(documents), without[0]),
        )


def _taken_for_a_list(where: str, text: str) -> InputError:
    return InputError(
        f"{where}: its target is the text {text[:60]!r}, which lm-eval takes for a list of right answers.",
        "let doc_to_target name the column itself, without braces; several right answers are a list of texts.",
    )


def _check_target(value: object, where: str) -> None:
    if value is None:
        raise InputError(f"{where}: it has no target.", "leave such rows out: answers would be compared with None.")
    if isinstance(value, datetime.date):
        raise InputError(
            f"{where}: its target is a date, which the data library has made of a text and writes another way "
            f"({value}).",
            "write the data as CSV or parquet with a column of texts, or let doc_to_target format it (strftime).",
        )


def _say_printed_none(task: AnyTask, documents: Documents) -> None:
    """Count the questions (of a corpus: the texts) in which a template has printed an empty column as `None`."""
    field = "doc_to_target" if task.OUTPUT_TYPE == "loglikelihood_rolling" else "doc_to_text"
    printed_none: list[str] = []
    for address, doc in zip(documents.addresses, documents.docs, strict=True):
        member = task_of(task, doc)
        template = getattr(member.config, field, None)
        if not isinstance(template, str) or "{{" not in template or None not in doc.values():
            continue
        empty = [name for name in _columns_of(template) if name in doc and doc[name] is None]
        with contextlib.suppress(Exception):  # what cannot be rendered is refused elsewhere
            if empty and "None" in str(getattr(member, field)(doc)):
                printed_none.append(f"{address}, column {empty[0]}")
    if printed_none:
        log.warning(
            "%s: %d of %d texts say None where a column is empty (%s, say); leave these rows out, or write "
            "`{%% if column %%}` in %s",
            *(documents.task, len(printed_none), len(documents), printed_none[0], field),
        )


@cache
def _columns_of(template: str) -> frozenset[str]:
    environment: jinja2.Environment = lm_eval.utils.env
    return frozenset(jinja2.meta.find_undeclared_variables(environment.parse(template)))


class _Label(NamedTuple):
    """A document's label as lm-eval reads it, the place that is then right, and its choices."""

    address: str
    label: str | int
    gold: int | None
    choices: Sequence[str]


def _check_labels(name: str, golds: Sequence[_Label]) -> None:
    numbers = [gold.label for gold in golds if isinstance(gold.label, int)]
    beyond = next((gold.address for gold in golds if gold.label == len(gold.choices)), None)
    if beyond is not None and min(numbers) >= 1:
        raise InputError(
            f"{name}: the labels count from 1: document {beyond} has as its label the number of its choices.",
            "count from 0, or let doc_to_target be `{{label - 1}}` with the column's name.",
        )
    missing = [gold for gold in golds if gold.gold is None]
    if missing and len(missing) == len(golds):
        label = missing[0].label
        hint = "check doc_to_target; the labels of a test split are often not public."
        if isinstance(label, str) and (label.strip().isdigit() or label in ("True", "False")):
            hint = "a template gives a text: for a place let doc_to_target be `{{label | int}}` with the column's name."
        elif isinstance(label, str) and (choices := [text for text in missing[0].choices if _alike(text, label)]):
            hint = f"write it as the choice is, {choices[0]!r}."
        elif isinstance(label, str) and re.fullmatch(r"\(?[A-Za-z]\)?\.?", label.strip()):
            hint = "for a letter let doc_to_target be `{{'ABCD'.index(label)}}` with the column's name."
        raise InputError(
            f"{name}: no document has a right answer among its choices (document {missing[0].address}, say: "
            f"{str(label)[:60]!r}).",
            hint,
        )
    if missing:
        log.warning(
            "%s: %d of %d documents have no right answer among their choices and count as wrong (%s, say)",
            *(name, len(missing), len(golds), missing[0].address),
        )
    if second := [gold for gold in golds if gold.gold is not None and _is_behind_its_like(gold.choices, gold.gold)]:
        log.warning(
            "%s: %d of %d documents have their right answer twice among their choices, and count as wrong: of equal "
            "choices lm-eval takes the first, and their label is the other one (%s, say)",
            *(name, len(second), len(golds), second[0].address),
        )


def _alike(one: str, other: str) -> bool:
    return one.strip().casefold() == other.strip().casefold()


def _is_behind_its_like(choices: Sequence[str], gold: int) -> bool:
    return choices[gold] in choices[:gold]


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
    by a generator of its own, so that all other draws stay lm-eval's. `replaced` counts them.
    """

    def __init__(self, task: Task):
        self.task, self.inner = task, task.sampler
        self.question: str | None = None
        self.replaced = 0

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
        places = [index for index, doc in enumerate(drawn) if self._asks_the_same(doc)]
        if not places:
            return drawn
        chosen = list(drawn)
        for index, other_index in zip(places, self._others(chosen, len(places)), strict=True):
            chosen[index] = other_index
        self.replaced += len(places)
        return chosen

    def _asks_the_same(self, doc: Doc) -> bool:
        if self.question is None:
            return False
        try:
            return asked_text(self.task, doc) == self.question
        except Exception:  # examples that the task's file lists itself may lack columns of its documents
            return False

    def _others(self, drawn: Sequence[Doc], count: int) -> Sequence[Doc]:
        pool = [doc for doc in self.df if doc not in drawn and not self._asks_the_same(doc)]
        if len(pool) < count:
            raise InputError(
                f"{self.task.config.task}: too few solved examples ask something else than the question at hand.",
                "lower num_fewshot, or give the task another fewshot_split.",
            )
        if isinstance(self.inner, FirstNSampler):
            return pool[:count]
        return random.Random(f"{FEWSHOT_SEED} {self.question}").sample(pool, count)


@contextlib.contextmanager
def other_examples(task: AnyTask) -> Iterator[dict[str, Examples]]:
    """Inside the block no solved example asks what `Examples.question` asks; samplers of tasks that show examples, by
    name. Draws begin anew."""
    sampled = {
        name: task_sampled
        for name, task_sampled in tasks_in(task).items()
        if task_sampled.config.num_fewshot and hasattr(task_sampled, "sampler")
    }
    examples = {name: Examples(task_sampled) for name, task_sampled in sampled.items()}
    for name, task_sampled in sampled.items():
        task_sampled.sampler = examples[name]
    for task_sampled in tasks_in(task).values():
        task_sampled.set_fewshot_seed(FEWSHOT_SEED)
    try:
        yield examples
    finally:
        for name, task_sampled in sampled.items():
            task_sampled.sampler = examples[name].inner


def replaced_examples(task: AnyTask, documents: Documents) -> int:
    """How many solved examples before these documents are drawn again because they ask the same."""
    with other_examples(task) as examples:
        for doc in documents.docs if examples else ():
            task_of_document = task_of(task, doc)
            sampler = examples.get(task_of_document.config.task)
            if sampler is not None:
                sampler.question = asked_text(task_of_document, doc)
                same_split = task_of_document.fewshot_cfg.split == task_of_document.config.test_split
                sampler.sample(n=task_of_document.config.num_fewshot, eval_doc=doc if same_split else None)
        return sum(sampler.replaced for sampler in examples.values())


# ----------------------------------------------------------------------------------------------------------------------
# What a task's own scoring gives an empty answer, and what it gives the answers that are trained.


MOST_LOOKED_AT = 50  # training answers that need be scored


def gives_other_metrics(task: AnyTask) -> bool:
    """Whether a metric of the task may stand for several of other names: a function of its own, or one of the hub."""
    entries = [
        entry for member in tasks_in(task).values() for entry in getattr(member.config, "metric_list", None) or ()
    ]
    return any(callable(entry["metric"]) or entry.get("hf_evaluate") for entry in entries)


def metrics_of_an_answer(task: AnyTask) -> dict[str, bool | None]:
    """lm-eval's keys `name,filter` of the metrics that each task gives its first document, and whether higher is
    better (None: nobody says); none where its code takes no empty answer."""
    by_answer = []
    for member in tasks_in(task).values():
        doc = rows(member, "test" if member.has_test_docs() else "validation")[0]
        try:
            names = _names(member, doc)
        except Exception:  # whatever a task's own code raises of an empty answer
            return {}
        better = member.higher_is_better()
        by_answer.append({name: better.get(name.partition(",")[0]) for name in names})
    return {name: better for name, better in by_answer[0].items() if all(name in further for further in by_answer)}


def check_metrics(task: AnyTask) -> None:
    """Raise InputError where lm-eval has found no metric or no aggregation, and keeps None: of answers that its own
    metrics score."""
    for name, member in tasks_in(task).items():
        if member.OUTPUT_TYPE != "generate_until" or callable(getattr(member.config, "process_results", None)):
            continue
        for word, functions in (("metric", metric_functions(member)), ("aggregation", member.aggregation())):
            for metric, function in functions.items():
                if function is None:
                    raise InputError(
                        f"{name}: lm-eval has no {word} for {metric!r}.",
                        "correct metric_list; one of the hub's metrics (hf_evaluate) has to be reached.",
                    )


def _names(task: Task, doc: Doc) -> list[str]:
    answers: list[object] = [""]
    if task.OUTPUT_TYPE == "multiple_choice":
        answers = [(-1.0, False) for _ in task.doc_to_choice(doc)]
        answers *= 1 + ("acc_mutual_info" in task.higher_is_better())
    elif task.OUTPUT_TYPE == "loglikelihood_rolling":
        answers = [-1.0]
    return [*_score(task, doc, answers)]


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
            answer = _as_generated(member, taught_answer(member, doc))
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
    _judge(documents, metric, totals, sign=1 if higher_is_better else -1)


def _as_generated(task: Task, text: str | None) -> str:
    """An answer as far as generation would come."""
    if text is None:
        raise ValueError("no target")
    ends = (task.config.generation_kwargs or {}).get("until") or []
    for end in [ends] if isinstance(ends, str) else ends:
        text = text.partition(end)[0]
    return text


def _judge(documents: Documents, metric: str, totals: Mapping[str, float], *, sign: int) -> None:
    finding = f"{documents.task}: {metric} of its training answers is {totals['whole']:.3g}"
    if not sign * totals["whole"] <= sign * totals["empty"]:  # where one is NaN nothing is known
        return
    if sign * totals["stripped"] > sign * totals["empty"]:
        log.info(
            "%s with the blank before them and %.3g without it; where a tokenizer keeps the blank, add the filter "
            "remove_whitespace",
            *(finding, totals["stripped"]),
        )
        return
    raise InputError(
        f"{finding}, and {totals['empty']:.3g} of empty ones: it would be trained on something else than it scores.",
        "let doc_to_target give the answer that the task counts as right, without its stop strings; or use the task in "
        "studies that only evaluate.",
    )
