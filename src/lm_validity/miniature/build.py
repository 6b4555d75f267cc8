"""Writing a miniature world: facts, benchmarks as lm-eval tasks, classification tasks, corpora, tokenizers."""

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lm_validity.config.miniature import MiniatureSettings
from lm_validity.files import write_json, write_text
from lm_validity.miniature.classification import TASKS
from lm_validity.miniature.tasks import BENCHMARKS, DATASET_MODULE, task_yaml
from lm_validity.miniature.tokenizer import build_tokenizer, write_masked_tokenizer, write_tokenizer
from lm_validity.miniature.world import World, make_world, world_to_json


def write_world(settings: MiniatureSettings, output: Path) -> None:
    """Write the world of `settings` into `output`; `world.json` comes last: where it is, the rest is too.

    The same settings give the same bytes, wherever `output` lies.
    """
    output = Path(output)
    (output / "world.json").unlink(missing_ok=True)
    for folder in ("tasks", "data", "classification"):  # lm-eval would also find the tasks of an earlier version
        shutil.rmtree(output / folder, ignore_errors=True)
    world = make_world(settings)
    tokenizer = build_tokenizer(world)
    write_tokenizer(tokenizer, output / "tokenizer", chat=False)
    write_tokenizer(tokenizer, output / "tokenizer_chat", chat=True)
    write_text(output / "tasks" / "dataset.py", DATASET_MODULE)
    for benchmark in BENCHMARKS:
        for split in benchmark.splits:
            write_text(output / "data" / benchmark.name / f"{split}.jsonl", _lines(benchmark.rows(world, split)))
        write_text(output / "tasks" / f"{benchmark.task}.yaml", task_yaml(benchmark))
    for task in TASKS:
        write_text(output / "classification" / f"{task.name}.jsonl", _lines(task.rows(world)))
    write_masked_tokenizer(world, output / "tokenizer_masked")
    write_json(output / "world.json", world_to_json(world))


def describe(world: World) -> str:
    """One line for the terminal."""
    facts = sum(len(known) for known in world.facts.values())
    return f"{len(world.entities)} entities, {facts} facts, {len(BENCHMARKS)} benchmarks ({world.formats})"


def _lines(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
