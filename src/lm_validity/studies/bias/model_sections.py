"""The sections of the hierarchical model: effects by setting, what each formula concludes, and slices of the data."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import altair as alt
import pandas as pd

from lm_validity.missing import Missing, as_columns, is_known, number
from lm_validity.pages import figures, svg
from lm_validity.pages.page import Figure, Finding, Panel, Part, Section, Table
from lm_validity.studies.bias.effect_sections import CHANGE, frame_of, half_violin, series_color, violin_areas
from lm_validity.studies.bias.hierarchy import (
    CHANCE,
    CURVE,
    FREE_SLICES,
    MARGIN,
    PREDICTIVE_QUANTILES,
    Fit,
    Fits,
    SettingEffect,
    SliceShares,
    TrialSpread,
)
from lm_validity.studies.bias.trials import EFFECTS, SETTING, Study
from lm_validity.words import between, count, decimal, percent

if TYPE_CHECKING:
    from lm_validity.studies.bias.statistics.effects import MeanOverTasks

SHORT = {
    "equations": "the printed formula",
    "notebooks": "the author's fitted formula",
    "overdispersed": "the formula with training noise",
}


# ----------------------------------------------------------------------------------------------------------------------
# Setting by setting, without and with the model.


def power_words(means: Sequence["MeanOverTasks"]) -> str | None:
    """What the t tests over tasks of settings could have found, of their `over_tasks`; None where it is unknown."""
    sizes = [number(mean.smallest_detectable) for mean in means if is_known(mean.smallest_detectable)]
    if not sizes:
        return None
    size = f"{min(sizes):.4f}" if len(sizes) == 1 else f"between {min(sizes):.4f} and {max(sizes):.4f}, by setting,"
    return f"A t test over the tasks of a setting detects an effect of {size} with 80% power."


def setting_section(study: Study, settings: list[SettingEffect], fits: Fits) -> Part:
    """Model-free means beside the model's marginal effects, one row for each setting and effect."""
    frame = frame_of(SettingEffect, settings)
    by_key = {(fit.experiment, fit.m, fit.n, fit.effect): fit for fit in fits.fits if fit.formula == fits.main}
    rows = []
    for row in settings:
        key = (row.experiment, row.m, row.n, row.effect)
        free, fit = row.over_tasks, by_key[key]
        p = free.equivalence if isinstance(free.equivalence, Missing) else free.equivalence[0].p
        ends = as_columns(free.interval).values()
        figures = (free.mean, free.standard_error, *ends, free.tasks, free.excluded_beyond, p, free.smallest_detectable)
        rows.append([*key, *figures, fit.marginal_mean, *fit.marginal_interval])
    columns = ["mean", "standard_error", "low", "high", "tasks", "excluded_beyond", "equivalence_p"]
    columns += ["smallest_detectable", "marginal", "marginal_low", "marginal_high"]
    formats = dict.fromkeys(["mean", "low", "high", "marginal", "marginal_low", "marginal_high"], CHANGE)
    sizes = dict.fromkeys(["standard_error", "excluded_beyond", "smallest_detectable"], ".4f")

    def sentence(rows: pd.DataFrame) -> str:
        """The range of the mean bias over the settings."""
        if rows.empty:
            return "No setting has the arms extra and test."
        means = [mean.mean for mean in rows["over_tasks"]]
        ends = (decimal(end, 4, signed=True) for end in (min(means), max(means)))
        return f"Averaged over tasks and language models, the bias {between(*ends)} in {count(len(means), 'setting')}."

    section = Section(
        "The answer by setting",
        hint="with and without a model",
        finding=study.sentences(frame[frame["effect"] == "bias"], sentence),
        explanation=(
            "Both intervals are 95% intervals and answer the same "
            "question: how large is the effect on average over tasks like these, with new subsamples and new "
            "trainings? The model-free one is the mean over the tasks with a t interval. The marginal one is the "
            f"effect in the hierarchical model ({SHORT[fits.main]}), converted from log-odds to accuracy and averaged "
            "over new tasks, subsamples and trainings. The column p (equivalence) is from two one-sided tests (TOST). "
            "It is small if the effect is clearly smaller than half a point of accuracy. Excluded beyond is the "
            "smallest effect that these tests rule out."
        ),
        figures=[
            Figure(
                f"answer_{effect}",
                f"{effect.capitalize()} in accuracy",
                _both_answers(study, fits, settings, effect),
                f"{' − '.join(EFFECTS[effect])}: means with 95% intervals for new tasks and trainings.",
            )
            for effect in ("bias", "boost")
            if fits.of(effect)
        ],
        tables=[
            Table(
                "settings",
                "Model-free and model-based effects",
                pd.DataFrame(rows, columns=[*SETTING, "effect", *columns]),
                formats=formats | sizes | {"equivalence_p": "p"},
                labels={"equivalence_p": f"p (equivalence: |effect| below {MARGIN})"},
                caption="Differences of accuracy with 95% intervals. Excluded beyond: one-sided tests at 5% exclude "
                "effects of this size or larger. Smallest detectable: a t test over these tasks finds it four times "
                "out of five.",
            )
        ],
    )
    return Part({}, section, panel=_setting_panel(study, settings))


