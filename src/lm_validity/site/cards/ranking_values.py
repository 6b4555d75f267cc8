"""A card's values on how a benchmark ranks models: range, reliability, resolution, agreement."""

from collections.abc import Iterator, Mapping
from typing import Any

from lm_validity.site.cards.card import Value
from lm_validity.site.cards.sources import CONFIGURED, CardSources, absent, measured
from lm_validity.tables.schema import PROTOCOLS
from lm_validity.words import UNDER

REPORT = "agreement"
MEASURE = f"snakemake agreement {CONFIGURED}"
DISTANCES = {  # name of the quantity -> (at_least, at_most) of the summary's rows
    "within_1_25": (1.0, 1.25),
    "within_2": (1.0, 2.0),
    "beyond_2": (2.0, None),
    "all": (1.0, None),
}
NO_REPORT = "There is no agreement report on these data: it needs 3 models and 2 benchmarks."
CORPUS = "It is a perplexity corpus. The agreement report compares corpora with the benchmarks as a group only."
OTHER_STUDY = "The benchmark or its models take no part in the agreement study."


def ranking_values(sources: CardSources, benchmark: str) -> Iterator[Value]:
    """The values in the order of the card; those of a protocol without scores are one line for each quantity."""
    facts = sources.facts(benchmark)
    for name in ("category", "metric", "output_type"):
        value = facts[name]
        yield measured(name, None, value) if value else absent(name, None, "The benchmarks sheet does not say.")
    items = sources.item_count(benchmark)
    unknown = "Neither the scores nor the benchmarks sheet say how many there are."
    yield absent("items", None, unknown) if items is None else measured("items", None, items)
    for protocol in sources.protocols(benchmark):
        yield measured("models", protocol, sources.models(benchmark, protocol))
    yield _chance(sources, facts)
    for name in ("lowest", "highest"):
        for protocol in sources.protocols(benchmark):
            yield _alone(sources, benchmark, protocol, name)
    for name, key in (("above_chance", "models_above_chance"), ("at_best", "models_at_best")):
        for protocol in sources.protocols(benchmark):
            yield _alone(sources, benchmark, protocol, name, key)
    for protocol in PROTOCOLS:
        yield from _resolution(sources, benchmark, protocol)
    for protocol in PROTOCOLS:
        yield from _agreement(sources, benchmark, protocol)


def _chance(sources: CardSources, facts: Mapping[str, Any]) -> Value:
    if facts["chance"] is not None:
        return measured("chance", None, float(facts["chance"]))
    found = sources.find("signal", "benchmarks", facts["benchmark"], "chance")
    if found is not None:
        return measured("chance", None, found)
    return absent("chance", None, "The benchmarks sheet names no chance level (column chance).")


def _why_not(sources: CardSources, benchmark: str, protocol: str) -> tuple[str, str] | None:
    """Why the agreement report has nothing on the benchmark under a protocol, and what would measure it."""
    if sources.facts(benchmark)["output_type"] == "loglikelihood_rolling":
        return CORPUS, ""
    if not sources.models(benchmark, protocol):
        return f"There are no scores {UNDER[protocol]}.", MEASURE
    if REPORT not in sources.summaries:
        return NO_REPORT, ""
    if sources.find(REPORT, "by_benchmark", protocol, benchmark) is None:
        return OTHER_STUDY, ""
    return None


def _alone(
    sources: CardSources, benchmark: str, protocol: str, name: str, key: str | None = None, **basis: Any
) -> Value:
    """A figure of the benchmark by itself, with its interval where the summary has one."""
    why = _why_not(sources, benchmark, protocol)
    if why:
        return absent(name, protocol, *why)
    place = (REPORT, "by_benchmark", protocol, benchmark)
    figures = sources.find(*place)
    return sources.figure(name, protocol, place, figures, key or name, models=figures["models"], **basis)


def _resolution(sources: CardSources, benchmark: str, protocol: str) -> Iterator[Value]:
    items = sources.item_count(benchmark)
    yield _alone(sources, benchmark, protocol, "reliability", items=items)
    reruns = sources.find(REPORT, "by_benchmark", protocol, benchmark, "reruns") or None
    yield _alone(sources, benchmark, protocol, "training_noise", **{"second trainings": reruns})
    yield _alone(sources, benchmark, protocol, "smallest_difference", items=items)
    yield _paired(sources, benchmark, protocol)
    yield _alone(sources, benchmark, protocol, "items_needed", items=items)
    for distance in DISTANCES:
        yield _at_distance(sources, benchmark, protocol, "separated", distance)


