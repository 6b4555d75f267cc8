"""The trials table, one row per trial: checked, with the three arms side by side.

A trial is (experiment, language model, task, m, n, subsample); its arms share the training and the test set. Arms and
language models are matched by these keys, never by the position of a row.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from lm_validity.errors import InputError
from lm_validity.studies.bias.statistics.model import EFFECTS, PairedCounts
from lm_validity.tables.schema import TRIALS, read_table

ARMS = ("base", "extra", "test")
CELL = ["experiment", "language_model", "m", "n"]
SETTING = ["experiment", "m", "n"]
TRIAL = ["experiment", "language_model", "task", "m", "n", "subsample"]


def read_trials(path: str | Path) -> pd.DataFrame:
    """Read `trials.parquet` and put the arms side by side (see `pair_arms`)."""
    return pair_arms(read_table(path, TRIALS), str(path))


def pair_arms(trials: pd.DataFrame, source: str = "trials") -> pd.DataFrame:
    """One row per trial: its keys, `total`, `test_hash`, the right answers `base`, `extra`, `test` (NaN: no such arm),
    and the pretraining losses `loss_extra`, `loss_test` (NaN: unknown).

    Rows are sorted by the keys. `trials` has the columns of `TRIALS`. Raises `InputError` for empty keys, an unknown
    arm, an arm twice, impossible counts, and arms of one trial that were evaluated on different test sets.
    """
    trials = trials.reset_index(drop=True)
    _check_rows(trials, source)
    keys = trials[TRIAL].astype({"m": "int64", "n": "int64", "subsample": "int64"})
    trials = trials.assign(**keys)
    same = trials.groupby(TRIAL, sort=False)[["total", "test_hash"]].transform("nunique")
    for column, what in (("total", "numbers of test observations"), ("test_hash", "test sets")):
        differs = same.index[same[column] > 1]
        if len(differs):
            values = trials.loc[(trials[TRIAL] == trials.loc[differs[0], TRIAL]).all(axis=1), column].dropna().unique()
            raise InputError(
                f"{_where(trials, differs[0], source)}: the arms have different {what}"
                f" ({', '.join(map(str, values))}).",
                "arms are compared on the same observations: correct `subsample` or run the trial again.",
            )
    wide = trials.pivot(index=TRIAL, columns="arm", values="correct").astype("float64").reindex(columns=list(ARMS))
    losses = (
        trials.reindex(columns=[*TRIAL, "arm", "pretraining_loss"])
        .pivot(index=TRIAL, columns="arm", values="pretraining_loss")
        .astype("float64")
    )
    losses = losses.reindex(columns=list(ARMS[1:])).add_prefix("loss_")
    shared = trials.groupby(TRIAL)[["total", "test_hash"]].first()
    return shared.astype({"total": "int64"}).join(wide).join(losses).sort_index().reset_index()


def paired_counts(trials: pd.DataFrame, effect: str) -> PairedCounts:
    """The rows of `trials` (see `pair_arms`) that have both arms of `effect`."""
    treatment, control = EFFECTS[effect]
    trials = trials.dropna(subset=[treatment, control])
    task, tasks = pd.factorize(trials["task"], sort=True)
    model, models = pd.factorize(trials["language_model"], sort=True)
    return PairedCounts(
        tasks=tuple(map(str, tasks)),
        language_models=tuple(map(str, models)),
        task=task,
        language_model=model,
        subsample=trials["subsample"].to_numpy(dtype=np.int64),
        total=trials["total"].to_numpy(dtype=float),
        control=trials[control].to_numpy(dtype=float),
        treatment=trials[treatment].to_numpy(dtype=float),
    )


def setting_counts(trials: pd.DataFrame) -> dict[tuple[str, int, int, str], PairedCounts]:
    """Counts by (experiment, m, n, effect), without effects that no trial of a setting has both arms of.

    Raises InputError where no trial has both arms of any effect.
    """
    found = {}
    for (experiment, m, n), group in trials.groupby(SETTING):
        for effect in EFFECTS:
            if len(counts := paired_counts(group, effect)):
                found[str(experiment), int(m), int(n), effect] = counts
    if not found:
        raise InputError(
            "no trial has two arms to compare.", "bias needs the arms extra and test, boost base and extra."
        )
    return found


def _check_rows(trials: pd.DataFrame, source: str) -> None:
    if trials.empty:
        raise InputError(f"{source}: no trials.", "write one row per trial and arm (see docs/reference/bias.md).")
    for column in [*TRIAL, "arm", "correct", "total"]:
        _refuse(trials, trials[column].isna(), source, f"column {column!r} is empty", "every trial needs it.")
    unknown = ~trials["arm"].isin(ARMS)
    _refuse(trials, unknown, source, "unknown arm {arm!r}", f"the arms are {', '.join(ARMS)}.")
    impossible = (trials["total"] < 1) | (trials["correct"] < 0) | (trials["correct"] > trials["total"])
    hint = "`correct` counts the right answers among the `total` test observations."
    _refuse(trials, impossible, source, "{correct} correct answers of {total}", hint)
    twice = trials.duplicated([*TRIAL, "arm"])
    _refuse(trials, twice, source, "the arm {arm!r} occurs twice", "number the random draws by `subsample`.")


def _refuse(trials: pd.DataFrame, wrong: pd.Series, source: str, problem: str, hint: str) -> None:
    if wrong.any():
        row = int(wrong.to_numpy(dtype=bool).argmax())
        raise InputError(f"{_where(trials, row, source)}: {problem.format(**trials.iloc[row])}.", hint)


def _where(trials: pd.DataFrame, row: int, source: str) -> str:
    place = ", ".join(f"{name.replace('_', ' ')} {trials[name].iloc[row]}" for name in TRIAL)
    return f"{source}: row {row + 1} ({place})"
