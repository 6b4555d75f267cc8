"""The bias study's hierarchical model: its design, its posterior by Laplace's method, and what it predicts."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from scipy import linalg, optimize, stats
from scipy.special import expit, gammaln, logsumexp

# ----------------------------------------------------------------------------------------------------------------------
# The hierarchical binomial model of the bias study: three named formulas, their priors, and the design they give.
#
# A trial contributes two binomial counts, of the control arm (x = 0) and of the treated arm (x = 1):
#
#     correct ~ Binomial(total, p),   logit p = mu + alpha[language model] + beta x + group effects
#
# `boost` compares extra (treated) with base, `bias` test (treated) with extra. Group effects are N(0, sigma^2) with
# sigma ~ HalfNormal(scale); as in bambi, the predictors are centred, so that mu is the intercept at their mean.
#
# | formula | group effects |
# |---|---|
# | `equations` | task; pair = (task, subsample), shared by the language models: Dubey, arXiv 2410.00179, eqs. 1-8 |
# | `notebooks` | the same and task x arm, as the author fitted: `(1|dataset/method) + (1|dataset/pair)` |
# | `overdispersed` | task, task x arm, task x model, task x model x arm; pair within a model; one |
# |                 | N(0, sigma_model^2) per observation, for the training noise that a binomial leaves out |
from lm_validity.statistics import Interval

INTERCEPT_SCALE = 1.0
LANGUAGE_MODEL_SCALE = 5.0
EFFECT_SCALE = 1.0
PAIR_SCALE = 1.0


@dataclass(frozen=True)
class Formula:
    """HalfNormal scales by group of effects, which is a tuple of the factors task, model and arm.

    `single_model_scales` replace those of `groups` where there is one language model.
    """

    name: str
    groups: Mapping[tuple[str, ...], float]
    pair_within_model: bool
    overdispersion_scale: float | None = None
    single_model_scales: Mapping[tuple[str, ...], float] = field(default_factory=dict)

    def group_scales(self, language_models: int) -> dict[tuple[str, ...], float]:
        """HalfNormal scale by group; groups that a single language model cannot tell apart are dropped."""
        if language_models > 1:
            return dict(self.groups)
        scales = {factors: scale for factors, scale in self.groups.items() if "model" not in factors}
        return {**scales, **self.single_model_scales}


_TASK, _ARM, _MODEL, _MODEL_ARM = ("task",), ("task", "arm"), ("task", "model"), ("task", "model", "arm")
FORMULAS = {
    formula.name: formula
    for formula in (
        Formula("equations", {_TASK: 1.0}, pair_within_model=False),
        Formula("notebooks", {_TASK: 1.0, _ARM: 3.5355}, pair_within_model=False, single_model_scales={_ARM: 2.5}),
        Formula(
            "overdispersed",
            dict.fromkeys((_TASK, _ARM, _MODEL, _MODEL_ARM), 1.0),
            pair_within_model=True,
            overdispersion_scale=1.0,
        ),
    )
}


@dataclass(frozen=True)
class PairedCounts:
    """The trials of one (experiment, m, n) and effect. R trials; integer codes index `tasks` and `language_models`.

    task, language_model, subsample: (R,) int; total, control, treatment: (R,) float, correct answers in [0, total].
    """

    tasks: tuple[str, ...]
    language_models: tuple[str, ...]
    task: np.ndarray
    language_model: np.ndarray
    subsample: np.ndarray
    total: np.ndarray
    control: np.ndarray
    treatment: np.ndarray

    def __len__(self) -> int:
        return len(self.task)


@dataclass(frozen=True)
class Design:
    """The model's linear predictor, arranged by pairs for block elimination.

    A *pattern* is a (task, model, arm); all observations of a pattern have the same row of `columns`. P pairs, each
    with S slots (the observations that share its effect), Q patterns, d columns, H standard deviations.

    columns: (Q, d) rows of fixed and group effects: mu, alpha (one per model but the first), beta, then the groups
    column_scale: (d,) index into `names` of the sd of that column's effect; -1 for a fixed effect
    fixed_scale: (d,) prior sd of a fixed effect; NaN for a group's column
    pattern: (P, S) row of `columns` of each observation; empty slots have total 0
    correct, total: (P, S) counts
    block_start: (K,) first pair of each run of pairs that have the same patterns (pairs are sorted by block)
    noise: (P, S) index into `names` of the sd of the observation's own effect, or None without over-dispersion
    names, prior_scale: (H,) the standard deviations and their HalfNormal scales; `pair` is the index of the pairs' sd
    arm: (P, S) 0 control, 1 treatment;   models: (P, S) language-model codes;   beta: index of beta's column
    """

    columns: np.ndarray
    column_scale: np.ndarray
    fixed_scale: np.ndarray
    pattern: np.ndarray
    correct: np.ndarray
    total: np.ndarray
    block_start: np.ndarray
    noise: np.ndarray | None
    names: tuple[str, ...]
    prior_scale: np.ndarray
    pair: int
    arm: np.ndarray
    models: np.ndarray
    beta: int


def build_design(counts: PairedCounts, formula: Formula) -> Design:
    """The design of `formula` for `counts`. Works for any number of tasks, models and (unequal) subsamples."""
    models, pair_within_model = len(counts.language_models), formula.pair_within_model
    # of each pattern, (Q,): patterns are numbered in this order
    task, model, arm = np.indices((len(counts.tasks), models, 2)).reshape(3, -1)
    factors = {"task": task, "model": model, "arm": arm}
    scales = formula.group_scales(models)
    columns, column_scale, fixed_scale = _columns(counts, factors, list(scales))
    slots = 2 if pair_within_model else 2 * models
    block = counts.task * models + counts.language_model if pair_within_model else counts.task
    # the block of each pair, (P,), and the pair of each trial, (R,)
    (block, _), pair = np.unique(np.stack([block, counts.subsample]), axis=1, return_inverse=True)
    correct, total = np.zeros((2, len(block), slots))
    slot = np.zeros(len(counts), dtype=int) if pair_within_model else 2 * counts.language_model
    correct[pair, slot], correct[pair, slot + 1] = counts.control, counts.treatment
    total[pair, slot] = total[pair, slot + 1] = counts.total
    pattern = block[:, None] * slots + np.arange(slots)
    names = [" x ".join(group) for group in scales] + ["pair"]
    prior_scale = [*scales.values(), PAIR_SCALE]
    noise = None
    if formula.overdispersion_scale is not None:
        noise = len(names) + model[pattern]
        names += [f"observation ({name})" for name in counts.language_models]
        prior_scale += [formula.overdispersion_scale] * models
    return Design(
        columns=columns,
        column_scale=column_scale,
        fixed_scale=fixed_scale,
        pattern=pattern,
        correct=correct,
        total=total,
        block_start=np.flatnonzero(np.diff(block, prepend=-1)),
        noise=noise,
        names=tuple(names),
        prior_scale=np.array(prior_scale),
        pair=len(scales),
        arm=arm[pattern],
        models=model[pattern],
        beta=models,
    )


class _Columns(NamedTuple):
    """Columns of the design, the scale that each belongs to, and which scales are fixed."""

    columns: np.ndarray
    owner: np.ndarray
    fixed_scale: np.ndarray


def _columns(counts: PairedCounts, factors: dict[str, np.ndarray], groups: list[tuple[str, ...]]) -> _Columns:
    """The pattern's rows of effects, centred over the observations as bambi does, and whose scale each column has."""
    models = len(counts.language_models)
    share = np.bincount(counts.language_model, minlength=models) / len(counts)
    fixed = [np.ones(len(factors["arm"]))]
    fixed += [(factors["model"] == code) - share[code] for code in range(1, models)]
    fixed += [factors["arm"] - 0.5]
    scale = [INTERCEPT_SCALE] + [LANGUAGE_MODEL_SCALE] * (models - 1) + [EFFECT_SCALE]
    blocks, owner = [np.column_stack(fixed)], [np.full(len(scale), -1)]
    for index, group in enumerate(groups):
        level = np.unique(np.stack([factors[name] for name in group]), axis=1, return_inverse=True)[1]
        blocks.append(np.eye(level.max() + 1)[level])
        owner.append(np.full(level.max() + 1, index))
    columns = np.hstack(blocks).astype(float)
    fixed_scale = np.full(columns.shape[1], np.nan)
    fixed_scale[: len(scale)] = scale
    return _Columns(columns, np.concatenate(owner), fixed_scale)


