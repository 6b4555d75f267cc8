"""lm-eval tasks over real benchmark files, from clones of the public repositories that README.md lists."""

import csv
import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

CHOICES = {"arc_easy": "ARC-Easy", "arc_challenge": "ARC-Challenge", "openbookqa": "openbookqa"}
NAMES = (*CHOICES, "boolq", "gsm8k")
MULTIPLE_CHOICE = """\
output_type: multiple_choice
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_choice: "{{choices}}"
doc_to_target: gold
metric_list: [{metric: acc}, {metric: acc_norm}]
"""
GENERATION = """\
output_type: generate_until
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["Question:", "</s>"], do_sample: false}
filter_list:
  - name: strict
    filter: [{function: regex, regex_pattern: "#### (-?[0-9.,]+)"}, {function: take_first}]
  - name: flexible
    filter: [{function: regex, group_select: -1, regex_pattern: "(-?[$0-9.,]{2,})|(-?[0-9]+)"}, {function: take_first}]
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
    regexes_to_ignore: [",", '\\$', "(?s).*#### ", '\\.$']
"""
# An answer takes seconds. 100 of them: at most a tenth right is a standard error of at most .03.
FIRST_OF_GSM8K = {"train": 120, "test": 100}
BANKING_CLASSES = ("card_arrival", "exchange_rate", "lost_or_stolen_card", "top_up_failed")


def write_tasks(data: Path, folder: Path) -> Path:
    """The tasks of NAMES, the texts of the bias study and a corpus, made from `data`; the folder is their
    include_path."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        for split in ("train", "test"):
            _write_lines(folder / "data" / f"{name}_{split}.jsonl", _rows(data, name, split))
        files = {split: str(folder / "data" / f"{name}_{split}.jsonl") for split in ("train", "test")}
        common = f"task: real_{name}\ndataset_path: json\ndataset_kwargs: {json.dumps({'data_files': files})}\n"
        body = GENERATION if name == "gsm8k" else MULTIPLE_CHOICE
        text = f"{common}training_split: train\ntest_split: test\n{body}metadata: {{version: 1.0}}\n"
        _write(folder / f"real_{name}.yaml", text)
        if name == "openbookqa":  # another wording: a sentence to be completed
            bare = text.replace("task: real_openbookqa", "task: real_openbookqa_bare")
            _write(
                folder / "real_openbookqa_bare.yaml", bare.replace("Question: {{question}}\\nAnswer:", "{{question}}")
            )
    _write_lines(folder / "data" / "emotion.jsonl", _tweets(data / "tweeteval/datasets/emotion"))
    _write_lines(folder / "data" / "banking.jsonl", _banking(data / "task-specific-datasets/banking_data/train.csv"))
    plays = (data / "char-rnn/data/tinyshakespeare/input.txt").read_text(encoding="utf-8")
    _write_lines(folder / "data" / "shakespeare.jsonl", ({"text": text} for text in _pieces(plays, 20_000)))
    return folder


def _rows(data: Path, name: str, split: str) -> Iterator[dict]:
    if name == "gsm8k":
        with open(data / f"grade-school-math/grade_school_math/data/{split}.jsonl", encoding="utf-8") as lines:
            yield from map(json.loads, islice(lines, FIRST_OF_GSM8K[split]))
        return
    folder = data / "LLM-Adapters/dataset" / CHOICES.get(name, name)
    for row in json.loads((folder / f"{split}.json").read_text(encoding="utf-8")):
        yield _yes_or_no(row) if name == "boolq" else _choices(row)


def _choices(row: dict) -> dict:
    """`…question: Q\\n\\nAnswer1: a Answer2: b …\\n\\nAnswer format…` taken apart."""
    body = row["instruction"].partition("to the question: ")[2].rpartition("\n\nAnswer format")[0]
    question, *choices = re.split(r"\s*Answer\d: ", body)
    return {"question": question.strip(), "choices": choices, "gold": int(row["answer"].removeprefix("answer")) - 1}


def _yes_or_no(row: dict) -> dict:
    """BoolQ's questions; the file does not have its passages."""
    question = row["instruction"].partition("question: ")[2].rpartition("\n\nAnswer format")[0]
    return {"question": question.strip(), "choices": ["no", "yes"], "gold": int(row["answer"] == "true")}


def _tweets(folder: Path) -> Iterator[dict]:
    texts, labels = (
        (folder / f"train_{kind}.txt").read_text(encoding="utf-8").splitlines() for kind in ("text", "labels")
    )
    for text, label in zip(texts, labels, strict=True):
        yield {"text": text.strip(), "label": int(label)}


def _banking(path: Path) -> Iterator[dict]:
    with open(path, encoding="utf-8", newline="") as handle:
        for row in csv.DictReader(handle):
            if row["category"] in BANKING_CLASSES:
                yield {"text": row["text"].strip(), "label": BANKING_CLASSES.index(row["category"])}


def _pieces(text: str, longest: int) -> Iterator[str]:
    """Cut before a speech, which begins after an empty line."""
    while text:
        end = text.rfind("\n\n", 0, longest) + 2 if len(text) > longest else len(text)
        yield text[:end]
        text = text[end:]


def _write_lines(path: Path, rows) -> None:
    _write(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _write(path: Path, text: str) -> None:
    """Snakemake looks at the times of files: one that says the same already stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