def _setting_panel(study: Study, settings: list[SettingEffect]) -> Panel | None:
    """The bias of each setting with its interval over tasks; none where no setting has one."""
    rows = [
        (study.label(row.experiment, row.m, row.n), row.over_tasks.mean, row.over_tasks.interval)
        for row in settings
        if row.effect == "bias" and not isinstance(row.over_tasks.interval, Missing)
    ]
    if not rows:
        return None
    outside = sum(low > 0 or high < 0 for _, _, (low, high) in rows)
    ends = [end for _, _, interval in rows for end in interval]
    values = svg.round_values(min(-0.005, *ends), max(0.005, *ends), 6)
    description = "; ".join(
        "{} {} (95%: {} to {})".format(name, *(svg.points(value, 2, signed=True) for value in (mean, *interval)))
        for name, mean, interval in rows
    )
    return Panel(
        "In which settings?",
        f"**{outside} of {len(rows)}** settings have an interval without zero (by chance: 1 in 20)",
        svg.named_rows(
            f"Change by the test's own texts, in points, by setting: {description}.",
            rows,
            values,
            svg.written_points(values),
        ),
    )


def _both_answers(study: Study, fits: Fits, settings: list[SettingEffect], effect: str) -> figures.Layers:
    """Marginal effects under the main formula beside the model-free means, one row per setting; 95% intervals."""
    rows = [
        _IntervalRow(study.label(fit.experiment, fit.m, fit.n), "marginal", fit.marginal_mean, *fit.marginal_interval)
        for fit in fits.of(effect, formula=fits.main)
    ]
    for row in (setting for setting in settings if setting.effect == effect):
        low, high = map(number, as_columns(row.over_tasks.interval).values())
        label = study.label(row.experiment, row.m, row.n)
        rows.append(_IntervalRow(label, "model-free", row.over_tasks.mean, low, high))
    return _intervals(study, rows, "source", f"{effect}, in accuracy")


class _IntervalRow(NamedTuple):
    """A value of a setting with its interval; series: what tells the setting's dots apart."""

    setting: str
    series: str
    value: float
    low: float
    high: float


def _intervals(study: Study, rows: list[_IntervalRow], apart: str, title: str) -> figures.Layers:
    """A row of the chart for each setting; `apart`: what the series are."""
    frame = pd.DataFrame(rows, columns=["setting", apart, "value", "low", "high"])
    names = {"setting": "Setting", apart: apart.capitalize()}
    chart = figures.interval_dots(
        frame,
        y="setting",
        value="value",
        title=title,
        y_order=study.labels(),
        offset=apart,
        color=series_color(frame[apart], apart),
        tooltip=figures.tooltips(**names, value="Mean|+.4f", low="Low|+.4f", high="High|+.4f"),
        zero=True,
        row_height=38,
    )
    return figures.layered(chart, figures.dashed_lines("zero", 0))


# ----------------------------------------------------------------------------------------------------------------------
# How the conclusion depends on the formula.


