"""The bias study's resident worker: one process computes a batch of trials and appends each as it finishes."""

from pathlib import Path

import pandas as pd

from lm_validity.cells.bias_plan import TrialPlan


def run_trials(plan: TrialPlan, folder: Path, shared: Path | None = None) -> None:
    """Compute the plan's trials that are not in `folder` yet.

    folder: a work directory that survives kills (it is nobody's declared output). Each finished trial is one file,
        renamed into place; a second call goes on after the last of them, whatever ended the first. Trials of another
        recipe in the folder are computed anew.
    shared: a directory of base arms that jobs of other n may read (see `TrialPlan.share_base`); null: none.
    Raises CellError for what is the task's or the model's fault, naming task and row.
    """
    raise NotImplementedError


def read_trials(plan: TrialPlan, folder: Path) -> pd.DataFrame:
    """The finished trials of `plan` in `folder`: columns of tables.schema.TRIALS, sorted by subsample and arm."""
    raise NotImplementedError


def read_probabilities(plan: TrialPlan, folder: Path) -> pd.DataFrame:
    """Class probabilities, one row an observation and arm: columns of `PROBABILITIES`."""
    raise NotImplementedError


def write_tables(plan: TrialPlan, folder: Path, output: Path) -> dict:
    """Write trials.parquet and probabilities.parquet of a complete `folder` into `output` (a cell's folder of the
    store), and return what the cell's record says of them. The same bytes whatever kills and resumes there were."""
    raise NotImplementedError
