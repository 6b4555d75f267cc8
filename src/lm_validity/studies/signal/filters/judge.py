"""Language-model verdicts on single questions: Accept or Reject, several times, cached.

Two uses. Team Noor's filter keeps a question if k of k independent promptings accept it. The competition's
alignment check asks once for each of 50 random questions and reports the share accepted. The judge is any
local causal model (`lm_validity.cells.judging`) or an OpenAI-compatible endpoint.
"""

import hashlib
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from lm_validity.errors import InputError
from lm_validity.studies.signal.filters.base import Candidates
from lm_validity.studies.signal.filters.sampling import RandomSubset
from lm_validity.tables.documents import questions

PROMPT_VERSION = "1"
_INSTRUCTION = """Does answering this question need domain, academic or professional knowledge?

Accept: sciences, mathematics, engineering, medicine, law, business, economics, history, philosophy and other \
fields of study or of a profession.
Reject: general language, common sense, vocabulary, trivia, sentiment, plain reading comprehension.

{item}

Reply with one word, Accept or Reject."""

# A judge turns a prompt and the number of the repetition into a reply; the same pair may give the same reply
Judge = Callable[[str, int], str]


def item_text(context: str, choices: list[str], gold: int) -> str:
    """A question as the judge sees it: the options with letters, and the right one."""
    options = "\n".join(f"{chr(ord('A') + index)}) {choice}" for index, choice in enumerate(choices))
    return f"Question: {context}\n{options}\nAnswer: {chr(ord('A') + gold)}"


def parse_verdict(reply: str) -> bool | None:
    """True for Accept, False for Reject; None for a reply that says neither or both."""
    words = set(re.findall(r"[a-z]+", reply.casefold()))
    accept, reject = "accept" in words, "reject" in words
    return None if accept == reject else accept


@dataclass
class VerdictCache:
    """Verdicts in a file of JSON lines, one a prompting; a question that was judged is never sent again."""

    path: Path
    judge_name: str

    def __post_init__(self) -> None:
        self._known: dict[str, bool | None] = {}
        if self.path.is_file():
            lines = self.path.read_text(encoding="utf-8").splitlines()
            for number, line in enumerate(lines, start=1):
                try:
                    entry = json.loads(line)
                    self._known[entry["key"]] = entry["verdict"]
                except (json.JSONDecodeError, KeyError, TypeError):
                    # A run that was killed can leave a last line half written
                    if number != len(lines):
                        raise InputError(f"{self.path}: line {number} is not a verdict.", "delete the line.") from None

    def verdict(self, judge: Judge, prompt: str, repetition: int) -> bool | None:
        """The cached verdict, or a new one from the judge, written at once."""
        text = json.dumps([self.judge_name, PROMPT_VERSION, prompt, repetition])
        key = hashlib.sha256(text.encode()).hexdigest()
        if key not in self._known:
            verdict = parse_verdict(judge(prompt, repetition))
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a", encoding="utf-8") as handle:
                handle.write(json.dumps({"key": key, "judge": self.judge_name, "verdict": verdict}) + "\n")
            self._known[key] = verdict
        return self._known[key]


def count_accepts(documents: pd.DataFrame, judge: Judge, cache: VerdictCache, promptings: int) -> np.ndarray:
    """How many of `promptings` accept each item (items,). A reply that is no verdict counts as not
    accepted."""
    accepts = np.zeros(len(documents), dtype=int)
    for index, (context, choices, gold) in enumerate(questions(documents)):
        prompt = _INSTRUCTION.format(item=item_text(context, choices, gold))
        accepts[index] = sum(cache.verdict(judge, prompt, repetition) is True for repetition in range(promptings))
    return accepts


@dataclass(frozen=True)
class UnanimousJudge:
    """Keeps items that all of `promptings` independent promptings accept (team Noor: 5 of 5)."""

    judge: Judge
    judge_name: str
    cache: Path
    promptings: int = 5
    name: str = field(default="llm_judge", init=False)
    fitted: bool = field(default=False, init=False)

    def keep(self, candidates: Candidates) -> np.ndarray:
        """True where every prompting accepts the item; a reply that is no verdict counts as not accepted. New verdicts
        are written to the cache."""
        documents = candidates.need_documents(self.name)
        cache = VerdictCache(Path(self.cache), self.judge_name)
        return count_accepts(documents, self.judge, cache, self.promptings) == self.promptings


@dataclass(frozen=True)
class Alignment:
    """The competition's alignment check: the share accepted of a random sample, and its 95% Wilson
    interval."""

    accepted: float
    interval: tuple[float, float]
    items: int


def alignment(documents: pd.DataFrame, judge: Judge, cache: VerdictCache, items: int = 50, seed: int = 0) -> Alignment:
    """Share of `items` randomly drawn documents that the judge accepts in one prompting each.

    The threshold that the competition set on it is not published.
    """
    from scipy.stats import binomtest

    candidates = Candidates(documents["doc_id"].to_numpy(), documents=documents)
    drawn = documents[RandomSubset(min(items, len(documents)), seed).keep(candidates)].reset_index(drop=True)
    accepted = int(count_accepts(drawn, judge, cache, promptings=1).sum())
    interval = binomtest(accepted, len(drawn)).proportion_ci(method="wilson")
    return Alignment(accepted / len(drawn), (float(interval.low), float(interval.high)), len(drawn))


@dataclass(frozen=True)
class EndpointJudge:
    """A judge behind an OpenAI-compatible endpoint (`<url>/chat/completions`).

    The key is read from the environment variable named by `key_variable`. The first prompting is greedy;
    repetitions are sampled at `temperature` with the repetition as seed, else five promptings would be one.
    """

    url: str
    model: str
    key_variable: str | None = None
    temperature: float = 0.7
    timeout_s: float = 60.0

    def __call__(self, prompt: str, repetition: int) -> str:
        """The endpoint's reply to one prompt, 8 tokens at most; "" where it says nothing. Raises InputError where the
        key is not set, and where the endpoint does not answer or not in OpenAI's layout."""
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0.0 if repetition == 0 else self.temperature,
            "seed": repetition,
            "max_tokens": 8,
        }
        headers = {"Content-Type": "application/json"}
        if self.key_variable is not None:
            if self.key_variable not in os.environ:
                raise InputError(f"environment variable {self.key_variable} is not set.", "export the endpoint's key.")
            headers["Authorization"] = f"Bearer {os.environ[self.key_variable]}"
        request = urllib.request.Request(
            f"{self.url.rstrip('/')}/chat/completions", data=json.dumps(body).encode(), headers=headers
        )
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_s) as response:
                reply = json.load(response)
            return reply["choices"][0]["message"]["content"] or ""
        except (urllib.error.URLError, TimeoutError, json.JSONDecodeError) as error:
            raise InputError(f"{self.url}: the judge did not answer ({error}).", "is the endpoint up?") from error
        except (KeyError, IndexError, TypeError) as error:
            raise InputError(
                f"{self.url}: the judge's reply has no choices[0].message.content.",
                "is it OpenAI-compatible?",
            ) from error