def formula_section(study: Study, fits: Fits, spreads: list[TrialSpread]) -> Part:
    """All formulas side by side, at the level of the paper, 89%."""
    sentences, conclusions, findings, ratios = [], [], list[Finding](), []
    for experiment in study.experiments:
        begin = study.prefix(experiment)
        by_formula = {name: fits_of_formula for name in SHORT if (fits_of_formula := fits.of("bias", experiment, name))}
        if not by_formula:
            continue
        outside = {name: _outside(fits_of_formula) for name, fits_of_formula in by_formula.items()}
        sentences.append(f"{begin}The 89% interval of the bias excludes zero {_listed(outside)}.")
        if len({tuple(fit.excludes_zero for fit in fits_of_formula) for fits_of_formula in by_formula.values()}) > 1:
            findings.append(_disagreement(begin, by_formula, outside))
        elif len(by_formula) > 1:
            conclusions.append(f"{begin}The conclusion does not depend on the formula.")
        if of_experiment := [spread for spread in spreads if spread.experiment == experiment]:
            ratios.append(begin + _noise_ratio(of_experiment))
    explanation = (
        "All three formulas model how likely a right answer is. The printed formula (equations) is that of the paper "
        "(arXiv:2410.00179). It gives each task and each subsample a level and explains the rest by the drawing of n "
        "test items. "
        "But a model trained twice on the same subsample also gives different answers. A formula that ignores such "
        "training noise mistakes it for information. Where there is much, its intervals are too narrow, and it finds "
        "effects that another training would not show. The author's fitted formula (notebooks) gives each task its own "
        "effect and is more cautious. The formula with training noise (overdispersed, the default) also lets language "
        "models differ by task and measures the training noise of each."
    )
    of_bias = [
        _IntervalRow(study.label(fit.experiment, fit.m, fit.n), fit.formula, fit.beta_mean, *fit.interval)
        for fit in fits.of("bias")
    ]
    charts = [
        Figure(
            "formula_bias",
            "beta of the bias, in log-odds",
            _intervals(study, of_bias, "formula", "beta, log-odds"),
            "Posterior means with 89% intervals, as in the paper.",
        ),
        Figure(
            "posterior_predictive",
            "Posterior predictive distributions",
            _ridges(study, fits),
            f"The paper's figures 2 to 4, with {SHORT[fits.main]}: the average accuracy difference "
            "if these same classifiers answered new test items. It does not cover other trainings, subsamples or "
            "tasks. Where training is noisy, their intervals exclude zero too often, even without an effect.",
            wide=True,
        ),
        *_calibrations(study, fits),
    ] if sentences else []  # fmt: skip
    section = Section(
        "How the conclusion depends on the formula",
        hint="as in the paper",
        finding=" ".join(sentences),
        explanation=" ".join([explanation, *conclusions, *ratios]),
        figures=charts,
        tables=[_posterior_table(fits), *_predicted_tables(fits)],
    )
    return Part({}, section, findings)


def _outside(fits: list[Fit]) -> str:
    """`6 of 8 settings (3 up, 3 down)`."""
    up, down = (sum(fit.excludes_zero == sign for fit in fits) for sign in (1, -1))
    return f"{up + down} of {count(len(fits), 'setting')}" + (f" ({up} up, {down} down)" if up + down else "")


def _listed(outside: dict[str, str]) -> str:
    return "; ".join(f"with {SHORT[name]} in {words}" for name, words in outside.items())


def _disagreement(begin: str, by_formula: dict[str, list[Fit]], outside: dict[str, str]) -> Finding:
    """The formulas would have one conclude different things."""
    if len(set(outside.values())) == 1:  # as many settings, but not the same ones: name them
        signs = {1: "up", -1: "down"}
        formulas_apart = {
            name: [f"m = {fit.m}, n = {fit.n} {signs[fit.excludes_zero]}" for fit in fits_of_it if fit.excludes_zero]
            for name, fits_of_it in by_formula.items()
        }
        outside = {name: f"{words}: {' and '.join(formulas_apart[name])}" for name, words in outside.items()}
    return Finding(
        f"{begin}The conclusion depends on the model that is fitted. The 89% interval of the bias excludes zero "
        f"{_listed(outside)}.",
        "A plain binomial accounts only for the drawing of test items and mistakes training noise for an effect. Trust "
        f"{SHORT['overdispersed']} and the model-free interval: only they account for it.",
    )


def _noise_ratio(spreads: list[TrialSpread]) -> str:
    """What a single trial's bias varies by, against the binomial's, in the one setting of these `spreads`."""
    parts = [f"{spread.language_model} {spread.observed:.4f} against {spread.binomial:.4f}" for spread in spreads]
    return (
        f"Standard deviation of a single trial's bias at m = {spreads[0].m}, n = {spreads[0].n}, against what the "
        f"binomial explains: {', '.join(parts)}."
    )


