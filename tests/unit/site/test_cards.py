"""Benchmark cards: the rules from both sides of their thresholds, card.json, and the cards of real tables."""

import itertools
import json
from dataclasses import replace
from html.parser import HTMLParser
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lm_validity.config.sections import Cards, Reports
from lm_validity.files import write_json
from lm_validity.missing import Missing
from lm_validity.results.put import Rows
from lm_validity.results.rows import Row
from lm_validity.site.cards.values import (
    BY_CHANCE,
    QUANTITIES,
    CardSources,
    absent,
    basis_words,
    measured,
    shown,
    tokens_words,
)
from lm_validity.site.cards.verdict import (
    CLAUSES,
    CORPUS,
    NO,
    NOT_KNOWN,
    NOT_MEASURED,
    PARTLY,
    UNDECIDED,
    YES,
    make_verdict,
    sentence_of,
)
from lm_validity.site.cards.write import Card, card_html, card_markdown, folder_name, make_card
from lm_validity.studies.agreement.report import report_agreement
from lm_validity.tables.schema import SCORES, write_table

LIMITS = Cards()


def verdict_of(*values, settings: Cards = LIMITS):
    return make_verdict({value.key: value for value in values}, settings)


def outcomes(*values, settings: Cards = LIMITS) -> dict[str, str]:
    """The outcome of each statement by the first value that it reads."""
    statements = verdict_of(*values, settings=settings).statements
    return {one.values[0]: one.outcome for one in statements if one.rule != "ready"}


def share(low: float, high: float, name: str = "separated_within_2"):
    return measured(name, "direct", (low + high) / 2, (low, high))


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [
        (0.80, 0.95, YES),
        (0.79, 0.95, NOT_KNOWN),
        (0.50, 0.79, PARTLY),
        (0.50, 0.80, NOT_KNOWN),
        (0.49, 0.79, NOT_KNOWN),
        (0.20, 0.49, NO),
        (0.20, 0.50, NOT_KNOWN),
    ],
)
def test_separation_asks_for_the_whole_interval(low, high, outcome):
    assert outcomes(share(low, high))["separated_within_2.direct"] == outcome


def test_separation_follows_the_configuration_and_falls_back_to_all_pairs():
    value = share(0.8, 0.9)
    assert outcomes(value, settings=Cards(separated=0.81))[value.key] == NOT_KNOWN
    found = outcomes(share(0.8, 0.9, "separated_all"))
    assert found["separated_all.direct"] == YES and "separated_within_2.direct" not in found
    assert "separated_all.direct" not in outcomes(value, share(0.3, 0.4, "separated_all"))
    trained = replace(value, protocol="train_before_test")
    assert outcomes(trained)["separated_within_2.train_before_test"] == YES
    assert outcomes(value, trained)["separated_within_2.direct"] == YES  # models as they come go first


@pytest.mark.parametrize(
    ("name", "protocol", "threshold"),
    [
        ("reliability", "direct", 0.8),
        ("tau", "direct", 0.5),
        ("tau", "train_before_test", 0.5),
        ("tau_within_2", "direct", 0.5),
    ],
)
def test_rules_with_one_threshold(name, protocol, threshold):
    def outcome(low, high):
        value = measured(name, protocol, (low + high) / 2, (low, high))
        ceilings = [measured(f"tau_ceiling{models}", protocol, 0.9) for models in ("", "_within_2") if protocol]
        return outcomes(value, *ceilings)[value.key]

    assert outcome(threshold, threshold + 0.1) == YES
    assert outcome(threshold - 0.001, threshold + 0.1) == NOT_KNOWN
    assert outcome(threshold - 0.01, threshold) == NOT_KNOWN
    assert outcome(threshold - 0.01, threshold - 0.001) == NO
    no_interval = measured(name, protocol, threshold + 0.5)
    assert outcomes(no_interval)[no_interval.key] == NOT_KNOWN
    nothing = absent(name, protocol, "because")
    assert outcomes(nothing)[nothing.key] == NOT_MEASURED


