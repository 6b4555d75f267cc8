"""What each benchmark alone can tell, for its card, and how its models were prompted, as rows; and the screening page:
which candidate benchmarks stay, and why each of the others does not."""

from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from lm_validity.config.sections import Screening
from lm_validity.errors import InputError
from lm_validity.files import read_json
from lm_validity.pages.page import Finding, Page, Section
from lm_validity.results.put import Column, Rows
from lm_validity.results.sections import TableOf, write_rows
from lm_validity.statistics import NO_RUNS, models_above_chance
from lm_validity.studies.agreement.data import LOST_MODEL, NO_DIRECTION, Data, Value, ends
from lm_validity.studies.agreement.score_matrix import ANY_SIZE, LIKE_SIZE, ScoreMatrix, read_score_matrix, size_ratios
from lm_validity.studies.agreement.statistics import noise, ranking, resampling
from lm_validity.studies.agreement.statistics.ranking import screen_benchmarks
from lm_validity.tables.counted import Sources, of_metric
from lm_validity.tables.items import NO_CHANCE
from lm_validity.tables.metrics import FRACTIONS
from lm_validity.tables.schema import DIRECT, PROTOCOLS, TRAINED
from lm_validity.tables.training import NOT_MEASURED
from lm_validity.words import UNDER, Missing, Reason, ReasonCode, count, explain_protocols, known, too_few

UNTOUCHED = "none (direct)"  # no adapter was better on validation
PROMPTS = ("plain", "chat")
COLUMNS = ("model", "benchmark", "protocol", "seed", *PROMPTS, "chosen", "learning_rate", "epoch", "test")
NO_ERRORS = Reason("Fewer than 2 models have a standard error there.", ReasonCode.NO_ERRORS)
PROMPT_WITHOUT_ERROR = Reason("A score under one of the prompts has no standard error.", ReasonCode.NO_ERRORS)
FEW = too_few("Fewer than 3 models have the scores and standard errors, or their scores are all equal.")
FEW_PAIRS = too_few("Fewer than 3 models have such pairs with standard errors or items in common.")
FEW_SIZES = too_few("The models sheet has the parameters of fewer than 2 of these models (column parameters_b).")
NO_SIMILAR = Reason("No two models at most 2× apart in size have standard errors there.", ReasonCode.NO_ERRORS)
NO_INTERVAL = Reason("Without one of the models there is no value, so there is no interval.", ReasonCode.NO_INTERVAL)
ONE_PROMPT = Missing(
    Reason("No model has scores of it under two prompts, all else being equal.", ReasonCode.NO_PROMPTS)
)
SAME = ["model", "checkpoint", "benchmark", "protocol", "seed", "split", "metric", "num_fewshot"]
# a row of each, its unit, and the field of what was measured between runs
SAMPLING = (("sampling_noise", "score", "spread"), ("sampling_share", "share", "share"))
ONE_MODEL = Missing("One model was scored under several prompts.")


# ----------------------------------------------------------------------------------------------------------------------
# Numbers of one benchmark.


def put_benchmarks(rows: Rows, data: Data) -> None:
    """What each benchmark tells under a protocol, in the metric's own unit and direction, as rows.

    `separated`: the share of the pairs of models that can be tested whose scores differ significantly;
    `tau_with_others_by_ratio`: mean tau with the other benchmarks over the pairs with scores, with what it would be if
    all ordered the models identically. Where the direction of a benchmark is not known and its order is surely against
    the others', it has no interval of tau, and those of the others hold either way; where it may be, its own interval
    holds either way.
    """
    for p in PROTOCOLS:
        scored = np.isfinite(data.scores[p])
        for index, name in enumerate(data.tasks):
            at = rows.of(protocol=p, subject=name)
            if scored[:, index].any():
                _put_benchmark(at, data, p, index)
            else:
                at.put("benchmark_models", Missing(f"The benchmark has no score {UNDER[p]}."), "models")
        for distance in (LIKE_SIZE, ANY_SIZE):
            _put_at_distance(rows.of(protocol=p, at_least=distance[0], at_most=distance[1]), data, p, distance)