def _ridges(study: Study, fits: Fits) -> figures.Layers:
    """Densities of the posterior predictive differences, a row per setting, under the main formula."""
    labels, rows = study.labels(), []
    for line, label in enumerate(labels):
        for fit in fits.fits:
            if fit.formula == fits.main and study.label(fit.experiment, fit.m, fit.n) == label:
                shape = half_violin(fit.density, line, "boost", reach=0.85)
                rows.append({"setting": label, "effect": fit.effect, "mean": fit.difference_mean, **shape})
    x = alt.X("x:Q", title="Average accuracy difference")
    areas = violin_areas(alt.Chart(figures.inline(rows)), "setting", labels, 1.0, x)
    zero = figures.dashed_lines("zero", 0)
    return figures.layered(zero, areas, height=44 * len(labels) + 20)


def _calibrations(study: Study, fits: Fits) -> Iterator[Figure]:
    """Predicted against observed accuracy in the largest setting, a figure an experiment: tasks and models differ."""
    for index, experiment in enumerate(study.experiments, 1):
        fits_of_experiment = [fit for fit in fits.of("bias", experiment) if len(fit.accuracies)]
        if not fits_of_experiment:
            continue
        m, n = max((fit.m, fit.n) for fit in fits_of_experiment)
        frame = pd.concat(
            [fit.accuracies.assign(formula=fit.formula) for fit in fits_of_experiment if (fit.m, fit.n) == (m, n)]
        )
        chart = figures.scatter(
            frame,
            x="observed",
            y="predicted",
            color=series_color(frame["formula"], "formula"),
            x_title=f"Observed accuracy (m={m}, n={n})",
            y_title="Predicted accuracy",
            tooltip=figures.tooltips(
                task="Task",
                language_model="Model",
                arm="Arm",
                formula="Formula",
                observed="Observed|.3f",
                predicted="Predicted|.3f",
            ),
        )
        title = "Predicted and observed accuracy" + (f": {experiment}" if len(study.experiments) > 1 else "")
        name = "calibration" if index == 1 else f"calibration_{index}"
        yield Figure(name, title, chart, "One point per task, language model and arm of the largest setting.")


def _posterior_table(fits: Fits) -> Table:
    rows = [
        {
            **{key: getattr(fit, key) for key in [*SETTING, "effect", "formula", "sampler", "beta_mean", "beta_sd"]},
            **as_columns(fit.interval, "beta_low", "beta_high"),
            "difference": fit.difference_mean,
            **as_columns(fit.difference_interval, "difference_low", "difference_high"),
            "log_evidence": fit.log_evidence,
            "divergences": fit.divergences,
            "rhat_max": fit.rhat_max,
            "effective": fit.effective_nodes if is_known(fit.effective_nodes) else fit.effective_draws_min,
            "reliable": fit.reliable,
        }
        for fit in fits.fits
    ]
    signed = ["beta_mean", "beta_low", "beta_high", "difference", "difference_low", "difference_high"]
    return Table(
        "posterior",
        "All fits",
        pd.DataFrame(rows),
        formats=dict.fromkeys(signed, CHANGE)
        | {"beta_sd": ".4f", "log_evidence": ".1f", "rhat_max": ".3f", "effective": ".0f"},
        labels={
            "beta_sd": "standard deviation of beta",
            "log_evidence": "log evidence",
            "rhat_max": "largest R-hat",
            "effective": "effective draws or nodes",
        },
        caption="beta is in log-odds, differences are in accuracy, intervals are 89%. Compare log evidence within one "
        "setting and effect only.",
        folded=True,
    )


def _predicted_tables(fits: Fits) -> list[Table]:
    """Quantiles of the predicted effects by task, under the main formula; none of NUTS, which keeps none."""
    frames = [
        fit.by_task.assign(experiment=fit.experiment, m=fit.m, n=fit.n, effect=fit.effect)
        for fit in fits.fits
        if fit.formula == fits.main and len(fit.by_task)
    ]
    if not frames:
        return []
    columns = [*SETTING, "effect", "task", "observed", "mean", *PREDICTIVE_QUANTILES]
    return [
        Table(
            "predictive_by_task",
            "Predicted effects by task",
            pd.concat(frames, ignore_index=True)[columns],
            formats=dict.fromkeys(columns[5:], CHANGE),
            caption="Posterior predictive differences of accuracy, of these same trainings on new test items. Low to "
            "high is an 89% interval, as in the paper.",
            folded=True,
        )
    ]


