"""Made-up rows in the form of the data sets behind lm-eval's own tasks; nothing is downloaded."""

import datasets

from lm_validity.cells.tasks.finding import find_task
from lm_validity.cells.tasks.tasks import load_task


def arc(number: int) -> dict:
    choices = {"text": [f"{color} {number}" for color in ("red", "green", "blue")], "label": ["A", "B", "C"]}
    return {
        "id": f"Q_{number}",
        "question": f"Which one is {number}?",
        "choices": choices,
        "answerKey": "ABC"[number % 3],
    }


def commonsense(number: int) -> dict:
    choices = {"text": [f"{color} {number}" for color in "vwxyz"], "label": list("ABCDE")}
    return {
        "id": f"c{number}",
        "question": f" Where is {number}? ",
        "choices": choices,
        "answerKey": "ABCDE"[number % 5],
    }


ROWS = {
    "arc_easy": arc,
    "boolq": lambda n: {"passage": f"Passage {n}.", "question": f"is it {n}", "label": n % 2},
    "winogrande": lambda n: {
        "sentence": f"The {n} cats saw the dog because _ was late.",
        "option1": "cat",
        "option2": "dog",
        "answer": str(1 + n % 2),
    },
    "hellaswag": lambda n: {
        "activity_label": "Roof",
        "ctx_a": f"A man is on roof {n}.",
        "ctx_b": "he",
        "endings": [f"falls {n}.", "is asleep.", "sings [title] well.", "waits."],
        "label": str(n % 4),
    },
    "nq_open": lambda n: {"question": f"who is {n}", "answer": [f"Number {n}", str(n)]},
    "gsm8k": lambda n: {"question": f"What is {n} and {n}?", "answer": f"It is {2 * n}.\n#### {2 * n}"},
    "cola": lambda n: {"sentence": f"The {n} boys sings.", "label": n % 2},
    "commonsense_qa": commonsense,
}
METRIC = {"nq_open": "exact_match,remove_whitespace", "gsm8k": "exact_match,flexible-extract", "cola": "mcc,none"}


def fake_data(monkeypatch):
    """A function that loads a shipped task over 12 made-up rows a split."""

    def fake(path, name=None, **_):
        rows = ROWS[current[0]]
        starts = {"train": 0, "validation": 100, "test": 200}
        return datasets.DatasetDict(
            {split: datasets.Dataset.from_list([rows(first + n) for n in range(12)]) for split, first in starts.items()}
        )

    current: list[str] = [""]
    monkeypatch.setattr("lm_eval.api.task.datasets.load_dataset", fake)

    def load(name: str):
        current[0] = name
        return load_task(find_task(name))

    return load