def _put_at_distance(at: Rows, data: Data, protocol: str, distance: tuple[float, float | None]) -> None:
    """Of each benchmark with scores, over pairs of models whose sizes differ by such a factor."""
    scores, signs, sizes = data.scores[protocol], data.significant[protocol], data.matrix.sizes()[0]
    mask, everyone = _within(sizes, *distance), ranking.pair_signs(scores)
    taus = noise.tau_with_others(scores, mask)
    turned = noise.tau_with_others(data.turned(protocol), mask) if data.opposed[protocol] else taus
    ceilings = noise.ceiling_with_others(everyone, data.ceiling[protocol].expected, mask)
    significant, tested = np.zeros((2, len(data.tasks), len(scores), len(scores)), dtype=bool)
    for square, values in ((significant, signs.sign), (tested, signs.known)):
        square[:, signs.first, signs.second] = square[:, signs.second, signs.first] = values.T != 0
    shares = noise.separated_shares(significant, tested, mask)
    reason = FEW_SIZES if distance != ANY_SIZE and _few_sizes(sizes) else None
    for index, name in enumerate(data.tasks):
        scored = np.isfinite(scores[:, index])
        if not scored.any():
            continue
        of, pairs = at.of(subject=name), int((tested[index] & mask).sum()) // 2
        separated = known(shares[index].value, reason or FEW_PAIRS)
        interval = ends(separated, shares[index].interval, reason or FEW_PAIRS)
        of.put("separated", separated, "share", {"models": interval}, counted=("pairs_of_models", pairs))
        if distance == ANY_SIZE:
            continue
        counted = "scored_pairs", int((np.outer(scored, scored) & mask).sum()) // 2
        tau = known(taus[index].value, reason or "No other benchmark has a tau with it over such pairs of models.")
        either_way = data.either_way(protocol, name, resampling.hull(taus[index].interval, turned[index].interval))
        opposed = name in data.opposed[protocol]
        over_models = Missing(NO_DIRECTION) if opposed else ends(tau, either_way, LOST_MODEL)
        limit = known(float(ceilings[index]), "There is no noise ceiling over such pairs of models.")
        of.put("tau_with_others_by_ratio", tau, "tau", {"models": over_models}, counted=counted)
        of.put("tau_with_others_ceiling_by_ratio", tau if isinstance(tau, Missing) else limit, "tau", counted=counted)


def _few_sizes(sizes: np.ndarray) -> bool:
    """Whether no two of the (models,) sizes are known, so that no pair of models has a distance."""
    return bool(np.isfinite(sizes).sum() < 2)


def _within(sizes: np.ndarray, at_least: float, at_most: float | None) -> np.ndarray:
    """(models, models) pairs whose sizes differ by such a factor; all pairs for 1 to any."""
    if at_least <= 1 and at_most is None:
        return ~np.eye(len(sizes), dtype=bool)
    ratio = size_ratios(sizes)
    in_range = ratio > at_least if at_most is None else ratio <= at_most
    return in_range & ~np.eye(len(sizes), dtype=bool)


