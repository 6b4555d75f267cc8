"""What the exporters share: scores divided into files, and the refusal of scores that no file has a place for."""

from typing import Any

import numpy as np
import pandas as pd

from lm_validity.errors import InputError
from lm_validity.tables.schema import SCORES

# What others' files have no place for; it goes under keys of our own, from which the importers read it back
OWN_COLUMNS = ("checkpoint", "iteration", "tokens_b", "protocol", "prompt", "prompt_variant", "seed", "split")
_FILE_COLUMNS = (*OWN_COLUMNS, "part")
_WHOLE = ("iteration", "seed", "part")


def file_groups(scores: pd.DataFrame, files: str) -> list[tuple[str, dict[str, Any], pd.DataFrame]]:
    """Model, values of `OWN_COLUMNS` and `part`, and rows of each file, sorted.

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
    grouped = frame.groupby(["model", *_FILE_COLUMNS], dropna=False, sort=True)
    return [(key[0], _own(key[1:]), rows) for key, rows in grouped]


def plain(value: Any) -> Any:
    """Python's own type of a table's value; None for null."""
    if pd.isna(value):
        return None
    return value.item() if hasattr(value, "item") else value


def _own(key: tuple[object, ...]) -> dict[str, Any]:
    """What holds of a whole file. pandas makes floats of whole numbers among nulls."""
    own = {name: plain(value) for name, value in zip(_FILE_COLUMNS, key, strict=True)}
    return own | {name: int(own[name]) for name in _WHOLE if own[name] is not None}


def _check_known(scores: pd.DataFrame, known: pd.Series | np.ndarray, what: str, why: str) -> None:
    unknown = scores[~np.asarray(known, dtype=bool)]
    if len(unknown):
        first = unknown.iloc[0]
        raise InputError(
            f"{len(unknown)} of {len(scores)} scores have no {what}, the first of {first['model']} on "
            f"{first['benchmark']}.",
            f"{why}: fill it in (--benchmarks with a sheet gives metrics and directions), or remove these rows.",
        )
