"""Statistics that several studies share, so that each is defined once."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from scipy.special import comb
from scipy.stats import norm, t

from lm_validity.words import Missing, Reason, ReasonCode

LEVEL = 0.05  # family-wise, of the tests against chance
NORMAL_95 = 1.959964  # of which a normal number is so often within, on either side of 0

Ends_co = TypeVar("Ends_co", bound=float | np.ndarray, covariant=True)


class Interval(NamedTuple, Generic[Ends_co]):
    """The ends of an interval, scalars or arrays of one shape; NaN where it is undefined."""

    low: Ends_co
    high: Ends_co


def section_generator(section: str, seed: int = 0) -> np.random.Generator:
    """The random numbers of one section of a report, by its name: what another section draws changes none of them."""
    return np.random.default_rng([seed, zlib.crc32(section.encode())])


def p_above_chance(values: np.ndarray, errors: np.ndarray, chance: float) -> np.ndarray:
    """One-sided p (...) of scores `values` (...) with standard errors (...) against `chance`; NaN in, NaN out.

    p = P(Z >= (x - c) / se). Without any error a score above chance has p = 0, any other p = 1. Scores are oriented:
    higher is better.
    """
    gap = np.asarray(values, dtype=float) - chance
    errors = np.asarray(errors, dtype=float)
    z = np.divide(gap, errors, out=np.where(gap > 0, np.inf, -np.inf), where=errors > 0)
    return np.where(np.isnan(gap) | np.isnan(errors), np.nan, norm.sf(z))


FEWEST_CLUSTERS = 10  # of items, such as subjects: with fewer, their sums are too few to tell their spread


def cluster_codes(labels: np.ndarray | None) -> np.ndarray | None:
    """(items,) numbers of at least 10 clusters that are fewer than the items and all named, else None."""
    if labels is None or (labels == "").any():
        return None
    names, codes = np.unique(labels, return_inverse=True)
    return codes if FEWEST_CLUSTERS <= len(names) < len(codes) else None


def holm(p: np.ndarray) -> np.ndarray:
    """p-values (tests,) adjusted so that any false finding among them has at most the nominal probability.

    Holm 1979, Scand. J. Statist. 6:65-70: the k-th smallest of K is multiplied by K - k + 1. Valid under any
    dependence.
    """
    p = np.asarray(p, dtype=float)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return adjusted


def models_above_chance(values: np.ndarray, errors: np.ndarray, chance: float) -> int:
    """How many models (models,) score above chance: one-sided tests at 5% with Holm's adjustment over the models.

    Over the models with a score and a standard error. Scores and chance are oriented: higher is better.
    """
    p = p_above_chance(values, errors, chance)
    return int((holm(p[~np.isnan(p)]) <= LEVEL).sum())


# ----------------------------------------------------------------------------------------------------------------------
# Statistics of sampled runs: answers that are drawn with a temperature, by an agent or a judge, differ between runs.

NO_RUNS = Reason("Each model was run once, so the noise of sampling is not measured.", ReasonCode.NO_RUNS)
FAR, SAME = 0.001, 1e-9  # level of the test for runs far from others; scores this close are equal
NEAR_THE_LIMIT = 1.05  # an error within 5% of the one of endlessly many runs: more runs no longer help


Label = tuple[object, object]  # of a run: its seed of fine-tuning, None where there is none, and its number


@dataclass(frozen=True)
class RunNoise:
    """What R sampled runs of a model on n items put into the squared error of its mean over them.

    means: the mean over the items of each run. sampled: w / (n R), what items that are drawn by themselves explain; w
    is the mean over items of the variance between runs.
    """

    means: Mapping[Label, float]
    sampled: float

    @property
    def runs(self) -> int:
        """R, the runs of all seeds."""
        return len(self.means)

    @property
    def freedom(self) -> int:
        """The degrees of freedom of the spread between runs: runs less seeds."""
        return self.runs - len({seed for seed, _ in self.means})

    @property
    def total(self) -> float:
        """max(d², w / n) / R, with d the standard deviation between runs of one seed.

        A run may share something that its items do not: another prompt of a judge, a busy server. That is all of d²
        above w / n. It is never less than what items explain, since few runs say little about d.
        """
        by_seed: dict[object, list[float]] = {}
        for (seed, _), mean in self.means.items():
            by_seed.setdefault(seed, []).append(mean)
        squares = sum(float(np.square(np.subtract(means, np.mean(means))).sum()) for means in by_seed.values())
        return max(squares / (self.freedom * self.runs), self.sampled)

    @property
    def shared(self) -> float:
        """The part of `total` that more items do not lower: max(0, d² - w / n) / R."""
        return self.total - self.sampled


def run_noise(values: np.ndarray, labels: Sequence[Label]) -> RunNoise | None:
    """The noise of a model's runs from its item scores (R, items); None where no seed has two runs, or without items.

    Items without a value in each run are left out, so that runs are compared on the same items.
    """
    values = np.asarray(values, dtype=float)
    values = values[:, np.isfinite(values).all(axis=0)]
    seeds = [seed for seed, _ in labels]
    several = [seed for seed in dict.fromkeys(seeds) if seeds.count(seed) > 1]
    if not several or not values.shape[1]:
        return None
    of_seeds = [values[[of_run == seed for of_run in seeds]] for seed in several]
    freedom = sum(len(of_seed) - 1 for of_seed in of_seeds)
    variance = sum((len(of_seed) - 1) * float(of_seed.var(axis=0, ddof=1).mean()) for of_seed in of_seeds) / freedom
    means = dict(zip(labels, values.mean(axis=1).tolist(), strict=True))
    return RunNoise(means, variance / values.size)


@dataclass(frozen=True)
class SampledScore:
    """The mean of a model over K runs on the same `items` items. `between`: b, the variance over items of their means
    over runs, which holds w / K beside the items' own variance; in squared units of the score. `noise`: of the runs."""

    between: float
    items: int
    noise: RunNoise

    @property
    def item_error(self) -> float:
        """The squared error of endlessly many runs, from other items: (b - w / K) / n, at least 0."""
        return max(self.between / self.items - self.noise.sampled, 0.0)

    @property
    def run_error(self) -> float:
        """The squared error of one run on the same items, from other draws: max(d², w / n)."""
        return self.noise.total * self.noise.runs

    @property
    def error(self) -> float:
        """The standard error of the mean for other items and other runs: sqrt(b / n + max(0, d² - w / n) / K)."""
        return float(np.sqrt(self.between / self.items + self.noise.shared))

    @property
    def share_of_sampling(self) -> float:
        """The share of sampling in the squared error of one run, in [0, 1]; 0 where nothing varies."""
        one_run = self.between / self.items + self.run_error - self.noise.sampled
        return self.run_error / one_run if one_run > 0 else 0.0

    def error_with(self, runs: float) -> float:
        """The standard error for other items with `runs` runs, which may be infinite."""
        return float(np.sqrt(self.item_error + self.run_error / runs))

    @property
    def runs_that_help(self) -> int | None:
        """The number of runs from which on only more items lower the error by more than 5%.

        The smallest K with error_with(K) <= 1.05 error_with(infinity); None where all noise is noise of sampling, so
        that every further run helps.
        """
        if self.run_error == 0:
            return 1
        if self.item_error == 0:
            return None
        return max(1, int(np.ceil(self.run_error / ((NEAR_THE_LIMIT**2 - 1) * self.item_error) - 1e-9)))


