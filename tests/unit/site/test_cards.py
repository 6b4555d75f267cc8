"""Benchmark cards: the rules from both sides of their thresholds, card.json, and the cards of real tables."""

import itertools
import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pandas as pd
import pytest

from lm_validity.config.sections import Cards
from lm_validity.files import write_json
from lm_validity.pages.page import Page
from lm_validity.results.put import Rows
from lm_validity.results.sections import write_rows
from lm_validity.site.cards.card import Card, card_html, card_markdown, folder_name, make_card
from lm_validity.site.cards.values import (
    CLAUSES,
    CORPUS_ALONE,
    NO,
    NOT_KNOWN,
    NOT_MEASURED,
    PARTLY,
    UNDECIDED,
    YES,
    CardSources,
    basis_words,
    known,
    make_verdict,
    sentence_of,
    shown,
    value_of,
)
from lm_validity.tables.schema import SCORES, write_table
from lm_validity.words import Missing

LIMITS = Cards()
POINTS = {"first_point": 10.0, "last_point": 100.0}


def card_of(**numbers) -> Rows:
    """Rows of a card: a value, a pair (an interval around its middle), or (value, low, high); `tau__direct` is of a
    protocol, and `n` what counts rest on."""
    rows, n = Rows("card"), numbers.pop("n", 1)
    for name, value in numbers.items():
        quantity, _, protocol = name.partition("__")
        ends = value[-2:] if isinstance(value, tuple) else None
        middle = value if ends is None else value[0] if len(value) == 3 else sum(ends) / 2
        rows.put(quantity, middle, "score", {"models": ends} if ends else None, protocol=protocol or None,
                 counted=("items", n))  # fmt: skip
    return rows


def verdict_of(settings: Cards = LIMITS, **numbers):
    return make_verdict(card_of(**numbers), settings)


def outcomes(settings: Cards = LIMITS, **numbers) -> dict[str, str]:
    """The outcome of each statement by the first value that it reads."""
    statements = verdict_of(settings, **numbers).statements
    return {each.values[0]: each.outcome for each in statements if each.rule != "ready"}


APART, ALL = "separated_within_2__direct", "separated_all__direct"