# ----------------------------------------------------------------------------------------------------------------------
# Posterior of the hierarchical binomial model by nested Laplace approximation.
#
# For given standard deviations theta the latent effects (fixed and group effects u, pair effects v, observation effects
# e) have a log-concave posterior, which is replaced by the Gaussian at its mode; this also gives the marginal
# likelihood of theta, and the posterior of theta is integrated by importance sampling (Rue, Martino & Chopin 2009,
# JRSS B 71:319-392; Tierney & Kadane 1986). Each observation has one e and belongs to one pair, so e and v are
# eliminated in closed form and only the few dozen entries of u need a dense solve: a fit takes a second or two.

NEWTON_STEPS = 60
NEWTON_TOLERANCE = 1e-8  # of the Newton decrement, in nats


@dataclass(frozen=True)
class Start:
    """The latent effects where Newton's iteration begins: u (d,), v of the pairs (P,), e of the observations (P, S)."""

    u: np.ndarray
    v: np.ndarray
    e: np.ndarray


@dataclass(frozen=True)
class System:
    """Newton's equations after the elimination of e and v.

    weight (P, S): the binomial's working weight n p (1 - p); residual_weight (P, S): what e leaves of it;
    observation_precision (P, S): of e given u and v, None without over-dispersion; pair_precision (P,): of v given u;
    factor (d, d): lower Cholesky factor of the precision of u; gradients: of e, v and u.
    """

    weight: np.ndarray
    residual_weight: np.ndarray
    observation_precision: np.ndarray | None
    pair_precision: np.ndarray
    factor: np.ndarray
    gradient_e: np.ndarray
    gradient_v: np.ndarray
    gradient_u: np.ndarray