def spread_of_runs(scores: np.ndarray) -> np.ndarray:
    """The standard deviation (models,) between runs of scores (models, runs), NaN-padded; NaN below two runs."""
    return np.asarray(np.ma.masked_invalid(scores).std(axis=1, ddof=1).filled(np.nan))


def far_runs(scores: np.ndarray, one_run: np.ndarray, tests: int) -> np.ndarray:
    """(models, runs) True for a run that is far from the other runs of its score.

    `scores`: (models, runs), NaN-padded; `one_run`: (models,) the standard error of one run, NaN where unknown;
    `tests`: runs that are looked at, here and elsewhere. Far: the t test of the studentised residual, with the spread
    of all other runs (Cook & Weisberg 1982, Residuals and Influence in Regression), has p below 0.1% after Bonferroni's
    correction, and the run is three standard errors from the mean. In simulations with scores near 0 and 1 too, fewer
    than 1 in 100 tables without such a run had one; a run 25 points too low was found in 64% to 78%. Without standard
    errors it was up to 1 in 14. Scores of two runs or fewer have none: which of the two is far, nobody knows.
    """
    scores = np.where(np.isfinite(scores).sum(axis=1, keepdims=True) > 2, scores, np.nan)
    number = np.isfinite(scores).sum(axis=1, keepdims=True)
    centred = scores - np.nansum(scores, axis=1, keepdims=True) / np.maximum(number, 1)
    freedom = int(np.maximum(number - 1, 0).sum()) - 1
    if freedom < 1:
        return np.zeros(scores.shape, dtype=bool)
    residual = centred / np.sqrt(1 - 1 / np.maximum(number, 2))
    spread_without = np.sqrt(np.maximum(np.nansum(centred**2) - residual**2, 0) / freedom)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = 2 * t.sf(np.abs(residual) / spread_without, freedom)
    beyond_error = ~(np.abs(centred) <= 3 * np.nan_to_num(one_run)[:, None])
    is_far: np.ndarray = np.isfinite(scores) & (p * tests < FAR) & (np.abs(centred) > SAME) & beyond_error
    return is_far


