"""What lies behind the means: accuracies by arm, predicted effects by task, and effects that language models share."""

from itertools import combinations

import pandas as pd

from lm_validity.pages.page import Section, Table
from lm_validity.studies.bias.import_published import MAJORITY
from lm_validity.studies.bias.statistics.effects import common_subsamples
from lm_validity.studies.bias.statistics.model import EFFECTS
from lm_validity.studies.bias.summary import BiasSummary, Correlation, rows_frame
from lm_validity.studies.bias.table import ARMS, CELL, SETTING
from lm_validity.summaries import Missing, as_columns, is_known, number
from lm_validity.words import count

_QUANTILES = {"lowest": 0.0, "q25": 0.25, "median": 0.5, "q75": 0.75, "highest": 1.0}


def model_correlations(trials: pd.DataFrame) -> tuple[Correlation, ...]:
    """For each setting, effect and pair of language models; `trials` is the frame of `table.pair_arms`.

    Subsamples are matched by task and number. Those that had different test sets in the two are left out, where the
    tables say so.
    """
    rows = []
    for (experiment, m, n), group in trials.groupby(SETTING):
        for effect, (treatment, control) in EFFECTS.items():
            known = group.assign(effect=(group[treatment] - group[control]) / group["total"]).dropna(subset="effect")
            of_model = {
                name: own[["task", "subsample", "effect", "test_hash"]] for name, own in known.groupby("language_model")
            }
            for first, second in combinations(of_model, 2):
                both = of_model[first].merge(of_model[second], on=["task", "subsample"])
                same = (both["test_hash_x"] == both["test_hash_y"]) | both[["test_hash_x", "test_hash_y"]].isna().any(
                    axis=1
                )
                both = both[same]
                found = common_subsamples(
                    [own[["effect_x", "effect_y"]].to_numpy().T for _, own in both.groupby("task")]
                )
                key = (str(experiment), int(m), int(n), effect, str(first), str(second))
                if isinstance(found, Missing):
                    rows.append(Correlation(*key, 0, len(both), found, found, found))
                else:
                    sizes = found.tasks, len(both)
                    rows.append(Correlation(*key, *sizes, found.correlation, found.null_interval, found.p))
    return tuple(rows)


def distribution_section(summary: BiasSummary) -> Section:
    """Three tables behind folds."""
    known = [row for row in summary.correlations if is_known(row.correlation)]
    above = sum(number(row.p) < 0.05 for row in known)
    return Section(
        "Behind the means",
        finding=(
            f"{above} of {count(len(known), 'correlation')} of an effect between two language models over subsamples "
            "have p < .05, each by itself (5% of them would, if nothing were shared)."
            if known
            else "No two language models have the same subsamples, so it is unknown whether effects depend on the draw."
        ),
        explanation=(
            "If the draw of the texts made an effect, subsamples in which one language model shows a large one would "
            "show a large one in another too. The correlation is Spearman's, over the subsamples of a task, mean over "
            "tasks. By chance: the middle 95% of the same mean where the other model's subsamples are in random order "
            "(1,000 permutations). Predicted effects are of these same trainings on new test items."
        ),
        tables=[_correlation_table(summary), *_predictive_tables(summary), accuracy_table(summary.trials)],
    )


def _correlation_table(summary: BiasSummary) -> Table:
    frame = rows_frame(Correlation, summary.correlations)
    bounds = pd.DataFrame([as_columns(row.null_interval) for row in summary.correlations], columns=["low", "high"])
    frame = frame.drop(columns=["null_interval", "p"]).assign(
        null_low=bounds["low"], null_high=bounds["high"], p=frame["p"]
    )
    return Table(
        "model_correlations",
        "Effects in the same subsamples of two language models",
        frame,
        formats=dict.fromkeys(["correlation", "null_low", "null_high"], "+.3f") | {"p": "p"},
        labels={"other": "other model", "null_low": "by chance, low", "null_high": "by chance, high"},
        folded=True,
    )


def _predictive_tables(summary: BiasSummary) -> list[Table]:
    frames = [
        fit.by_task.assign(experiment=fit.experiment, m=fit.m, n=fit.n, effect=fit.effect)
        for fit in summary.posterior
        if fit.formula == summary.headline_formula and not isinstance(fit.by_task, Missing)
    ]
    if not frames:
        return []
    columns = [*SETTING, "effect", "task", "observed", "mean", "low", "q25", "median", "q75", "high"]
    return [
        Table(
            "predictive_by_task",
            "Predicted effects by task",
            pd.concat(frames, ignore_index=True)[columns],
            formats=dict.fromkeys(columns[5:], "+.4f"),
            caption="Posterior predictive differences of accuracy. Low to high is an 89% interval, as in the paper.",
            folded=True,
        )
    ]


def accuracy_table(trials: pd.DataFrame) -> Table:
    """Quantiles of accuracy over subsamples, by cell, task and arm, beside the share of the largest class."""
    share = trials["test_hash"].astype("string").str.extract(MAJORITY, expand=False).astype("float64")
    arms = [
        trials[[*CELL, "task"]].assign(arm=arm, accuracy=trials[arm] / trials["total"], majority=share) for arm in ARMS
    ]
    frame = pd.concat(arms, ignore_index=True).dropna(subset="accuracy")
    frame["below"] = (frame["accuracy"] < frame["majority"]).astype(float).where(frame["majority"].notna())
    groups = frame.groupby([*CELL, "task", "arm"])
    found = groups.agg(subsamples=("accuracy", "size"), mean=("accuracy", "mean"), sd=("accuracy", "std"))
    for name, level in _QUANTILES.items():
        found[name] = groups["accuracy"].quantile(level)
    found = found.assign(majority=groups["majority"].mean(), below_majority=groups["below"].mean()).reset_index()
    numbers = ["mean", "sd", *_QUANTILES, "majority"]
    if found["majority"].isna().all():
        found = found.drop(columns=["majority", "below_majority"])
    return Table(
        "accuracy_by_arm",
        "Accuracy by arm",
        found,
        formats=dict.fromkeys(numbers, ".4f") | {"below_majority": ".2f"},
        labels={"majority": "share of the largest class", "below_majority": "subsamples below it (share)"},
        caption="Over the subsamples of a task. A classifier that always answers with the largest class has that "
        "class's share.",
        folded=True,
    )
