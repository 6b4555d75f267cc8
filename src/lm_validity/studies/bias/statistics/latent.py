"""The bias study's hierarchical model: its design, and its latent effects at given standard deviations."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple

import numpy as np
from scipy import linalg

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

INTERCEPT_SCALE = 1.0
LANGUAGE_MODEL_SCALE = 5.0
EFFECT_SCALE = 1.0
PAIR_SCALE = 1.0


@dataclass(frozen=True)
class Formula:
    """HalfNormal scales by group of effects, which is a tuple of the factors task (in every group), model and arm.

    `single_model_scales` replace those of `groups` where there is one language model.
    """

    groups: Mapping[tuple[str, ...], float]
    pair_within_model: bool
    overdispersion_scale: float | None = None
    single_model_scales: Mapping[tuple[str, ...], float] = field(default_factory=dict)


_TASK, _ARM, _MODEL, _MODEL_ARM = ("task",), ("task", "arm"), ("task", "model"), ("task", "model", "arm")
FORMULAS = {
    "equations": Formula({_TASK: 1.0}, pair_within_model=False),
    "notebooks": Formula({_TASK: 1.0, _ARM: 3.5355}, pair_within_model=False, single_model_scales={_ARM: 2.5}),
    "overdispersed": Formula(
        dict.fromkeys((_TASK, _ARM, _MODEL, _MODEL_ARM), 1.0), pair_within_model=True, overdispersion_scale=1.0
    ),
}


@dataclass(frozen=True)
class PairedCounts:
    """The trials of one (experiment, m, n) and effect. R trials; integer codes index `tasks` and `language_models`.

    task, language_model, subsample: (R,) int; total, control, treatment: (R,) float, correct answers in [0, total], or
    (M, R): those of M sets of trials in one layout.
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
    group_columns: (T, b) columns of each task's group effects, the same kinds in each row; the other columns are fixed
    correct, total: (P, S) counts
    block_start: (K,) first pair of each run of pairs that have the same patterns (pairs are sorted by block)
    noise: (P, S) index into `names` of the sd of the observation's own effect, or None without over-dispersion
    names, prior_scale: (H,) the standard deviations and their HalfNormal scales; `pair` is the index of the pairs' sd
    arm: (P, S) 0 control, 1 treatment;   models: (P, S) language-model codes;   beta: index of beta's column
    """

    columns: np.ndarray
    column_scale: np.ndarray
    fixed_scale: np.ndarray
    group_columns: np.ndarray
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

    @property
    def patterns(self) -> int:
        """How many patterns each task has."""
        return len(self.columns) // len(self.group_columns)


def build_design(counts: PairedCounts, formula: Formula) -> Design:
    """The design of `formula` for `counts`. Works for any number of tasks, models and (unequal) subsamples."""
    models, pair_within_model = len(counts.language_models), formula.pair_within_model
    # of each pattern, (Q,): patterns are numbered in this order
    task, model, arm = np.indices((len(counts.tasks), models, 2)).reshape(3, -1)
    factors, scales = {"task": task, "model": model, "arm": arm}, dict(formula.groups)
    if models == 1:  # groups that a single language model cannot tell apart are dropped
        scales = {group: scale for group, scale in scales.items() if "model" not in group}
        scales |= formula.single_model_scales
    # the patterns' rows of effects, centred over the observations as bambi does, and whose scale each column has
    share = np.bincount(counts.language_model, minlength=models) / len(counts)
    fixed = [np.ones(len(arm)), *((model == code) - share[code] for code in range(1, models)), arm - 0.5]
    fixed_scale = [INTERCEPT_SCALE] + [LANGUAGE_MODEL_SCALE] * (models - 1) + [EFFECT_SCALE]
    blocks, owner, of_tasks = [np.column_stack(fixed)], [-1] * len(fixed), list[np.ndarray]()
    for index, group in enumerate(scales):
        level = np.unique(np.stack([factors[name] for name in group]), axis=1, return_inverse=True)[1]
        number = level.max() + 1
        blocks.append(np.eye(number)[level])
        of_tasks.append(len(owner) + np.arange(number).reshape(len(counts.tasks), -1))  # a task's levels are together
        owner += [index] * number
    slots = 2 if pair_within_model else 2 * models
    block = counts.task * models + counts.language_model if pair_within_model else counts.task
    # the block of each pair, (P,), and the pair of each trial, (R,)
    (block, _), pair = np.unique(np.stack([block, counts.subsample]), axis=1, return_inverse=True)
    correct, total = np.zeros((2, *counts.total.shape[:-1], len(block), slots))
    slot = np.zeros(len(counts), dtype=int) if pair_within_model else 2 * counts.language_model
    correct[..., pair, slot], correct[..., pair, slot + 1] = counts.control, counts.treatment
    total[..., pair, slot] = total[..., pair, slot + 1] = counts.total
    pattern = block[:, None] * slots + np.arange(slots)
    names = [" x ".join(group) for group in scales] + ["pair"]
    prior_scale = [*scales.values(), PAIR_SCALE]
    noise = None
    if formula.overdispersion_scale is not None:
        noise = len(names) + model[pattern]
        names += [f"observation ({name})" for name in counts.language_models]
        prior_scale += [formula.overdispersion_scale] * models
    return Design(
        columns=np.hstack(blocks).astype(float),
        column_scale=np.array(owner),
        fixed_scale=np.array(fixed_scale + [np.nan] * (len(owner) - len(fixed))),
        group_columns=np.hstack([np.empty((len(counts.tasks), 0), dtype=int), *of_tasks]),
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


# ----------------------------------------------------------------------------------------------------------------------
# Posterior of the hierarchical binomial model by nested Laplace approximation.
#
# For given standard deviations theta the latent effects (fixed and group effects u, pair effects v, observation effects
# e) have a log-concave posterior, which is replaced by the Gaussian at its mode; this also gives the marginal
# likelihood of theta, and the posterior of theta is integrated by importance sampling (Rue, Martino & Chopin 2009,
# JRSS B 71:319-392; Tierney & Kadane 1986). Each observation has one e and belongs to one pair, so e and v are
# eliminated in closed form; each group effect belongs to one task, so these are solved task by task, and only the few
# fixed effects are left. Many theta are worked on together.

NEWTON_STEPS = 60
NEWTON_TOLERANCE = 1e-12  # of the Newton decrement, in nats; with 1e-8 an end of an interval was off by up to 0.06 sd
AT_ONCE = 2**16  # observations of the modes that are found together


@dataclass(frozen=True)
class Start:
    """Latent effects where Newton's iteration begins: of M modes, or (M = 1) the same for all that are to be found.

    u (M, d); v (M, P) of the pairs; e (M, P, S) of the observations.
    """

    u: np.ndarray
    v: np.ndarray
    e: np.ndarray

    def rows(self, chosen: np.ndarray | slice) -> "Start":
        """Those of some of the modes."""
        return Start(self.u[chosen], self.v[chosen], self.e[chosen])


@dataclass(frozen=True)
class Modes(Start):
    """The Gaussian approximations of the latent effects at standard deviations `scales` (M, H): their modes.

    log_marginal (M,): log p(counts | sd) up to a constant; beta_variance (M,): posterior variance of beta given sd.
    """

    scales: np.ndarray
    log_marginal: np.ndarray
    beta_variance: np.ndarray


class System(NamedTuple):
    """Newton's equations after the elimination of e and v, and then of each task's group effects.

    weight (M, P, S): the binomial's working weight n p (1 - p); residual_weight (M, P, S): what e leaves of it;
    observation_precision (M, P, S): of e given u and v, None without over-dispersion; pair_precision (M, P): of v given
    u; information (M, T, p, p): of the p patterns of each task; group_precision (M, T, b, b): of a task's group effects
    given the fixed ones; solved (M, T, b, F + 1): its inverse times their cross terms and their gradient;
    fixed_precision (M, F, F), fixed_gradient (M, F): of the fixed effects, all others eliminated; gradients: of e, v
    and the group effects (M, T, b).
    """

    weight: np.ndarray
    residual_weight: np.ndarray
    observation_precision: np.ndarray | None
    pair_precision: np.ndarray
    information: np.ndarray
    group_precision: np.ndarray
    solved: np.ndarray
    fixed_precision: np.ndarray
    fixed_gradient: np.ndarray
    gradient_e: np.ndarray
    gradient_v: np.ndarray
    gradient_groups: np.ndarray


class _Precisions:
    """Prior precisions at given standard deviations `scales` (M, H): u (M, d), v (M, 1), e (M, P, S)."""

    def __init__(self, design: Design, scales: np.ndarray):
        grouped = design.column_scale >= 0
        self.u = np.where(grouped, scales[:, design.column_scale], design.fixed_scale) ** -2.0
        self.v = scales[:, design.pair, None] ** -2.0
        self.e = None if design.noise is None else scales[:, design.noise] ** -2.0


class _Point(NamedTuple):
    """Effects, the probabilities p (M, P, S) that they give, p (1 - p), and the log joint density (M,) without the
    constants that depend on neither effects nor sd."""

    state: Start
    probability: np.ndarray
    variance: np.ndarray
    value: np.ndarray

    def rows(self, chosen: np.ndarray) -> "_Point":
        return _Point(self.state.rows(chosen), self.probability[chosen], self.variance[chosen], self.value[chosen])


def _point(design: Design, prior: _Precisions, state: Start) -> _Point:
    predictor = (state.u @ design.columns.T)[:, design.pattern] + state.v[:, :, None] + state.e
    small = np.exp(-np.abs(predictor))
    larger = 1.0 / (1.0 + small)  # the larger one of p and 1 - p
    softplus = np.maximum(predictor, 0.0) - np.log(larger)
    value = np.sum(design.correct * predictor - design.total * softplus, axis=(1, 2))
    value -= 0.5 * (np.sum(prior.u * state.u**2, axis=1) + np.sum(prior.v * state.v**2, axis=1))
    if prior.e is not None:
        value -= 0.5 * np.sum(prior.e * state.e**2, axis=(1, 2))
    smaller = small * larger
    return _Point(state, np.where(predictor < 0, smaller, larger), smaller * larger, value)


def find_modes(design: Design, scales: np.ndarray, start: Start | None = None) -> Modes:
    """Newton's method with step halving on the joint log density of all effects, at each of `scales` (M, H).

    `start`: by default all effects are zero. Counts of `design` may also be (M, P, S): other ones for each mode.
    """
    pairs, slots = design.pattern.shape
    if start is None:
        start = Start(np.zeros((1, design.columns.shape[1])), np.zeros((1, pairs)), np.zeros((1, pairs, slots)))
    if len(start.u) == 1:
        start = start.rows(np.zeros(len(scales), dtype=int))
    step = max(1, AT_ONCE // design.pattern.size)
    parts = [slice(first, first + step) for first in range(0, len(scales), step)]
    modes = [_find_modes(_counts_of(design, part), scales[part], start.rows(part)) for part in parts]
    return Modes(**{item.name: np.concatenate([getattr(part, item.name) for part in modes]) for item in fields(Modes)})


def _counts_of(design: Design, rows: np.ndarray | slice) -> Design:
    """The design with the counts of some modes, where each mode has its own."""
    if design.correct.ndim == 2:
        return design
    return replace(design, correct=design.correct[rows], total=design.total[rows])


def _find_modes(design: Design, scales: np.ndarray, start: Start) -> Modes:
    log_marginal, beta_variance = np.empty((2, len(scales)))
    u, v, e = map(np.empty_like, (start.u, start.v, start.e))
    modes = Modes(u, v, e, scales, log_marginal, beta_variance)
    rows, prior = np.arange(len(scales)), _Precisions(design, scales)  # what is found leaves: all below is of `rows`
    point = _point(design, prior, start)
    for attempt in range(NEWTON_STEPS + 1):
        system = _reduce(design, prior, point)
        step, decrement = _newton_step(design, system)
        done = (decrement < NEWTON_TOLERANCE) | (attempt == NEWTON_STEPS)
        if done.any():
            indices, state = rows[done], point.state.rows(done)
            modes.u[indices], modes.v[indices], modes.e[indices] = state.u, state.v, state.e
            modes.log_marginal[indices] = (point.value + _log_normaliser(prior, system))[done]
            modes.beta_variance[indices] = np.linalg.inv(system.fixed_precision[done])[:, design.beta, design.beta]
            if done.all():
                break
            rows, design, step, point = rows[~done], _counts_of(design, ~done), step.rows(~done), point.rows(~done)
            prior = _Precisions(design, scales[rows])
        point = _stepped(design, prior, point, step)
    return modes


def _stepped(design: Design, prior: _Precisions, point: _Point, step: Start) -> _Point:
    """The point after a step, which is halved in those modes where the density would fall."""
    length, state = np.ones(len(point.value)), point.state
    while True:
        of_e = length[:, None, None] * step.e
        moved = Start(state.u + length[:, None] * step.u, state.v + length[:, None] * step.v, state.e + of_e)
        trial = _point(design, prior, moved)
        falls = (trial.value < point.value - 1e-9 * np.abs(point.value)) & (length >= 1e-4)
        if not falls.any():
            return trial
        length = np.where(falls, length / 2, length)


def _log_normaliser(prior: _Precisions, system: System) -> np.ndarray:
    """(M,) half the log determinant of the prior precision less that of the posterior's."""
    factor = np.linalg.cholesky(system.group_precision)
    log_determinant = 2.0 * np.log(np.diagonal(factor, axis1=2, axis2=3)).sum(axis=(1, 2))
    log_determinant += np.linalg.slogdet(system.fixed_precision)[1] + np.log(system.pair_precision).sum(axis=1)
    log_prior = np.log(prior.u).sum(axis=1) + system.pair_precision.shape[1] * np.log(prior.v[:, 0])
    if prior.e is not None and system.observation_precision is not None:
        log_determinant += np.log(system.observation_precision).sum(axis=(1, 2))
        log_prior += np.log(prior.e).sum(axis=(1, 2))
    return np.asarray(0.5 * (log_prior - log_determinant))