@pytest.mark.parametrize(
    ("low", "by_chance", "outcome"), [(0.05, 0.03, YES), (0.05, 0.031, NOT_KNOWN), (0.05, None, NOT_KNOWN)]
)
def test_a_range_over_prompts_that_chance_may_make_is_no_dependence(low, by_chance, outcome):
    basis = {"models": 8} if by_chance is None else {"models": 8, BY_CHANCE: by_chance}
    assert outcomes(measured("prompt_range", None, 0.06, (low, 0.07), **basis))["prompt_range"] == outcome
    assert outcomes(measured("prompt_range", None, 0.01, (0.0, 0.019), **basis))["prompt_range"] == NO


@pytest.mark.parametrize(("ceiling", "outcome"), [(0.6, NO), (0.4, NOT_KNOWN), (None, NOT_KNOWN)])
def test_little_agreement_is_not_said_where_noise_allows_no_more(ceiling, outcome):
    for models in ("", "_within_2"):  # each tau has the ceiling of its own pairs of models
        name, limit = f"tau{models}", f"tau_ceiling{models}"
        ceilings = absent(limit, "direct", "") if ceiling is None else measured(limit, "direct", ceiling)
        assert outcomes(measured(name, "direct", 0.3, (0.2, 0.4)), ceilings)[f"{name}.direct"] == outcome
        reversed_order = measured(name, "direct", -0.3, (-0.4, -0.2))  # noise makes no order the opposite one
        assert outcomes(reversed_order, ceilings)[f"{name}.direct"] == NO


def test_each_unit_has_its_digits_and_kinds_of_tasks_have_words():
    assert shown(measured("signal_quality", None, 0.86, (0.66, 1.0))) == "0.86 (0.66 to 1.00)"
    assert shown(measured("reliability", "direct", 1.0, (0.995, 1.0))) == "100.0% (99.5% to 100.0%)"
    assert shown(measured("bias", None, 0.02, (-0.0001, 0.04))) == "0.020 (0.000 to 0.040)"
    kind = measured("output_type", None, "loglikelihood_rolling")
    assert shown(kind) == "perplexity" and kind.to_json()["estimate"] == "loglikelihood_rolling"


def test_one_of_a_kind_is_singular():
    assert (
        basis_words(measured("tau", None, 1.0, **{"pairs of models": 1, "models": 2})) == "1 pair of models, 2 models"
    )


def test_no_value_is_shown_as_minus_zero():
    assert shown(measured("tau", "direct", -0.001, (-0.2, 0.1))) == "0.00 (−0.20 to 0.10)"


def test_bias_is_shown_excluded_or_not_known():
    def outcome(low, high):
        return outcomes(measured("bias", None, (low + high) / 2, (low, high)))["bias"]

    assert outcome(0.001, 0.02) == YES
    assert outcome(0.0, 0.02) == NOT_KNOWN
    assert outcome(-0.0099, 0.0099) == NO
    assert outcome(-0.0101, 0.0) == NOT_KNOWN
    assert outcome(-0.02, -0.011) == YES  # it is sure that the scores are lower
    lower = verdict_of(measured("bias", None, -0.015, (-0.02, -0.011)))
    assert (lower.marks["bias"].word, lower.sentence) == ("lowers", "Test text seen lowers scores.")
    higher = verdict_of(measured("bias", None, 0.015, (0.011, 0.02)))
    assert (higher.marks["bias"].word, higher.sentence) == ("raises", "Test text seen raises scores.")
    assert outcomes(measured("bias", None, 0.0))["bias"] == NOT_KNOWN


