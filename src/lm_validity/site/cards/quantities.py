"""Every quantity that a card can have: its section, its name, its unit, and a sentence on what it is."""

from dataclasses import dataclass

MEASURES, RANGE, RESOLUTION, AGREEMENT, SIGNAL, BIAS, SPLITS, PROMPTS, ITEMS = (
    "What it measures",
    "Chance and ceiling",
    "Reliability and resolution",
    "Agreement with the other benchmarks",
    "Signal during training",
    "Bias from test text seen",
    "Leakage and duplicates",
    "Prompts",
    "Suspicious items",
)


@dataclass(frozen=True)
class Quantity:
    """unit: text, items, models, documents, pairs, share, index (from 0 to 1), score (the metric's own), tau,
    billion tokens."""

    name: str
    section: str
    label: str
    unit: str
    explanation: str


_ALL = (
    Quantity("category", MEASURES, "Category", "text", "The group of benchmarks that the benchmarks sheet puts it in."),
    Quantity("metric", MEASURES, "Metric", "text", "How an answer is scored, by lm-eval's name."),
    Quantity("output_type", MEASURES, "Kind of task", "text", "Choice among answers, a written answer, or perplexity."),
    Quantity("items", MEASURES, "Items", "items", "Test questions behind a score: the median over models."),
    Quantity("models", MEASURES, "Models", "models", "Models with a score on this benchmark."),
    Quantity("chance", RANGE, "Chance", "score", "The score that guessing would give."),
    Quantity("lowest", RANGE, "Lowest score", "score", "The lowest score of a model."),
    Quantity("highest", RANGE, "Highest score", "score", "The highest score of a model."),
    Quantity(
        "above_chance",
        RANGE,
        "Models above chance",
        "models",
        "Models whose score is above chance: one-sided tests at 5% with Holm's adjustment over the models.",
    ),
    Quantity(
        "at_best",
        RANGE,
        "Models at the ceiling",
        "models",
        "Models whose score is not more than 1.96 standard errors below 1, the best score.",
    ),
    Quantity(
        "reliability",
        RESOLUTION,
        "Reliability",
        "share",
        "Share of the variance between the models' scores that is not due to which items were asked or, where this was "
        "measured, to training the models again. 100% means no such noise.",
    ),
    Quantity(
        "training_noise",
        RESOLUTION,
        "Noise of training",
        "score",
        "Standard deviation of a model's score between trainings of it, on the same items.",
    ),
    Quantity(
        "smallest_difference",
        RESOLUTION,
        "Smallest detectable difference",
        "score",
        "Two models this far apart are told apart four times out of five by a test that ignores which items they "
        "share. A test that pairs the answers item by item detects smaller differences.",
    ),
    Quantity(
        "paired_difference",
        RESOLUTION,
        "Smallest detectable difference, paired by item",
        "score",
        "The same for two neighbours in the ranking, compared item by item; the median over neighbours.",
    ),
    Quantity(
        "items_needed",
        RESOLUTION,
        "Items needed",
        "items",
        "How many items like these it would take to detect the typical difference between two models at most 2× apart "
        "in size four times out of five.",
    ),
    Quantity(
        "separated_within_1_25",
        RESOLUTION,
        "Separated within 1.25×",
        "share",
        "Share of the pairs of models whose sizes differ by at most 1.25× that have significantly different scores "
        "(p < .05, each pair by itself).",
    ),
    Quantity(
        "separated_within_2", RESOLUTION, "Separated within 2×", "share", "The same among sizes at most 2× apart."
    ),
    Quantity(
        "separated_beyond_2", RESOLUTION, "Separated beyond 2×", "share", "The same among sizes more than 2× apart."
    ),
    Quantity(
        "separated_all", RESOLUTION, "Separated, all pairs", "share", "The same among all pairs, whatever their sizes."
    ),
    Quantity(
        "tau",
        AGREEMENT,
        "Agreement, all models",
        "tau",
        "Kendall's tau between its ranking of the models and that of another benchmark, mean over the others. 1 is the "
        "same order, 0 no relation, -1 the opposite order.",
    ),
    Quantity(
        "tau_ceiling",
        AGREEMENT,
        "Noise ceiling of the agreement",
        "tau",
        "The mean tau that would be seen if all benchmarks ordered the models identically and only item noise "
        "differed.",
    ),
    Quantity("tau_corrected", AGREEMENT, "Noise-corrected tau", "tau", "The mean tau, corrected for item noise."),
    Quantity(
        "tau_within_1_25",
        AGREEMENT,
        "Agreement within 1.25×",
        "tau",
        "The mean tau over the pairs of models whose sizes differ by at most 1.25×. Size alone can make benchmarks "
        "agree. This figure shows what remains among models of similar size.",
    ),
    Quantity("tau_within_2", AGREEMENT, "Agreement within 2×", "tau", "The same among sizes at most 2× apart."),
    Quantity(
        "tau_ceiling_within_2",
        AGREEMENT,
        "Noise ceiling within 2×",
        "tau",
        "The noise ceiling of the agreement among sizes at most 2× apart.",
    ),
    Quantity("tau_beyond_2", AGREEMENT, "Agreement beyond 2×", "tau", "The same among sizes more than 2× apart."),
    Quantity(
        "signal_at_end",
        SIGNAL,
        "Models above chance at the end",
        "models",
        "Models whose last score is above chance: one-sided tests at 5% with Holm's adjustment over the models.",
    ),
    Quantity(
        "signal_from",
        SIGNAL,
        "Above chance from",
        "billion tokens",
        "The amount of training after which the models' mean score stays more than 1.96 standard errors above chance, "
        "at the points of training that all models have.",
    ),
    Quantity(
        "signal_quality",
        SIGNAL,
        "Signal quality",
        "index",
        "How steadily scores rise during training, from 0 to 1: the mean of the curves' monotonicity and "
        "autocorrelation.",
    ),
    Quantity(
        "settled_from",
        SIGNAL,
        "Order settled from",
        "billion tokens",
        "The amount of training after which models that can be told apart are nearly in the order of the last point of "
        "training that all of them have.",
    ),
    Quantity(
        "bias",
        BIAS,
        "Effect of test text seen",
        "score",
        "Accuracy after pretraining on the unlabelled test texts, minus accuracy after pretraining on other text "
        "from the same source.",
    ),
    Quantity(
        "bias_excluded",
        BIAS,
        "Excluded effects",
        "score",
        "One-sided tests at 5% exclude effects of this size or larger.",
    ),
    Quantity(
        "train_leakage",
        SPLITS,
        "Training rows in later splits",
        "share",
        "Share of the candidate training rows that have the text or the id of a test or validation row. They were "
        "removed.",
    ),
    Quantity(
        "validation_leakage",
        SPLITS,
        "Validation rows that are in test",
        "share",
        "Share of the candidate validation rows that have the text or the id of a test row. They were removed.",
    ),
    Quantity(
        "test_duplicates",
        SPLITS,
        "Repeated test rows",
        "share",
        "Share of the test rows whose text, as shown to models, repeats an earlier test row.",
    ),
    Quantity(
        "prompt_range",
        PROMPTS,
        "Range over prompts",
        "score",
        "A model's best minus its worst score over different prompts, averaged over models. Part of it is chance.",
    ),
    Quantity(
        "negative_items",
        ITEMS,
        "Items that work against the benchmark",
        "items",
        "Items on which generally better models do worse (negative discrimination), after correction for the number of "
        "items. Wrong gold answers or ambiguous questions can cause this.",
    ),
    Quantity(
        "equal_items",
        ITEMS,
        "Items that all models answer alike",
        "items",
        "Items that all models get right, or all wrong.",
    ),
)
QUANTITIES = {quantity.name: quantity for quantity in _ALL}