@dataclass(frozen=True)
class Mode(Start):
    """The Gaussian approximation of the latent effects at given standard deviations: their mode, the system there, and
    log_marginal: log p(counts | sd) up to a constant."""

    system: System
    log_marginal: float

    def variance(self, index: int) -> float:
        """Posterior variance of u[index] at these standard deviations."""
        unit = np.zeros(len(self.u))
        unit[index] = 1.0
        return float(np.sum(linalg.solve_triangular(self.system.factor, unit, lower=True, check_finite=False) ** 2))


class _Precisions:
    """Prior precisions at given standard deviations `scale` (H,)."""

    def __init__(self, design: Design, scale: np.ndarray):
        grouped = design.column_scale >= 0
        self.u = np.where(grouped, scale[design.column_scale], design.fixed_scale) ** -2.0
        self.v = scale[design.pair] ** -2.0
        self.e = None if design.noise is None else scale[design.noise] ** -2.0


def _log_joint(design: Design, prior: _Precisions, state: Start) -> float:
    """log p(counts, effects | sd) without the constants that depend on neither effects nor sd."""
    predictor = (design.columns @ state.u)[design.pattern] + state.v[:, None] + state.e
    value = np.sum(design.correct * predictor - design.total * np.logaddexp(0.0, predictor))
    value -= 0.5 * (state.u @ (prior.u * state.u) + prior.v * state.v @ state.v)
    if prior.e is not None:
        value -= 0.5 * np.sum(prior.e * state.e**2)
    return float(value)


def find_mode(design: Design, scale: np.ndarray, start: Start | None = None) -> Mode:
    """Newton's method with step halving on the joint log density of all effects at standard deviations `scale` (H,).

    `start`: by default all effects are zero.
    """
    prior, shape = _Precisions(design, scale), design.correct.shape
    state = start or Start(np.zeros(design.columns.shape[1]), np.zeros(shape[0]), np.zeros(shape))
    value = _log_joint(design, prior, state)
    for _ in range(NEWTON_STEPS):
        system = _reduce(design, prior, state)
        step, decrement = _newton_step(design, system)
        if decrement < NEWTON_TOLERANCE:
            break
        length = 1.0
        while True:
            trial = Start(state.u + length * step.u, state.v + length * step.v, state.e + length * step.e)
            trial_value = _log_joint(design, prior, trial)
            if trial_value >= value - 1e-9 * abs(value) or length < 1e-4:
                break
            length /= 2
        state, value = trial, trial_value
    log_determinant = 2.0 * np.sum(np.log(np.diag(system.factor))) + np.sum(np.log(system.pair_precision))
    log_prior = np.sum(np.log(prior.u)) + len(state.v) * np.log(prior.v)
    if prior.e is not None and system.observation_precision is not None:
        log_determinant += np.sum(np.log(system.observation_precision))
        log_prior += np.sum(np.log(prior.e))
    return Mode(state.u, state.v, state.e, system, float(value + 0.5 * (log_prior - log_determinant)))