@pytest.mark.parametrize(
    ("numbers", "key", "outcome"),
    [
        *(({APART: ends}, APART, outcome) for ends, outcome in [
            ((0.80, 0.95), YES), ((0.79, 0.95), NOT_KNOWN), ((0.50, 0.79), PARTLY), ((0.50, 0.80), NOT_KNOWN),
            ((0.49, 0.79), NOT_KNOWN), ((0.20, 0.49), NO), ((0.20, 0.50), NOT_KNOWN)]),
        ({ALL: (0.8, 0.9)}, ALL, YES),
        ({APART: (0.8, 0.9), ALL: (0.3, 0.4)}, APART, YES),
        ({"separated_within_2__train_before_test": (0.8, 0.9)}, "separated_within_2__train_before_test", YES),
        # models as they come go first
        ({APART: (0.8, 0.9), "separated_within_2__train_before_test": (0.1, 0.2)}, APART, YES),
        # a tau surely low, where its noise ceiling allows no more, and the opposite order, which noise never makes
        *(({f"tau{kind}__direct": ends, f"tau_ceiling{kind}__direct": ceiling}, f"tau{kind}__direct", outcome)
          for kind in ("", "_within_2") for ends, ceiling, outcome in [
            ((0.2, 0.4), 0.6, NO), ((0.2, 0.4), 0.4, NOT_KNOWN), ((-0.4, -0.2), 0.4, NO)]),
        ({"tau__direct": (0.2, 0.4)}, "tau__direct", NOT_KNOWN),
        # a range over prompts that chance may make is no dependence
        ({"prompt_range": (0.05, 0.07), "prompt_range_by_chance": 0.03}, "prompt_range", YES),
        ({"prompt_range": (0.05, 0.07), "prompt_range_by_chance": 0.031}, "prompt_range", NOT_KNOWN),
        ({"prompt_range": (0.05, 0.07)}, "prompt_range", NOT_KNOWN),
        ({"prompt_range": (0.0, 0.019)}, "prompt_range", NO),
        *(({"bias": ends}, "bias", outcome) for ends, outcome in [
            ((0.001, 0.02), YES), ((0.0, 0.02), NOT_KNOWN), ((-0.0099, 0.0099), NO), ((-0.0101, 0.0), NOT_KNOWN),
            ((-0.02, -0.011), YES)]),
        ({"bias": 0.0}, "bias", NOT_KNOWN),
        # counts are held to their shares; that few items are found is no evidence that there are few
        ({"negative_items__direct": 2, "n": 100}, "negative_items__direct", NOT_KNOWN),
        ({"negative_items__direct": 3, "n": 100}, "negative_items__direct", YES),
        ({"at_best__direct": 2, "n": 10}, "at_best__direct", NO),
        ({"at_best__direct": 3, "n": 10}, "at_best__direct", YES),
        ({"train_leakage": 0.01}, "train_leakage", NO),
        ({"train_leakage": 0.011}, "train_leakage", YES),
        ({"train_leakage": 0.0, "test_duplicates": 0.5}, "train_leakage", YES),
        ({"signal_from": 27.0, **POINTS}, "signal_from", NO),
        ({"signal_from": 10.0, **POINTS}, "signal_from", YES),
        ({"signal_at_end": 3}, "signal_from", NOT_MEASURED),
        ({"settled_from": (20.0, 99.0), **POINTS}, "settled_from", YES),
        ({"settled_from": (20.0, 100.0), **POINTS}, "settled_from", NOT_KNOWN),
        # the order at a point before the end of training need not be the final one
        ({"settled_from": (20.0, 99.0), "first_point": 10.0}, "settled_from", NOT_KNOWN),
        # that scores do not rise steadily is never said
        ({"steady": 1}, "steady", YES),
        ({"steady": 0}, "steady", NOT_KNOWN),
    ],
)  # fmt: skip
def test_a_rule_says_yes_no_or_that_it_is_not_known(numbers, key, outcome):
    assert outcomes(**numbers)[key.replace("__", ".")] == outcome


THRESHOLDS = {
    "reliability__direct": 0.8,
    "tau__direct": 0.5,
    "tau__train_before_test": 0.5,
    "tau_within_2__direct": 0.5,
}


@pytest.mark.parametrize(("name", "threshold"), THRESHOLDS.items())
def test_rules_with_one_threshold(name, threshold):
    key, ceiling = name.replace("__", "."), {name.replace("tau", "tau_ceiling"): 0.9} if "tau" in name else {}
    for low, high, outcome in ((0, 0.1, YES), (-0.001, 0.1, NOT_KNOWN), (-0.01, 0, NOT_KNOWN), (-0.01, -0.001, NO)):
        assert outcomes(**{name: (threshold + low, threshold + high)}, **ceiling)[key] == outcome
    assert outcomes(**{name: threshold + 0.5})[key] == NOT_KNOWN  # without an interval
    assert outcomes(**{name: Missing("because")})[key] == NOT_MEASURED
    if name.startswith("reliability"):
        assert outcomes(Cards(reliable=0.81), **{name: (0.8, 0.9)})[key] == NOT_KNOWN