def typical_spread(scores: np.ndarray) -> float:
    """The standard deviation between runs of a typical model: the root mean square over models, each counted once.

    `scores`: (models, runs), NaN-padded; models with one run are left out. NaN without a model that has two runs.
    """
    spread = spread_of_runs(scores)
    return float(np.sqrt(np.mean(spread[np.isfinite(spread)] ** 2))) if np.isfinite(spread).any() else float("nan")


def error_of_mean(one_run: np.ndarray | float, spread: np.ndarray | float, runs: np.ndarray | float) -> np.ndarray:
    """The standard error of a mean over `runs` runs for other items and other runs, from scores alone.

        sqrt(s² - min(d², s² / 2) + d² / K)

    `one_run`: s, the standard error of one run's score over items, which holds one run's noise of sampling; `spread`:
    d, the standard deviation between runs. Scores alone do not say how much of d² the items explain and how much the
    runs share; at most half of s² is taken for the first, as with right-or-wrong items whose logits have a standard
    deviation of 2. NaN in, NaN out; a NaN spread (one run) gives s.
    """
    s, d = np.asarray(one_run, dtype=float), np.asarray(spread, dtype=float)
    several = np.sqrt(s**2 - np.minimum(d**2, s**2 / 2) + d**2 / np.asarray(runs, dtype=float))
    return np.where(np.isnan(d), s, several)


class Estimate(NamedTuple):
    """A value and its 95% interval, NaN where there is none."""

    value: float
    interval: Interval[float]


def pass_at_k(correct: np.ndarray, runs: np.ndarray, k: int) -> Estimate | Missing:
    """The chance that at least one of k runs is right, with its interval in [0, 1]: the mean over items of
    1 - C(n - c, k) / C(n, k).

    `correct`, `runs`: (items,) the runs with a right answer, and all runs. Unbiased for each item (Chen et al. 2021,
    arXiv 2107.03374). A reason where an item has fewer than k runs.
    """
    return _few_runs(runs, k) or _over_items(1 - _chosen(np.asarray(runs) - correct, runs, k))


def pass_hat_k(correct: np.ndarray, runs: np.ndarray, k: int) -> Estimate | Missing:
    """The chance that all of k runs are right, pass^k: the mean over items of C(c, k) / C(n, k).

    As `pass_at_k` (Yao et al. 2024, arXiv 2406.12045). A plug-in p^k would be biased upwards by the noise of p.
    """
    return _few_runs(runs, k) or _over_items(_chosen(correct, runs, k))


def _few_runs(runs: np.ndarray, k: int) -> Missing | None:
    """Why k runs of each item cannot be drawn; None where they can."""
    fewest, reason = int(np.min(runs)) if len(runs) else 0, f"{k} runs are asked for, and some item has "
    return None if 1 <= k <= fewest else Missing(Reason(f"{reason}{fewest}.", ReasonCode.TOO_FEW))


def _chosen(marked: np.ndarray, runs: np.ndarray, k: int) -> np.ndarray:
    """C(marked, k) / C(runs, k) by item: the chance that k runs drawn without replacement are all among the marked."""
    return np.asarray(comb(marked, k) / comb(runs, k))


def _over_items(values: np.ndarray) -> Estimate:
    """The mean of item values (items,) in [0, 1] with an interval for other items.

    Student's t after adding two values of 0 and two of 1 (Agresti and Coull 1998, for values between 0 and 1 too), so
    that the interval has a width where all items agree.
    """
    padded = np.concatenate([values, [0.0, 0.0, 1.0, 1.0]])
    half = float(t.ppf(0.975, len(padded) - 1) * padded.std(ddof=1) / np.sqrt(len(padded)))
    centre = float(padded.mean())
    value = float(values.mean())
    return Estimate(value, Interval(min(max(centre - half, 0.0), value), max(min(centre + half, 1.0), value)))