def _put_benchmark(at: Rows, data: Data, protocol: str, index: int) -> None:
    """Of the benchmark at `index`, over all models.

    `above_chance`: as `statistics.models_above_chance` counts them. `at_best`: models less than 1.96 standard errors
    below 1, the best score of a metric that is a fraction. `reliability`: share of the variance between models that is
    no noise of items. `sampling_*`: how far scores move between sampled runs of one model. `smallest_difference`: of
    two scores, found four times out of five. `typical_difference`: between models within a factor 2 of each other's
    size, without noise. `items_needed`: to find that.
    """
    matrix, name = data.matrix, data.tasks[index]
    column = matrix.benchmarks.index(name)
    facts = matrix.benchmark_facts.iloc[column]
    values, errors, noises = matrix.value[protocol][:, column], data.stderr[protocol][:, index], data.noise[protocol]
    oriented, scored = data.scores[protocol][:, index], np.isfinite(values)
    counted = "models", int(scored.sum())
    at.put("benchmark_models", counted[1], "models")
    counts = matrix.n_items[protocol][scored, column]
    counts = counts[np.isfinite(counts)]
    of_sheet = None if pd.isna(facts["n_items"]) else int(facts["n_items"])
    items = int(np.median(counts)) if len(counts) else known(of_sheet, "The number of items is unknown.")
    at.put("items", items, "items")
    at.put("lowest", float(values[scored].min()), "score", counted=counted)
    at.put("highest", float(values[scored].max()), "score", counted=counted)
    above: int | Missing = NO_CHANCE
    if np.isfinite(facts["chance"]):
        above = Missing(Reason("There are no standard errors.", ReasonCode.NO_ERRORS))
        if np.isfinite(oriented + errors).any():
            above = models_above_chance(oriented, errors, facts["chance"] * matrix.direction[column])
    at.put("above_chance", above, "models", counted=counted)
    fraction = isinstance(facts["metric"], str) and facts["metric"].split(",")[0] in FRACTIONS
    at_best: int | Missing = Missing("The metric is not known to have 1 as its best score.")
    if fraction and not (values[scored] > 1 + 1e-9).any():
        at_best = int((values[scored] + ranking.Z_95 * np.nan_to_num(errors[scored]) >= 1).sum())
    at.put("at_best", at_best, "models", counted=counted)
    share = noise.reliability(oriented, noises[:, index])
    reliable = known(share.value, FEW)
    at.put("reliability", reliable, "share", {"models": ends(reliable, share.interval, NO_INTERVAL)}, counted=counted)
    training = matrix.training.get(protocol, {}).get(name)
    reruns, sd = (0, Missing(NOT_MEASURED)) if training is None else (training.reruns, training.sd)
    at.put("training_noise", sd, "score", counted=("reruns", reruns))
    sampling = matrix.sampling.get((protocol, name))
    sampled = 0 if sampling is None else sampling.models
    for part, unit, field in SAMPLING:
        value = Missing(NO_RUNS) if sampling is None else known(getattr(sampling, field), NO_ERRORS)
        at.put(part, value, unit, counted=("sampled_models", sampled))
    gap = known(noise.smallest_difference(noises[:, index]), NO_ERRORS)
    at.put("smallest_difference", gap, "score", counted=None if isinstance(items, Missing) else ("items", items))
    near, sizes = _within(matrix.sizes().parameters, *LIKE_SIZE), matrix.sizes().parameters
    typical = noise.typical_difference(oriented, noises[:, index], near).difference
    difference = known(typical, FEW_SIZES if _few_sizes(sizes) else NO_SIMILAR)
    at.put("typical_difference", difference, "score")
    error, trained = (
        noise.typical_difference(oriented, errors, near).noise,
        0.0 if training is None else 2 * training.sd**2,
    )
    at.put("items_needed", _items_needed(items, difference, error, trained), "items")


def _items_needed(items: int | Missing, difference: Value, error: float, training: float) -> int | Missing:
    if isinstance(items, Missing):
        return items
    if isinstance(difference, Missing):
        return difference
    if difference == 0:
        return Missing("Models of similar size differ by no more than noise, so the number of items needed is unknown.")
    items_at_least = noise.items_needed(items, difference, error, training)
    if not np.isfinite(items_at_least):
        return Missing("No number of items is enough: training the models again moves their scores more than that.")
    return int(np.ceil(items_at_least))


# ----------------------------------------------------------------------------------------------------------------------
# How far the prompt moves a score.