def _reduce(design: Design, prior: _Precisions, state: Start) -> System:
    predictor = (design.columns @ state.u)[design.pattern] + state.v[:, None] + state.e
    probability = expit(predictor)
    expected = design.total * probability
    weight = expected * (1.0 - probability)
    gradient = design.correct - expected
    observation_precision, residual_weight, gradient_e = None, weight, np.zeros_like(weight)
    if prior.e is not None:
        observation_precision = weight + prior.e
        gradient_e = gradient - prior.e * state.e
        gain = weight / observation_precision
        residual_weight = weight - weight * gain
        gradient = gradient - gain * gradient_e
    pair_precision = residual_weight.sum(axis=1) + prior.v
    gradient_v = gradient.sum(axis=1) - prior.v * state.v
    gradient = gradient - residual_weight * (gradient_v / pair_precision)[:, None]
    patterns = len(design.columns)
    by_pattern = np.bincount(design.pattern.ravel(), gradient.ravel(), patterns)
    information = _pattern_information(design, residual_weight, pair_precision)
    precision = design.columns.T @ information @ design.columns
    precision[np.diag_indices_from(precision)] += prior.u
    return System(
        weight=weight,
        residual_weight=residual_weight,
        observation_precision=observation_precision,
        pair_precision=pair_precision,
        factor=linalg.cholesky(precision, lower=True, check_finite=False),
        gradient_e=gradient_e,
        gradient_v=gradient_v,
        gradient_u=design.columns.T @ by_pattern - prior.u * state.u,
    )


def _pattern_information(design: Design, weight: np.ndarray, pair_precision: np.ndarray) -> np.ndarray:
    """(Q, Q): diag(sum of weights) less the pairs' share, sum over pairs of w w' / (sum w + pair precision)."""
    patterns, slots = len(design.columns), weight.shape[1]
    shared = weight[:, :, None] * (weight / pair_precision[:, None])[:, None, :]
    local = -np.add.reduceat(shared, design.block_start, axis=0)
    local[:, np.arange(slots), np.arange(slots)] += np.add.reduceat(weight, design.block_start, axis=0)
    rows = design.pattern[design.block_start]
    information = np.zeros((patterns, patterns))
    information[rows[:, :, None], rows[:, None, :]] = local
    return information


class _Step(NamedTuple):
    """A step in all effects, and half the decrease that it promises."""

    step: Start
    decrement: float


def _newton_step(design: Design, system: System) -> _Step:
    """Newton's step from where the system was set up."""
    u = linalg.cho_solve((system.factor, True), system.gradient_u, check_finite=False)
    moved = (design.columns @ u)[design.pattern]
    v = (system.gradient_v - np.sum(system.residual_weight * moved, axis=1)) / system.pair_precision
    decrement = u @ system.gradient_u + np.sum(system.gradient_v**2 / system.pair_precision)
    if system.observation_precision is None:
        return _Step(Start(u, v, np.zeros_like(moved)), 0.5 * float(decrement))
    e = (system.gradient_e - system.weight * (moved + v[:, None])) / system.observation_precision
    decrement += np.sum(system.gradient_e**2 / system.observation_precision)
    return _Step(Start(u, v, e), 0.5 * float(decrement))


def draw_predictor(design: Design, mode: Mode, size: int, generator: np.random.Generator) -> np.ndarray:
    """(size, P, S) draws of the linear predictor from the Gaussian at `mode`."""
    system, noise = mode.system, generator.standard_normal((len(mode.u), size))
    effects = linalg.solve_triangular(system.factor, noise, lower=True, trans="T", check_finite=False)
    moved = (design.columns @ effects).T[:, design.pattern]
    pairs = generator.standard_normal((size, len(mode.v))) / np.sqrt(system.pair_precision)
    pairs -= np.einsum("ps,rps->rp", system.residual_weight / system.pair_precision[:, None], moved)
    moved += pairs[:, :, None]
    if system.observation_precision is not None:
        noise = generator.standard_normal(moved.shape) / np.sqrt(system.observation_precision)
        moved = moved * (1.0 - system.weight / system.observation_precision) + noise
    result: np.ndarray = moved + ((design.columns @ mode.u)[design.pattern] + mode.v[:, None] + mode.e)
    return result


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
    result: np.ndarray = design.columns[: 2 * models : 2, :models] @ fixed
    return result