def _reduce(design: Design, prior: _Precisions, point: _Point) -> System:
    state, weight = point.state, design.total * point.variance
    gradient = design.correct - design.total * point.probability
    observation_precision, residual_weight, gradient_e = None, weight, np.zeros_like(weight)
    if prior.e is not None:
        observation_precision = weight + prior.e
        gradient_e = gradient - prior.e * state.e
        gain = weight / observation_precision
        residual_weight = gain * prior.e
        gradient = gradient - gain * gradient_e
    pair_precision = residual_weight.sum(axis=2) + prior.v
    gradient_v = gradient.sum(axis=2) - prior.v * state.v
    gradient = gradient - residual_weight * (gradient_v / pair_precision)[:, :, None]
    # of each task: its p patterns, its b group effects, and the F fixed effects of all tasks
    groups, patterns = design.group_columns, design.patterns
    fixed = design.columns.shape[1] - groups.size
    of_fixed, of_groups = design.columns[:patterns, :fixed], design.columns[:patterns, groups[0]]
    # the patterns' gradients (M, T, p), and their information (M, T, p, p): diag(sum of weights) less the pairs' share,
    # sum over pairs of w w' / (sum w + pair precision)
    slots, (task, row) = np.arange(weight.shape[2]), np.divmod(design.pattern[design.block_start], patterns)
    shared = residual_weight[:, :, :, None] * (residual_weight / -pair_precision[:, :, None])[:, :, None, :]
    shared[:, :, slots, slots] += residual_weight
    information = np.zeros((len(weight), len(groups), patterns, patterns))
    information[:, task[:, :, None], row[:, :, None], row[:, None, :]] = np.add.reduceat(
        shared, design.block_start, axis=1
    )
    by_pattern = np.zeros((len(weight), len(groups), patterns))
    by_pattern[:, task, row] = np.add.reduceat(gradient, design.block_start, axis=1)
    gradient_u = by_pattern.reshape(len(weight), -1) @ design.columns - prior.u * state.u
    group_precision = of_groups.T @ information @ of_groups
    diagonal = np.arange(groups.shape[1])
    group_precision[:, :, diagonal, diagonal] += prior.u[:, groups]
    cross = of_groups.T @ information @ of_fixed
    right = np.concatenate([cross, gradient_u[:, groups][..., None]], axis=3)
    solved = np.linalg.solve(group_precision, right)
    stacked = len(weight), groups.size
    eliminated = cross.reshape(*stacked, fixed).swapaxes(1, 2) @ solved.reshape(*stacked, fixed + 1)
    fixed_precision = of_fixed.T @ information.sum(axis=1) @ of_fixed - eliminated[:, :, :fixed]
    fixed_precision[:, np.arange(fixed), np.arange(fixed)] += prior.u[:, :fixed]
    return System(
        weight=weight,
        residual_weight=residual_weight,
        observation_precision=observation_precision,
        pair_precision=pair_precision,
        information=information,
        group_precision=group_precision,
        solved=solved,
        fixed_precision=fixed_precision,
        fixed_gradient=gradient_u[:, :fixed] - eliminated[:, :, fixed],
        gradient_e=gradient_e,
        gradient_v=gradient_v,
        gradient_groups=gradient_u[:, groups],
    )