def test_counts_are_held_to_their_shares():
    items = {"items": 100, "models": 10}
    assert outcomes(measured("negative_items", "direct", 2, **items))["negative_items.direct"] == NO
    assert outcomes(measured("negative_items", "direct", 3, **items))["negative_items.direct"] == YES
    assert outcomes(measured("at_best", "direct", 2, models=10))["at_best.direct"] == NO
    assert outcomes(measured("at_best", "direct", 3, models=10))["at_best.direct"] == YES
    assert outcomes(measured("train_leakage", None, 0.01))["train_leakage"] == NO
    assert outcomes(measured("train_leakage", None, 0.011))["train_leakage"] == YES
    assert (
        outcomes(measured("train_leakage", None, 0.0), measured("test_duplicates", None, 0.5))["train_leakage"] == YES
    )


def test_signal_and_order_by_checkpoints():
    points = {"first common point": 10.0, "last checkpoint": 100.0}
    late = measured("signal_from", None, 27.0, **points)
    assert outcomes(late)["signal_from"] == NO
    assert verdict_of(late).sentence == "Above chance from 27% of training."
    assert outcomes(measured("signal_from", None, 10.0, **points))["signal_from"] == YES
    # that no model is shown to end above chance is no evidence that none does
    none = verdict_of(measured("signal_at_end", None, 0))
    assert (none.marks["signal"].outcome, none.sentence) == (NOT_KNOWN, "No model shown to end above chance.")
    # ten models that are each 1.8 standard errors above chance: none by itself, and the mean surely
    assert verdict_of(late, measured("signal_at_end", None, 0)).marks["signal"].outcome == NO
    assert verdict_of(late, measured("signal_at_end", None, 0)).sentence == "Above chance from 27% of training."
    assert outcomes(measured("signal_at_end", None, 3))["signal_from"] == NOT_MEASURED
    assert outcomes(measured("settled_from", None, 50.0, (20.0, 99.0), **points))["settled_from"] == YES
    assert outcomes(measured("settled_from", None, 50.0, (20.0, 100.0), **points))["settled_from"] == NOT_KNOWN
    # the order at a point before the end of training need not be the final one
    points = {"first common point": 10.0, "last common point": 100.0}
    assert outcomes(measured("settled_from", None, 50.0, (20.0, 99.0), **points))["settled_from"] == NOT_KNOWN


def test_ready_early_asks_for_signal_and_order():
    points = {"first common point": 10.0, "last checkpoint": 100.0}

    def ready(*values):
        return verdict_of(*values).marks["ready"].outcome

    early, wide, late = (
        measured("settled_from", None, 40.0, ends, **points) for ends in ((20, 50), (20, 51), (51, 90))
    )
    assert (ready(early), ready(wide), ready(late)) == (NOT_KNOWN, NOT_KNOWN, NO)  # chance is unknown
    assert ready(early, measured("signal_from", None, 30.0, **points)) == YES
    assert ready(early, measured("signal_from", None, 60.0, **points)) == NO  # ordered early, above chance late
    # not surely early, but before the end, by the number that the page of the signal study has: 51 of 100 billion
    mark = verdict_of(wide, measured("signal_from", None, 30.0, **points)).marks["ready"]
    assert (mark.outcome, mark.word) == (NOT_KNOWN, "by 51%")
    assert ready(measured("signal_from", None, 30.0, **points)) == NOT_KNOWN  # the order is not known
    assert ready(early, measured("signal_at_end", None, 0)) == NOT_KNOWN
    with_mean = (early, measured("signal_from", None, 30.0, **points), measured("signal_at_end", None, 0))
    assert ready(*with_mean) == NOT_KNOWN
    assert ready(early, measured("signal_at_end", None, 2)) == NOT_KNOWN  # some are above chance, their mean never
    assert ready() == NOT_MEASURED
    unfinished = measured("settled_from", None, 40.0, (20, 50), **{"last common point": 100.0})
    assert ready(unfinished) == NOT_KNOWN


def test_that_scores_do_not_rise_steadily_is_never_said():
    assert outcomes(measured("steady", None, 1))["steady"] == YES
    assert outcomes(measured("steady", None, 0))["steady"] == NOT_KNOWN