# ----------------------------------------------------------------------------------------------------------------------
# What a study with one subsample per task would have found.


def slice_section(study: Study, settings: list[SliceShares]) -> Part:
    """What a study with one split per task would have concluded; nothing where a slice would be the whole data."""
    shares = ["share_beyond", "share_excluding_zero", "share_t_excluding_zero"]
    sliced = [setting for setting in settings if setting.slices]
    if not sliced:
        return Part({})
    frame = frame_of(SliceShares, sliced)
    number_of_slices = sliced[0].slices

    def sentence(rows: pd.DataFrame) -> str:
        """How often a study with one subsample finds an effect."""
        if rows.empty:
            return ""
        shares = rows["share_excluding_zero"].min(), rows["share_excluding_zero"].max()
        return (
            "A study with one subsample per task, analysed by a binomial model, finds an effect in "
            f"{' to '.join(dict.fromkeys(map(percent, shares)))} of cases, by m and n (11% would be expected if none "
            "exists)."
        )

    section = Section(
        "With one subsample per task",
        hint="why replication matters",
        finding=study.sentences(frame, sentence),
        explanation=(
            "Each slice keeps one random subsample per language model and task, as most benchmarks do. A binomial "
            "model ignores training noise. Where there is any, a larger n makes it too certain."
        ),
        figures=[
            Figure(
                "meta_analysis",
                "Posterior mean of the bias over slices",
                _slice_curves(study, sliced),
                f"Cumulative share of {number_of_slices} slices, in log-odds. The dashed lines are ±0.04, "
                "which is one point of accuracy near 50%.",
            )
        ],
        tables=[
            Table(
                "meta_analysis",
                "Shares of the slices",
                frame[[*SETTING, "slices", *shares]],
                formats=dict.fromkeys(shares, ".3f"),
                labels={
                    "share_beyond": "|mean| > 0.04",
                    "share_excluding_zero": "binomial interval excludes 0",
                    "share_t_excluding_zero": "t interval over tasks excludes 0",
                },
                caption="89% intervals: without an effect, a share of 0.11 is expected. The last column is "
                f"from {FREE_SLICES:,} slices. The Monte Carlo standard error of the others is at most "
                f"{0.5 / number_of_slices**0.5:.3f}.",
            )
        ],
    )
    positive = frame["share_excluding_zero"].astype(float).tolist()
    names = [study.label(row.experiment, row.m, row.n) for row in frame.itertuples()]
    description = "; ".join(f"{name} {percent(share)}" for name, share in zip(names, positive, strict=True))
    span = " to ".join(dict.fromkeys(percent(share) for share in (min(positive), max(positive))))
    panel = Panel(
        "What would one draw of the texts show?",
        f"**{span}** of studies with one draw find an effect; {percent(CHANCE)} (dashed) if there is none",
        svg.named_rows(
            f"Studies with one draw that find an effect, shares without intervals, by setting: {description}.",
            [(name, share, None) for name, share in zip(names, positive, strict=True)],
            (0, 0.25, 0.5, 0.75, 1),
            ("0%", "25%", "50%", "75%", "100%"),
            dashed=CHANCE,
        ),
    )
    return Part({}, section, panel=panel)


def _slice_curves(study: Study, settings: list[SliceShares]) -> figures.Layers:
    """Cumulative distribution of the slices' posterior means."""
    rows = [
        {"setting": study.label(setting.experiment, setting.m, setting.n), "mean": mean, "share": share}
        for setting in settings
        for mean, share in zip(setting.means, CURVE, strict=True)
    ]
    frame = pd.DataFrame(rows)
    chart = figures.lines(
        frame,
        x="mean",
        y="share",
        color=series_color(frame["setting"], "setting"),
        x_title="Posterior mean of beta, log-odds",
        y_title="Share of slices",
        tooltip=figures.tooltips(setting="Setting", mean="Mean|+.3f", share="Share below|.2f"),
        domain=(0, 1),
        points=False,
    )
    return figures.layered(chart, figures.dashed_lines("limit", -settings[0].threshold, settings[0].threshold))
