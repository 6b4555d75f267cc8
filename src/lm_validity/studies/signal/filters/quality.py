"""Quality gates of GneissWeb (arXiv 2502.14907) as team Shaikespear used them on question and gold answer.

Learned annotations (DCLM and Cosmo quality, topics) come as columns of the documents table from the user's
own annotators; readability and tokens per character are computed here.
"""

import re
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from lm_validity.errors import InputError
from lm_validity.studies.signal.filters.base import Candidates
from lm_validity.tables.documents import questions

_WORD = re.compile(r"\w+(?:['’-]\w+)*")
_SENTENCE_END = re.compile(r"[.!?]+(?=\s|$)")


def readability(text: str) -> float:
    """McAlpine's EFLAW score: (words + words of at most three letters) / sentences; lower is easier.

    The readability annotator of GneissWeb. A text without a closing mark is one sentence; without words it is
    0.
    """
    words = _WORD.findall(text)
    sentences = [part for part in _SENTENCE_END.split(text) if _WORD.search(part)]
    if not words:
        return 0.0
    return (len(words) + sum(len(word) <= 3 for word in words)) / max(1, len(sentences))


def document_text(documents: pd.DataFrame) -> list[str]:
    """Question and gold answer of each item as one text."""
    return [f"{context} {choices[gold]}" for context, choices, gold in questions(documents)]


def tokens_per_character(documents: pd.DataFrame, tokenizer: str | None = None) -> np.ndarray:
    """Tokens over characters (items,) of each document, from the column `tokens` or a tokenizer.json file."""
    texts = document_text(documents)
    if tokenizer is not None:
        from tokenizers import Tokenizer

        try:
            encoder = Tokenizer.from_file(tokenizer)
        except Exception as error:
            raise InputError(f"{tokenizer}: not a tokenizer file ({error}).", "give a tokenizer.json.") from error
        counts = [len(encoding.ids) for encoding in encoder.encode_batch(texts, add_special_tokens=False)]
    elif "tokens" in documents.columns:
        counts = documents["tokens"].to_numpy(dtype=float)
    else:
        raise InputError(
            "the filter 'quality_gates' needs token counts.",
            "give a column 'tokens' or tokenizer: a tokenizer.json.",
        )
    return np.asarray(counts, dtype=float) / np.maximum(1, [len(text) for text in texts])


@dataclass(frozen=True)
class QualityGates:
    """Keeps a document iff each gate lets it through; a gate without a threshold is open.

        quality:      dclm > t or cosmo > t
        categories:   each of tech, med, edu, sci above its threshold
        readability:  readability < t, or tokens per character within a range

    Defaults are the printed strict setting (tau 3.0); the recipe's own defaults (tau 2.0) are not printed.
    """

    dclm: float | None = 0.9
    cosmo: float | None = 0.9
    tech: float | None = 0.5
    med: float | None = 0.5
    edu: float | None = 0.5
    sci: float | None = 0.95
    readability: float | None = 30.0
    tokens_per_character: tuple[float, float] | None = (0.10, 0.50)
    tokenizer: str | None = None
    name: str = field(default="quality_gates", init=False)
    fitted: bool = field(default=False, init=False)

    def keep(self, candidates: Candidates) -> np.ndarray:
        """True where the document passes every gate; either of the two conditions is enough for quality and for
        readability.

        Raises InputError for a column that a gate needs and the documents lack, and for a quality or category value
        that is no number.
        """
        documents = candidates.need_documents(self.name)
        kept = np.ones(len(documents), dtype=bool)
        quality = [self._above(documents, name) for name in ("dclm", "cosmo") if getattr(self, name) is not None]
        if quality:
            kept &= np.any(quality, axis=0)
        for category in ("tech", "med", "edu", "sci"):
            if getattr(self, category) is not None:
                kept &= self._above(documents, category)
        return kept & self._readable(documents)

    def _above(self, documents: pd.DataFrame, column: str) -> np.ndarray:
        if column not in documents.columns:
            raise InputError(
                f"filter {self.name!r}: the documents have no column {column!r}.",
                f"annotate the documents, or set {column}: null.",
            )
        values = pd.to_numeric(documents[column], errors="coerce").to_numpy(dtype=float)
        if np.isnan(values).any():
            doc_id = documents["doc_id"].iloc[int(np.argmax(np.isnan(values)))]
            raise InputError(
                f"filter {self.name!r}: document {doc_id!r}, column {column!r}: not a number.", "annotate it."
            )
        return values > getattr(self, column)

    def _readable(self, documents: pd.DataFrame) -> np.ndarray:
        gates = []
        if self.readability is not None:
            if "readability" in documents.columns:
                values = documents["readability"].to_numpy(dtype=float)
            else:
                values = np.array([readability(text) for text in document_text(documents)])
            gates.append(values < self.readability)
        if self.tokens_per_character is not None:
            low, high = self.tokens_per_character
            ratio = tokens_per_character(documents, self.tokenizer)
            gates.append((ratio >= low) & (ratio <= high))
        return np.any(gates, axis=0) if gates else np.ones(len(documents), dtype=bool)
