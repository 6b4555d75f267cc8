"""lm-eval's own tasks go through by name; their data are faked, nothing is downloaded."""

import datasets
import pytest
from lm_eval.api.metrics import stderr_for_metric
from shipped_data import METRIC, ROWS, fake_data
from toy_world import evaluate, head_of, load_toy

from lm_validity.cells.tasks import evaluation
from lm_validity.cells.tasks.evaluation import prepare_requests, training_examples
from lm_validity.cells.tasks.finding import TaskRecord
from lm_validity.cells.tasks.splits import documents, make_splits, prefetch_benchmark
from lm_validity.cells.tasks.tasks import fetch_documents, load_task
from lm_validity.config.sheets import Benchmark

COMPLETION = {  # of the first training row under the plain prompt
    "arc_easy": " red 0",
    "boolq": " no",
    "winogrande": " was late.",
    "hellaswag": " falls 0.",
    "nq_open": " Number 0",
    "gsm8k": " It is 0.\n#### 0",
    "cola": " no",
    "commonsense_qa": " A",
}


@pytest.fixture
def shipped(monkeypatch):
    """Load a shipped task over 12 made-up rows a split. Nothing here looks at standard errors: few resamples."""
    monkeypatch.setattr(evaluation.harness, "stderr_for_metric", lambda metric, **_: stderr_for_metric(metric, 10))
    return fake_data(monkeypatch)


@pytest.mark.parametrize("name", ROWS)
def test_shipped_task(name, shipped, model_folders):
    lm, task = load_toy(model_folders["llama"], max_length=96, max_generated_tokens=8), shipped(name)
    splits = make_splits(task)
    own = name in ("arc_easy",)  # the others have no test split that lm-eval scores, or no validation split
    assert [len(split.addresses) for split in splits] == ([12, 12, 12] if own else [10, 2, 12])
    assert splits.train.removed_by_text == splits.train.removed_by_id == 0

    docs = documents(task, splits.train)
    for prompt in ("plain", "chat"):
        found = evaluate(lm, task, docs, metric=METRIC.get(name, "acc,none"), prompt=prompt)
        assert len(found.items) == len(docs)
    first = training_examples(lm, task, fetch_documents(task, "train", ["train:0"]))[0]
    assert lm.tokenizer.decode(first.token_ids[first.completion_start : -1]) == COMPLETION[name]


# MMLU in its letter and its cloze format, and the tasks of the three teams of the early-training competition
EARLY_TRAINING = {
    "mmlu": ("acc,none", 57, " A"),
    "mmlu_social_sciences": ("acc,none", 12, " A"),
    "mmlu_continuation": ("acc_norm,none", 57, " red 200"),
    "mmlu_early_training": ("likelihood,none", 1, " red 200"),
    "noor": ("acc,none", 12, " red 200"),
    "sciknoweval_mcqa": ("acc,none", 4, " red 200"),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in ("mmlu", "mmlu_continuation", "noor") else name
        for name in EARLY_TRAINING
    ],
)
def test_tasks_of_the_early_training_competition(name, monkeypatch, model_folders):
    """By name, five examples, in every subject; the metric's mean over items is the score."""

    def question(number: int, subject: str) -> dict:
        choices = [f"{color} {number}" for color in ("red", "green", "blue", "gray")]
        return {
            "question": f" Which {subject} is {number}?",
            "choices": choices,
            "answer": number % 4,
            "subject": subject,
        }

    def fake(path, name=None, **_):
        splits = {"dev": (0, 5), "validation": (100, 3), "test": (200, 4)}
        return datasets.DatasetDict(
            {
                split: datasets.Dataset.from_list([question(start + n, name or "physics") for n in range(count)])
                for split, (start, count) in splits.items()
            }
        )

    monkeypatch.setattr("lm_eval.api.task.datasets.load_dataset", fake)
    metric, subjects, continuation = EARLY_TRAINING[name]
    found = prefetch_benchmark(Benchmark(benchmark=name, metric=metric, num_fewshot=5, mutual_information=True))
    assert found["documents"]["test"] == 4 * subjects and found["fewshot"] is not None
    task = load_task(TaskRecord.from_json(found["record"]), num_fewshot=5)
    split = make_splits(task, test_only=True).test
    lm = load_toy(model_folders["gpt2"], max_length=96)
    docs = documents(task, split)
    prepared = prepare_requests(lm, task, docs)
    context, first = prepared.requests[0][0].args
    assert context.count("Answer:") == 6 and first == continuation
    scored = evaluate(lm, task, head_of(docs, 12), metric=metric)
    assert scored.metrics[metric][0] == pytest.approx(scored.items["correct"].mean())
    assert len(split.addresses) == 4 * subjects == len(set(split.addresses))
