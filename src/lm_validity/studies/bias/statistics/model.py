"""The hierarchical model's posterior by importance sampling and by Markov chains, and what it predicts."""

from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy import linalg, optimize, stats
from scipy.special import expit, gammaln, logsumexp, ndtr, ndtri, softmax

from lm_validity.errors import InputError
from lm_validity.statistics import Interval
from lm_validity.studies.bias.statistics import latent
from lm_validity.studies.bias.statistics.latent import Design, Formula, Modes, PairedCounts
from lm_validity.words import Missing

# ----------------------------------------------------------------------------------------------------------------------
# The hierarchical model's effect in accuracy for new tasks, splits and trainings like these.
#
# beta is a difference of log-odds. What it means in accuracy depends on where on the logistic curve a task lies.
# Averaged over tasks, splits and trainings drawn anew from the fitted population, with the language models weighing
# the same:
#
#     g(beta) = mean over models and z ~ N(0, 1) of  expit(level + s z + beta / 2) - expit(level + s z - beta / 2)
#
# s² is the sum of all variances of the model: tasks, pairs, and the noise of training. g grows with beta and g(0) = 0,
# so an interval of beta becomes one of g(beta), and excludes zero exactly where beta's does. The levels are held at
# their estimates; the standard deviations are averaged over their posterior. (Zeger, Liang & Albert 1988, Biometrics
# 44:1049-1060, call such effects population-averaged.) It speaks for tasks like these: it fails where the log-odds of
# the tasks are far from normal.

QUADRATURE_NODES = 32