def model_spreads(design: Design, scales: np.ndarray) -> np.ndarray:
    """(M, L) root of the sum of all variances of a language model, at standard deviations (M, H)."""
    models = design.beta
    shared = (scales[:, : design.pair + 1] ** 2).sum(axis=1, keepdims=True)
    variances = scales[:, design.pair + 1 :] ** 2 if design.noise is not None else np.zeros((len(scales), models))
    result: np.ndarray = np.sqrt(shared + variances)
    return result


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
LOG_SCALE_RANGE = (np.log(1e-5), np.log(30.0))  # of a standard deviation on the logit scale
MINIMUM_EFFECTIVE_NODES = 40.0  # below it the report calls the fit unreliable


@dataclass(frozen=True)
class LaplacePosterior:
    """Posterior of one fit; H standard deviations (named in the design), M nodes.

    beta_mean, beta_sd: of beta, in log-odds
    scales (M, H) nodes, weights (M,) summing to 1, node_means and node_sds (M,) of beta at each node
    effective_nodes: 1 / sum(weights^2), the quality of the importance sampling
    log_evidence: log p(counts) up to a constant shared by all formulas for the same counts
    mode: the latent effects at the mode of the standard deviations
    """

    beta_mean: float
    beta_sd: float
    scales: np.ndarray
    weights: np.ndarray
    node_means: np.ndarray
    node_sds: np.ndarray
    effective_nodes: float
    log_evidence: float
    mode: Mode

    @property
    def reliable(self) -> bool:
        """Whether enough nodes of the importance sampling carry its weight: at least MINIMUM_EFFECTIVE_NODES."""
        return self.effective_nodes >= MINIMUM_EFFECTIVE_NODES

    @property
    def interval(self) -> Interval[float]:
        """The credible interval that holds the mean with probability `INTERVAL`."""
        return self.interval_at(INTERVAL)

    def interval_at(self, level: float) -> Interval[float]:
        """Equal-tailed interval of beta, a mixture of Gaussians, of probability `level`."""
        weights, means, sds = self.weights, self.node_means, self.node_sds
        low, high = np.min(means - 10 * sds), np.max(means + 10 * sds)

        def excess(x: float, probability: float) -> float:
            return float(weights @ stats.norm.cdf(x, means, sds)) - probability

        tail = (1 - level) / 2
        lower, upper = (float(optimize.brentq(excess, low, high, args=(share,))) for share in (tail, 1 - tail))

        return Interval(lower, upper)


class _Target:
    """The posterior density of the standard deviations; the last mode is where the next Newton iteration starts."""

    def __init__(self, design: Design):
        self.design = design
        self.start: Start | None = None

    def mode(self, scale: np.ndarray) -> Mode:
        return find_mode(self.design, scale, self.start)

    def density(self, mode: Mode, scale: np.ndarray) -> float:
        """Log marginal likelihood and HalfNormal prior."""
        prior = np.log(2) + stats.norm.logpdf(scale, scale=self.design.prior_scale)
        return mode.log_marginal + float(np.sum(prior))

    def negative_log(self, log_scale: np.ndarray) -> float:
        """Minus the log density of the logarithms (with their Jacobian, so that a mode away from zero exists)."""
        log_scale = np.clip(log_scale, *LOG_SCALE_RANGE)
        self.start = mode = self.mode(np.exp(log_scale))
        return -self.density(mode, np.exp(log_scale)) - float(np.sum(log_scale))

    def evaluate(self, scales: np.ndarray) -> np.ndarray:
        """(3, M) log density, and mean and sd of beta, at nodes (M, H)."""
        values, beta = np.empty((3, len(scales))), self.design.beta
        for index, scale in enumerate(scales):
            mode = self.mode(scale)
            values[:, index] = self.density(mode, scale), mode.u[beta], np.sqrt(mode.variance(beta))
        return values


