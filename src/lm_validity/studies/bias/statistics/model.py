"""The hierarchical binomial model of the bias study: three named formulas, their priors, and the design they give.

A trial contributes two binomial counts, of the control arm (x = 0) and of the treated arm (x = 1):

    correct ~ Binomial(total, p),   logit p = mu + alpha[language model] + beta x + group effects

`boost` compares extra (treated) with base, `bias` test (treated) with extra. Group effects are N(0, sigma^2) with
sigma ~ HalfNormal(scale); as in bambi, the predictors are centred, so that mu is the intercept at their mean.

| formula | group effects |
|---|---|
| `equations` | task; pair = (task, subsample), shared by the language models: Dubey, arXiv 2410.00179, eqs. 1-8 |
| `notebooks` | the same and task x arm, as the author fitted: `(1|dataset/method) + (1|dataset/pair)` |
| `overdispersed` | task, task x arm, task x model, task x model x arm; pair within a model; one |
|                 | N(0, sigma_model^2) per observation, for the training noise that a binomial leaves out |
"""

from dataclasses import dataclass

import numpy as np

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