def put_prompt_ranges(rows: Rows, scores: pd.DataFrame, matrix: ScoreMatrix) -> None:
    """By benchmark, no perplexity corpora, the best less the worst score of a model over prompts and wordings as rows:
    the mean over models with a t interval, and the most that noise alone would make of it.

    Over direct scores that differ in `prompt` or `prompt_variant` alone, on either split; of a model with several such
    groups the mean; of several runs under one prompt the mean score. Scores under two prompts share their items, and
    part of their range is chance: it is an upper bound of what the prompt does. By chance: the expected range of as
    many independent normal numbers, whose standard deviation is the root mean square of the scores' standard errors,
    those of single runs: at most that.
    """
    direct = scores[(scores["protocol"] == DIRECT) & of_metric(scores, matrix.benchmark_facts)]
    prompt = direct["prompt"].fillna("plain").astype(str) + "\n" + direct["prompt_variant"].fillna("").astype(str)
    squares = pd.to_numeric(direct["stderr"]).astype(float) ** 2
    of_one_prompt = direct.assign(prompt=prompt, square=squares).groupby([*SAME, "prompt"], dropna=False)
    means = of_one_prompt.agg(value=("value", "mean"), square=("square", _mean_or_nan)).reset_index()
    least_most = {"low": ("value", "min"), "high": ("value", "max"), "prompts": ("prompt", "nunique")}
    spans = means.groupby(SAME, dropna=False).agg(**least_most, square=("square", _mean_or_nan)).reset_index()
    spans = spans[(spans["prompts"] > 1) & np.isfinite(spans["high"] - spans["low"])]
    for name in matrix.task_names():
        at, of_one = rows.of(subject=name), spans[spans["benchmark"] == name]
        if of_one.empty:
            at.put("prompt_range", ONE_PROMPT, "score", {"models": ONE_PROMPT})
            continue
        by_model = (of_one["high"] - of_one["low"]).groupby(of_one["model"]).mean().to_numpy(dtype=float)
        mean, counted, interval = float(by_model.mean()), ("models", len(by_model)), None
        if len(by_model) > 1:
            reach = stats.t.ppf(0.975, len(by_model) - 1) * by_model.std(ddof=1) / np.sqrt(len(by_model))
            interval = float(max(0.0, mean - reach)), float(mean + reach)
        chance = np.sqrt(of_one["square"]) * of_one["prompts"].map(expected_range)
        by_chance = float(chance.groupby(of_one["model"]).mean().mean(skipna=False))
        at.put("prompt_range", mean, "score", {"models": interval or ONE_MODEL}, counted=counted)
        at.put("prompt_range_by_chance", by_chance, "score", counted=counted, why=PROMPT_WITHOUT_ERROR)
        at.put("prompts", int(of_one["prompts"].max()), "prompts")


def _mean_or_nan(values: pd.Series) -> float:
    """Mean of (n,) values, NaN where one is missing."""
    return float(values.mean(skipna=False))


def expected_range(numbers: int) -> float:
    """The expected largest less smallest of so many independent standard normal numbers: the integral over x of
    1 - F(x)^n - (1 - F(x))^n."""
    x = np.linspace(-9, 9, 3601)
    below = stats.norm.cdf(x)
    return float(np.trapezoid(1 - below**numbers - (1 - below) ** numbers, x))


LEAST_ORDERED = 5  # models, with fewer the order under two metrics says little


def reversing_metrics(scores: pd.DataFrame, matrix: ScoreMatrix) -> list[str]:
    """Benchmarks on which another share of right answers than their metric, such as acc beside acc_norm, orders the
    models in the opposite way (tau below 0), each with both metrics; direct scores on test."""
    rows = scores[(scores["protocol"] == DIRECT) & scores["split"].fillna("test").eq("test")]
    rows = rows[rows["metric"].astype("string").str.split(",").str[0].isin(FRACTIONS).fillna(value=False)]
    found = []
    for name, metric in zip(matrix.benchmarks, matrix.benchmark_facts["metric"], strict=True):
        of_one = rows[(rows["benchmark"] == name) & rows["model"].isin(matrix.models)]
        values = of_one.pivot_table(index="model", columns="metric", values="value", aggfunc="mean")
        for other in values.columns.drop(metric) if metric in values else ():
            both = values[[metric, other]].dropna().to_numpy(float)
            if len(both) >= LEAST_ORDERED and ranking.kendall_tau(*both.T) < 0:
                found.append(f"{name} ({metric.split(',')[0]}, {other.split(',')[0]})")
    return found


# ----------------------------------------------------------------------------------------------------------------------
# The prompts that were chosen, and what fine-tuning trains.


def prompt_choices(scores: pd.DataFrame, selections: pd.DataFrame | None, matrix: ScoreMatrix) -> pd.DataFrame:
    """One row per (model, benchmark, protocol, seed) that had two prompts to choose from, with COLUMNS.

    `plain` and `chat`: validation scores under each prompt, of its best fine-tune where there are some (NaN where none
    counts); `test`: the score that the other figures use. Without `selections` the direct protocol only.
    """
    tables = [_direct_choices(scores, matrix)]
    if selections is not None and len(tables[0]):
        pairs_asked = set(zip(tables[0]["model"], tables[0]["benchmark"], strict=True))
        tables.append(_prepared_choices(selections, pairs_asked, matrix))
    frame = pd.concat(tables, ignore_index=True).reindex(columns=list(COLUMNS))
    frame = frame[frame["model"].isin(matrix.models) & frame["benchmark"].isin(matrix.benchmarks)]
    frame = frame.reset_index(drop=True)
    frame["test"] = [
        matrix.value[row.protocol][matrix.models.index(row.model), matrix.benchmarks.index(row.benchmark)]
        for row in frame.itertuples()
    ]
    return frame