def fit_laplace(design: Design, nodes: int = NODES, seed: int = 0) -> LaplacePosterior:
    """Fit `design`, with rounds of `nodes` nodes until half as many are effective; `seed` scrambles the nodes."""
    target = _Target(design)
    optimum = optimize.minimize(
        target.negative_log,
        np.log(0.2 * design.prior_scale),
        method="L-BFGS-B",
        bounds=[LOG_SCALE_RANGE] * len(design.names),
        options={"ftol": 1e-9, "gtol": 0.02, "maxiter": 60, "eps": 1e-3},
    )
    covariance = _curvature(target, optimum.x)
    target.negative_log(optimum.x)
    centre = np.exp(optimum.x)
    mode = target.mode(centre)
    proposals = [_Proposal(centre, centre[:, None] * covariance * centre)]
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
        proposals.append(_Proposal.adapted(scales, weights))
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

    @classmethod
    def adapted(cls, scales: np.ndarray, weights: np.ndarray) -> "_Proposal":
        """Centre and covariance of a weighted sample, a little wider along the axes."""
        centre = weights @ scales
        spread = scales - centre
        covariance = (spread.T * weights) @ spread
        covariance[np.diag_indices_from(covariance)] *= 1.1
        return cls(centre, covariance)

    def draw(self, nodes: int, seed: int) -> np.ndarray:
        """(nodes, H) points of a scrambled Sobol sequence (fewer if hardly any fall inside)."""
        size = len(self.centre)
        uniform = stats.qmc.Sobol(size + 1, rng=np.random.default_rng(seed)).random(32 * nodes)
        uniform = np.clip(uniform, 1e-9, 1 - 1e-9)
        stretch = np.sqrt(PROPOSAL_FREEDOM / stats.chi2.ppf(uniform[:, -1], PROPOSAL_FREEDOM))
        scales = self.centre + (stats.norm.ppf(uniform[:, :-1]) * stretch[:, None]) @ self.factor.T
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
        result: np.ndarray = density - np.sum(np.log(np.diag(self.factor))) - self.log_inside
        return result


def _curvature(target: _Target, centre: np.ndarray) -> np.ndarray:
    """Covariance of the logarithms: inverse Hessian by central differences, kept within sensible spreads."""
    size, step = len(centre), 0.2  # wide on purpose: it measures the curvature over the width of the posterior
    steps = step * np.eye(size)
    middle = target.negative_log(centre)
    up = np.array([target.negative_log(centre + row) for row in steps])
    down = np.array([target.negative_log(centre - row) for row in steps])
    hessian = np.diag((up + down - 2 * middle) / step**2)
    for i in range(size):
        for j in range(i):
            corner = target.negative_log(centre + steps[i] + steps[j])
            opposite = target.negative_log(centre - steps[i] - steps[j])
            mixed = corner + opposite - up[i] - up[j] - down[i] - down[j] + 2 * middle
            hessian[i, j] = hessian[j, i] = mixed / (2 * step**2)
    values, vectors = np.linalg.eigh(hessian)
    result: np.ndarray = (vectors / np.clip(values, 0.5, 1e6)) @ vectors.T
    return result


# ----------------------------------------------------------------------------------------------------------------------
# What the hierarchical model says in accuracy: posterior and prior predictive differences between two arms.
#
# The paper's figures 2 to 4: draw every count anew, pair treated with control, average (Y1 - Y0) / n over language
# models, tasks and subsamples, the groups being those of the data. That average is one weighted sum of thousands of
# independent binomials, so given the probabilities it is drawn from its Gaussian limit with the exact mean and
# variance.

STRATA = 25  # standard deviations among which the draws are divided


@dataclass(frozen=True)
class Predictive:
    """Draws (R,) of the mean accuracy difference, a fraction.

    by_task (R, T): draws of the same for each task by itself. predicted, observed (Q,): mean accuracy by pattern (task,
    model, arm); NaN for a pattern without observations.
    """

    draws: np.ndarray
    by_task: np.ndarray
    predicted: np.ndarray
    observed: np.ndarray


