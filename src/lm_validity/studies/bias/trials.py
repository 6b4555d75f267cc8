"""The trials of the bias study: read, checked, with the three arms side by side, and whether they belong together.

A trial is (experiment, language model, task, m, n, subsample); its arms share the training and the test set. Arms and
language models are matched by these keys, never by the position of a row.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from lm_validity.config.load import BiasPlan
from lm_validity.config.rows import read_text_rows
from lm_validity.errors import InputError, did_you_mean
from lm_validity.studies.bias.statistics.latent import PairedCounts
from lm_validity.tables.schema import TRIALS, read_table
from lm_validity.words import count, listing

ARMS = ("base", "extra", "test")
EFFECTS = {"boost": ("extra", "base"), "bias": ("test", "extra")}  # treatment, control
CELL = ["experiment", "language_model", "m", "n"]
SETTING = ["experiment", "m", "n"]
TRIAL = ["experiment", "language_model", "task", "m", "n", "subsample"]


def read_trials(path: str | Path) -> pd.DataFrame:
    """Read `trials.parquet` and put the arms side by side (see `pair_arms`)."""
    return pair_arms(read_table(path, TRIALS), str(path))


def pair_arms(trials: pd.DataFrame, source: str = "trials") -> pd.DataFrame:
    """One row per trial: its keys, `total`, `test_hash`, the right answers `base`, `extra`, `test` (NaN: no such arm).

    Rows are sorted by the keys. `trials` has the columns of `TRIALS`. Raises `InputError` for empty keys, an unknown
    arm, an arm twice, impossible counts, and arms of one trial that were evaluated on different test sets.
    """
    if trials.empty:
        raise InputError(
            f"{source}: no trials.",
            f"write one row per trial and arm, with the columns {', '.join(TRIAL)}, arm, correct and total.",
        )
    trials = trials.set_axis(range(1, len(trials) + 1))
    for column in [*TRIAL, "arm", "correct", "total"]:
        _refuse(trials, trials[column].isna(), source, f"column {column!r} is empty", "every trial needs it.")
    equal = trials.groupby(TRIAL, sort=False)[["total", "test_hash"]].transform("nunique")
    impossible = ~trials["correct"].between(0, trials["total"]) | (trials["total"] < 1)
    counts = "`correct` counts the right answers among the `total` test observations."
    alike = "arms are compared on the same observations: correct `subsample` or run the trial again."
    for wrong, problem, hint in (
        (~trials["arm"].isin(ARMS), "unknown arm {arm!r}", f"the arms are {', '.join(ARMS)}."),
        (impossible, "{correct} correct answers of {total}", counts),
        (trials.duplicated([*TRIAL, "arm"]), "the arm {arm!r} occurs twice", "number the random draws by `subsample`."),
        (equal["total"] > 1, "the arms have different numbers of test observations", alike),
        (equal["test_hash"] > 1, "the arms have different test sets", alike),
    ):
        _refuse(trials, wrong, source, problem, hint)
    trials = trials.astype({"m": "int64", "n": "int64", "subsample": "int64"})
    wide = trials.pivot(index=TRIAL, columns="arm", values="correct").astype("float64").reindex(columns=list(ARMS))
    shared = trials.groupby(TRIAL)[["total", "test_hash"]].first()
    return shared.astype({"total": "int64"}).join(wide).sort_index().reset_index()


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
    by_setting = {}
    for (experiment, m, n), group in trials.groupby(SETTING):
        for effect in EFFECTS:
            if len(counts := paired_counts(group, effect)):
                by_setting[str(experiment), int(m), int(n), effect] = counts
    if not by_setting:
        raise InputError(
            "no trial has two arms to compare.", "bias needs the arms extra and test, boost base and extra."
        )
    return by_setting


def _refuse(rows: pd.DataFrame, wrong: pd.Series, source: str | Path, problem: str, hint: str) -> None:
    """InputError for the first of the rows that is `wrong`; the index says which one it is, `problem` is its format."""
    if wrong.any():
        row = rows[wrong.to_numpy(dtype=bool)].iloc[0]
        trial = ", ".join(f"{name.replace('_', ' ')} {row[name]}" for name in TRIAL if name in row)
        raise InputError(f"{source}: row {row.name} ({trial}): {problem.format(**row)}.", hint)


# ----------------------------------------------------------------------------------------------------------------------
# What is missing.


def missing_trials(trials: pd.DataFrame, effect: str, plan: BiasPlan | None = None) -> pd.DataFrame:
    """Cells with fewer trials of a task than there could be: [*CELL, task, `subsamples`, `expected`].

    `subsamples`: trials with both arms of `effect`; `expected`: the most that a language model has of any task at
    that m and n, at least 1. Looked for in every language model, setting and task of an experiment, also in
    combinations without any row; an experiment without a trial of the effect is left out. What `plan` has not planned
    of a task is not expected.
    """
    complete, keys = trials.dropna(subset=list(EFFECTS[effect])), [*CELL, "task"]
    trials = trials[trials["experiment"].isin(complete["experiment"])]
    places = trials[SETTING].drop_duplicates()
    for name in ("language_model", "task"):
        places = places.merge(trials[["experiment", name]].drop_duplicates(), on="experiment")
    places = places.merge(complete.groupby(keys).size().rename("subsamples").reset_index(), "left", keys)
    places = places.fillna({"subsamples": 0}).astype({"subsamples": "int64"})
    places["expected"] = places.groupby(SETTING)["subsamples"].transform("max").clip(lower=1)
    if plan is not None:
        planned = [plan.planned(*key) for key in places[["experiment", "task"]].itertuples(index=False)]
        places["expected"] = np.minimum(places["expected"], planned)
    columns = [*keys, "subsamples", "expected"]
    return places.loc[places["subsamples"] < places["expected"], columns].sort_values(columns, ignore_index=True)


def coverage_notes(trials: pd.DataFrame, plan: BiasPlan | None = None) -> Iterator[str]:
    """Trials without an arm, gaps between cells, one language model alone, and tasks at the ceiling."""
    for arm in ARMS:
        if missing := int(trials[arm].isna().sum()):
            effects = " and ".join(effect for effect, arms in EFFECTS.items() if arm in arms)
            yield f"{missing} of {len(trials)} trials have no arm {arm}; they do not count for {effects}."
    yield from _gaps(trials, plan)
    for experiment, trials_of_experiment in trials.groupby("experiment"):
        if trials_of_experiment["language_model"].nunique() == 1:
            yield f"Experiment {experiment} has one language model: the terms that tell models apart are dropped."
    counts = trials[list(ARMS)]
    full, none = counts.eq(trials["total"], axis=0) | counts.isna(), counts.eq(0) | counts.isna()
    alike = pd.DataFrame({"full": full.all(axis=1), "none": none.all(axis=1)})
    for experiment, by_task in alike.groupby([trials["experiment"], trials["task"]]).all().groupby("experiment"):
        names = by_task.index[by_task.any(axis=1)].get_level_values("task")
        if len(names):
            yield (
                f"Experiment {experiment}: {len(names)} of {count(len(by_task), 'task')} at the ceiling or the floor "
                f"({listing(names)}). Every arm of every trial there has all answers right, or all wrong, so no effect "
                "can show."
            )


def _gaps(trials: pd.DataFrame, plan: BiasPlan | None) -> Iterator[str]:
    """Cells that lack tasks or subsamples which others have: what an average over cells then compares."""
    gaps = pd.concat([missing_trials(trials, effect, plan).assign(effect=effect) for effect in EFFECTS])
    keys = [*CELL, "task", "subsamples", "expected"]
    effects = gaps.groupby(keys)["effect"].agg(" and the ".join).reset_index()
    for (experiment, concerned), group in effects.groupby(["experiment", "effect"]):
        lacking = listing(
            f"{cell.language_model} at m = {cell.m}, n = {cell.n} has {cell.subsamples} of {cell.expected} trials of "
            f"{cell.task}"
            for cell in group.itertuples()
        )
        yield (
            f"Experiment {experiment} has gaps, for the {concerned}: {lacking}. Averages over cells and tasks are "
            "not of the same tasks and trials."
        )


# ----------------------------------------------------------------------------------------------------------------------
# Signs that rows come from different code, data or splits: no statistics repairs that.

DRIFT_LEVEL = 1e-4  # familywise, so that a report is not marked by chance
DRIFT_SIZE = 0.01  # accuracy; smaller drifts are not worth a warning
ROUNDING = 1e-12  # accuracy; means of equal numbers differ by less


def base_drift(trials: pd.DataFrame) -> pd.DataFrame:
    """Base accuracy compared between values of n, within each (experiment, language_model, m).

    The base arm never sees the n texts, so its expected accuracy cannot depend on n. One row for each n other than the
    one with most trials (`reference_n`): `base`, `reference_base`, `difference` (means over the shared tasks), `z` =
    difference over its standard error from the spread of the subsamples, `p` two-sided, `mixed` = p below
    `DRIFT_LEVEL` after Bonferroni and a difference of at least `DRIFT_SIZE`. Where accuracies differ between n but
    nowhere within, z is infinite and p is 0. A value of n without tasks with two subsamples in common with the
    reference is left out.
    """
    complete = trials.dropna(subset=["base"])
    complete = complete.assign(accuracy=complete["base"] / complete["total"])
    keys = ["experiment", "language_model", "m"]
    tasks = complete.groupby([*CELL, "task"])["accuracy"].agg(["mean", "var", "count"]).reset_index()
    tasks = tasks[tasks["count"] > 1]
    sizes = tasks.groupby(CELL)["count"].sum()
    largest = sizes.loc[sizes.groupby(keys).idxmax()].index.to_frame(index=False)
    pairs = tasks.merge(tasks.merge(largest), on=[*keys, "task"], suffixes=("", "_of_reference"))
    pairs = pairs[pairs["n"] != pairs["n_of_reference"]]
    drift = pd.DataFrame(columns=[*CELL, "reference_n", "difference", "p"])
    if len(pairs):
        shared = pairs.rename(columns={"n_of_reference": "reference_n"}).groupby([*CELL, "reference_n"])
        columns = [
            f"{name}{of_reference}" for name in ("mean", "var", "count") for of_reference in ("", "_of_reference")
        ]
        drift = shared[columns].apply(_compared).reset_index()
    large = drift["difference"].astype(float).abs() >= DRIFT_SIZE
    return drift.assign(mixed=(drift["p"].astype(float) * len(drift) < DRIFT_LEVEL) & large)


def _compared(tasks: pd.DataFrame) -> pd.Series:
    """base, reference_base, difference, z, p, of the tasks that two values of n share."""
    means, variances, counts = tasks.to_numpy().T.reshape(3, 2, -1)
    (base, reference_base), difference = means.mean(axis=1), float((means[0] - means[1]).mean())
    difference = difference if abs(difference) > ROUNDING else 0.0
    error = float(np.sqrt((variances / counts).sum())) / len(tasks)
    z = difference / error if error > ROUNDING else np.inf if difference else 0.0
    p = 2 * stats.t.sf(abs(z), (counts - 1).sum())
    names = ["base", "reference_base", "difference", "z", "p"]
    return pd.Series([base, reference_base, difference, z, p], names)


def mismatched_test_sets(trials: pd.DataFrame) -> pd.DataFrame:
    """Subsamples that language models share by number but not by test set.

    One row for each (experiment, m, n, task) with a mismatch: `subsamples` that at least two language models have
    with a known `test_hash`, and how many of these are `mismatched` (their hashes differ).
    """
    keys = [*SETTING, "task"]
    complete = trials.dropna(subset=["test_hash"])
    hashes = complete.groupby([*keys, "subsample"])["test_hash"].agg(["nunique", "size"])
    shared = hashes[hashes["size"] > 1]
    counts = (shared["nunique"] > 1).groupby(keys).agg(subsamples="size", mismatched="sum").reset_index()
    return counts[counts["mismatched"] > 0].reset_index(drop=True)


def provenance_notes(trials: pd.DataFrame) -> Iterator[str]:
    """What `base_drift` and `mismatched_test_sets` find, as notes on the data."""
    drift, mismatches = base_drift(trials), mismatched_test_sets(trials)
    for row in drift[drift["mixed"]].itertuples():
        yield (
            f"Mixed provenance: the base accuracy of {row.language_model} at m = {row.m} is {row.base:.4f} for n = "
            f"{row.n} and {row.reference_base:.4f} for n = {row.reference_n} "
            f"({f'z = {row.z:.1f}' if np.isfinite(row.z) else 'no spread within subsamples'}), though the base arm "
            "never sees the n texts. These rows come from different code or data; trends over n at this m are "
            "confounded."
        )
    if len(mismatches):
        places = mismatches.groupby(["m", "n"], sort=False)["mismatched"].sum().items()
        listed = ", ".join(f"{number} at m = {m}, n = {n}" for (m, n), number in places)
        yield (
            f"Subsamples of the same number had different test sets in different language models ({listed}; tasks "
            f"{', '.join(sorted(mismatches['task'].unique()))}). The formulas equations and notebooks take models to "
            "share these sets and are wrong here. The formula overdispersed is not affected."
        )


# ----------------------------------------------------------------------------------------------------------------------
# Accuracies of the pretrain-on-test study (Dubey, arXiv 2410.00179) -> the trials table.
#
# One row of the file is a trial: the accuracies of three arms on the same test set of n observations. A trial becomes
# three rows of counts. Counts are the accuracy times n, rounded: truncation, as in the authors' notebooks, turns
# .29 x 100 = 28.999… into 28 and loses one correct answer in 3% of the published values.

KEYS = ["experiment", "lm", "m", "n", "task", "subsample"]
# the least and the largest whole number, far beyond any study, which a float holds exactly
WHOLE = {"m": (1, 2**31 - 1), "n": (1, 2**31 - 1), "subsample": (0, 2**31 - 1)}
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
    numbers = frame[["m", "n", "subsample", *ARMS]].apply(pd.to_numeric, errors="coerce")
    for column, values in numbers.items():
        wrong = (values.isna() & (frame[column] != "")) | np.isinf(values)
        hint = "write plain decimal numbers; leave an unknown accuracy empty."
        _refuse(frame, wrong, path, f"{column} is {{{column}!r}}, not a number", hint)
        least, most = WHOLE.get(str(column), (0, 1))
        wrong = (values < least) | (values > most) | ((values != np.floor(values)) & (column in WHOLE))
        problem, hint = f"not between {least} and {most}", "accuracies are fractions, not percent."
        if column in WHOLE:
            problem = f"not a whole number from {least} to {most}"
            hint = "m and n count observations, subsample numbers the random draws."
        _refuse(frame, wrong, path, f"{column} is {{{column}!r}}, {problem}", hint)
    trial = numbers[["m", "n", "subsample"]].astype("int64").assign(total=numbers["n"].astype("int64"))
    trial = trial.assign(experiment=frame["experiment"], language_model=frame["lm"], task=frame["task"], test_hash=None)
    if "majority" in frame.columns:
        share = pd.to_numeric(frame["majority"], errors="coerce")
        trial["test_hash"] = ("majority " + share.map("{:.6f}".format)).where(share.notna(), None)
    arms = []
    for arm in ARMS:
        counts = numbers[arm] * numbers["n"]
        wrong = (counts - counts.round()).abs() > COUNT_TOLERANCE
        problem = f"{arm} is {{{arm}!r}}, not a multiple of 1/{{n}} (it would be {{counts:.6g}} right answers of {{n}})"
        hint = "check n, the number of test observations, or write the accuracy unrounded."
        _refuse(frame.assign(counts=counts), wrong, path, problem, hint)
        arms.append(trial.assign(arm=arm, correct=counts.round()))
    trials = pd.concat(arms).sort_index(kind="stable").dropna(subset="correct")
    if trials.empty:
        raise InputError(f"{path}: no accuracy in any row.", f"fill in {', '.join(ARMS)}.")
    return trials
