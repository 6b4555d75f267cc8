"""What a planned sparse grid costs and how near it comes to the full one, on the published table.

    python benchmarks/sparse_grid.py [--seeds 20] [--output FILE]

Each seed draws a plan by `lm-validity plan`'s own design, hides every prepared score that is not planned, and lets the
estimators of the report see the rest. Costs are the analytic model's, uncalibrated, with the published numbers of
documents. The published scores are in examples/published.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from lm_validity.config.load import PlannedCell, load_run
from lm_validity.monitor.status import Estimator, Pair, total, training_costs
from lm_validity.plans.drawing import audit, balanced, cheap_and_block
from lm_validity.statistics import NORMAL_95
from lm_validity.studies.agreement.statistics.ranking import (
    kendall_tau,
    kendall_tau_matrix,
    mean_over_pairs,
    pair_signs,
)
from lm_validity.studies.agreement.statistics.sparse import (
    CellProcess,
    expected_signs,
    fit_process,
    mean_standing,
    pooled_tau,
    rank_draws,
    widening_of,
)

PUBLISHED = Path(__file__).parents[1] / "examples" / "published"
DRAWS = 200
AUDITED = 40


class Published:
    """The published table: 61 models, 24 benchmarks, both protocols, and the cost of each prepared cell."""

    def __init__(self):
        found = json.loads((PUBLISHED / "scores.json").read_text())
        models, sheet = pd.read_csv(PUBLISHED / "models.csv"), pd.read_csv(PUBLISHED / "benchmarks.csv")
        facts = sheet.set_index("task")
        self.benchmarks = [
            name
            for name in sheet["task"]
            if name in found["train_before_test"] and facts.category[name] != "Perplexity"
        ]
        self.models = list(models["model_id"])

        def table(key: str) -> np.ndarray:
            cells = [[found[key][name].get(model) for name in self.benchmarks] for model in self.models]
            return np.array([[np.nan if one in (None, "N/A") else float(one) for one in row] for row in cells])

        self.scores, self.stderr = table("train_before_test"), table("train_before_test_stderr")
        self.direct = table("direct_eval")
        self.size = np.log(models[["params_B", "tokens_B"]].to_numpy(float))
        self.families = models["family"].to_numpy(object)
        self.costs = self._costs(facts)

    def _costs(self, facts: pd.DataFrame) -> dict[Pair, float]:
        run = load_run("config/paper/train_before_test.yaml")
        estimator = Estimator(run)
        columns = {"train": "train_used", "validation": "valid_used", "test": "test_rows_inferred_from_stderr"}
        numbers = {split: facts[column].to_dict() for split, column in columns.items()}

        def documents(benchmark: str, split: str) -> int:
            number = numbers[split].get(benchmark, np.nan)
            return int(number) if np.isfinite(number) else getattr(run.configuration.splits, split)

        estimator.workload.documents = documents
        name = {model: row.path for model, row in run.models.items()}
        costs = {(name[model], benchmark): cost for (model, benchmark), cost in training_costs(estimator).items()}
        return {(model, benchmark): costs[model, benchmark] for model in self.models for benchmark in self.benchmarks}

    def places(self, models: list[str], benchmarks: list[str]) -> tuple[list[int], list[int]]:
        """Indices of models and benchmarks."""
        return [self.models.index(name) for name in models], [self.benchmarks.index(name) for name in benchmarks]


class Case(NamedTuple):
    """One plan on a part of the table. `audited`: those of the planned cells that an audit drew."""

    name: str
    planned: set[Pair]
    models: list[str]
    benchmarks: list[str]
    audited: set[Pair] = frozenset()
    shuffled: bool = False


def measure(table: Published, case: Case, seed: int) -> dict:
    """One plan against the full table of these models and benchmarks."""
    models, benchmarks = case.models, case.benchmarks
    rows, columns = table.places(models, benchmarks)
    whole, rng = table.scores[np.ix_(rows, columns)], np.random.default_rng(seed)
    if case.shuffled:
        whole = rng.permuted(whole, axis=0)
    known, audited = (
        np.array([[(model, name) in chosen for name in benchmarks] for model in models])
        for chosen in (case.planned, case.audited)
    )
    part, losses = np.ix_(rows, columns), np.zeros((2, len(columns)), dtype=bool)

    def fit(chosen: np.ndarray) -> CellProcess:
        scores, facts = np.where(chosen, whole, np.nan), (table.size[rows], table.families[rows])
        return fit_process(scores, table.stderr[part], table.direct[part], *facts, losses)

    process, signs = fit(known), pair_signs(np.where(known, whole, np.nan))
    truth = pooled_tau(pair_signs(whole)).mean
    pooled, assisted = pooled_tau(signs), pooled_tau(signs, expected_signs(process))
    checked = process
    if audited.any():
        checked = replace(fit(known & ~audited), scores=np.where(audited, whole, np.nan))
    widening = widening_of(checked.residuals())
    tables = process.draws(DRAWS, rng, widening)
    low, high = np.quantile(rank_draws(tables), [0.025, 0.975], axis=0)
    rank = rank_draws(whole[None])[0]
    score, below, above = process.predict(widening)
    hidden = ~process.measured
    available = mean_over_pairs(kendall_tau_matrix(signs)) - mean_over_pairs(kendall_tau_matrix(pair_signs(whole)))
    checks = checked.residuals()[np.isfinite(checked.scores)]
    return cost_shares(table, case) | {
        "cells": known.mean(),
        "ranking tau": kendall_tau(mean_standing(tables).mean(axis=0), mean_standing(whole)),
        "rank coverage": np.mean((low <= rank) & (rank <= high)),
        "rank half-width": np.mean(high - low) / 2,
        "pooled": pooled.mean,
        "pooled error": pooled.mean - truth,
        "pooled se": pooled.standard_error,
        "assisted": assisted.mean,
        "assisted error": assisted.mean - truth,
        "assisted se": assisted.standard_error,
        "available pairs error": available,
        "widening": widening,
        "checked coverage": np.mean(np.abs(checks) < NORMAL_95),
        "cell coverage": np.mean(((below <= whole) & (whole <= above))[hidden]),
        "cell rmse": np.sqrt(np.mean((score - whole)[hidden] ** 2)),
    }


def cost_shares(table: Published, case: Case) -> dict:
    """What the plan costs of preparing every model of the case on every benchmark of it."""
    costs = {pair: table.costs[pair] for pair in ((model, name) for model in case.models for name in case.benchmarks)}
    some, whole = total(costs, case.planned), total(costs, costs)
    return {"hours": some / whole}


def cases(table: Published, seed: int) -> Iterator[Case]:
    """The whole table, halves of models, halves of benchmarks; with an audit of 40 cells; with columns shuffled."""
    yield from _designs(table, "all", table.models, table.benchmarks, seed)
    rng = np.random.default_rng(1000 + seed)
    for name, members in (("models", table.models), ("benchmarks", table.benchmarks)):
        order = rng.permutation(len(members))
        for half in (order[: len(order) // 2], order[len(order) // 2 :]):
            chosen = [members[place] for place in sorted(half)]
            kept = (chosen, table.benchmarks) if name == "models" else (table.models, chosen)
            yield from _designs(table, f"half of the {name}", *kept, seed)
    first, *_ = _designs(table, "all", table.models, table.benchmarks, seed)
    before = {pair: PlannedCell.model_construct(round=1) for pair in first.planned}
    drawn = {(one.model, one.benchmark) for one in audit(table.costs, before, AUDITED, seed)}
    yield first._replace(name="cheap and block, audited", planned=first.planned | drawn, audited=drawn)
    yield first._replace(name="cheap and block, shuffled", shuffled=True)


def _designs(table: Published, name: str, models: list[str], benchmarks: list[str], seed: int) -> Iterator[Case]:
    costs = {(model, benchmark): table.costs[model, benchmark] for model in models for benchmark in benchmarks}
    size = {model: table.size[table.models.index(model), 0] for model in models}
    designs = {"cheap and block": cheap_and_block(costs, size, seed), "balanced": balanced(costs, seed)}
    for design, cells in designs.items():
        yield Case(f"{design}, {name}", {(one.model, one.benchmark) for one in cells}, models, benchmarks)


def summarise(rows: list[dict]) -> pd.DataFrame:
    """Means over plans; errors as root mean squares, beside their means."""
    frame = pd.DataFrame(rows)
    groups = frame.groupby("plan", sort=False)
    result = groups.mean(numeric_only=True)
    for name in [column for column in frame.columns if column.endswith(" error")]:
        result[name.replace(" error", " rmse")] = groups[name].apply(lambda values: np.sqrt(np.mean(values**2)))
    result["ranking tau, least"] = groups["ranking tau"].min()
    result.insert(0, "plans", groups.size())
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    table, rows = Published(), []
    for seed in range(options.seeds):
        rows += [{"plan": case.name, "seed": seed} | measure(table, case, seed) for case in cases(table, seed)]
    if options.output:
        pd.DataFrame(rows).to_csv(options.output, sep="\t", index=False, float_format="%.5f")
    print(summarise(rows).drop(columns="seed").round(4).T.to_string())


if __name__ == "__main__":
    main()
