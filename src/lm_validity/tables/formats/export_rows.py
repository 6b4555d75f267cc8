"""What the exporters share: scores divided into files, and the refusal of scores that no file has a place for."""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lm_validity.errors import InputError
from lm_validity.tables.schema import SCORES


class OfFile(NamedTuple):
    """What holds of all scores in a file, beside the model; None where unknown. `part`: see `file_groups`."""

    checkpoint: str | None
    iteration: int | None
    tokens_b: float | None
    protocol: str
    prompt: str | None
    prompt_variant: str | None
    seed: int | None
    split: str | None
    part: int


# What others' files have no place for; it goes under keys of our own, from which the importers read it back
OWN_COLUMNS = OfFile._fields[:-1]


def file_groups(scores: pd.DataFrame, files: str) -> list[tuple[str, OfFile, pd.DataFrame]]:
    """Model, what else holds of all scores, and rows of each file, sorted.

    A file has one number of solved examples of a benchmark: a second one is in the file with `part` 2. Raises
    InputError where a score has no metric or no finite value; `files` names the format in its hint.
    """
    scores = scores.reindex(columns=SCORES.names)
    _check_known(scores, scores["metric"].notna(), "metric", f"{files} name each score by its metric")
    finite = np.isfinite(scores["value"].to_numpy(dtype=float, na_value=np.nan))
    _check_known(scores, finite, "finite value", f"{files} have no place for a missing score")
    frame = scores.assign(**{column: scores[column].astype(object) for column in OWN_COLUMNS})
    counts = frame.assign(count=scores["num_fewshot"].astype("Float64").fillna(-1))
    evaluation = ["model", *OWN_COLUMNS, "benchmark"]
    frame["part"] = counts.groupby(evaluation, dropna=False)["count"].rank("dense").astype(int)
    grouped = frame.groupby(["model", *OfFile._fields], dropna=False, sort=True)
    return [(key[0], _of_file(*map(plain, key[1:])), rows) for key, rows in grouped]


def plain(value: Any) -> Any:
    """Python's own type of a table's value; None for null."""
    if pd.isna(value):
        return None
    return value.item() if hasattr(value, "item") else value


def _of_file(*key: Any) -> OfFile:
    """pandas makes floats of whole numbers among nulls."""
    own = OfFile(*key)
    iteration, seed = (None if value is None else int(value) for value in (own.iteration, own.seed))
    return own._replace(iteration=iteration, seed=seed, part=int(own.part))


def _check_known(scores: pd.DataFrame, known: pd.Series | np.ndarray, what: str, why: str) -> None:
    unknown = scores[~np.asarray(known, dtype=bool)]
    if len(unknown):
        first = unknown.iloc[0]
        raise InputError(
            f"{len(unknown)} of {len(scores)} scores have no {what}, the first of {first['model']} on "
            f"{first['benchmark']}.",
            f"{why}: fill it in (--benchmarks with a sheet gives metrics and directions), or remove these rows.",
        )
