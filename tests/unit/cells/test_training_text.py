"""Training texts begin with the very tokens that evaluation feeds to the model."""

import pytest
from toy_world import evaluate, head_of, load_toy

from lm_validity.cells.tasks.answers import gold_choice
from lm_validity.cells.tasks.evaluation import training_examples
from lm_validity.cells.tasks.splits import documents, make_splits
from lm_validity.errors import CellError

TASKS = ("toy_choice", "toy_cola", "toy_blank", "toy_generation", "toy_corpus")


def fed_to_model(lm, task, docs, prompt: str, metric: str | None = None, **options) -> dict[int, list[list[int]]]:
    """Document number -> the token rows that evaluation feeds for it: context and continuation, or prompt."""
    fed: dict[int, list[list[int]]] = {number: [] for number in range(len(docs))}
    if task.OUTPUT_TYPE == "generate_until":
        original = lm._model_generate

        def generate(context, max_length, stop, **more):
            mask = more["attention_mask"]
            rows.extend(row[keep.bool()].tolist() for row, keep in zip(context, mask, strict=True))
            return original(context, max_length, stop, **more)

        lm._model_generate = generate
        for number in fed:
            rows = fed[number]
            only = type(docs)(docs.task, docs.split, (docs.addresses[number],), (docs.docs[number],))
            evaluate(lm, task, only, metric=metric or "exact_match,stripped", prompt=prompt, **options)
        return fed
    original = lm._loglikelihood_tokens

    def score(requests, **more):
        rows.extend([*context, *continuation] for _, context, continuation in requests)
        return original(requests, **more)

    lm._loglikelihood_tokens = score
    metric = metric or {"toy_corpus": "bits_per_byte,none", "toy_cola": "mcc,none"}.get(docs.task, "acc,none")
    for number in fed:
        rows = fed[number]
        only = type(docs)(docs.task, docs.split, (docs.addresses[number],), (docs.docs[number],))
        evaluate(lm, task, only, metric=metric, prompt=prompt, **options)
    return fed


@pytest.mark.parametrize(("kind", "prompt"), [("llama", "plain"), ("llama", "chat"), ("gpt2", "plain")])
@pytest.mark.parametrize("name", TASKS)
def test_prefix_is_shared(kind, prompt, name, model_folders, toy_task):
    lm, task = load_toy(model_folders[kind], max_length=90), toy_task(name)
    docs = head_of(documents(task, make_splits(task).train), 8)
    examples = training_examples(lm, task, docs, prompt=prompt)
    fed = fed_to_model(lm, task, docs, prompt)
    bos, eos = lm.tokenizer.bos_token_id, lm.tokenizer.eos_token_id
    for number, example in enumerate(examples):
        rows = fed[number]
        if task.OUTPUT_TYPE == "multiple_choice":
            rows = [rows[gold_choice(task, docs.docs[number])]]
        tokens = list(example.token_ids)
        if task.OUTPUT_TYPE == "generate_until":
            assert tokens[: example.completion_start] == rows[0]
        elif example.truncated:
            assert len(tokens) == 90 and tokens == rows[0][:90]
        else:
            assert tokens == [*rows[0], eos]
        assert tokens.count(bos) == (1 if kind == "llama" or name == "toy_corpus" else 0)
        assert tokens.count(eos) == (0 if example.truncated else 1)


def test_texts(llama, toy_task):
    def text(name: str, prompt: str = "plain") -> tuple[str, str]:
        task = toy_task(name)
        docs = head_of(documents(task, make_splits(task).train), 1)
        (example,) = training_examples(llama, task, docs, prompt=prompt)
        start = example.completion_start
        return tuple(llama.tokenizer.decode(part) for part in (example.token_ids[:start], example.token_ids[start:]))

    # row 0: choices red, green, blue, dark gray; the right one is number 1
    assert text("toy_choice") == ("<s>Question: what is the color of Melria?\nAnswer:", " green</s>")
    # the context's trailing blank belongs to what is scored, as in lm-eval
    assert text("toy_cola") == ("<s>Say yes or no.\n\nMelria is red. Is this so?", "  no</s>")
    assert text("toy_blank") == ("<s>We saw Melria near a green", " house at night.</s>")
    assert text("toy_generation") == ("<s>Answer these questions:\n\nQ: color of Melria?\nA:", " green</s>")
    assert text("toy_generation", "chat") == (
        "<s><system> Answer these questions:\n\n\n<user> Q: color of Melria?\nA:\n<assistant>",
        " green</s>",
    )
    assert text("toy_corpus") == ("<s>", "Melria is green and was seen near the old house. </s>")


def test_long_questions_keep_their_answer(llama, toy_task):
    task = toy_task("toy_choice")
    docs = head_of(documents(task, make_splits(task).train), 3)
    whole, cut = (training_examples(llama, task, docs, max_length=length) for length in (90, 9))
    for long, short in zip(whole, cut, strict=True):
        assert short.token_ids == long.token_ids[-9:]
        assert short.truncated == len(long.token_ids) - 9
        assert short.token_ids[short.completion_start :] == long.token_ids[long.completion_start :]


def test_an_answer_that_is_too_long_loses_its_beginning(llama, toy_task, caplog):
    task = toy_task("toy_choice")
    docs = documents(task, make_splits(task).train)
    longer = [doc | {"choices": [f"{choice} indeed" for choice in doc["choices"]]} for doc in docs.docs[:5]]
    docs = type(docs)(docs.task, docs.split, docs.addresses, (*longer, *docs.docs[5:]))
    lengths = [
        1 + len(llama.tok_encode(f" {doc['choices'][doc['gold']]}", add_special_tokens=False)) for doc in docs.docs
    ]
    shortest, longest = min(lengths), max(lengths)
    assert shortest < longest, "with their end of text"
    caplog.set_level("WARNING")
    examples = training_examples(llama, task, docs, max_length=longest)
    assert not any(example.answer_lost for example in examples) and not caplog.records
    examples = training_examples(llama, task, docs, max_length=shortest)
    assert [example.answer_lost for example in examples] == [length - shortest for length in lengths]
    n_cut = sum(length > shortest for length in lengths)
    assert caplog.records[0].args[1:4] == (n_cut, len(docs), shortest)
    assert f"at least {longest}" in caplog.text
    with pytest.raises(CellError, match=f"{len(docs)} training answers has more than {shortest - 1} tokens") as error:
        training_examples(llama, task, docs, max_length=shortest - 1)
    assert f"finetuning.max_length to at least {longest}" in error.value.hint


def test_row_without_an_answer(llama, toy_task):
    task = toy_task("toy_choice")
    docs = head_of(documents(task, make_splits(task).train), 2)
    unlabelled = type(docs)(docs.task, docs.split, docs.addresses, (docs.docs[0], docs.docs[1] | {"gold": -1}))
    with pytest.raises(CellError, match="document train:1 has no right answer"):
        training_examples(llama, task, unlabelled)