@pytest.mark.parametrize(("direct", "trained"), product((YES, NO, NOT_KNOWN, NOT_MEASURED), repeat=2))
def test_both_protocols_give_one_answer(direct, trained):
    """The mark beside *Does it rank models like the others?*, and the clause of the verdict, which never differ."""
    ends = {YES: (0.5, 0.9), NO: (0.1, 0.4), NOT_KNOWN: (0.4, 0.6)}
    taus = {"direct": direct, "train_before_test": trained}
    values = [measured("tau", name, 0.4, ends[one]) for name, one in taus.items() if one != NOT_MEASURED]
    values += [measured("tau_ceiling", name, 0.9) for name in taus]
    verdict = verdict_of(*values)
    known = [one for one in (direct, trained) if one != NOT_MEASURED] or [NOT_MEASURED]
    answer = known[0] if len(set(known)) == 1 else f"direct: {direct} · trained: {trained}"
    assert verdict.marks["ranks"].word == answer
    clause = CLAUSES.get(("ranks", answer), (UNDECIDED.removesuffix("."), ""))[0]
    assert verdict.sentence.lower() == f"{clause}.".lower()


def test_every_verdict_has_at_most_12_words():
    """Any two clauses of the closed list; of those of one question never two hold."""
    pairs = itertools.combinations((words.format(share="100%") for words, _ in CLAUSES.values()), 2)
    sentences = [*map(sentence_of, pairs), CORPUS, UNDECIDED]
    assert max(len(sentence.split()) for sentence in sentences) == 12


def test_a_verdict_is_the_first_two_clauses_that_hold():
    apart = share(0.9, 0.95, "separated_within_2")
    reliable = measured("reliability", "direct", 0.9, (0.85, 0.95))
    agrees = measured("tau", "direct", 0.6, (0.55, 0.65))
    assert verdict_of(apart).sentence == "Tells similar models apart."
    assert verdict_of(apart, reliable).sentence == "Tells similar models apart; reliable scores."
    assert verdict_of(apart, reliable, agrees).sentence == "Tells similar models apart; ranks models like the others."
    assert verdict_of(share(0.1, 0.2, "separated_all")).sentence == "Cannot separate most models."
    assert verdict_of().sentence == UNDECIDED
    assert verdict_of(measured("output_type", None, "loglikelihood_rolling")).sentence == CORPUS


@pytest.mark.parametrize(
    ("billions", "words"),
    [
        (27.0, "27 billion tokens"),
        (0.0031, "3.1 million tokens"),
        (2e-6, "2 thousand tokens"),
        (0.0, "0 tokens"),
    ],
)
def test_tokens_in_words(billions, words):
    assert tokens_words(billions) == words


class _Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag, attributes):
        self.found.append(tag)


def test_names_are_text_on_both_pages():
    name = '<script>alert(1)</script> | `x` "q"'
    values = {one.key: one for one in (measured("items", None, 5), absent("tau", "direct", "<u>why</u>"))}
    card = Card(name, "a run", values, make_verdict({}, LIMITS))
    tags = _Tags()
    tags.feed(card_html(card))
    assert tags.found.count("script") == 1 and "u" not in tags.found
    text = card_markdown(card)
    assert "\\<script\\>" in text and "\\| \\`x\\`" in text and "<u>" not in text


def test_folders_are_plain_and_differ():
    assert folder_name("arc_easy") == "arc_easy"
    files = ("tables", "index.html", "page.json")  # of the cards' own page
    names = [folder_name(name) for name in ("../x", "a/b", "a b", "", "x" * 300, *files)]
    assert len(set(names)) == 8 and all("/" not in name and not name.startswith(".") for name in names)
    assert not set(files) & set(names) and max(map(len, names)) < 200