class _Step(NamedTuple):
    """A step in all effects, and half the decrease (M,) that it promises."""

    step: Start
    decrement: np.ndarray


def _newton_step(design: Design, system: System) -> _Step:
    """Newton's step from where the system was set up."""
    fixed = np.linalg.solve(system.fixed_precision, system.fixed_gradient[..., None])
    groups = (system.solved[..., -1:] - system.solved[..., :-1] @ fixed[:, None])[..., 0]
    u = np.empty((len(fixed), design.columns.shape[1]))
    u[:, : fixed.shape[1]], u[:, design.group_columns] = fixed[..., 0], groups
    moved = (u @ design.columns.T)[:, design.pattern]
    v = (system.gradient_v - np.sum(system.residual_weight * moved, axis=2)) / system.pair_precision
    decrement = np.sum(system.fixed_gradient * fixed[..., 0], axis=1)
    decrement += np.sum(system.gradient_groups * system.solved[..., -1], axis=(1, 2))
    decrement += np.sum(system.gradient_v**2 / system.pair_precision, axis=1)
    if system.observation_precision is None:
        return _Step(Start(u, v, np.zeros_like(moved)), 0.5 * decrement)
    e = (system.gradient_e - system.weight * (moved + v[:, :, None])) / system.observation_precision
    decrement += np.sum(system.gradient_e**2 / system.observation_precision, axis=(1, 2))
    return _Step(Start(u, v, e), 0.5 * decrement)


