"""What two cells of a score table are expected to have in common: the kernels of the Gaussian process."""

from dataclasses import dataclass

import numpy as np

LENGTH = 1.5  # of the radial kernel, in standard deviations of its inputs
COMPONENTS = 3  # principal components of the direct scores
WEIGHT, BASE_WEIGHT, NOISE = 0.05, 0.3, 0.1  # medians of the priors; what all tables have gets more
PRIOR_SPREAD = 2.0  # standard deviation of the logarithm of a weight


@dataclass(frozen=True)
class Cells:
    """Cells of the table: `model` and `benchmark` numbers, and their standardised direct score (0 where unknown)."""

    model: np.ndarray
    benchmark: np.ndarray
    direct: np.ndarray

    def __getitem__(self, chosen: np.ndarray | slice) -> "Cells":
        return Cells(self.model[chosen], self.benchmark[chosen], self.direct[chosen])

    def __len__(self) -> int:
        return len(self.model)


@dataclass(frozen=True)
class Kernels:
    """Kernels over models: `shared` by all benchmarks, and each benchmark's `own`; (parts, models, models) both. The
    first of each is a model's level and a benchmark's level. The last two weights are of the cell's direct score."""

    shared: np.ndarray
    own: np.ndarray

    @property
    def prior(self) -> np.ndarray:
        """Medians of the log weights: of `shared`, of `own`, of the direct score (shared, own), of the noise."""
        median = [np.full(len(kernels), WEIGHT) for kernels in (self.shared, self.own)]
        for weights in median:
            weights[0] = BASE_WEIGHT
        return np.log(np.concatenate([*median, [WEIGHT, WEIGHT, NOISE]]))

    def parts(self, cells: Cells) -> np.ndarray:
        """(weights, cells, cells) covariance of the cells by weight, the noise left out."""
        among = np.ix_(cells.model, cells.model)
        same = cells.benchmark[:, None] == cells.benchmark
        product = np.outer(cells.direct, cells.direct)
        own = [kernel[among] * same for kernel in self.own]
        return np.array([*(kernel[among] for kernel in self.shared), *own, product, product * same])

    def weighted(self, weights: np.ndarray) -> "Covariance":
        """The covariance under some weights (without the noise's)."""
        shared, own = weights[: len(self.shared)], weights[len(self.shared) : -2]
        return Covariance(np.tensordot(shared, self.shared, 1), np.tensordot(own, self.own, 1), *weights[-2:])


@dataclass(frozen=True)
class Covariance:
    """c = S[i, i'] + x x' s + [same benchmark] (O[i, i'] + x x' o), of cells with direct scores x and x'."""

    shared: np.ndarray
    own: np.ndarray
    direct_shared: float
    direct_own: float

    def between(self, left: Cells, right: Cells) -> np.ndarray:
        """(left, right) covariance of two sets of cells."""
        among = np.ix_(left.model, right.model)
        same = left.benchmark[:, None] == right.benchmark
        product = np.outer(left.direct, right.direct)
        return self.shared[among] + self.direct_shared * product + same * (self.own[among] + self.direct_own * product)

    def variance(self, cells: Cells) -> np.ndarray:
        """(cells,) variance of each."""
        one = np.diag(self.shared)[cells.model] + np.diag(self.own)[cells.model]
        return one + (self.direct_shared + self.direct_own) * cells.direct**2

    def sample(self, cells: Cells, benchmarks: int, draws: int, rng: np.random.Generator) -> np.ndarray:
        """(cells, draws) of the process at the cells, from factors of matrices that are only as large as the models."""
        models = len(self.shared)
        shared = _root(self.shared) @ rng.standard_normal((models, draws))
        own = np.einsum("ij,jbr->ibr", _root(self.own), rng.standard_normal((models, benchmarks, draws)))
        slope = np.sqrt(self.direct_shared) * rng.standard_normal(draws)
        slopes = np.sqrt(self.direct_own) * rng.standard_normal((benchmarks, draws))
        whole = shared[cells.model] + own[cells.model, cells.benchmark]
        return whole + cells.direct[:, None] * (slope + slopes[cells.benchmark])


def _root(matrix: np.ndarray) -> np.ndarray:
    """A factor R with R R' = `matrix`, which may be singular."""
    values, vectors = np.linalg.eigh(matrix)
    return vectors * np.sqrt(np.maximum(values, 0.0))


def make_kernels(direct: np.ndarray, size: np.ndarray, families: np.ndarray) -> Kernels:
    """Levels, and lines in size and in direct scores, a smooth function of both, and family.

    `direct`: (models, benchmarks) standardised, 0 where unknown; `size`: (models, columns) such as logarithms of
    parameters and tokens, NaN where unknown; `families`: (models,) names, None where unknown. What the table does not
    tell apart is left out.
    """
    models = len(direct)
    size = standardized(size)[0]
    left, values, _ = np.linalg.svd(direct, full_matrices=False)
    components = left[:, : min(COMPONENTS, int((values > 1e-9).sum()))] * np.sqrt(models)
    inputs = [columns for columns in (size, components) if columns.any()]
    found = [columns @ columns.T / columns.shape[1] for columns in inputs]
    if inputs:
        place = np.column_stack([size, components[:, :2]])
        distance = ((place[:, None] - place) ** 2).sum(axis=-1)
        found.append(np.exp(-distance / 2 / LENGTH**2))
    named = np.array([name if isinstance(name, str) else f"\0{row}" for row, name in enumerate(families)])
    if 1 < len(set(named)) < models:
        found.append(np.equal.outer(named, named).astype(float))
    return Kernels(np.array([np.eye(models), *found]), np.array([np.ones((models, models)), *found]))


def standardized(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(values in standard deviations of their column, 0 where unknown; means; standard deviations, 1 for none)."""
    known = np.isfinite(values)
    number = np.maximum(known.sum(axis=0), 1)
    mean = np.where(known, values, 0.0).sum(axis=0) / number
    centred = np.where(known, values - mean, 0.0)
    spread = np.sqrt((centred**2).sum(axis=0) / number)
    spread = np.where(spread > 1e-12, spread, 1.0)
    return centred / spread, mean, spread
