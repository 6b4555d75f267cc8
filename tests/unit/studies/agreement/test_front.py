"""What stands above the folds of the agreement page: both protocols, one, few trained so far, no intervals."""

import html
import json
import re

import numpy as np
import pytest
from tests.unit.studies.agreement.conftest import DIRECT, TRAINED, agreement_page, score_rows

from lm_validity.missing import is_known

NAMES = [f"m{i:02}" for i in range(16)]
TASKS = [f"task{i}" for i in range(8)]
MODELS = "model,family,parameters_b\n" + "".join(f"{name},F{i % 5},{1 + i // 4}\n" for i, name in enumerate(NAMES))
BENCHMARKS = "benchmark,category,metric\n" + "".join(f"{name},{'xyz'[i % 3]},acc\n" for i, name in enumerate(TASKS))


def scores(direct=1.5, trained=0.1) -> dict:
    rng, ability = np.random.default_rng(0), np.linspace(-1, 1, 16)
    return {
        p: {name: (0.5 + 0.07 * (ability + spread * rng.normal(size=16))).round(4).tolist() for name in TASKS}
        for p, spread in ((DIRECT, direct), (TRAINED, trained))
    }


def page_of(tmp_path, table, resamples=50, names=NAMES, stderr=0.01, models=MODELS, benchmarks=BENCHMARKS):
    rows = score_rows(table, names, stderr)
    return agreement_page(tmp_path, rows, resamples, models=models, benchmarks=benchmarks)


def pictures(page) -> list[str]:
    """Every static picture of the page and of its answers."""
    found = [page.picture.svg, *(panel.svg for panel in page.panels), *(answer.svg for answer in page.answers)]
    return [picture for svg in found for picture in re.findall(r"<svg .*?</svg>", svg, re.DOTALL)]


def digits(value: float, *, sign=False) -> str:
    return f"{value:{'+' if sign else ''}.2f}".replace("-", "−")


def few_trained(trained: int) -> dict:
    table = scores()
    return table | {TRAINED: {name: [*of[:trained], *[None] * (16 - trained)] for name, of in table[TRAINED].items()}}


WORLDS = {
    "both": (scores(), {}),
    "direct": ({DIRECT: scores()[DIRECT]}, {}),
    "trained": ({TRAINED: scores()[TRAINED]}, {}),
    "few": (few_trained(3), {}),
    "without intervals": (scores(), {"resamples": 0, "models": "model\nm00\n"}),
    "without errors": ({DIRECT: scores()[DIRECT]}, {"stderr": None, "models": "model\nm00\n"}),
    "two models": ({p: {name: of[:2] for name, of in t.items()} for p, t in scores().items()}, {"names": NAMES[:2]}),
    "one model": ({p: {name: of[:1] for name, of in t.items()} for p, t in scores().items()}, {"names": NAMES[:1]}),
    "constant": ({DIRECT: {name: [0.5] * 16 for name in TASKS}}, {}),
}


@pytest.mark.parametrize("world", WORLDS)
def test_every_world_has_a_finding_a_picture_and_answers_that_keep_to_the_grammar(tmp_path, world):
    table, options = WORLDS[world]
    page, _ = page_of(tmp_path, table, **options)
    assert page.lede.heading and page.picture.svg and page.answers
    for said in (page.lede, *page.answers):
        assert len(said.sentence.split()) <= 18 and "unknown" not in said.sentence and "nan" not in said.sentence
        assert len(re.findall(r"\d+%?: ", said.interval)) <= 1
    above = " ".join([page.lede.heading, page.lede.sentence, page.picture.note, *(panel.text for panel in page.panels)])
    assert not re.search(r"protocol|clustered|cells|reliability|Kendall|equivalence|factor", above)
    assert all(re.search(r'aria-label="[^"]{20,}', picture) for picture in pictures(page))
    assert not any("nan" in picture.split("base64")[0] for picture in pictures(page))


def test_what_both_say_is_the_summarys_to_its_printed_digits(tmp_path):
    page, summary = page_of(tmp_path, scores())
    change = summary["improvement"]
    arrow = " → ".join(digits(change["means"][p]) for p in (DIRECT, TRAINED))
    low, high = max((change["interval"], change["interval_clustered"]), key=lambda ends: ends.high - ends.low)
    interval = f"95% of the change: {digits(low, sign=True)} to {digits(high, sign=True)}"
    assert arrow in page.lede.sentence and page.lede.interval == interval and low > 0 and "better" in page.lede.heading
    answer = page.answers[0]
    assert arrow in answer.sentence and answer.interval == interval and interval in answer.svg
    whom, size, pairs = page.panels
    for key in ("interval", "interval_clustered", "interval_population_of_categories"):
        assert " to ".join(digits(end, sign=True) for end in change[key]) in whom.svg
    rows = [next(row for row in change["by_size_ratio"][p] if row.at_most == 2) for p in (DIRECT, TRAINED)]
    assert " → ".join(digits(row.mean) for row in rows) in size.text
    assert f"{summary['improved_pairs']} of {summary['compared_pairs']}" in pairs.text


def test_benchmarks_without_a_trained_score_have_no_part_in_the_change(tmp_path):
    table = scores()
    table[TRAINED] = dict(list(table[TRAINED].items())[:3])
    page, summary = page_of(tmp_path, table)
    assert summary["compared_pairs"] == 3 and page.answers[0].basis.startswith("16 models, 3 benchmarks")
    drawn = json.loads(html.unescape(re.findall(r'data-ranks="([^"]*)"', page.picture.svg)[0]))
    assert sorted(drawn["columns"]) == TASKS[:3]