def made_up(folder: Path, **results: list[Row]) -> CardSources:
    """Sources with one benchmark `a` of three models, and rows of studies as they are written."""
    frame = pd.DataFrame({"model": ["m1", "m2", "m3"], "benchmark": "a", "value": 0.5, "protocol": "direct"})
    frame = frame.assign(split="test", metric="acc", selected=True, checkpoint="final")
    write_table(frame, SCORES, folder / "scores.parquet")
    (folder / "b.csv").write_text("benchmark,metric,n_items\na,acc,70\n")
    for name, rows in results.items():
        (folder / name).mkdir()
        kinds = dict.fromkeys(("value", "low", "high", "level"), pa.float64()) | {"n": pa.int64()}
        schema = pa.schema({column: kinds.get(column, pa.string()) for column in Row._fields})
        pq.write_table(pa.Table.from_pylist([row._asdict() for row in rows], schema), folder / name / "results.parquet")
        notes = ["Scores of a are odd.", "Scores of aa too."]
        write_json(folder / name / "page.json", {"notes": notes})
    reports = [folder / name for name in results]
    return CardSources(folder / "scores.parquet", folder / "b.csv", reports, missing=["cell one"])


def test_signal_and_bias_come_from_their_rows_and_splits_from_their_records(tmp_path):
    signal, bias = Rows("signal").of(subject="a"), Rows("bias").of(subject="a")
    for quantity, value in {"models": 3, "items": 70, "chance": 0.25, "above_chance": 3, "common_points": 3,
                            "common_points_at_end": 1, "above_chance_from_mean": 27.0,
                            "separable_pairs": 2}.items():  # fmt: skip
        signal.put(quantity, value, "models")
    for point, tokens in enumerate((9.0, 27.0, 81.0), 1):
        signal.put("point_tokens", tokens, "billion_tokens", point=point)
    signal.put("signal_quality_mean", 0.6, "index", {"models": (0.5, 0.7)})
    signal.put("settled_from", 27.0, "billion_tokens", {"items": Missing("It wavers.")})
    for experiment, trials, mean in (("x", 10, 0.001), ("y", 9, 0.9)):
        at = bias.of(experiment=experiment, effect="bias")
        at.put("task_effect", mean, "accuracy", {"subsamples": (-0.004, 0.006)})
        at.put("task_effect_excluded_beyond", 0.005, "accuracy")
        at.put("task_effect_trials", trials, "trials")
        at.put("task_effect_subsamples", 5, "subsamples")
    splits = tmp_path / "splits" / "a"
    splits.mkdir(parents=True)
    (splits / "test.json").write_text(json.dumps({"hashes": ["x", "y", "x", "z"]}))
    removed = {"hashes": ["w"], "removed_by_text": 1, "removed_by_id": 2, "examined": 30}
    (splits / "train.json").write_text(json.dumps(removed))
    sources = replace(made_up(tmp_path, signal=[*signal], bias=[*bias]), splits=tmp_path / "splits")
    card = make_card(sources, "a")
    values = card.values
    assert values["items"].estimate == 70 and values["chance"].estimate == 0.25
    assert values["signal_from"].estimate == 27.0 and values["signal_from"].basis["first common point"] == 9.0
    assert values["signal_quality"].interval == (0.5, 0.7)
    assert values["settled_from"].interval_reason == "It wavers."
    assert (values["bias"].interval, values["bias_excluded"].estimate) == ((-0.004, 0.006), 0.005)
    assert values["train_leakage"].estimate == 0.1 and values["test_duplicates"].estimate == 0.25
    assert values["validation_leakage"].estimate is None
    found = {one.values[0]: one.outcome for one in card.verdict.statements if one.rule != "ready"}
    assert (found["signal_from"], found["settled_from"], found["bias"]) == (NO, NOT_KNOWN, NO)
    assert card.notes[0].endswith("Missing: cell one.") and card.notes[1:] == ("Scores of a are odd.",)


