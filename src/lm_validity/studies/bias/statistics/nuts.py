"""The same hierarchical models by Hamiltonian Monte Carlo (NUTS): a PyMC model, sampled by nutpie.

Not through bambi: its group effects are non-centred, and with thousands of well-measured trials the
intercept and the tasks' sd then do not mix. Here every level is centred on the one above it, and the two arms
of a group are written as their mean and their difference. For exchangeable arms this is the same model: two
independent N(0, s^2) have a mean that is N(0, s^2 / 2) and, independent of it, a difference that is
N(0, 2 s^2).

    level[task] ~ N(mu, .)      level[task, model] ~ N(level[task] + alpha[model], .)
    slope[task] ~ N(beta, .)    slope[task, model] ~ N(slope[task], .)
    level[pair] ~ N(level above, sd_pair)      logit p = level[pair] + slope (x - 1/2), x = 0 or 1

Effects that vary less than the data of one of them can tell are non-centred instead (Betancourt & Girolami
2015, arXiv 1312.0906); the Laplace fit says which. Needs the optional extra `bayes`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from lm_validity.errors import InputError
from lm_validity.studies.bias.statistics import latent
from lm_validity.studies.bias.statistics.model import equal_tailed, fit_laplace

CHAINS = 4
TUNE = 1000
DRAWS = 2000
TARGET_ACCEPT = 0.98  # small steps: standard deviations near zero make narrow necks
MAXIMUM_RHAT = 1.01
MINIMUM_EFFECTIVE_DRAWS = 400.0


@dataclass(frozen=True)
class NutsPosterior:
    """beta in log-odds with its equal-tailed 89% interval, and diagnostics over every sampled parameter.

    beta_draws (R,); difference_draws (R,): posterior predictive mean accuracy differences, fractions;
    fixed (L,): posterior means of mu and the alphas; scales (R, H): draws of the standard deviations, in the design's
    order.
    """

    beta_mean: float
    beta_sd: float
    interval: tuple[float, float]
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


def fit_nuts(counts: latent.PairedCounts, formula: latent.Formula, *, cores: int = 1) -> NutsPosterior:
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
        interval=equal_tailed(beta),
        beta_draws=beta,
        difference_draws=difference,
        fixed=np.append(posterior["mu"].mean(), posterior["alpha"].mean(axis=(0, 1)) if "alpha" in posterior else []),
        scales=np.column_stack([posterior[f"sd {name}"].ravel() for name in design.names]),
        divergences=int(trace.sample_stats["diverging"].sum()),
        rhat_max=float(diagnostics["r_hat"].max()),
        effective_draws_min=float(diagnostics[["ess_bulk", "ess_tail"]].to_numpy().min()),
    )


def _centred(design: latent.Design) -> dict[str, bool]:
    """By standard deviation: whether its effects vary more than the data of a single one leave uncertain.

    Decided for slopes, pairs and observations; the levels of tasks always do.
    """
    fit = fit_laplace(design, nodes=64)
    system = latent.system_at(design, fit.mode)
    slopes = _slope_uncertainty(design, system) / np.sqrt(2)
    uncertainty = {name: slopes if name.endswith("arm") else 0.0 for name in design.names}
    uncertainty["pair"] = float(np.median(system.residual_weight[0].sum(axis=1) ** -0.5))
    if design.noise is not None:
        for index in np.unique(design.noise):
            weight = system.weight[0][(design.total > 0) & (design.noise == index)]
            uncertainty[design.names[index]] = float(np.median(weight**-0.5))
    scales = dict(zip(design.names, fit.weights @ fit.scales, strict=True))
    return {name: bool(scales[name] > uncertainty[name]) for name in design.names}


def _slope_uncertainty(design: latent.Design, system: latent.System) -> float:
    """Median over (task, model) of the standard error of an unpooled slope, from the working weights."""
    information = np.bincount(design.pattern.ravel(), system.residual_weight[0].ravel(), len(design.columns))
    arms = information.reshape(-1, 2)
    arms = arms[(arms > 0).all(axis=1)]
    return float(np.median(np.sqrt((1 / arms).sum(axis=1)))) if len(arms) else np.inf


class _Model:
    """Writes a formula as a PyMC model with the priors and the data of `design`."""

    def __init__(
        self, counts: latent.PairedCounts, formula: latent.Formula, design: latent.Design, pymc: Any, tensor: Any
    ):
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