def marginal_effect(levels: np.ndarray, spreads: np.ndarray, weights: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """g at each of `beta` (B,), in accuracy (-1 to 1).

    levels (L,): mean log-odds of each language model; spreads (M, L): s at M draws or nodes of the posterior, whose
    weights (M,) sum to 1. Nothing may be NaN. Gauss-Hermite quadrature over z.
    """
    points, mass = np.polynomial.hermite_e.hermegauss(QUADRATURE_NODES)
    mass = mass / mass.sum()
    middle = levels[None, :, None] + spreads[:, :, None] * points  # (M, L, nodes)
    effects = [expit(middle + value / 2) - expit(middle - value / 2) for value in beta]
    return np.array([weights @ (effect @ mass).mean(axis=1) for effect in effects])


def model_levels(design: Design, fixed: np.ndarray) -> np.ndarray:
    """(L,) mean log-odds of the language models between the two arms, from `fixed` effects (mu, alphas; L,)."""
    models = len(fixed)
    return np.asarray(design.columns[: 2 * models : 2, :models] @ fixed)


def model_spreads(design: Design, scales: np.ndarray) -> np.ndarray:
    """(M, L) root of the sum of all variances of a language model, at standard deviations (M, H)."""
    models = design.beta
    shared = (scales[:, : design.pair + 1] ** 2).sum(axis=1, keepdims=True)
    variances = scales[:, design.pair + 1 :] ** 2 if design.noise is not None else np.zeros((len(scales), models))
    return np.asarray(np.sqrt(shared + variances))


# ----------------------------------------------------------------------------------------------------------------------
# Posterior of beta and of the standard deviations: importance sampling around the mode of nested Laplace.
#
# The target is p(sd | counts) from `find_mode`, the proposal a Student t, adapted round by round to the
# weighted nodes of all rounds before (adaptive multiple importance sampling, Cornuet et al. 2012, Scand. J. Statist.
# 39:798-812) until enough nodes are effective. The posterior of beta is then a weighted mixture of Gaussians, one a
# node, so that the uncertainty of the standard deviations, large where there are few tasks, is part of every interval.

INTERVAL = 0.89  # the paper's credible intervals
NODES = 128  # a round
ROUNDS = 12
PROPOSAL_FREEDOM = 5.0  # Student t: heavier tails than the posterior of a standard deviation
GRADIENT_STEP = 1e-3  # of a logarithm
LOG_SCALE_RANGE = (np.log(1e-5), np.log(30.0))  # of a standard deviation on the logit scale
MINIMUM_EFFECTIVE_NODES = 40.0  # below it the report calls the fit unreliable


class LaplacePosterior(NamedTuple):
    """Posterior of one fit; H standard deviations (named in the design), M nodes.

    beta_mean, beta_sd: of beta, in log-odds
    scales (M, H) nodes, weights (M,) summing to 1, node_means and node_sds (M,) of beta at each node
    effective_nodes: 1 / sum(weights^2), the quality of the importance sampling
    log_evidence: log p(counts) up to a constant shared by all formulas for the same counts
    mode: the latent effects at the mode of the standard deviations (M = 1)
    """

    beta_mean: float
    beta_sd: float
    scales: np.ndarray
    weights: np.ndarray
    node_means: np.ndarray
    node_sds: np.ndarray
    effective_nodes: float
    log_evidence: float
    mode: Modes

    @property
    def reliable(self) -> bool:
        """Whether enough nodes of the importance sampling carry its weight: at least MINIMUM_EFFECTIVE_NODES."""
        return self.effective_nodes >= MINIMUM_EFFECTIVE_NODES

    def interval_at(self, level: float) -> Interval[float]:
        """Equal-tailed interval of beta, a mixture of Gaussians, of probability `level`."""
        weights, means, sds = self.weights, self.node_means, self.node_sds
        low, high = np.min(means - 10 * sds), np.max(means + 10 * sds)

        def excess(x: float, probability: float) -> float:
            return float(weights @ ndtr((x - means) / sds)) - probability

        tail = (1 - level) / 2
        return Interval(*(float(optimize.brentq(excess, low, high, args=(share,))) for share in (tail, 1 - tail)))


class _Target:
    """The posterior density of the standard deviations; Newton's iterations start at the mode of the last centre."""

    def __init__(self, design: Design):
        self.design = design
        self.start: latent.Start | None = None

    def density(self, modes: Modes) -> np.ndarray:
        """(M,) log marginal likelihood and HalfNormal prior."""
        log_prior = np.log(2) + stats.norm.logpdf(modes.scales, scale=self.design.prior_scale)
        return np.asarray(modes.log_marginal + log_prior.sum(axis=1))

    def evaluate(self, scales: np.ndarray) -> np.ndarray:
        """(3, M) log density, and mean and sd of beta, at nodes (M, H)."""
        modes = latent.find_modes(self.design, scales, self.start)
        return np.stack([self.density(modes), modes.u[:, self.design.beta], np.sqrt(modes.beta_variance)])

    def negative_log(self, log_scales: np.ndarray) -> np.ndarray:
        """Minus the log density (M,) of the logarithms (M, H; with their Jacobian, so that a mode away from zero
        exists). The first row is the new centre."""
        log_scales = np.clip(log_scales, *LOG_SCALE_RANGE)
        modes = latent.find_modes(self.design, np.exp(log_scales), self.start)
        self.start = modes.rows(slice(0, 1))
        return np.asarray(-self.density(modes) - log_scales.sum(axis=1))

    def with_gradient(self, log_scale: np.ndarray) -> tuple[float, np.ndarray]:
        """`negative_log` at (H,), and its gradient by differences."""
        step = np.where(log_scale + GRADIENT_STEP > LOG_SCALE_RANGE[1], -GRADIENT_STEP, GRADIENT_STEP)
        middle, *beside = self.negative_log(np.vstack([log_scale, log_scale + np.diag(step)]))
        return float(middle), (np.array(beside) - middle) / step


def fit_laplace(design: Design, nodes: int = NODES, seed: int = 0) -> LaplacePosterior:
    """Fit `design`, with rounds of `nodes` nodes until half as many are effective; `seed` scrambles the nodes."""
    target = _Target(design)
    optimum = optimize.minimize(
        target.with_gradient,
        np.log(0.2 * design.prior_scale),
        jac=True,
        method="L-BFGS-B",
        bounds=[LOG_SCALE_RANGE] * len(design.names),
        options={"ftol": 1e-9, "gtol": 0.02, "maxiter": 60},
    )
    curvature, centre = _curvature(target, optimum.x), np.exp(optimum.x)
    target.start = mode = latent.find_modes(design, centre[None], target.start)
    proposals = [_Proposal(centre, centre[:, None] * curvature * centre)]
    scales, values = np.empty((0, len(centre))), np.empty((3, 0))
    for attempt in range(ROUNDS):
        drawn = proposals[-1].draw(nodes, seed + attempt)
        scales, values = np.vstack([scales, drawn]), np.hstack([values, target.evaluate(drawn)])
        # every node counts as a draw of the mixture of all rounds
        mixture = logsumexp([proposal.log_density(scales) for proposal in proposals], axis=0) - np.log(len(proposals))
        total = logsumexp(values[0] - mixture)
        weights = np.exp(values[0] - mixture - total)
        effective = float(1.0 / np.sum(weights**2))
        if effective >= nodes / 2:
            break
        # centre and covariance of the weighted nodes, a little wider along the axes
        centre, spread = weights @ scales, scales - weights @ scales
        covariance = (spread.T * weights) @ spread
        covariance[np.diag_indices_from(covariance)] *= 1.1
        proposals.append(_Proposal(centre, covariance))
    _, means, sds = values
    beta_mean = float(weights @ means)
    return LaplacePosterior(
        beta_mean=beta_mean,
        beta_sd=float(np.sqrt(weights @ (sds**2 + (means - beta_mean) ** 2))),
        scales=scales,
        weights=weights,
        node_means=means,
        node_sds=sds,
        effective_nodes=effective,
        log_evidence=float(total - np.log(len(weights))),
        mode=mode,
    )


class _Proposal:
    """A Student t truncated to positive standard deviations: what falls outside is never evaluated."""

    def __init__(self, centre: np.ndarray, covariance: np.ndarray):
        self.centre = centre
        self.factor = np.linalg.cholesky(covariance)
        self.log_inside = 0.0

    def draw(self, nodes: int, seed: int) -> np.ndarray:
        """(nodes, H) points of a scrambled Sobol sequence (fewer if hardly any fall inside)."""
        scales: np.ndarray = self.centre + _standard_points(len(self.centre), nodes, seed) @ self.factor.T
        low, high = np.exp(LOG_SCALE_RANGE)
        inside = np.all((scales > low) & (scales < high), axis=1)
        self.log_inside = float(np.log(inside.mean()))
        return scales[inside][:nodes]

    def log_density(self, scales: np.ndarray) -> np.ndarray:
        """(M,) of the truncated t."""
        size, freedom = len(self.centre), PROPOSAL_FREEDOM
        standard = linalg.solve_triangular(self.factor, (scales - self.centre).T, lower=True)
        density = -0.5 * (freedom + size) * np.log1p(np.sum(standard**2, axis=0) / freedom)
        density += gammaln((freedom + size) / 2) - gammaln(freedom / 2) - 0.5 * size * np.log(freedom * np.pi)
        return np.asarray(density - np.sum(np.log(np.diag(self.factor))) - self.log_inside)


@lru_cache(maxsize=32)
def _standard_points(size: int, nodes: int, seed: int) -> np.ndarray:
    """(32 nodes, size) points of the t distribution, from which those inside are taken; the same in many fits."""
    uniform = stats.qmc.Sobol(size + 1, rng=np.random.default_rng(seed)).random(32 * nodes)
    uniform = np.clip(uniform, 1e-9, 1 - 1e-9)
    stretch = np.sqrt(PROPOSAL_FREEDOM / stats.chi2.ppf(uniform[:, -1], PROPOSAL_FREEDOM))
    points: np.ndarray = ndtri(uniform[:, :-1]) * stretch[:, None]
    points.flags.writeable = False
    return points


def _curvature(target: _Target, centre: np.ndarray) -> np.ndarray:
    """Covariance of the logarithms: inverse Hessian by central differences, kept within sensible spreads."""
    size, step = len(centre), 0.2  # wide on purpose: it measures the curvature over the width of the posterior
    steps, (rows, columns) = step * np.eye(size), np.tril_indices(size, -1)
    corners = steps[rows] + steps[columns]
    values = target.negative_log(centre + np.vstack([np.zeros(size), steps, -steps, corners, -corners]))
    middle, up, down = values[0], values[1 : 1 + size], values[1 + size : 1 + 2 * size]
    corner, opposite = values[1 + 2 * size :].reshape(2, -1)
    hessian = np.diag((up + down - 2 * middle) / step**2)
    mixed = corner + opposite - up[rows] - up[columns] - down[rows] - down[columns] + 2 * middle
    hessian[rows, columns] = hessian[columns, rows] = mixed / (2 * step**2)
    values, vectors = np.linalg.eigh(hessian)
    return np.asarray((vectors / np.clip(values, 0.5, 1e6)) @ vectors.T)


# ----------------------------------------------------------------------------------------------------------------------
# What the hierarchical model says in accuracy: posterior and prior predictive differences between two arms.
#
# The paper's figures 2 to 4: draw every count anew, pair treated with control, average (Y1 - Y0) / n over language
# models, tasks and subsamples, the groups being those of the data. That average is one weighted sum of thousands of
# independent binomials, so given the probabilities it is drawn from its Gaussian limit with the exact mean and
# variance.

STRATA = 25  # standard deviations among which the draws are divided


def equal_tailed(draws: np.ndarray, level: float = INTERVAL) -> Interval[float]:
    """The equal-tailed interval of probability `level`."""
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def posterior_predictive(design: Design, posterior: LaplacePosterior, size: int = 1000) -> np.ndarray:
    """Draws (R,) of the mean difference of new counts, treated minus control, in accuracy."""
    generator = np.random.default_rng(0)
    # systematic resampling: each node appears in proportion to its weight
    places = (generator.random() + np.arange(STRATA)) / STRATA
    nodes = np.minimum(np.searchsorted(np.cumsum(posterior.weights), places), len(posterior.weights) - 1)
    modes = latent.find_modes(design, posterior.scales[nodes], posterior.mode)
    drawn = latent.draw_predictors(design, modes, -(-size // STRATA), generator)
    return np.concatenate([difference_draws(design, expit(predictor), generator) for predictor in drawn])


def difference_draws(design: Design, probability: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """(R,) mean differences of new counts given probabilities (R, P, S)."""
    first = np.flatnonzero(np.diff(design.pattern[:, 0] // design.patterns, prepend=-1))  # a pair is of one task
    present = design.total > 0
    trials = np.add.reduceat(present.sum(axis=1), first) / 2
    sign, noise = np.where(design.arm == 1, 1.0, -1.0) * present, present / np.maximum(design.total, 1)
    mean = np.add.reduceat(np.einsum("ps,rps->rp", sign, probability), first, axis=1) / trials
    variance = np.add.reduceat(np.einsum("ps,rps->rp", noise, probability * (1 - probability)), first, axis=1)
    share = trials / trials.sum()
    mean, variance = mean @ share, (variance / trials**2) @ share**2
    return np.asarray(mean + np.sqrt(variance) * generator.standard_normal(mean.shape))


class Simulated(NamedTuple):
    """Counts (P, S) of right answers, and the beta behind them."""

    correct: np.ndarray
    beta: float


def simulate(design: Design, generator: np.random.Generator) -> Simulated:
    """Counts drawn from the prior in the layout of `design`."""
    scales = np.abs(generator.normal(0.0, design.prior_scale))
    spread = np.where(design.column_scale >= 0, scales[design.column_scale], design.fixed_scale)
    effects = generator.normal(0.0, spread)
    predictor = (design.columns @ effects)[design.pattern]
    predictor = predictor + generator.normal(0.0, scales[design.pair], len(predictor))[:, None]
    if design.noise is not None:
        predictor = predictor + generator.normal(0.0, scales[design.noise])
    correct = generator.binomial(design.total.astype(np.int64), expit(predictor)).astype(float)
    return Simulated(correct, float(effects[design.beta]))


def prior_predictive(design: Design, size: int) -> dict[str, np.ndarray]:
    """What the priors alone say, of `size` simulated data sets in the layout of `design`: each `accuracy` of a pattern
    with observations, and the mean `difference` (size,), fractions."""
    generator, present, patterns = np.random.default_rng(0), design.total > 0, len(design.columns)
    accuracies, differences = np.full((size, patterns), np.nan), np.empty(size)
    number = np.bincount(design.pattern.ravel(), present.ravel(), patterns)
    sign = np.where(design.arm == 1, 2.0, -2.0) * present / present.sum()
    for draw in range(size):
        share = simulate(design, generator).correct / np.maximum(design.total, 1)
        total = np.bincount(design.pattern.ravel(), (share * present).ravel(), patterns)
        np.divide(total, number, out=accuracies[draw], where=number > 0)
        differences[draw] = np.sum(sign * share)
    return {"accuracy": accuracies[np.isfinite(accuracies)], "difference": differences}


# ----------------------------------------------------------------------------------------------------------------------
# Slices of the data, of one subsample for each (language model, task): what a study of that size would have said.

THRESHOLD = 0.04  # log-odds; neighbours on the RAFT leaderboard differ by an odds ratio of 1.03
ONE_SUBSAMPLE = "Every task has one subsample: a slice would be the whole data."
SLICE_FORMULA = Formula(groups={}, pair_within_model=False)
GRID = np.geomspace(0.1, 4.0, 7)  # standard deviations of the pairs, in log-odds


class MetaAnalysis(NamedTuple):
    """Shares of the slices: `beyond`, |posterior mean of beta| > THRESHOLD; `excluding_zero`, the 89% credible interval
    excludes 0, which is 11% on average over studies without an effect."""

    beyond: float
    excluding_zero: float


def meta_analysis(counts: PairedCounts, slices: int, seed: int = 0) -> MetaAnalysis | Missing:
    """Analyse `slices` random slices with one subsample per (language model, task)."""
    generator = np.random.default_rng(seed)
    group = counts.task * len(counts.language_models) + counts.language_model
    order = np.argsort(group, kind="stable")
    first = np.flatnonzero(np.diff(group[order], prepend=-1))
    size = np.diff(np.append(first, len(order)))
    if size.max() == 1:
        return Missing(ONE_SUBSAMPLE)
    rows = order[first + generator.integers(size, size=(slices, len(size)))]
    answers = {name: getattr(counts, name)[rows] for name in ("total", "control", "treatment")}
    layout = {name: getattr(counts, name)[rows[0]] for name in ("task", "language_model")}  # the same in all slices
    counts = replace(counts, subsample=np.zeros_like(rows[0]), **layout, **answers)
    design = latent.build_design(counts, SLICE_FORMULA)
    prior = stats.halfnorm.logpdf(GRID, scale=latent.PAIR_SCALE) + np.log(GRID)
    density, means, variances = np.empty((3, len(GRID), slices))
    modes: Modes | None = None
    for index, scale in enumerate(GRID):
        modes = latent.find_modes(design, np.full((slices, 1), scale), modes)
        density[index] = modes.log_marginal + prior[index]
        means[index], variances[index] = modes.u[:, design.beta], modes.beta_variance
    weights = softmax(density, axis=0)
    mean = np.sum(weights * means, axis=0)
    sds = np.sqrt(np.sum(weights * (variances + (means - mean) ** 2), axis=0))
    outside = np.abs(mean) > stats.norm.ppf((1 + INTERVAL) / 2) * sds
    return MetaAnalysis(float(np.mean(np.abs(mean) > THRESHOLD)), float(np.mean(outside)))


# ----------------------------------------------------------------------------------------------------------------------
# The same hierarchical models by Hamiltonian Monte Carlo (NUTS): a PyMC model, sampled by nutpie.
#
# Not through bambi: its group effects are non-centred, and with thousands of well-measured trials the
# intercept and the tasks' sd then do not mix. Here every level is centred on the one above it, and the two arms
# of a group are written as their mean and their difference. For exchangeable arms this is the same model: two
# independent N(0, s^2) have a mean that is N(0, s^2 / 2) and, independent of it, a difference that is
# N(0, 2 s^2).
#
#     level[task] ~ N(mu, .)      level[task, model] ~ N(level[task] + alpha[model], .)
#     slope[task] ~ N(beta, .)    slope[task, model] ~ N(slope[task], .)
#     level[pair] ~ N(level above, sd_pair)      logit p = level[pair] + slope (x - 1/2), x = 0 or 1
#
# Effects that vary less than the data of one of them can tell are non-centred instead (Betancourt & Girolami
# 2015, arXiv 1312.0906); the Laplace fit says which. Needs the optional extra `bayes`.

CHAINS = 4
TUNE = 1000
DRAWS = 2000
TARGET_ACCEPT = 0.98  # small steps: standard deviations near zero make narrow necks
MAXIMUM_RHAT = 1.01
MINIMUM_EFFECTIVE_DRAWS = 400.0


class NutsPosterior(NamedTuple):
    """beta in log-odds, and diagnostics over every sampled parameter.

    beta_draws (R,); difference_draws (R,): posterior predictive mean accuracy differences, fractions;
    fixed (L,): posterior means of mu and the alphas; scales (R, H): draws of the standard deviations, in the design's
    order.
    """

    beta_mean: float
    beta_sd: float
    beta_draws: np.ndarray
    difference_draws: np.ndarray
    fixed: np.ndarray
    scales: np.ndarray
    divergences: int
    rhat_max: float
    effective_draws_min: float

    @property
    def reliable(self) -> bool:
        """No divergence, every r-hat at most 1.01, at least 400 effective draws of every parameter."""
        mixed = self.rhat_max <= MAXIMUM_RHAT and self.effective_draws_min >= MINIMUM_EFFECTIVE_DRAWS
        return self.divergences == 0 and mixed

    def interval_at(self, level: float) -> Interval[float]:
        """Equal-tailed interval of beta of probability `level`."""
        return equal_tailed(self.beta_draws, level)


def fit_nuts(counts: PairedCounts, formula: Formula, *, cores: int = 1) -> NutsPosterior:
    """Sample the posterior of `formula` with `CHAINS` chains of `DRAWS` draws after `TUNE` steps."""
    try:
        import arviz
        import nutpie
        import pymc
        import pytensor.tensor as tensor
    except ImportError as error:
        raise InputError(
            f"the NUTS sampler needs a package that is not installed ({error.name}).",
            "pip install 'lm-validity[bayes]', or use --sampler laplace.",
        ) from error
    design = latent.build_design(counts, formula)
    model = _Model(counts, formula, design, pymc, tensor).build(_centred(design))
    trace = nutpie.sample(
        nutpie.compile_pymc_model(model),
        chains=CHAINS,
        draws=DRAWS,
        tune=TUNE,
        seed=0,
        cores=cores,
        target_accept=TARGET_ACCEPT,
        progress_bar=False,
    )
    diagnostics = arviz.summary(trace, kind="diagnostics", round_to="none")
    posterior = {name: values.to_numpy() for name, values in trace.posterior.items()}
    beta = posterior["beta"].ravel()
    noise = np.random.default_rng(0).standard_normal(len(beta))
    difference = posterior["difference_mean"].ravel() + np.sqrt(posterior["difference_variance"].ravel()) * noise
    return NutsPosterior(
        beta_mean=float(beta.mean()),
        beta_sd=float(beta.std(ddof=1)),
        beta_draws=beta,
        difference_draws=difference,
        fixed=np.append(posterior["mu"].mean(), posterior["alpha"].mean(axis=(0, 1)) if "alpha" in posterior else []),
        scales=np.column_stack([posterior[f"sd {name}"].ravel() for name in design.names]),
        divergences=int(trace.sample_stats["diverging"].sum()),
        rhat_max=float(diagnostics["r_hat"].max()),
        effective_draws_min=float(diagnostics[["ess_bulk", "ess_tail"]].to_numpy().min()),
    )


def _centred(design: Design) -> dict[str, bool]:
    """By standard deviation: whether its effects vary more than the data of a single one leave uncertain.

    Decided for slopes, pairs and observations; the levels of tasks always do.
    """
    fit = fit_laplace(design, nodes=64)
    system = latent.system_at(design, fit.mode)
    # median over (task, model) of the standard error of an unpooled slope, from the working weights
    arms = np.bincount(design.pattern.ravel(), system.residual_weight[0].ravel(), len(design.columns)).reshape(-1, 2)
    arms = arms[(arms > 0).all(axis=1)]
    slopes = float(np.median(np.sqrt((1 / arms).sum(axis=1)))) / np.sqrt(2) if len(arms) else np.inf
    uncertainty = {name: slopes if name.endswith("arm") else 0.0 for name in design.names}
    uncertainty["pair"] = float(np.median(system.residual_weight[0].sum(axis=1) ** -0.5))
    if design.noise is not None:
        for index in np.unique(design.noise):
            weight = system.weight[0][(design.total > 0) & (design.noise == index)]
            uncertainty[design.names[index]] = float(np.median(weight**-0.5))
    scales = dict(zip(design.names, fit.weights @ fit.scales, strict=True))
    return {name: bool(scales[name] > uncertainty[name]) for name in design.names}


class _Model:
    """Writes a formula as a PyMC model with the priors and the data of `design`."""

    def __init__(self, counts: PairedCounts, formula: Formula, design: Design, pymc: Any, tensor: Any):
        self.pymc, self.tensor = pymc, tensor
        self.formula, self.design = formula, design
        self.tasks, self.models = len(counts.tasks), len(counts.language_models)
        self.share = np.bincount(counts.language_model, minlength=self.models) / len(counts)
        self.scale = dict(zip(design.names, design.prior_scale, strict=True))

    def build(self, centred: dict[str, bool]) -> Any:
        """The model; `centred` by name of the standard deviations."""
        pymc, design = self.pymc, self.design
        rows, slots = np.nonzero(design.total > 0)
        indices = design.pattern[rows, slots]
        task, model = indices // (2 * self.models), design.models[rows, slots]
        with pymc.Model() as built:
            self.sd = {name: pymc.HalfNormal(f"sd {name}", scale) for name, scale in self.scale.items()}
            level, slope = self._levels(centred), self._slopes(centred)
            predictor = level[rows, slots] + slope[task, model] * (design.arm[rows, slots] - 0.5)
            if design.noise is not None:
                names = list(design.names)[design.pair + 1 :]
                noise = self.tensor.stack([self.sd[name] for name in names])[model]
                flags = np.array([centred[name] for name in names])[model]
                predictor = self._around("logit", predictor, noise, flags)
            total = design.total[rows, slots]
            pymc.Binomial("correct", n=total, logit_p=predictor, observed=design.correct[rows, slots])
            # mean and variance of the posterior predictive difference given the probabilities
            probability, trials = pymc.math.sigmoid(predictor), len(total) / 2
            sign = np.where(design.arm[rows, slots] == 1, 1.0, -1.0)
            pymc.Deterministic("difference_mean", (sign * probability).sum() / trials)
            variance = (probability * (1 - probability) / total).sum() / trials**2
            pymc.Deterministic("difference_variance", variance)
        return built

    def _levels(self, centred: dict[str, bool]) -> Any:
        """(P, S) mean of the two arms of each observation's pair."""
        pymc, design = self.pymc, self.design
        mu, alpha = pymc.Normal("mu", 0, latent.INTERCEPT_SCALE), np.zeros(1)
        if self.models > 1:  # centred effects of the language models, the first one being the reference
            other_models = pymc.Normal("alpha", 0, latent.LANGUAGE_MODEL_SCALE, shape=self.models - 1)
            alpha = self.tensor.concatenate([alpha, other_models])
            alpha = alpha - self.tensor.dot(self.share, alpha)
        level = pymc.Normal("level task", mu, self._spread("task", "task x arm"), shape=self.tasks)
        task, model = design.pattern[:, 0] // (2 * self.models), design.models[:, 0]
        if "task x model" in self.sd:
            spread = self._spread("task x model", "task x model x arm")
            shape = (self.tasks, self.models)
            level = pymc.Normal("level task x model", level[:, None] + alpha[None, :], spread, shape=shape)
            above = level[task, model]
        elif self.formula.pair_within_model:
            above = level[task] + alpha[model]
        else:
            above = level[task]
        pair = self._around("level pair", above, self.sd["pair"], np.full(len(design.total), centred["pair"]))
        shift = 0.0 if self.formula.pair_within_model else alpha[design.models]
        return pair[:, None] + shift + np.zeros(design.total.shape)

    def _around(self, name: str, mean: Any, sd: Any, centred: np.ndarray) -> Any:
        """Normal effects, as many as `centred` has flags; where it is false the standardised effect is sampled."""
        flags = centred.astype(float)
        sampled = self.pymc.Normal(name, flags * mean, flags * sd + (1 - flags), shape=len(flags))
        return flags * sampled + (1 - flags) * (mean + sd * sampled)

    def _spread(self, group: str, arms: str) -> Any:
        """sd of a group's level: its own variance and half that of its two arms."""
        half = self.sd[arms] ** 2 / 2 if arms in self.sd else 0.0
        return self.tensor.sqrt(self.sd[group] ** 2 + half)

    def _slopes(self, centred: dict[str, bool]) -> Any:
        """(tasks, models) treated minus control."""
        slope = self.pymc.Normal("beta", 0, latent.EFFECT_SCALE)
        for name, shape in (("task x arm", (self.tasks, 1)), ("task x model x arm", (self.tasks, self.models))):
            if name not in self.sd:
                continue
            spread, variable = np.sqrt(2) * self.sd[name], f"slope {name.removesuffix(' x arm')}"
            if centred[name]:
                slope = self.pymc.Normal(variable, slope, spread, shape=shape)
            else:
                slope = slope + spread * self.pymc.Normal(f"{variable} (standardised)", 0, 1, shape=shape)
        return slope + np.zeros((self.tasks, self.models))