@pytest.mark.parametrize(
    ("sources", "own"), [(["lm-validity"] * 4, True), (["lm-validity"] * 2 + ["lm-eval"] * 2, False)]
)
def test_one_recipe_is_claimed_of_the_workflows_own_fine_tunes_only(tmp_path, sources, own):
    rows = [
        {"model": model, "benchmark": "a", "protocol": protocol, "metric": "acc", "value": 0.5, "source": source}
        for (protocol, model), source in zip(product(("direct", "train_before_test"), "xy"), sources, strict=True)
    ]
    write_table(pd.DataFrame(rows), SCORES, tmp_path / "scores.parquet")
    (tmp_path / "b.tsv").write_text("benchmark\tmetric\na\tacc\n")
    card = make_card(CardSources(tmp_path / "scores.parquet", tmp_path / "b.tsv", []), "a")
    for page in (card_markdown(card), card_html(card)):
        assert ("by the same recipe" in page) == own


def test_what_is_missing_has_a_reason_and_a_command(tmp_path):
    sources = made_up(tmp_path, bias=[])
    values = make_card(sources, "a").values
    assert values["signal_from"].command.startswith("snakemake signal")
    assert values["bias"].reason != values["signal_from"].reason and values["bias"].command.startswith("snakemake bias")
    assert values["tau.train_before_test"].command.startswith("snakemake agreement")
    assert values["tau.direct"].reason and not values["tau.direct"].command  # two benchmarks are not a command
    assert values["negative_items.direct"].command.startswith("lm_eval --log_samples")
    with_items = replace(sources, items=tmp_path / "items.parquet", items_command="lm-validity report items")
    values = make_card(with_items, "a").values
    assert values["negative_items.direct"].command == "lm-validity report items"


def test_what_a_known_world_says(tmp_path):
    """20 models of four sizes whose scores follow size with little noise: separated and agreeing, but within a size."""
    rng = np.random.default_rng(0)
    sizes = np.repeat([1.0, 4.0, 16.0, 64.0], 5)
    ability = 0.2 + 0.15 * np.log(sizes) / np.log(4)
    rows = [
        (f"m{i}", benchmark, ability[i] + 0.002 * rng.normal(), 0.01)
        for benchmark in ("a", "b", "c")
        for i in range(20)
    ]
    frame = pd.DataFrame(rows, columns=["model", "benchmark", "value", "stderr"])
    write_table(
        frame.assign(
            protocol="direct", split="test", metric="acc,none", selected=True, checkpoint="final", n_items=2000
        ),
        SCORES,
        tmp_path / "scores.parquet",
    )
    pd.DataFrame({"model": [f"m{i}" for i in range(20)], "parameters_b": sizes}).to_csv(tmp_path / "m.csv", index=False)
    pd.DataFrame({"benchmark": ["a", "b", "c"], "metric": "acc", "output_type": "multiple_choice"}).to_csv(
        tmp_path / "b.csv", index=False
    )
    paths = [tmp_path / name for name in ("scores.parquet", "m.csv", "b.csv")]
    report_agreement(*paths, tmp_path / "agreement", section=Reports(resamples=0))
    card = make_card(CardSources(paths[0], paths[2], [tmp_path / "agreement"]), "a").to_json()
    found = {one["values"][0]: one["outcome"] for one in card["verdict"]["statements"]}
    assert found["separated_within_2.direct"] == NO
    assert found["reliability.direct"] == YES
    assert found["tau.direct"] == NOT_KNOWN  # without resamples there is no interval
    assert found["tau_within_2.direct"] in (NO, NOT_KNOWN)
    assert found["signal_from"] == found["bias"] == NOT_MEASURED
    assert card["values"]["chance"]["missing"]["command"] is None
    assert list(card) == ["format", "benchmark", "source", "verdict", "values", "notes"] and card["format"] == 2
    assert list(card["verdict"]) == ["sentence", "not_known", "not_measured", "statements"]
    for key, value in card["values"].items():
        quantity = QUANTITIES[key.partition(".")[0]]
        assert (value["unit"], value["section"]) == (quantity.unit, quantity.section)
        assert (value["estimate"] is None) == (value["missing"] is not None)
        assert not value["missing"] or (value["missing"]["reason"].endswith(".") and value["interval"] is None)
        assert not value["interval"] or value["interval"][0] <= value["estimate"] <= value["interval"][1]