def test_a_change_that_may_be_none_is_not_found(tmp_path):
    page, summary = page_of(tmp_path, scores(0.5, 0.5))
    assert summary["improvement"]["interval"].low < 0 < summary["improvement"]["interval"].high
    assert page.lede.heading.startswith("No change found") and page.answers[0].sentence.startswith("No change found")
    without, _ = page_of(tmp_path, scores(), 0, models="model\nm00\n", benchmarks="benchmark\n" + "\n".join(TASKS))
    assert without.lede.heading.startswith("Not known") and without.lede.interval == ""
    assert without.answers[0].sentence.startswith("Not known") and without.panels[0].outcome == "not known"


@pytest.mark.parametrize(("spread", "surely"), [(1.5, True), (0.01, False)])
def test_disagreement_is_held_against_noise_where_there_is_one_protocol(tmp_path, spread, surely):
    page, summary = page_of(tmp_path, {DIRECT: scores(spread)[DIRECT]}, stderr=0.02)
    tau = summary["kendall_tau"][DIRECT]
    corrected = [tau["corrected"][key] for key in ("interval", "interval_clustered")]
    assert any(is_known(ends) and ends.high < 0.99 for ends in corrected) == surely
    assert page.lede.heading.startswith("Benchmarks disagree more than noise") == surely
    assert page.panels[0].outcome == ("yes" if surely else "not known")
    possible = f" of a possible {digits(tau['ceiling'])}" if tau["ceiling"] > tau["mean"] else ""
    assert page.answers[0].sentence.endswith(f": {digits(tau['mean'])}{possible}") and bool(possible) == surely
    # a ceiling below the agreement bounds nothing: it is neither drawn nor named, and a note says why
    drawn = [bool(re.search('class="[^"]*\\bcl\\b', svg)) for svg in (page.panels[0].svg, page.answers[0].svg)]
    named = ["Noise ceiling" in page.panels[0].svg, "noise ceiling" in page.answers[0].svg]
    named.append(any("Noise would leave" in finding.sentence for finding in page.findings))
    assert (tau["mean"] <= tau["ceiling"]) == surely and {*drawn, *named} == {surely}
    assert any("above its noise ceiling" in note for note in page.notes) != surely


def test_benchmarks_that_tell_similar_models_apart_are_those_of_the_cards_rule(tmp_path):
    page, summary = page_of(tmp_path, {DIRECT: scores()[DIRECT]}, stderr=0.02)
    ends = [
        next(row["separated_interval"] for row in found["by_distance"] if (row["at_least"], row["at_most"]) == (1, 2))
        for found in summary["by_benchmark"][DIRECT].values()
    ]
    surely, hardly = sum(low >= 0.8 for low, _ in ends), sum(high < 0.5 for _, high in ends)
    assert page.answers[1].sentence.startswith(f"On {surely} of 8 benchmarks, at least 80% of similar pairs")
    assert page.answers[1].sentence.endswith(f"on {hardly}, under half")
    assert f"On the other {8 - surely - hardly}:" in page.answers[1].basis
    # where the interval decides on each benchmark there are no others
    page, _ = page_of(tmp_path, {DIRECT: scores()[DIRECT]}, stderr=0.2)
    assert page.answers[1].sentence.endswith("on 8, under half") and "other" not in page.answers[1].basis
    # the last one's name lies on no dot, although its share is near 0
    last = float(re.findall(r'<circle [^>]*cy="([\d.]+)"', page.answers[1].svg)[-1])
    label = float(re.findall(r'<text [^>]*y="([\d.]+)"[^>]*>task', page.answers[1].svg)[-1])
    assert last > 90 and last - label > 6


@pytest.mark.parametrize("trained", [1, 3])
def test_a_run_that_is_not_at_its_end_says_how_far_it_is_and_shows_direct_scores(tmp_path, trained):
    page, summary = page_of(tmp_path, few_trained(trained))
    assert summary["models_in_both"] == trained
    for sentence in (page.lede.heading, page.answers[0].sentence):
        assert sentence.startswith(f"Not known yet: {trained} of 16 models")
    assert page.panels[0].outcome == "not known" and page.panels[0].svg.count('class="t" style') == trained
    assert TRAINED.replace("_", " ") not in page.picture.svg and len(page.answers) == 2


def test_where_few_direct_scores_are_known_trained_models_are_not_called_untrained(tmp_path):
    page, _ = page_of(tmp_path, dict(zip((TRAINED, DIRECT), few_trained(3).values(), strict=True)))
    panel = page.panels[0]
    assert panel.outcome == "not known" and "3 of 16" in panel.svg and "trained" not in f"{panel.text}{panel.svg}"


def test_the_carpets_read_out_ranks_by_mean_rank_and_by_agreement(tmp_path):
    names = ['<b>"x"', "שפה", "n" * 80, *NAMES[3:]]
    sheet = "model,family\n" + "".join(f'"{name.replace(chr(34), chr(34) * 2)}",F\n' for name in names)
    page, summary = page_of(tmp_path, scores(), 0, names=names, models=sheet)
    assert "<b>" not in page.picture.svg
    direct, trained, *narrow = (
        json.loads(html.unescape(text)) for text in re.findall(r'data-ranks="([^"]*)"', page.picture.svg)
    )
    assert [direct, trained] == narrow and (direct["label"], trained["label"]) == ("direct", "train before test")
    agreement = summary["kendall_tau"][DIRECT]["by_benchmark"]
    assert direct["columns"] == trained["columns"] == sorted(agreement, key=agreement.get, reverse=True)
    for said, p in ((direct, DIRECT), (trained, TRAINED)):
        means = [np.mean(ranks) for ranks in said["ranks"]]
        assert means == sorted(means) and sorted(said["rows"]) == sorted(names)
        first = scores()[p][said["columns"][0]]
        assert said["ranks"][said["rows"].index(names[int(np.argmax(first))])][0] == 1
