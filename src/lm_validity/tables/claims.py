"""The records that formats yield, one type each: a claim (a score as it stands in a file), how it was made, an item.

A record holds only what a file says, so no key is required: an absent one is filled in later (`DEFAULTS`), a null one
is unknown. The names are those of columns (`SCORES`, `SETTINGS`, `ITEMS`), whose meaning stands in `tables/schema.py`.
"""

from collections.abc import Mapping
from typing import Any, TypedDict, TypeVar

from lm_validity.tables.schema import SCORES

Record = TypeVar("Record", bound=Mapping[str, object])


class Settings(TypedDict, total=False):
    """How scores were made, as far as a file says so: the columns of SETTINGS beside those that name the score."""

    task_version: str | None  # as the program that scored calls the version of the task
    task_hash: str | None  # that program's hash of documents and prompts
    harness: str | None  # the program that scored
    harness_version: str | None  # its version, or its commit
    chat_template: bool | None  # whether the model's chat template was applied
    system_instruction: str | None  # the system message or its hash; `none`: there was none
    limit: float | None  # items scored at most, or below 1 their share
    n_items_scored: int | None  # items behind the score
    n_items_total: int | None  # items of the task's test split
    temperature: float | None  # of the sampling; 0: greedy
    top_p: float | None  # of the sampling
    max_gen_toks: int | None  # longest answer, in tokens
    seed: int | None  # of the sampling, not of a fine-tuning
    backend: str | None  # what ran the model
    dtype: str | None  # precision of the weights
    quantization: str | None  # how the weights were quantized
    adapter: str | None  # the user's own adapter on the model; `none`: there was none


class Evaluation(TypedDict, total=False):
    """What was scored, and how far: the columns that claims and items have in common."""

    model: str  # the name that the file, or its path, has for the model
    checkpoint: str | None  # `final`, or the name of a point of training
    iteration: int | None  # optimizer steps at that checkpoint
    tokens_b: float | None  # training tokens at that checkpoint, in billions
    benchmark: str  # the task, group or corpus that was scored
    protocol: str | None  # `direct` or `train_before_test`
    prompt: str | None  # `plain` or `chat`
    prompt_variant: str | None  # the name of another wording of the prompt
    num_fewshot: int | None  # solved examples before each question
    seed: int | None  # of the fine-tuning
    run: int | None  # of sampled answers, from 0
    split: str | None  # `test` or `validation`


class Claim(Evaluation, total=False):
    """A score as it stands in a file, or what several have in common: columns of SCORES, and of CLAIMS about them."""

    metric: str | None  # in lm-eval's form `name,filter`
    value: float
    stderr: float | None  # of the value, over items
    n_items: int | None  # test documents behind the value
    higher_is_better: bool | None  # as the file says it
    selected: bool | None  # whether reports read the score
    source: str | None  # the format's name
    prepared_on: str | None  # what the model was trained on before the test
    group: str | None  # of tasks, in whose score this task's is
    suite: str | None  # that tells tasks of one name apart
    made: Settings  # how this score was made, where the file says more of it than of the others


class Item(Evaluation, total=False):
    """The answer of a model to a document: columns of ITEMS."""

    doc_id: str  # the document within its benchmark
    subject: str | None  # of the document
    gold: int | None  # index of the right choice
    correct: float | None  # the document's value of the benchmark's metric
    choice_loglikelihoods: list[float]  # of each choice, in nats
    unconditional_loglikelihoods: list[float]  # the same without the question
    choice_tokens: list[int]  # tokens of each choice
    choice_characters: list[int]  # characters of each choice
    choice_bytes: list[int]  # bytes of each choice
    response: str | None  # the answer that the model wrote
    doc_hash: str | None  # of the document
    metric_values: list[tuple[str, float]] | None  # the values of all metrics by their names


# Columns of the models sheet that a file fills, by name
Facts = dict[str, str | float]
# Columns of claims beside those of SCORES and `made`
CLAIMS = tuple(name for name in Claim.__annotations__ if name not in (*SCORES.names, "made"))
# What holds of a score where its file does not say otherwise
DEFAULTS: Claim = {
    "checkpoint": "final", "protocol": "direct", "prompt": "plain", "split": "test", "selected": True,
}  # fmt: skip


def as_record(kind: type[Record], columns: Mapping[str, Any]) -> Record:
    """Columns whose names a header, a pattern or a sheet gave, as a record of one of these types. Their values were
    checked where they were read; a name that the record does not have is an error of the program (KeyError)."""
    if unknown := columns.keys() - kind.__annotations__.keys():
        raise KeyError(f"no column of {kind.__name__}: {', '.join(sorted(unknown))}")
    copy: Any = dict(columns)
    record: Record = copy
    return record


def with_defaults(common: Claim) -> Claim:
    """What the scores of a file have in common, with `DEFAULTS` where the file says nothing or null."""
    return DEFAULTS | as_record(Claim, {name: value for name, value in common.items() if value is not None})