def system_at(design: Design, modes: Modes) -> System:
    """Newton's equations at modes that are found."""
    prior = _Precisions(design, modes.scales)
    return _reduce(design, prior, _point(design, prior, modes))


def draw_predictors(design: Design, modes: Modes, size: int, generator: np.random.Generator) -> Iterator[np.ndarray]:
    """(size, P, S) draws of the linear predictor from the Gaussian at each mode in turn."""
    system, prior = system_at(design, modes), _Precisions(design, modes.scales).u
    centre = (modes.u @ design.columns.T)[:, design.pattern] + modes.v[:, :, None] + modes.e
    by_task = design.columns.reshape(-1, design.patterns, design.columns.shape[1])
    for mode, weight in enumerate(system.residual_weight):
        informed = (system.information[mode] @ by_task).reshape(design.columns.shape)
        precision = design.columns.T @ informed + np.diag(prior[mode])
        factor = linalg.cholesky(precision, lower=True, check_finite=False)
        noise = generator.standard_normal((len(factor), size))
        effects = linalg.solve_triangular(factor, noise, lower=True, trans="T", check_finite=False)
        moved = (design.columns @ effects).T[:, design.pattern]
        of_pairs = system.pair_precision[mode]
        pairs = generator.standard_normal((size, len(of_pairs))) / np.sqrt(of_pairs)
        pairs -= np.einsum("ps,rps->rp", weight / of_pairs[:, None], moved)
        moved += pairs[:, :, None]
        if system.observation_precision is not None:
            precision = system.observation_precision[mode]
            noise = generator.standard_normal(moved.shape) / np.sqrt(precision)
            moved = moved * (1.0 - system.weight[mode] / precision) + noise
        yield moved + centre[mode]