def _agreement(sources: CardSources, benchmark: str, protocol: str) -> Iterator[Value]:
    for name, keys in (
        ("tau", ("by_benchmark",)),
        ("tau_ceiling", ("ceiling_by_benchmark",)),
        ("tau_corrected", ("corrected", "by_benchmark")),
    ):
        yield _of_the_report(sources, benchmark, protocol, name, keys)
    for what, distance in (
        ("tau", "within_1_25"),
        ("tau", "within_2"),
        ("tau_ceiling", "within_2"),
        ("tau", "beyond_2"),
    ):
        yield _at_distance(sources, benchmark, protocol, what, distance)


def _of_the_report(sources: CardSources, benchmark: str, protocol: str, name: str, keys: tuple[str, ...]) -> Value:
    """A figure of `kendall_tau`, which has its interval under a key of its own."""
    why = _why_not(sources, benchmark, protocol)
    path = ("kendall_tau", protocol, *keys, benchmark)
    value = sources.find(REPORT, *path)
    if why or value is None:
        return absent(name, protocol, *(why or (sources.reason(REPORT, *path),)))
    path = ("kendall_tau", protocol, *keys[:-1], f"{keys[-1]}_interval")
    made = isinstance(sources.find(REPORT, *path[:-1]), dict) and path[-1] in sources.find(REPORT, *path[:-1])
    interval = sources.find(REPORT, *path, benchmark)
    reason = sources.reason(REPORT, *path, benchmark) if made and interval is None else ""
    others = int(sources.find(REPORT, "benchmarks")) - 1
    models = sources.models(benchmark, protocol)
    return measured(name, protocol, value, interval, reason, models=models, benchmarks=others)


def _at_distance(sources: CardSources, benchmark: str, protocol: str, what: str, distance: str) -> Value:
    """What the report has on the pairs of models of a distance: `separated`, `tau` or `tau_ceiling`."""
    name = f"{what}_{distance}"
    why = _why_not(sources, benchmark, protocol)
    if why:
        return absent(name, protocol, *why)
    place = (REPORT, "by_benchmark", protocol, benchmark, "by_distance")
    rows: list[dict[str, Any]] = sources.find(*place) or []
    row = next((row for row in rows if (row["at_least"], row["at_most"]) == DISTANCES[distance]), {})
    others = int(sources.find(REPORT, "benchmarks")) - 1 if what != "separated" else None
    return sources.figure(name, protocol, place, row, what, pairs=row.get("pairs_of_models"), benchmarks=others)


def _paired(sources: CardSources, benchmark: str, protocol: str) -> Value:
    """The smallest difference of the items report."""
    row, why = item_row(sources, benchmark, protocol)
    if row is None:
        return absent("paired_difference", protocol, *why)
    key, basis = "minimal_detectable_difference", {"pairs": row["neighbours"], "items": row["items"]}
    return sources.figure("paired_difference", protocol, ("items", "benchmarks"), row, key, **basis)


def item_row(sources: CardSources, benchmark: str, protocol: str) -> tuple[dict[str, Any] | None, tuple[str, str]]:
    """The items report's row of a benchmark and protocol, or why there is none and what would make it."""
    rows = sources.find("items", "benchmarks") or []
    row = next((row for row in rows if (row["benchmark"], row["protocol"]) == (benchmark, protocol)), None)
    if row is not None:
        return row, ("", "")
    if not sources.models(benchmark, protocol):
        return None, _why_not(sources, benchmark, protocol) or ("There are no scores.", MEASURE)
    if sources.items is None:
        command = "lm_eval --log_samples --output_path FOLDER ... && lm-validity report FOLDER --output DIR"
        return None, ("There is no table of the models' answers item by item.", command)
    if "items" in sources.summaries:
        return None, ("The table of items has none behind these scores.", "")
    return None, ("There is no items report.", sources.items_command)
