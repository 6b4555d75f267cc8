"""Kendall's tau of all pairs of benchmarks, and its bootstrap over models, against scipy called pair by pair.

    python benchmarks/kendall_tau.py --output FILE [--models 61] [--benchmarks 24] [--resamples 2000]

Random scores with ties and 10% of cells missing. Two records: one table of taus, and the bootstrap, whose baseline is
scipy's time for one table times the number of resamples (scipy has no weights: its resamples would be further calls on
drawn models). Both sides run in this process, in turn, on one thread. `agreement` is the largest difference between the
two on the same table.
"""

import argparse
import time

import numpy as np
from _measure import write_records
from scipy.stats import kendalltau

from lm_validity.studies.agreement.statistics.ranking import kendall_tau_matrix, pair_signs, resampled_kendall_tau
from lm_validity.studies.agreement.statistics.resampling import multiplicities

REPEATS = 7


def random_scores(models: int, benchmarks: int, rng: np.random.Generator) -> np.ndarray:
    """Scores with one common factor, rounded so that there are ties, a tenth of them missing."""
    scores = np.round(rng.normal(size=(models, 1)) + rng.normal(size=(models, benchmarks)), 1)
    scores[rng.random(scores.shape) < 0.1] = np.nan
    return scores


def scipy_table(scores: np.ndarray) -> np.ndarray:
    """(benchmarks, benchmarks) taus, one call of scipy a pair."""
    size = scores.shape[1]
    tau = np.eye(size)
    for i in range(size):
        for j in range(i):
            tau[i, j] = tau[j, i] = kendalltau(scores[:, i], scores[:, j], nan_policy="omit").statistic
    return tau


def seconds(function, *arguments) -> float:
    """Processor time of one call."""
    started = time.process_time()
    function(*arguments)
    return time.process_time() - started


def record(name: str, baseline: np.ndarray, ours: np.ndarray, agreement: float, detail: str) -> dict:
    """One measurement: the ratio of medians, and the smallest and largest ratio of interleaved runs."""
    ratios = baseline / ours
    return {
        "name": name,
        "baseline": "scipy.stats.kendalltau, pair by pair",
        "ratio": float(np.median(baseline) / np.median(ours)),
        "ratio_low": float(ratios.min()),
        "ratio_high": float(ratios.max()),
        "target": None,
        "unit": "processor seconds",
        "agreement": agreement,
        "device": "cpu, one thread",
        "detail": detail,
    }


def main() -> None:
    """Measure and write the records."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True)
    parser.add_argument("--models", type=int, default=61)
    parser.add_argument("--benchmarks", type=int, default=24)
    parser.add_argument("--resamples", type=int, default=2000)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    scores = random_scores(options.models, options.benchmarks, rng)
    weights = multiplicities(options.models, options.resamples, rng)
    agreement = float(np.nanmax(np.abs(scipy_table(scores) - kendall_tau_matrix(pair_signs(scores)))))
    theirs, table, bootstrap = [], [], []
    for _ in range(REPEATS):
        theirs.append(seconds(scipy_table, scores))
        table.append(seconds(lambda: kendall_tau_matrix(pair_signs(scores))))
        bootstrap.append(seconds(lambda: resampled_kendall_tau(pair_signs(scores), weights)))
    theirs = np.array(theirs)
    size = f"{options.models} models x {options.benchmarks} benchmarks, 10% of cells missing"
    medians = f"medians {np.median(theirs):.4f} and"
    records = [
        record("tau_table", theirs, np.array(table), agreement, f"{size}; {medians} {np.median(table):.6f} s"),
        record(
            "tau_bootstrap",
            theirs * options.resamples,
            np.array(bootstrap),
            agreement,
            f"{size}, {options.resamples} resamples; {medians[:-4]} s a table times the resamples and "
            f"{np.median(bootstrap):.3f} s",
        ),
    ]
    write_records(options.output, records)
    for entry in records:
        print(f"{entry['name']}: {entry['ratio']:.0f} times ({entry['detail']})")


if __name__ == "__main__":
    main()
