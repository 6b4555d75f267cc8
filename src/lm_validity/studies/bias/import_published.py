"""Accuracies of the pretrain-on-test study (Dubey, arXiv 2410.00179) -> the trials table.

One row of the file is a trial: the accuracies of three arms on the same test set of n observations. A trial becomes
three rows of counts. Counts are the accuracy times n, rounded: truncation, as in the authors' notebooks, turns
.29 x 100 = 28.999… into 28 and loses one correct answer in 3% of the published values.
"""

import re
from pathlib import Path

import numpy as np
import pandas as pd

from lm_validity.config.rows import read_text_rows
from lm_validity.errors import InputError, did_you_mean
from lm_validity.studies.bias.trials import ARMS, TRIAL
from lm_validity.tables.schema import TRIALS

KEYS = ["experiment", "lm", "m", "n", "task", "subsample"]
LARGEST = 2**31 - 1  # of a whole number; far beyond any study, and a float holds each of them exactly
_FILE = "accuracies.csv"
# The author's folders; where one is called `accuracies` alone, the folder above it tells the experiment
_PLACE = re.compile(
    r"/(?:accuracies_)?(?P<experiment>[^/]+)(?:/accuracies)?/m(?P<m>\d+)/n(?P<n>\d+)/(?P<lm>[^/]+)/(?P<task>[^/]+)/[^/]+$"
)
COUNT_TOLERANCE = 1e-3  # of one answer: room for accuracies printed with six decimals, none for a wrong n


def read_pretrain_on_test(path: str | Path) -> pd.DataFrame:
    """The trials (columns of `TRIALS`) of a file of accuracies, plain or gzipped CSV, or of a folder of the author's.

    Columns read: `experiment, lm, m, n, task, subsample, base, extra, test` and, where present, `majority`. The
    accuracies are fractions; an empty one leaves that arm out. In the author's folders the first five are in a file's
    path, `accuracies_EXPERIMENT/m50/n100/LM/TASK/accuracies.csv`, and the rows are the subsamples 1, 2, ...

    `test_hash` holds the only trace of the test set that such a file keeps, the share of its majority class: trials
    with different values had different test sets (the opposite does not follow). Raises `InputError` naming line,
    task, column and value for anything else, and both lines where an arm of a trial occurs twice.
    """
    path = Path(path)
    files = sorted(path.rglob(_FILE)) if path.is_dir() else [path]
    if not files:
        raise InputError(f"{path}: no {_FILE} in it or below.", "give the author's analysis/accuracies_... folder.")
    trials = pd.concat([_read_file(file) for file in files], keys=files)  # by file and line
    twice = trials.duplicated([*TRIAL, "arm"])
    if twice.any():
        row = trials[twice].iloc[0]
        (file, line), key = row.name, ", ".join(f"{name} {row[name]}" for name in TRIAL if name != "task")
        first_file, first_line = trials.index[(trials[[*TRIAL, "arm"]] == row[[*TRIAL, "arm"]]).all(axis=1)][0]
        raise InputError(
            f"{file}: line {line} (task {row['task']!r}): its trial ({key}) has {row['arm']} on line {first_line} of "
            f"{first_file} already.",
            "number the random draws by subsample, and import one of the lines or folders that are there twice.",
        )
    return trials.astype({"correct": "int64"}).reset_index(drop=True).reindex(columns=TRIALS.names)


def _read_file(path: Path) -> pd.DataFrame:
    """The trials of a file, one row an arm; the index is the line."""
    frame = read_text_rows(path, "expected a header and one row per trial.").frame()
    match_of_path = _PLACE.search(path.resolve().as_posix())
    if match_of_path and not set(KEYS) & set(frame.columns):
        frame = frame.assign(**match_of_path.groupdict(), subsample=[str(row + 1) for row in range(len(frame))])
    if missing := [column for column in [*KEYS, *ARMS] if column not in frame.columns]:
        raise InputError(
            f"{path}: column {missing[0]!r} is missing (found: {', '.join(map(str, frame.columns))}).",
            did_you_mean(missing[0], frame.columns, f"the columns are {', '.join([*KEYS, *ARMS])}, majority."),
        )
    for column in KEYS:
        _refuse(frame, frame[column] == "", path, f"column {column!r} is empty", "fill it in.")
    whole_numbers = {column: _whole_numbers(frame, column, path) for column in ("m", "n", "subsample")}
    trial = pd.DataFrame(
        {
            "experiment": frame["experiment"],
            "language_model": frame["lm"],
            "task": frame["task"],
            **whole_numbers,
            "total": whole_numbers["n"],
            "test_hash": _majority_fingerprint(frame),
        }
    )
    arms = [trial.assign(arm=arm, correct=_counts(frame, arm, whole_numbers["n"], path)) for arm in ARMS]
    trials = pd.concat(arms).sort_index(kind="stable").dropna(subset="correct")
    if trials.empty:
        raise InputError(f"{path}: no accuracy in any row.", f"fill in {', '.join(ARMS)}.")
    return trials


def _refuse(frame: pd.DataFrame, wrong: pd.Series, path: Path, problem: str, hint: str) -> None:
    """InputError for the first row that is `wrong`, at its line, the header's being 1; `problem` is a format of it."""
    if wrong.any():
        row = frame[wrong].iloc[0]
        raise InputError(f"{path}: line {row.name} (task {row['task']!r}): {problem.format(**row)}.", hint)


def _numbers(frame: pd.DataFrame, column: str, path: Path) -> pd.Series:
    text = frame[column]
    numbers = pd.to_numeric(text.where(text != ""), errors="coerce")
    wrong = (numbers.isna() & (text != "")) | np.isinf(numbers)
    hint = "write plain decimal numbers; leave an unknown accuracy empty."
    _refuse(frame, wrong, path, f"{column} is {{{column}!r}}, not a number", hint)
    return numbers


def _whole_numbers(frame: pd.DataFrame, column: str, path: Path) -> pd.Series:
    numbers = _numbers(frame, column, path)
    least = 0 if column == "subsample" else 1
    wrong = (numbers != np.floor(numbers)) | (numbers < least) | (numbers > LARGEST)
    problem = f"{column} is {{{column}!r}}, not a whole number from {least} to {LARGEST}"
    _refuse(frame, wrong, path, problem, "m and n count observations, subsample numbers the random draws.")
    return numbers.astype("int64")


def _counts(frame: pd.DataFrame, arm: str, total: pd.Series, path: Path) -> pd.Series:
    """Correct answers of one arm; NaN where the accuracy is empty."""
    accuracies = _numbers(frame, arm, path)
    wrong = (accuracies < 0) | (accuracies > 1)
    hint = "accuracies are fractions, not percent."
    _refuse(frame, wrong, path, f"{arm} is {{{arm}}}, not between 0 and 1", hint)
    counts = accuracies * total
    wrong = (counts - counts.round()).abs() > COUNT_TOLERANCE
    problem = f"{arm} is {{{arm}}}, not a multiple of 1/{{total}} (it would be {{counts:.6g}} correct answers of n = "
    problem += "{total})"
    hint = "check n, the number of test observations, or write the accuracy unrounded."
    _refuse(frame.assign(total=total, counts=counts), wrong, path, problem, hint)
    return counts.round()


def _majority_fingerprint(frame: pd.DataFrame) -> pd.Series | None:
    if "majority" not in frame.columns:
        return None
    share = pd.to_numeric(frame["majority"], errors="coerce")
    return ("majority " + share.map("{:.6f}".format)).where(share.notna(), None)
