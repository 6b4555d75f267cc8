"""The miniature's benchmarks as lm-eval tasks: a YAML file each, over local JSON lines.

    <world>/tasks/<task>.yaml, <world>/tasks/dataset.py   what lm-eval reads (include_path)
    <world>/data/<folder>/{training,validation,test}.jsonl

The YAML files hold no path. lm-eval would resolve `data_files` against the working directory, and an
absolute path would make two runs in two places differ; so the tasks name a function beside them
(`custom_dataset`) that finds the data relative to itself. The world's folder can be moved, and lm-eval
started from anywhere.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lm_validity.miniature.documents import corpus_rows
from lm_validity.miniature.language import BEGIN, FORMATS, SCIENCE
from lm_validity.miniature.questions import fact_items, grammar_items
from lm_validity.miniature.world import SPLITS, World

TASK_VERSION = 1.0


@dataclass(frozen=True)
class Benchmark:
    """A benchmark: its name, lm-eval's output type, its category, and what makes the rows of a split."""

    name: str
    output_type: str
    category: str
    rows: Callable[[World, str], list[dict[str, Any]]]
    studies: tuple[str, ...] = ("agreement",)
    splits: tuple[str, ...] = SPLITS
    mutual_information: bool = False

    @property
    def task(self) -> str:
        """Its name among lm-eval's tasks; the prefix keeps it apart from lm-eval's own."""
        return f"miniature_{self.name}"

    @property
    def metric(self) -> str:
        """lm-eval's key of the benchmark's metric."""
        return {"multiple_choice": "acc,none", "generate_until": "exact_match,none"}.get(
            self.output_type, "bits_per_byte,none"
        )


def _facts(name: str, category: str, output_type: str = "multiple_choice", **options: Any) -> Benchmark:
    return Benchmark(name, output_type, category, lambda world, split: fact_items(world, name, name, split), **options)


def _without_validation(world: World, split: str) -> list[dict[str, Any]]:
    """Training rows include those that others keep for validation: who fine-tunes must carve some off."""
    rows = fact_items(world, "dialogue", "dialogue", split)
    return rows + fact_items(world, "dialogue", "dialogue", "validation") if split == "training" else rows


BENCHMARKS: tuple[Benchmark, ...] = (
    _facts("cloze", "recall", studies=("agreement", "signal")),
    _facts("ending", "recall"),
    _facts("question", "dialogue"),
    Benchmark("dialogue", "multiple_choice", "dialogue", _without_validation, splits=("training", "test")),
    _facts("choose", "choice"),
    # stays near chance whatever the models know: a floor, kept out of the agreement study
    _facts("letter", "choice", studies=("signal",)),
    _facts("record", "structured"),
    _facts("table", "structured", output_type="generate_until"),
    Benchmark(
        "science",
        "multiple_choice",
        "recall",
        lambda world, split: fact_items(world, "science", "cloze", split, SCIENCE),
        studies=("signal",),
        mutual_information=True,
    ),
    Benchmark("grammar", "multiple_choice", "language", grammar_items, studies=("signal",)),
    Benchmark(
        "encyclopedia",
        "loglikelihood_rolling",
        "corpus",
        lambda world, split: corpus_rows(world, "encyclopedia", split),
    ),
    Benchmark(
        "everything",
        "loglikelihood_rolling",
        "corpus",
        lambda world, split: corpus_rows(world, "everything", split),
    ),
)
assert {*FORMATS} <= {benchmark.name for benchmark in BENCHMARKS}

DATASET_MODULE = '''"""Loads a task's splits from the JSON lines beside this folder, wherever it lies."""

import json
from pathlib import Path

import datasets


def load(folder: str, splits: list[str], **_metadata) -> datasets.DatasetDict:
    """The named splits of ../data/<folder>, without a network or a cache."""
    data = Path(__file__).resolve().parent.parent / "data" / folder
    loaded = {}
    for split in splits:
        with open(data / f"{split}.jsonl", encoding="utf-8") as lines:
            loaded[split] = datasets.Dataset.from_list([json.loads(line) for line in lines])
    return datasets.DatasetDict(loaded)
'''


def task_yaml(benchmark: Benchmark) -> str:
    """The lm-eval task of a benchmark."""
    import yaml

    config = {
        "task": benchmark.task,
        "dataset_kwargs": {"folder": benchmark.name, "splits": list(benchmark.splits)},
        "output_type": benchmark.output_type,
        **{f"{split}_split": split for split in benchmark.splits},
        **_fields(benchmark),
        "metadata": {"version": TASK_VERSION},
    }
    # PyYAML has no node for lm-eval's !function tag, so this line is written by hand
    function = "custom_dataset: !function dataset.load\n"
    return function + yaml.safe_dump(config, sort_keys=False, allow_unicode=True)


def _fields(benchmark: Benchmark) -> dict[str, Any]:
    """What differs by output type: rendering, metrics, generation."""
    if benchmark.output_type == "loglikelihood_rolling":
        metrics = [("bits_per_byte", "bits_per_byte"), ("word_perplexity", "weighted_perplexity")]
        return {
            "doc_to_text": "",
            "doc_to_target": "{{text}}",
            "metric_list": [_metric(*one, higher_is_better=False) for one in metrics],
        }
    if benchmark.output_type == "generate_until":
        return {
            "doc_to_text": "{{context}}",
            "doc_to_target": "{{answer}}",
            "generation_kwargs": {"until": [BEGIN], "max_gen_toks": 1, "do_sample": False},
            "metric_list": [_metric("exact_match", "mean", higher_is_better=True)],
        }
    names = ["acc", "acc_norm", *(["acc_mutual_info"] if benchmark.mutual_information else [])]
    return {
        "doc_to_text": "{{context}}",
        "doc_to_choice": "choices",
        "doc_to_target": "gold",
        "metric_list": [_metric(name, "mean", higher_is_better=True) for name in names],
    }


def _metric(name: str, aggregation: str, *, higher_is_better: bool) -> dict[str, Any]:
    return {"metric": name, "aggregation": aggregation, "higher_is_better": higher_is_better}