@pytest.mark.parametrize(
    ("name", "value", "unit", "ends", "words"),
    [
        ("reliability", 1.0, "share", (0.995, 1.0), "100.0% (99.5% to 100.0%)"),
        ("bias", 0.02, "accuracy", (-0.0001, 0.04), "0.020 (0.000 to 0.040)"),
        ("tau", -0.001, "tau", (-0.2, 0.1), "0.00 (−0.20 to 0.10)"),
        ("output_type", "loglikelihood_rolling", "text", None, "perplexity"),
        ("settled_from", 0.0031, "billion_tokens", None, "3.1 million tokens"),
        ("settled_from", 2e-6, "billion_tokens", None, "2 thousand tokens"),
    ],
)
def test_each_unit_has_its_digits_and_kinds_of_tasks_have_words(name, value, unit, ends, words):
    rows = Rows("card")
    rows.put(name, value, unit, {"models": ends} if ends else None, counted=("pairs_of_models", 1))
    assert (shown(known(rows, name)), basis_words(known(rows, name))) == (words, "1 pair of models")


@pytest.mark.parametrize(
    ("numbers", "question", "mark", "sentence"),
    [
        ({"bias": (-0.02, -0.011)}, "bias", (YES, "lowers"), "Test text seen lowers scores."),
        ({"bias": (0.011, 0.02)}, "bias", (YES, "raises"), "Test text seen raises scores."),
        ({"signal_from": 27.0, **POINTS}, "signal", (NO, NO), "Above chance from 27% of training."),
        # that no model is shown to end above chance is no evidence that none does
        ({"signal_at_end": 0}, "signal", (NOT_KNOWN, "not shown"), "No model shown to end above chance."),
        # ten models that are each 1.8 standard errors above chance: none by itself, and the mean surely
        ({"signal_from": 27.0, "signal_at_end": 0, **POINTS}, "signal", (NO, NO), "Above chance from 27% of training."),
        # not surely early, but before the end, by the number that the page of the signal study has: 51 of 100 billion
        ({"settled_from": (20, 51), "signal_from": 30.0, **POINTS}, "ready", (NOT_KNOWN, "by 51%"),
         "Above chance from 30% of training; order settles by 51% of training."),
    ],
)  # fmt: skip
def test_what_stands_beside_a_mark_and_in_the_sentence(numbers, question, mark, sentence):
    verdict = verdict_of(**numbers)
    assert (verdict.marks[question].outcome, verdict.marks[question].word) == mark
    assert verdict.sentence == sentence or len(verdict.sentence.split()) <= 12


@pytest.mark.parametrize(
    ("numbers", "outcome"),
    [
        ({"settled_from": (20, 50)}, NOT_KNOWN),  # chance is unknown
        ({"settled_from": (20, 51)}, NOT_KNOWN),
        ({"settled_from": (51, 90)}, NO),
        ({"settled_from": (20, 50), "signal_from": 30.0}, YES),
        ({"settled_from": (20, 50), "signal_from": 60.0}, NO),  # ordered early, above chance late
        ({"signal_from": 30.0}, NOT_KNOWN),  # the order is not known
        ({"settled_from": (20, 50), "signal_at_end": 0}, NOT_KNOWN),
        ({"settled_from": (20, 50), "signal_from": 30.0, "signal_at_end": 0}, NOT_KNOWN),
        ({"settled_from": (20, 50), "signal_at_end": 2}, NOT_KNOWN),  # some are above chance, their mean never
        ({}, NOT_MEASURED),
        ({"settled_from": (20, 50), "last_point": Missing("unfinished")}, NOT_KNOWN),
    ],
)
def test_ready_early_asks_for_signal_and_order(numbers, outcome):
    assert verdict_of(**(POINTS | numbers)).marks["ready"].outcome == outcome


@pytest.mark.parametrize(("direct", "trained"), [*product((YES, NO, NOT_KNOWN, NOT_MEASURED), repeat=2)])
def test_both_protocols_give_one_answer(direct, trained):
    """The mark beside *Does it rank models like the others?*, and the clause of the verdict, which never differ."""
    ends = {YES: (0.5, 0.9), NO: (0.1, 0.4), NOT_KNOWN: (0.4, 0.6)}
    taus = {"tau__direct": direct, "tau__train_before_test": trained}
    numbers = {name: ends[answer] for name, answer in taus.items() if answer != NOT_MEASURED}
    verdict = verdict_of(**numbers, **{name.replace("tau", "tau_ceiling"): 0.9 for name in taus})
    measured = [answer for answer in (direct, trained) if answer != NOT_MEASURED] or [NOT_MEASURED]
    word = measured[0] if len(set(measured)) == 1 else f"direct: {direct} · trained: {trained}"
    assert verdict.marks["ranks"].word == word
    clause = CLAUSES.get(("ranks", word), (UNDECIDED.removesuffix("."), ""))[0]
    assert verdict.sentence.lower() == f"{clause}.".lower()