def _direct_choices(rows: pd.DataFrame, matrix: ScoreMatrix) -> pd.DataFrame:
    """Validation scores of the untouched models that were scored under both prompts, at the checkpoint that counts.

    `chosen`: the prompt of the selected row; where none is selected or several are, that of the score on test.
    """
    key = ["model", "benchmark"]
    scored = matrix.selected[matrix.selected["protocol"] == DIRECT].drop_duplicates(key).set_index(key)
    rows = rows[
        (rows["protocol"] == DIRECT) & (rows["split"] == "validation") & of_metric(rows, matrix.benchmark_facts)
    ]
    rows = rows.set_index(key)
    checkpoint = scored["checkpoint"].fillna("final").reindex(rows.index)
    rows = rows[(rows["checkpoint"].fillna("final") == checkpoint).to_numpy(dtype=bool)]
    values = rows.pivot_table(index=key, columns="prompt", values="value", aggfunc="first")
    values = values.reindex(columns=list(PROMPTS)).dropna()
    chosen = rows.loc[rows["selected"].fillna(value=False).to_numpy(dtype=bool), "prompt"]
    chosen = chosen[~chosen.index.duplicated(keep=False)].reindex(values.index)
    frame = values.assign(chosen=chosen.fillna(scored["prompt"].reindex(values.index))).reset_index()
    return frame.assign(protocol=DIRECT, learning_rate="", epoch=np.nan)


def _prepared_choices(selections: pd.DataFrame, pairs_asked: set[tuple[str, str]], matrix: ScoreMatrix) -> pd.DataFrame:
    """The best fine-tune under each prompt, and what was selected."""
    better = dict(zip(matrix.benchmarks, matrix.direction, strict=True))
    rows = []
    for (model, benchmark, seed), group in selections.groupby(["model", "benchmark", "seed"], sort=False):
        if (model, benchmark) not in pairs_asked or benchmark not in better:
            continue
        tuned = group[group["learning_rate"].notna() & ~group["diverged"].fillna(value=False)]
        row = {"model": model, "benchmark": benchmark, "protocol": TRAINED, "seed": seed}
        for prompt in PROMPTS:
            values = tuned.loc[tuned["prompt"] == prompt, "validation_value"] * better[benchmark]
            row[prompt] = values.max() * better[benchmark] if len(values) else np.nan
        selected = group[group["selected"].fillna(value=False)]
        if len(selected):
            chosen = selected.iloc[0]
            untouched = pd.isna(chosen["learning_rate"])
            row |= {"chosen": chosen["prompt"], "learning_rate": UNTOUCHED if untouched else chosen["learning_rate"]}
            row["epoch"] = np.nan if untouched else float(chosen["epoch"])
        rows.append(row)
    return pd.DataFrame(rows)


def put_seeds(rows: Rows, data: Data) -> None:
    """Agreement of each benchmark with itself when models are fine-tuned again with another seed: the mean tau over
    pairs of seeds. Nothing for one seed."""
    seeds = [scores[:, ~data.matrix.is_corpus] for scores in data.matrix.by_seed.values()]
    if len(seeds) < 2:
        return
    lacks = too_few("The seeds have fewer than two models in common, or they are tied.")
    for index, name in enumerate(data.tasks):
        column = np.column_stack([scores[:, index] for scores in seeds])
        tau = ranking.mean_over_pairs(ranking.kendall_tau_matrix(ranking.pair_signs(column)))
        rows.put("tau_between_seeds", tau, "tau", subject=name, why=lacks)


# ----------------------------------------------------------------------------------------------------------------------
# The screening page: which candidate benchmarks stay, and why each of the others does not.

