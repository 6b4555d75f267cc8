"""How often the first stage of a two-stage signal study is right, and what it saves, on the published curves.

    python benchmarks/signal_stages.py [--output FILE]

The first stage is that of `lm-validity next`. Its verdict on each of the 24 benchmarks is held against the whole
curves in two ways: their mean rank correlation is at least one half or not; the report counts the benchmark as rising
(random walks, false discovery rate 5%) or not. Besides, two other choices of 8 early checkpoints, single models, and
trainings without one of the six models. Needs the published curves in ../shared/published.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from lm_validity.config.signal import SignalStages
from lm_validity.config.signal_plan import NUMBER, SHARE, SignalPlan, first_checkpoints
from lm_validity.studies.signal.curves import LearningCurves, read_learning_curves
from lm_validity.studies.signal.page_quality import counted_as_rising
from lm_validity.studies.signal.report import analyze_signal, summarize
from lm_validity.studies.signal.stages import first_stage
from lm_validity.studies.signal.statistics.quality import rank_correlation
from lm_validity.tables.formats.import_e2lm import read_e2lm
from lm_validity.tables.schema import SCORES, write_table

PUBLISHED = Path(__file__).parents[2] / "shared" / "published" / "early_training"
HALF = 0.5  # mean rank correlation of whole curves from which a benchmark says something
Choose = Callable[[dict[str, float], float], list[str]]


def evenly_by_place(positions: dict[str, float], end: float) -> list[str]:
    """8 checkpoints of the first quarter, evenly spread over their places in the list."""
    early = [name for name, at in sorted(positions.items(), key=lambda one: one[1]) if at <= SHARE * end]
    places = np.unique(np.linspace(0, len(early) - 1, NUMBER).round().astype(int))
    return [early[place] for place in places]


def first_quarter_of_list(positions: dict[str, float], _: float) -> list[str]:
    """The first quarter of the list, whatever its tokens."""
    return sorted(positions, key=positions.__getitem__)[: len(positions) // 4]


CHOICES: dict[str, Choose] = {
    "the option's": first_checkpoints,
    "evenly by place": evenly_by_place,
    "first quarter of the list": first_quarter_of_list,
}


def plan_of(learning: LearningCurves, choose: Choose) -> SignalPlan:
    """The first stage of every model."""
    curves = next(iter(learning.curves.values()))
    first = {}
    for model, curve in curves.items():
        positions = dict(zip(curve.checkpoints, curve.tokens_b, strict=True))
        first[model] = frozenset(choose(positions, float(curve.tokens_b[-1])))
    return SignalPlan(SignalStages(plan="stages.tsv"), first, {})


def verdicts(learning: LearningCurves, plan: SignalPlan) -> dict[str, str]:
    """By benchmark, as `lm-validity next` has it."""
    return {name: plan.verdict(first_stage(learning, name, plan, "stable")[0]) for name in learning.curves}


def whole(learning: LearningCurves) -> dict[str, float]:
    """By benchmark: the mean rank correlation of the whole curves."""
    return {
        name: float(np.mean([rank_correlation(curves[model].values) for model in learning.scored(name)]))
        for name, curves in learning.curves.items()
    }


def without(learning: LearningCurves, kept: list[str]) -> LearningCurves:
    """The curves of some models."""
    curves = {name: {model: of[model] for model in kept} for name, of in learning.curves.items()}
    return replace(learning, curves=curves, facts=learning.facts.loc[kept])


def row(learning: LearningCurves, plan: SignalPlan, rising: set[str] | None = None) -> dict:
    """Shares of benchmarks decided at once, wrong ones by name, and evaluations saved."""
    found, mean = verdicts(learning, plan), whole(learning)
    decided = {name: verdict == "says something" for name, verdict in found.items() if verdict != "undecided"}
    all_of, early = 0, 0
    for name, curves in learning.curves.items():
        points = {model: len(curve.values) for model, curve in curves.items()}
        all_of += sum(points.values())
        early += sum(len(plan.first[model]) if name in decided else number for model, number in points.items())
    wrong = [name for name, says in decided.items() if says != (mean[name] >= HALF)]
    result = {
        "benchmarks": len(found),
        "decided": len(decided),
        "say_something": sum(decided.values()),
        "wrong": wrong,
        "saved": 1 - early / all_of,
    }
    if rising is not None:
        result["against_the_report"] = [name for name, says in decided.items() if says != (name in rising)]
    return result


def main() -> None:
    """Print a row for each choice and for fewer models, and write them as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scores, models = Path(folder) / "scores.parquet", PUBLISHED / "models.csv"
        write_table(read_e2lm(PUBLISHED / "curves.csv"), SCORES, scores)
        learning = read_learning_curves(scores, models, None, "all")
        rising = counted_as_rising(summarize(analyze_signal(scores, models, resamples=1000)).benchmarks) or set()
    rows = {name: row(learning, plan_of(learning, choose), rising) for name, choose in CHOICES.items()}
    plan = plan_of(learning, first_checkpoints)
    for model in learning.models:
        others = [name for name in learning.models if name != model]
        rows[f"without {model}"] = row(without(learning, others), plan)
    for model in learning.models:
        rows[f"{model} alone"] = row(without(learning, [model]), plan)
    print(pd.DataFrame(rows).T.to_string())
    mean = whole(learning)
    early = {name: first_stage(learning, name, plan, "stable")[0] for name in learning.curves}
    table = pd.DataFrame({"first": early, "whole": mean, "rising": {name: name in rising for name in mean}})
    print(table.sort_values("whole").round(2).to_string())
    if options.output:
        options.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
