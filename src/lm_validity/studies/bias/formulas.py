"""What each formula would have one conclude from these data, in words."""

from lm_validity.studies.bias.summary import BiasSummary, Fit


def formula_conclusions(summary: BiasSummary) -> str:
    """A sentence a formula, and whether they agree; for each experiment. Empty where no bias was fitted."""
    parts = []
    for experiment in summary.experiments:
        by_formula: dict[str, list[Fit]] = {}
        for fit in summary.fits("bias", experiment):
            by_formula.setdefault(fit.formula, []).append(fit)
        if by_formula:
            prefix = f"In experiment {experiment}" if len(summary.experiments) > 1 else "In these data"
            parts.append(f"{prefix}: {_sentences(by_formula, summary.headline_formula)}")
    return " ".join(parts)


def _sentences(by_formula: dict[str, list[Fit]], headline: str) -> str:
    said = "; ".join(f"whoever fits {name} reports that {_claim(fits)}" for name, fits in by_formula.items())
    if len(by_formula) == 1:
        return f"{said}."
    if len({tuple(fit.excludes_zero for fit in fits) for fits in by_formula.values()}) == 1:
        return f"{said}. The conclusion does not depend on the formula."
    return (
        f"{said}. The conclusion depends on the formula; that of {headline}, the one that counts the noise of "
        "training, is the one to go by, next to the model-free interval."
    )


def _claim(fits: list[Fit]) -> str:
    up, down = (sum(fit.excludes_zero == sign for fit in fits) for sign in (1, -1))
    if up and down:
        return (
            f"test text raises scores in {up} and lowers them in {down} of {len(fits)} settings, two answers to one "
            "question, as noise gives them"
        )
    if up or down:
        return f"test text {'raises' if up else 'lowers'} scores in {_of(up or down, len(fits))}"
    where = "the one setting" if len(fits) == 1 else f"any of {len(fits)} settings"
    return f"no effect can be told from chance in {where}"


def _of(some: int, settings: int) -> str:
    return "the one setting" if settings == 1 else f"{some} of {settings} settings"