NO_EXAMPLES = "The number of training examples is unknown. This excludes no benchmark."
NO_OTHER = "No other benchmark that passes both rules has a tau with this one."
SCREENED = TableOf(
    "screening",
    {"subject": "benchmark"},
    {
        "kept": Column("kept", "kept"),
        "reason": Column("dropped_because", "reason"),
        "training_examples": Column("training_examples", "training examples", ".0f"),
        "models": Column("models", "models", ".0f"),
        "not_improved": Column("models_not_improved", "models not improved", ".0f"),
        "others": Column("tau_with_kept", "others", ".0f", "n"),
        "negative_agreement": Column("others_with_negative_tau", "others with negative tau", ".0f"),
        "mean_tau": Column("tau_with_kept", "mean tau, direct", ".3f"),
    },
    "Candidates",
)


def report_screening(sources: Sources, output: Path, section: Screening, results: Path | None = None) -> None:
    """Write results.parquet, the table and the page of the screening under `output`.

    Training examples are those of the benchmarks sheet's column `training_examples`, else those that a run's records
    under `results` (results/<run>) count. Perplexity corpora are not screened, and cells of the plan that earlier
    scores chose are left out.
    """
    matrix = read_score_matrix(sources)
    for protocol in PROTOCOLS:
        if not matrix.has(protocol):
            raise InputError(f"{sources.scores}: no {protocol} scores.", "screening compares both protocols.")
    tasks = ~matrix.is_corpus
    facts = matrix.benchmark_facts[tasks]
    examples = facts["training_examples"].to_numpy(dtype=float)
    if results:
        recorded = [_recorded(results, benchmark) for benchmark in facts["benchmark"]]
        examples = np.where(np.isnan(examples), recorded, examples)
    direct, trained = (matrix.oriented(protocol)[:, tasks] for protocol in PROTOCOLS)
    screening = screen_benchmarks(direct, trained, examples, section)
    rows = Rows("screening")
    for i, fact in enumerate(facts.itertuples()):
        at, others = rows.of(subject=fact.benchmark), ("others", int(screening.eligible[i]))
        at.put("kept", screening.reasons[i] is None, "yes_or_no")
        at.put("dropped_because", screening.reasons[i] or "", "text")
        at.put("training_examples", examples[i], "texts", why=NO_EXAMPLES)
        at.put("models", screening.models[i], "models")
        improved = ("models", int(screening.models[i]))
        at.put("models_not_improved", screening.unimproved[i], "models", counted=improved)
        at.put("others_with_negative_tau", screening.negative[i], "benchmarks", counted=others)
        at.put("tau_with_kept", screening.mean_tau[i], "tau", counted=others, why=NO_OTHER)
    kept = [bool(row.value) for row in rows.all("kept")]
    reasons = "; ".join(f"{row.subject}: {row.text}" for row in rows.all("dropped_because") if row.text)
    finding = Finding(
        f"{sum(kept)} of {count(len(kept), 'candidate benchmark')} pass.",
        f"Dropped: {reasons}." if reasons else "None is dropped.",
    )
    explanation = (
        "There are three rules. A benchmark is dropped if it has fewer than "
        f"{section.training_examples} training examples. It is dropped if more than "
        f"{section.unimproved_share:.0%} of the models do not score higher under train before test. (A model at "
        "its ceiling before fine-tuning counts too, so look at the scores of benchmarks dropped by this rule.) It is "
        "dropped if its direct ranking has a negative Kendall's tau with more than "
        f"{section.negative_share:.0%} of the benchmarks that pass the first two rules."
    )
    tables = [SCREENED.made(rows)]
    explained = explain_protocols(PROTOCOLS, trained_here=matrix.trained_here)
    page = Page(
        name="screening",
        title="Screening of benchmarks",
        question=f"Which candidate benchmarks are usable in the study? {explained}",
        findings=[finding],
        sections=[Section("Each candidate and the reason", explanation=explanation, tables=tables)],
        notes=matrix.notes,
    )
    write_rows(page, rows, output)


def _recorded(results: Path, benchmark: str) -> float:
    """What lm-eval's task offers for training, by the prefetch record."""
    try:
        return float(read_json(results / "prefetch" / "benchmarks" / f"{benchmark}.json")["documents"]["train"])
    except (OSError, ValueError, KeyError):
        return float("nan")
