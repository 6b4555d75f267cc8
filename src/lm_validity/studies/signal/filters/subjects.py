"""Filters by what the benchmark's authors say of an item: its subject or category."""

from dataclasses import dataclass, field

import numpy as np

from lm_validity.errors import InputError, did_you_mean
from lm_validity.studies.signal.filters.base import Candidates


@dataclass(frozen=True)
class Subjects:
    """Keeps items of the listed subjects, or with `complement` all others (STEM against non-STEM).

    `column` names another column of the documents table, e.g. an author-given category.
    """

    values: tuple[str, ...]
    complement: bool = False
    column: str = "subject"
    name: str = field(default="subjects", init=False)
    fitted: bool = field(default=False, init=False)

    def keep(self, candidates: Candidates) -> np.ndarray:
        """True where the label is one of `values`, or with `complement` where it is none of them. Subjects are read
        from the answers where there are any, other columns from the documents; an empty value is "".

        Raises InputError for a column that the documents lack, and for a value that no item has.
        """
        if self.column == "subject" and candidates.answers is not None:
            labels = candidates.answers.subjects
        else:
            documents = candidates.need_documents(self.name)
            if self.column not in documents.columns:
                raise InputError(
                    f"filter {self.name!r}: the documents have no column {self.column!r}.",
                    f"columns: {', '.join(documents.columns)}.",
                )
            labels = documents[self.column].fillna("").astype(str).to_numpy()
        known = sorted(set(labels))
        for value in self.values:
            if value not in known:
                hint = did_you_mean(value, known, f"one of {', '.join(known[:20])}.")
                raise InputError(f"filter {self.name!r}: no item has {self.column} {value!r}.", hint)
        return np.isin(labels, self.values) != self.complement