def test_a_verdict_is_the_first_two_clauses_that_hold_in_at_most_12_words():
    """Any two clauses of the closed list; of those of one question never two hold."""
    pairs = itertools.combinations((words.format(share="100%") for words, _ in CLAUSES.values()), 2)
    assert max(len(sentence.split()) for sentence in [*map(sentence_of, pairs), CORPUS_ALONE, UNDECIDED]) == 12
    numbers = {APART: (0.9, 0.95), "reliability__direct": (0.85, 0.95), "tau__direct": (0.55, 0.65)}
    assert verdict_of(**numbers).sentence == "Tells similar models apart; ranks models like the others."
    del numbers["tau__direct"]
    assert verdict_of(**numbers).sentence == "Tells similar models apart; reliable scores."
    assert verdict_of(**{ALL: (0.1, 0.2)}).sentence == "Cannot separate most models."
    assert verdict_of().sentence == UNDECIDED
    corpus = Rows("card")
    corpus.put("output_type", "loglikelihood_rolling", "text")
    assert make_verdict(corpus, LIMITS).sentence == CORPUS_ALONE


def test_names_are_text_on_both_pages():
    name = '<script>alert(1)</script> | `x` "q"'
    rows = card_of(items=5, tau__direct=Missing("<u>why</u>"))
    card = Card(name, "a run", rows, make_verdict(rows, LIMITS))
    html = card_html(card)
    assert html.count("<script") == 1 and "<u>" not in html and "&lt;script&gt;alert(1)" in html
    text = card_markdown(card)
    assert "\\<script\\>" in text and "\\| \\`x\\`" in text and "<u>" not in text


def test_folders_are_plain_and_differ():
    assert folder_name("arc_easy") == "arc_easy"
    files = ("tables", "index.html", "page.json")  # of the cards' own page
    names = [folder_name(name) for name in ("../x", "a/b", "a b", "", "x" * 300, *files)]
    assert len(set(names)) == 8 and all("/" not in name and not name.startswith(".") for name in names)
    assert not set(files) & set(names) and max(map(len, names)) < 200


def made_up(folder: Path, **results: Rows) -> CardSources:
    """Sources with one benchmark `a` of three models, and rows of studies as they are written."""
    frame = pd.DataFrame({"model": ["m1", "m2", "m3"], "benchmark": "a", "value": 0.5, "protocol": "direct"})
    frame = frame.assign(split="test", metric="acc", selected=True, checkpoint="final")
    write_table(frame, SCORES, folder / "scores.parquet")
    (folder / "b.csv").write_text("benchmark,metric,n_items,chance\na,acc,70,0.25\n")
    for name, rows in results.items():
        write_rows(Page(name, name, [], []), rows, folder / name)
        write_json(folder / name / "page.json", {"notes": ["Scores of a are odd.", "Scores of aa too."]})
    reports = [folder / name for name in results]
    return CardSources(folder / "scores.parquet", folder / "b.csv", reports, missing=["cell one"])


