"""Made-up rows in the form of the data sets behind lm-eval's own tasks; nothing is downloaded."""

import datasets

from lm_validity.cells.tasks.finding import find_task
from lm_validity.cells.tasks.tasks import load_task


def choices(number: int, texts, question: str, identifier: str) -> dict:
    letters = [*"ABCDE"[: len(texts)]]
    listed = {"text": [f"{text} {number}" for text in texts], "label": letters}
    answer = letters[number % len(letters)]
    return {"id": f"{identifier}{number}", "question": question, "choices": listed, "answerKey": answer}


def winogrande(number: int) -> dict:
    sentence = f"The {number} cats saw the dog because _ was late."
    return {"sentence": sentence, "option1": "cat", "option2": "dog", "answer": str(1 + number % 2)}


def hellaswag(number: int) -> dict:
    endings = [f"falls {number}.", "is asleep.", "sings [title] well.", "waits."]
    context = {"activity_label": "Roof", "ctx_a": f"A man is on roof {number}.", "ctx_b": "he"}
    return context | {"endings": endings, "label": str(number % 4)}


ROWS = {
    "arc_easy": lambda n: choices(n, ("red", "green", "blue"), f"Which one is {n}?", "Q_"),
    "boolq": lambda n: {"passage": f"Passage {n}.", "question": f"is it {n}", "label": n % 2},
    "winogrande": winogrande,
    "hellaswag": hellaswag,
    "nq_open": lambda n: {"question": f"who is {n}", "answer": [f"Number {n}", str(n)]},
    "gsm8k": lambda n: {"question": f"What is {n} and {n}?", "answer": f"It is {2 * n}.\n#### {2 * n}"},
    "cola": lambda n: {"sentence": f"The {n} boys sings.", "label": n % 2},
    "commonsense_qa": lambda n: choices(n, "vwxyz", f" Where is {n}? ", "c"),
}
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
METRIC = {"nq_open": "exact_match,remove_whitespace", "gsm8k": "exact_match,flexible-extract", "cola": "mcc,none"}


def data_of(rows: dict[str, list[dict]]) -> datasets.DatasetDict:
    """A data set of rows by split."""
    return datasets.DatasetDict({split: datasets.Dataset.from_list(found) for split, found in rows.items()})


def fake_data(monkeypatch):
    """A function that loads a shipped task over 12 made-up rows a split."""

    def fake(path, name=None, **_):
        starts = {"train": 0, "validation": 100, "test": 200}
        return data_of({split: [ROWS[current[0]](first + n) for n in range(12)] for split, first in starts.items()})

    current: list[str] = [""]
    monkeypatch.setattr("lm_eval.api.task.datasets.load_dataset", fake)

    def load(name: str):
        current[0] = name
        return load_task(find_task(name))

    return load
