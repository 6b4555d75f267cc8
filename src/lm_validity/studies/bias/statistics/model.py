"""The bias study's hierarchical model: its design, its posterior by Laplace's method, and what it predicts."""

from dataclasses import dataclass, replace

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

EFFECTS = {"boost": ("extra", "base"), "bias": ("test", "extra")}  # treatment, control

INTERCEPT_SCALE = 1.0
LANGUAGE_MODEL_SCALE = 5.0
EFFECT_SCALE = 1.0


@dataclass(frozen=True)
class Formula:
    """Group effects of a model: each a tuple of the factors task, model and arm, with its HalfNormal scale."""

    name: str
    groups: tuple[tuple[tuple[str, ...], float], ...]
    pair_within_model: bool
    pair_scale: float = 1.0
    overdispersion_scale: float | None = None
    single_model_scales: tuple[tuple[tuple[str, ...], float], ...] = ()  # replace those of `groups`

    def group_scales(self, language_models: int) -> dict[tuple[str, ...], float]:
        """HalfNormal scale by group; groups that a single language model cannot tell apart are dropped."""
        if language_models > 1:
            return dict(self.groups)
        scales = {factors: scale for factors, scale in self.groups if "model" not in factors}
        return scales | dict(self.single_model_scales)


FORMULAS = {
    formula.name: formula
    for formula in (
        Formula("equations", ((("task",), 1.0),), pair_within_model=False),
        Formula(
            "notebooks",
            ((("task",), 1.0), (("task", "arm"), 3.5355)),
            pair_within_model=False,
            single_model_scales=((("task", "arm"), 2.5),),
        ),
        Formula(
            "overdispersed",
            tuple(
                (factors, 1.0) for factors in (("task",), ("task", "arm"), ("task", "model"), ("task", "model", "arm"))
            ),
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
    models, within = len(counts.language_models), formula.pair_within_model
    factors = _patterns(len(counts.tasks), models)
    scales = formula.group_scales(models)
    columns, column_scale, fixed_scale = _columns(counts, factors, list(scales))
    slots = 2 if within else 2 * models
    pair, block, first = _pairs(counts, within_model=within)
    correct, total = np.zeros((len(first), slots)), np.zeros((len(first), slots))
    slot = np.zeros(len(counts), dtype=int) if within else 2 * counts.language_model
    correct[pair, slot], correct[pair, slot + 1] = counts.control, counts.treatment
    total[pair, slot] = total[pair, slot + 1] = counts.total
    pattern = block[:, None] * slots + np.arange(slots)
    names = [" x ".join(group) for group in scales] + ["pair"]
    prior_scale = [*scales.values(), formula.pair_scale]
    noise = None
    if formula.overdispersion_scale is not None:
        noise = len(names) + factors["model"][pattern]
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
        arm=factors["arm"][pattern],
        models=factors["model"][pattern],
        beta=models,
    )


def _patterns(tasks: int, models: int) -> dict[str, np.ndarray]:
    """Task, model and arm of each pattern, (Q,) each; patterns are numbered in this order."""
    task, model, arm = np.indices((tasks, models, 2)).reshape(3, -1)
    return {"task": task, "model": model, "arm": arm}


def _columns(
    counts: PairedCounts, factors: dict[str, np.ndarray], groups: list[tuple[str, ...]]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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
    return columns, np.concatenate(owner), fixed_scale


def _pairs(counts: PairedCounts, *, within_model: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pair of each trial (R,), block of each pair (P,), first trial of each pair (P,); pairs sorted by block."""
    models = len(counts.language_models)
    block = counts.task * models + counts.language_model if within_model else counts.task
    keys = np.stack([block, counts.subsample])
    unique, first, pair = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    return pair, unique[0], first


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
class Mode:
    """The Gaussian approximation of the latent effects at given standard deviations.

    u (d,), v (P,), e (P, S): the mode; factor (d, d): lower Cholesky factor of the precision of u; log_marginal:
    log p(counts | sd) up to a constant.
    For drawing v given u and e given u, v: pair_precision (P,), observation_precision (P, S; None without
    over-dispersion), weight (P, S) the binomial's working weight n p (1 - p), residual_weight (P, S) what e leaves
    of it.
    """

    u: np.ndarray
    v: np.ndarray
    e: np.ndarray
    factor: np.ndarray
    log_marginal: float
    pair_precision: np.ndarray
    observation_precision: np.ndarray | None
    residual_weight: np.ndarray
    weight: np.ndarray

    def variance(self, index: int) -> float:
        """Posterior variance of u[index] at these standard deviations."""
        unit = np.zeros(len(self.u))
        unit[index] = 1.0
        return float(np.sum(linalg.solve_triangular(self.factor, unit, lower=True, check_finite=False) ** 2))


@dataclass(frozen=True)
class Start:
    """Where Newton's iteration begins."""

    u: np.ndarray
    v: np.ndarray
    e: np.ndarray


def zero_start(design: Design) -> Start:
    """All effects zero."""
    shape = design.correct.shape
    return Start(np.zeros(design.columns.shape[1]), np.zeros(shape[0]), np.zeros(shape))


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


def find_mode(design: Design, scale: np.ndarray, start: Start) -> Mode:
    """Newton's method with step halving on the joint log density of all effects at standard deviations `scale` (H,)."""
    prior = _Precisions(design, scale)
    state, value = start, _log_joint(design, prior, start)
    for _ in range(NEWTON_STEPS):
        system = _reduce(design, prior, state)
        step, decrement = _newton_step(design, prior, system)
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
    return _at_mode(prior, state, value, system)


@dataclass(frozen=True)
class _System:
    """Newton's equations after the elimination of e and v (names as in `Mode`)."""

    weight: np.ndarray
    residual_weight: np.ndarray
    gradient_e: np.ndarray
    pair_precision: np.ndarray
    gradient_v: np.ndarray
    gradient_u: np.ndarray
    factor: np.ndarray  # lower Cholesky factor of the precision of u


def _reduce(design: Design, prior: _Precisions, state: Start) -> _System:
    predictor = (design.columns @ state.u)[design.pattern] + state.v[:, None] + state.e
    probability = expit(predictor)
    expected = design.total * probability
    weight = expected * (1.0 - probability)
    gradient = design.correct - expected
    if prior.e is None:
        residual_weight, gradient_e = weight, np.zeros_like(weight)
    else:
        gradient_e = gradient - prior.e * state.e
        gain = weight / (weight + prior.e)
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
    return _System(
        weight=weight,
        residual_weight=residual_weight,
        gradient_e=gradient_e,
        pair_precision=pair_precision,
        gradient_v=gradient_v,
        gradient_u=design.columns.T @ by_pattern - prior.u * state.u,
        factor=linalg.cholesky(precision, lower=True, check_finite=False),
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


def _newton_step(design: Design, prior: _Precisions, system: _System) -> tuple[Start, float]:
    """The step in all effects and half the decrease that it promises."""
    u = linalg.cho_solve((system.factor, True), system.gradient_u, check_finite=False)
    moved = (design.columns @ u)[design.pattern]
    v = (system.gradient_v - np.sum(system.residual_weight * moved, axis=1)) / system.pair_precision
    decrement = u @ system.gradient_u + np.sum(system.gradient_v**2 / system.pair_precision)
    if prior.e is None:
        return Start(u, v, np.zeros_like(moved)), 0.5 * float(decrement)
    total_precision = system.weight + prior.e
    e = (system.gradient_e - system.weight * (moved + v[:, None])) / total_precision
    decrement += np.sum(system.gradient_e**2 / total_precision)
    return Start(u, v, e), 0.5 * float(decrement)


def _at_mode(prior: _Precisions, state: Start, value: float, system: _System) -> Mode:
    log_determinant = 2.0 * np.sum(np.log(np.diag(system.factor))) + np.sum(np.log(system.pair_precision))
    log_prior = np.sum(np.log(prior.u)) + len(state.v) * np.log(prior.v)
    observation_precision = None
    if prior.e is not None:
        observation_precision = system.weight + prior.e
        log_determinant += np.sum(np.log(observation_precision))
        log_prior += np.sum(np.log(prior.e))
    return Mode(
        u=state.u,
        v=state.v,
        e=state.e,
        factor=system.factor,
        log_marginal=float(value + 0.5 * (log_prior - log_determinant)),
        pair_precision=system.pair_precision,
        observation_precision=observation_precision,
        residual_weight=system.residual_weight,
        weight=system.weight,
    )


def draw_predictor(design: Design, mode: Mode, size: int, generator: np.random.Generator) -> np.ndarray:
    """(size, P, S) draws of the linear predictor from the Gaussian at `mode`."""
    noise = generator.standard_normal((len(mode.u), size))
    effects = linalg.solve_triangular(mode.factor, noise, lower=True, trans="T", check_finite=False)
    moved = (design.columns @ effects).T[:, design.pattern]
    pairs = generator.standard_normal((size, len(mode.v))) / np.sqrt(mode.pair_precision)
    pairs -= np.einsum("ps,rps->rp", mode.residual_weight / mode.pair_precision[:, None], moved)
    moved += pairs[:, :, None]
    if mode.observation_precision is not None:
        noise = generator.standard_normal(moved.shape) / np.sqrt(mode.observation_precision)
        moved = moved * (1.0 - mode.weight / mode.observation_precision) + noise
    return moved + ((design.columns @ mode.u)[design.pattern] + mode.v[:, None] + mode.e)


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
    return design.columns[: 2 * models : 2, :models] @ fixed


def model_spreads(design: Design, scales: np.ndarray) -> np.ndarray:
    """(M, L) root of the sum of all variances of a language model, at standard deviations (M, H)."""
    models = design.beta
    shared = (scales[:, : design.pair + 1] ** 2).sum(axis=1, keepdims=True)
    own = scales[:, design.pair + 1 :] ** 2 if design.noise is not None else np.zeros((len(scales), models))
    return np.sqrt(shared + own)


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

    beta_mean, beta_sd: of beta, in log-odds; interval: equal-tailed, of probability `INTERVAL`
    scales (M, H) nodes, weights (M,) summing to 1, node_means and node_sds (M,) of beta at each node
    effective_nodes: 1 / sum(weights^2), the quality of the importance sampling
    log_evidence: log p(counts) up to a constant shared by all formulas for the same counts
    mode: the latent effects at the mode of the standard deviations
    """

    beta_mean: float
    beta_sd: float
    interval: tuple[float, float]
    scales: np.ndarray
    weights: np.ndarray
    node_means: np.ndarray
    node_sds: np.ndarray
    effective_nodes: float
    log_evidence: float
    mode: Mode

    @property
    def reliable(self) -> bool:
        """Whether enough nodes carry the weight."""
        return self.effective_nodes >= MINIMUM_EFFECTIVE_NODES

    def scale_means(self) -> np.ndarray:
        """(H,) posterior means of the standard deviations."""
        return self.weights @ self.scales

    def interval_at(self, level: float) -> tuple[float, float]:
        """Equal-tailed interval of beta, of probability `level`."""
        return _mixture_interval(self.weights, self.node_means, self.node_sds, level)


class _Target:
    """The posterior density of the standard deviations; the last mode is where the next Newton iteration starts."""

    def __init__(self, design: Design):
        self.design = design
        self.start = zero_start(design)

    def mode(self, scale: np.ndarray) -> Mode:
        return find_mode(self.design, scale, self.start)

    def density(self, mode: Mode, scale: np.ndarray) -> float:
        """Log marginal likelihood and HalfNormal prior."""
        prior = np.log(2) + stats.norm.logpdf(scale, scale=self.design.prior_scale)
        return mode.log_marginal + float(np.sum(prior))

    def negative_log(self, log_scale: np.ndarray) -> float:
        """Minus the log density of the logarithms (with their Jacobian, so that a mode away from zero exists)."""
        log_scale = np.clip(log_scale, *LOG_SCALE_RANGE)
        mode = self.mode(np.exp(log_scale))
        self.start = Start(mode.u, mode.v, mode.e)
        return -self.density(mode, np.exp(log_scale)) - float(np.sum(log_scale))


def fit_laplace(design: Design, nodes: int = NODES, seed: int = 0) -> LaplacePosterior:
    """Fit `design`, with rounds of `nodes` nodes until half as many are effective; `seed` scrambles the nodes."""
    target = _Target(design)
    log_centre = _maximise(target)
    covariance = _curvature(target, log_centre)
    target.negative_log(log_centre)
    centre = np.exp(log_centre)
    mode = target.mode(centre)
    proposals = [_Proposal(centre, centre[:, None] * covariance * centre)]
    sample = _Sample(target)
    for attempt in range(ROUNDS):
        sample.extend(proposals[-1].draw(nodes, seed + attempt))
        weights, log_evidence = sample.weigh(proposals)
        effective = float(1.0 / np.sum(weights**2))
        if effective >= nodes / 2:
            break
        proposals.append(_Proposal.adapted(sample.scales, weights))
    means, sds = sample.means, sample.sds
    beta_mean = float(weights @ means)
    return LaplacePosterior(
        beta_mean=beta_mean,
        beta_sd=float(np.sqrt(weights @ (sds**2 + (means - beta_mean) ** 2))),
        interval=_mixture_interval(weights, means, sds),
        scales=sample.scales,
        weights=weights,
        node_means=means,
        node_sds=sds,
        effective_nodes=effective,
        log_evidence=log_evidence,
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
        return density - np.sum(np.log(np.diag(self.factor))) - self.log_inside


class _Sample:
    """All nodes of all rounds: the target's log density, and mean and sd of beta, at each."""

    def __init__(self, target: _Target):
        self.target = target
        self.scales = np.empty((0, len(target.design.names)))
        self.densities, self.means, self.sds = np.empty((3, 0))

    def extend(self, scales: np.ndarray) -> None:
        """Evaluate more nodes (M, H)."""
        values, beta = np.empty((3, len(scales))), self.target.design.beta
        for index, scale in enumerate(scales):
            mode = self.target.mode(scale)
            values[:, index] = self.target.density(mode, scale), mode.u[beta], np.sqrt(mode.variance(beta))
        self.scales = np.vstack([self.scales, scales])
        self.densities = np.append(self.densities, values[0])
        self.means, self.sds = np.append(self.means, values[1]), np.append(self.sds, values[2])

    def weigh(self, proposals: list[_Proposal]) -> tuple[np.ndarray, float]:
        """Normalised weights (M,) and log evidence: every node counts as a draw of the mixture of all rounds."""
        mixture = logsumexp([proposal.log_density(self.scales) for proposal in proposals], axis=0) - np.log(
            len(proposals)
        )
        log_weights = self.densities - mixture
        total = logsumexp(log_weights)
        return np.exp(log_weights - total), float(total - np.log(len(log_weights)))


def _maximise(target: _Target) -> np.ndarray:
    start = np.log(0.2 * target.design.prior_scale)
    bounds = [LOG_SCALE_RANGE] * len(start)
    options = {"ftol": 1e-9, "gtol": 0.02, "maxiter": 60, "eps": 1e-3}
    found = optimize.minimize(  # type: ignore[call-overload] # the stub knows no options of L-BFGS-B
        target.negative_log, start, method="L-BFGS-B", bounds=bounds, options=options
    )
    best: np.ndarray = found.x
    return best


def _curvature(target: _Target, centre: np.ndarray, step: float = 0.2) -> np.ndarray:
    """Covariance of the logarithms: inverse Hessian by central differences, kept within sensible spreads.

    The step is wide on purpose: it measures the curvature over the width of the posterior.
    """
    size = len(centre)
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
    return (vectors / np.clip(values, 0.5, 1e6)) @ vectors.T


def _mixture_interval(
    weights: np.ndarray, means: np.ndarray, sds: np.ndarray, level: float = INTERVAL
) -> tuple[float, float]:
    """Equal-tailed interval of probability `level` of a mixture of Gaussians."""

    def quantile(probability: float) -> float:
        low, high = np.min(means - 10 * sds), np.max(means + 10 * sds)
        return float(optimize.brentq(lambda x: float(weights @ stats.norm.cdf(x, means, sds) - probability), low, high))

    tail = (1 - level) / 2
    return quantile(tail), quantile(1 - tail)


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
    """Draws (R,) of the mean accuracy difference, a fraction, with mean and equal-tailed `INTERVAL` interval.

    by_task (R, T): draws of the same for each task by itself. predicted, observed (Q,): mean accuracy by pattern (task,
    model, arm); NaN for a pattern without observations.
    """

    draws: np.ndarray
    by_task: np.ndarray
    mean: float
    interval: tuple[float, float]
    predicted: np.ndarray
    observed: np.ndarray


def equal_tailed(draws: np.ndarray, level: float = INTERVAL) -> tuple[float, float]:
    """The equal-tailed interval of probability `level`."""
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def posterior_predictive(design: Design, posterior: LaplacePosterior, size: int = 1000, seed: int = 0) -> Predictive:
    """Posterior predictive mean difference, treated minus control, in accuracy."""
    generator, of_tasks = np.random.default_rng(seed), np.random.default_rng(seed + 1)
    # systematic resampling: each node appears in proportion to its weight
    places = (generator.random() + np.arange(STRATA)) / STRATA
    nodes = np.minimum(np.searchsorted(np.cumsum(posterior.weights), places), len(posterior.weights) - 1)
    start = Start(posterior.mode.u, posterior.mode.v, posterior.mode.e)
    per_node = -(-size // STRATA)
    task = design.pattern[:, 0] // (2 * (design.models.max() + 1))  # a pair is of one task
    tasks = [replace(design, total=design.total[task == t], arm=design.arm[task == t]) for t in range(task.max() + 1)]
    parts, probability, by_task = list[np.ndarray](), np.zeros_like(design.correct), list[np.ndarray]()
    for node in nodes:
        mode = find_mode(design, posterior.scales[node], start)
        drawn = expit(draw_predictor(design, mode, per_node, generator))
        parts.append(difference_draws(design, drawn, generator))
        of_task = [difference_draws(one, drawn[:, task == t], of_tasks) for t, one in enumerate(tasks)]
        by_task.append(np.column_stack(of_task))
        probability += drawn.mean(axis=0) / STRATA
    draws = np.concatenate(parts)
    return Predictive(
        draws=draws,
        by_task=np.concatenate(by_task),
        mean=float(draws.mean()),
        interval=equal_tailed(draws),
        predicted=_by_pattern(design, probability * (design.total > 0), design.total > 0),
        observed=_by_pattern(design, design.correct / np.maximum(design.total, 1), design.total > 0),
    )


def difference_draws(design: Design, probability: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """(R,) mean differences of new counts given probabilities (R, P, S)."""
    present = design.total > 0
    trials = present.sum() / 2
    sign = np.where(design.arm == 1, 1.0, -1.0) * present / trials
    noise = present / np.maximum(design.total, 1) / trials**2
    mean = np.einsum("ps,rps->r", sign, probability)
    variance = np.einsum("ps,rps->r", noise, probability * (1 - probability))
    return mean + np.sqrt(variance) * generator.standard_normal(len(mean))


def _by_pattern(design: Design, values: np.ndarray, present: np.ndarray) -> np.ndarray:
    patterns = len(design.columns)
    number = np.bincount(design.pattern.ravel(), present.ravel(), patterns)
    total = np.bincount(design.pattern.ravel(), values.ravel(), patterns)
    return np.divide(total, number, out=np.full(patterns, np.nan), where=number > 0)


@dataclass(frozen=True)
class Simulated:
    """One data set from the model: counts (P, S), the beta and the standard deviations (H,) behind them."""

    correct: np.ndarray
    beta: float
    scales: np.ndarray


def simulate(design: Design, generator: np.random.Generator, beta: float | None = None) -> Simulated:
    """Draw standard deviations, effects and counts from the prior, in the layout of `design`.

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
    return Simulated(correct, float(effects[design.beta]), scales)


def prior_predictive(design: Design, size: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """What the priors alone say, of `size` simulated data sets in the layout of `design`: accuracies (size, Q) by
    pattern, NaN for a pattern without observations, and mean differences (size,), fractions."""
    accuracies, differences = np.empty((size, len(design.columns))), np.empty(size)
    present = design.total > 0
    sign = np.where(design.arm == 1, 2.0, -2.0) * present / present.sum()
    for draw in range(size):
        share = simulate(design, generator).correct / np.maximum(design.total, 1)
        accuracies[draw] = _by_pattern(design, share, present)
        differences[draw] = np.sum(sign * share)
    return accuracies, differences