def test_signal_and_bias_come_from_their_rows_and_splits_from_their_records(tmp_path):
    signal, bias = Rows("signal").of(subject="a"), Rows("bias").of(subject="a")
    for quantity, value in {"above_chance": 3, "common_points_at_end": 1, "above_chance_from_mean": 27.0}.items():
        signal.put(quantity, value, "models")
    for point, tokens in enumerate((9.0, 27.0, 81.0), 1):
        signal.put("point_tokens", tokens, "billion_tokens", point=point)
    signal.put("signal_quality_mean", 0.6, "index", {"models": (0.5, 0.7)})
    signal.put("settled_from", 27.0, "billion_tokens", {"items": Missing("It wavers.")})
    for experiment, trials, mean in (("x", 10, 0.001), ("y", 9, 0.9)):  # the one with most trials speaks
        at = bias.of(experiment=experiment, effect="bias")
        at.put("task_effect", mean, "accuracy", {"subsamples": (-0.004, 0.006)})
        at.put("task_effect_excluded_beyond", 0.005, "accuracy")
        at.put("task_effect_trials", trials, "trials")
    splits = tmp_path / "splits" / "a"
    splits.mkdir(parents=True)
    (splits / "test.json").write_text(json.dumps({"hashes": ["x", "y", "x", "z"]}))
    removed = {"hashes": ["w"], "removed_by_text": 1, "removed_by_id": 2, "examined": 30}
    (splits / "train.json").write_text(json.dumps(removed))
    sources = replace(made_up(tmp_path, signal=signal, bias=bias), splits=tmp_path / "splits")
    card = make_card(sources, "a")
    right = {"items": 70, "chance": 0.25, "signal_from": 27.0, "first_point": 9.0, "last_point": 81.0, "bias": 0.001,
             "bias_excluded": 0.005, "train_leakage": 0.1, "test_duplicates": 0.25,
             "validation_leakage": None}  # fmt: skip
    assert {key: value_of(card.rows, key) for key in right} == pytest.approx(right)
    assert known(card.rows, "signal_quality").low == 0.5 and known(card.rows, "bias").low == -0.004
    assert known(card.rows, "settled_from").reason == "It wavers."
    found = {each.values[0]: each.outcome for each in card.verdict.statements if each.rule != "ready"}
    assert (found["signal_from"], found["settled_from"], found["bias"]) == (NO, NOT_KNOWN, NO)
    assert card.notes[0].endswith("Missing: cell one.") and card.notes[1:] == ("Scores of a are odd.",)


@pytest.mark.parametrize(
    ("sources", "is_claimed"), [(["lm-validity"] * 4, True), (["lm-validity"] * 2 + ["lm-eval"] * 2, False)]
)
def test_one_recipe_is_claimed_of_the_workflows_own_fine_tunes_only(tmp_path, sources, is_claimed):
    rows = [
        {"model": model, "benchmark": "a", "protocol": protocol, "metric": "acc", "value": 0.5, "source": source}
        for (protocol, model), source in zip(product(("direct", "train_before_test"), "xy"), sources, strict=True)
    ]
    write_table(pd.DataFrame(rows), SCORES, tmp_path / "scores.parquet")
    (tmp_path / "b.tsv").write_text("benchmark\tmetric\na\tacc\n")
    card = make_card(CardSources(tmp_path / "scores.parquet", tmp_path / "b.tsv", []), "a")
    for page in (card_markdown(card), card_html(card)):
        assert ("by the same recipe" in page) == is_claimed


def test_what_is_missing_has_a_reason_and_what_would_measure_it(tmp_path):
    sources = made_up(tmp_path, bias=Rows("bias"))

    def reason(key: str, sources: CardSources = sources) -> str:
        name, _, protocol = key.partition(".")
        return make_card(sources, "a").rows.row(name, protocol=protocol or None).reason

    assert "snakemake signal" in reason("signal_from")
    assert "not one of the bias study's tasks" in reason("bias")
    assert "snakemake agreement" in reason("models.train_before_test")
    assert "To measure" not in reason("tau")  # two benchmarks are not a command
    assert "lm_eval --log_samples" in reason("negative_items")
    with_items = replace(sources, items=tmp_path / "items.parquet", items_command="lm-validity report items")
    assert reason("negative_items", with_items).endswith("lm-validity report items")
