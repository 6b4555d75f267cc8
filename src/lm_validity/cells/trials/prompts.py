"""The zero-shot prompt of arXiv 2410.00179: an instruction with the class names, the text, a cue for the answer.

Note the blank before the cue, which the paper's figure hides.
"""

from collections.abc import Sequence
from dataclasses import dataclass

QUERY = "### Text:"
CUE = " ### Answer:"


@dataclass(frozen=True)
class PromptFormat:
    """A task's prompts. characters: how much of a text is quoted."""

    class_names: tuple[str, ...]
    description: str
    characters: int

    @property
    def instruction(self) -> str:
        """What all prompts of the task begin with."""
        names = "\n".join(self.class_names)
        return f"Your task is to classify a given text as one of these categories:\n{names}\n\n{self.description}\n\n"

    def query(self, text: str) -> str:
        """One text as a prompt quotes it, cut to `characters`."""
        return f"{QUERY} {text[: self.characters]}\n"

    def prompt(self, text: str) -> str:
        """What is scored, and what is pretrained on: it ends before the answer."""
        return f"{self.instruction}{self.query(text)}{CUE}"

    def answer(self, name: str) -> str:
        """What follows a prompt whose class is `name`."""
        return f" {name}"

    def packed(self, texts: Sequence[str]) -> str:
        """Several texts under one instruction, without a cue."""
        return self.instruction + "\n\n".join(self.query(text) for text in texts)