def equal_tailed(draws: np.ndarray, level: float = INTERVAL) -> Interval[float]:
    """The equal-tailed interval of probability `level`."""
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def posterior_predictive(design: Design, posterior: LaplacePosterior, size: int = 1000) -> Predictive:
    """Posterior predictive mean difference, treated minus control, in accuracy."""
    generator, of_tasks = np.random.default_rng(0), np.random.default_rng(1)
    # systematic resampling: each node appears in proportion to its weight
    places = (generator.random() + np.arange(STRATA)) / STRATA
    nodes = np.minimum(np.searchsorted(np.cumsum(posterior.weights), places), len(posterior.weights) - 1)
    per_node = -(-size // STRATA)
    task = design.pattern[:, 0] // (2 * (design.models.max() + 1))  # a pair is of one task
    tasks = [replace(design, total=design.total[task == t], arm=design.arm[task == t]) for t in range(task.max() + 1)]
    parts, probability, by_task = list[np.ndarray](), np.zeros_like(design.correct), list[np.ndarray]()
    for node in nodes:
        mode = find_mode(design, posterior.scales[node], posterior.mode)
        drawn = expit(draw_predictor(design, mode, per_node, generator))
        parts.append(difference_draws(design, drawn, generator))
        of_task = [difference_draws(task_design, drawn[:, task == t], of_tasks) for t, task_design in enumerate(tasks)]
        by_task.append(np.column_stack(of_task))
        probability += drawn.mean(axis=0) / STRATA
    return Predictive(
        draws=np.concatenate(parts),
        by_task=np.concatenate(by_task),
        predicted=_by_pattern(design, probability),
        observed=_by_pattern(design, design.correct / np.maximum(design.total, 1)),
    )


def difference_draws(design: Design, probability: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """(R,) mean differences of new counts given probabilities (R, P, S)."""
    present = design.total > 0
    trials = present.sum() / 2
    sign = np.where(design.arm == 1, 1.0, -1.0) * present / trials
    noise = present / np.maximum(design.total, 1) / trials**2
    mean = np.einsum("ps,rps->r", sign, probability)
    variance = np.einsum("ps,rps->r", noise, probability * (1 - probability))
    result: np.ndarray = mean + np.sqrt(variance) * generator.standard_normal(len(mean))
    return result


def _by_pattern(design: Design, values: np.ndarray) -> np.ndarray:
    """(Q,) mean of values (P, S) over the observations of each pattern; NaN without one."""
    present, patterns = design.total > 0, len(design.columns)
    number = np.bincount(design.pattern.ravel(), present.ravel(), patterns)
    total = np.bincount(design.pattern.ravel(), (values * present).ravel(), patterns)
    result: np.ndarray = np.divide(total, number, out=np.full(patterns, np.nan), where=number > 0)
    return result


class Simulated(NamedTuple):
    """Counts (P, S) of right answers, and the beta behind them."""

    correct: np.ndarray
    beta: float


def simulate(design: Design, generator: np.random.Generator, beta: float | None = None) -> Simulated:
    """Counts drawn from the prior in the layout of `design`.

    `beta` fixes the effect of the treatment, as in the paper's null and non-null recovery checks.
    """
    scales = np.abs(generator.normal(0.0, design.prior_scale))
    spread = np.where(design.column_scale >= 0, scales[design.column_scale], design.fixed_scale)
    effects = generator.normal(0.0, spread)
    if beta is not None:
        effects[design.beta] = beta
    predictor = (design.columns @ effects)[design.pattern]
    predictor = predictor + generator.normal(0.0, scales[design.pair], len(predictor))[:, None]
    if design.noise is not None:
        predictor = predictor + generator.normal(0.0, scales[design.noise])
    correct = generator.binomial(design.total.astype(np.int64), expit(predictor)).astype(float)
    return Simulated(correct, float(effects[design.beta]))


class PriorPredictive(NamedTuple):
    """Of simulated data sets: accuracies (size, Q) by pattern, NaN for a pattern without observations, and mean
    differences (size,), fractions."""

    accuracies: np.ndarray
    differences: np.ndarray


def prior_predictive(design: Design, size: int, generator: np.random.Generator) -> PriorPredictive:
    """What the priors alone say, of `size` simulated data sets in the layout of `design`."""
    accuracies, differences = np.empty((size, len(design.columns))), np.empty(size)
    present = design.total > 0
    sign = np.where(design.arm == 1, 2.0, -2.0) * present / present.sum()
    for draw in range(size):
        share = simulate(design, generator).correct / np.maximum(design.total, 1)
        accuracies[draw] = _by_pattern(design, share)
        differences[draw] = np.sum(sign * share)
    return PriorPredictive(accuracies, differences)
