"""What stands above the folds of the agreement page: both protocols, one, few trained so far, no intervals."""

import json
import re

import numpy as np
import pytest
from tests.unit.studies.agreement.conftest import DIRECT, TRAINED, agreement_page, by_subject, score_rows, written
from typer.testing import CliRunner

from lm_validity.cli import reports
from lm_validity.config.sections import Cards, Reports
from lm_validity.results.put import Rows
from lm_validity.site.report import Given, report_site
from lm_validity.studies.agreement.data import estimate, range_of
from lm_validity.studies.agreement.statistics.noise import far_models, in_clumps
from lm_validity.words import is_known

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


def digits(value: float, *, sign=False) -> str:
    return f"{value:{'+' if sign else ''}.2f}".replace("-", "−")


def few_trained(trained: int) -> dict:
    table = scores()
    return table | {TRAINED: {name: [*of[:trained], *[None] * (16 - trained)] for name, of in table[TRAINED].items()}}


def gained(gain: float) -> dict:
    direct = scores()[DIRECT]
    return {DIRECT: direct, TRAINED: {name: [value + gain for value in of] for name, of in direct.items()}}


def test_what_both_say_is_the_rows_to_their_printed_digits(tmp_path):
    page, rows = page_of(tmp_path, scores())
    arrow = " → ".join(digits(rows.value("tau_mean_in_both", protocol=p)) for p in (DIRECT, TRAINED))
    change, others = estimate(rows, "tau_change"), range_of(rows, "tau_change", "categories")
    low, high = max((change.models, change.families), key=lambda ends: ends.high - ends.low)
    of_these, of_others = (" to ".join(digits(end, sign=True) for end in ends) for ends in ((low, high), others))
    interval = f"95% of the change: {of_these}"
    assert arrow in page.lede.sentence and page.lede.interval == interval and low > 0
    assert page.lede.heading.startswith("These 8 benchmarks agree better")
    answer = page.answers[0]
    assert arrow in answer.sentence and answer.interval == interval and interval in answer.svg
    assert f"For other benchmarks too, the change is {of_others}." in answer.basis
    whom, size = page.panels
    for ends in (change.models, change.families, others):
        assert " to ".join(digits(end, sign=True) for end in ends) in whom.svg
    place = {"distance": "size", "at_most": 2.0}
    taus = [rows.value("tau_mean_by_ratio", protocol=p, **place) for p in (DIRECT, TRAINED)]
    assert " → ".join(map(digits, taus)) in size.text
    assert f"{rows.value('improved_pairs'):.0f} of {rows.value('compared_pairs'):.0f}" in page.lede.sentence


SAME = "Every score after training for the test is the same as the direct one"  # one file given twice, most likely


@pytest.mark.parametrize(
    ("table", "resamples", "heading", "interval"),
    [
        (scores(0.5, 0.5), 50, "No change found", True),
        (scores(), 0, "Not known whether", False),
        (gained(0.01), 0, "After training for the test, no two models changed places on any benchmark", False),
        (gained(0.0), 0, SAME, False),
        (few_trained(1), 50, "Not known yet: 1 of 16 models", False),
        (few_trained(3), 50, "Not known yet: 3 of 16 models", False),
    ],
)
def test_a_change_that_is_not_sure_is_not_said(tmp_path, table, resamples, heading, interval):
    """Of a run that is not at its end direct scores are shown."""
    sheets = {} if resamples else {"models": "model\nm00\n", "benchmarks": "benchmark\n" + "\n".join(TASKS)}
    page, rows = page_of(tmp_path, table, resamples, **sheets)
    for sentence in (page.lede.heading, page.answers[0].sentence):
        assert sentence.startswith(heading) and len(sentence.split()) <= 18
    assert bool(page.lede.interval) == bool(page.answers[0].interval) == interval
    if "yet" in heading:
        assert f"{rows.row('tau_change').n} of 16" in heading and page.panels[0].outcome == "not known"
        assert TRAINED.replace("_", " ") not in page.picture.svg and len(page.answers) == 2
    elif interval:
        low, high = range_of(rows, "tau_change", "models")
        assert low < 0 < high
    else:
        assert page.panels[0].outcome == "not known" and (rows.value("tau_change") > 0.1) == ("whether" in heading)


@pytest.mark.parametrize(("spread", "surely"), [(1.5, True), (0.01, False)])
def test_disagreement_is_held_against_noise_where_there_is_one_protocol(tmp_path, spread, surely):
    page, rows = page_of(tmp_path, {DIRECT: scores(spread)[DIRECT]}, stderr=0.02)
    tau, ceiling = estimate(rows, "tau_mean", protocol=DIRECT).value, rows.value("tau_ceiling", protocol=DIRECT)
    corrected = estimate(rows, "tau_mean_corrected", protocol=DIRECT)[1:3]
    assert any(is_known(ends) and ends.high < 0.99 for ends in corrected) == surely
    assert page.lede.heading.startswith("Benchmarks disagree more than noise") == surely
    assert page.panels[0].outcome == ("yes" if surely else "no")
    # the interval that stands beside the verdict is the one that decided
    widest = max((ends for ends in corrected if is_known(ends)), key=lambda ends: ends.high - ends.low, default=None)
    assert (widest is not None) == surely
    if surely:
        assert page.lede.interval == f"95% without noise: {digits(widest.low)} to {digits(widest.high)}"
        assert page.answers[0].interval == page.lede.interval
    possible = f" of a possible {digits(ceiling)}" if ceiling > tau else ""
    assert page.answers[0].sentence.endswith(f": {digits(tau)}{possible}") and bool(possible) == surely
    # a ceiling below the agreement bounds nothing: it is neither drawn nor named, and a note says why
    named = ["noise ceiling" in picture.svg for picture in (page.panels[0], page.answers[0])]
    named.append('class="chance"' in page.panels[0].svg)
    named.append(any("With noise alone" in finding.sentence for finding in page.findings))
    assert (tau <= ceiling) == surely and {*named} == {surely}
    assert any("above its noise ceiling" in note for note in page.notes) != surely


@pytest.mark.parametrize(("least", "most", "under"), [(0.8, 0.5, "half"), (0.55, 0.35, "35%")])
def test_benchmarks_that_tell_similar_models_apart_are_those_of_the_runs_thresholds(tmp_path, least, most, under):
    """On the report's own page by a configuration, and on a site's first page and cards."""
    files = written(tmp_path, score_rows({DIRECT: scores()[DIRECT]}, NAMES, 0.02), MODELS, BENCHMARKS)
    configuration = {"name": "x", "models": "m.tsv", "benchmarks": "b.tsv"}
    configuration["cards"] = {"separated": least, "not_separated": most}
    (tmp_path / "run.json").write_text(json.dumps(configuration))
    options = zip(("scores", "models", "benchmarks", "output", "configfile"), [*files, "out", "run.json"], strict=True)
    words = [word for name, value in options for word in (f"--{name}", str(tmp_path / value))]
    CliRunner().invoke(reports.app, ["agreement", *words, "--resamples", "0"], catch_exceptions=False)
    rows = Rows.read(tmp_path / "out" / "results.parquet").all("separated", protocol=DIRECT, at_most=2.0)
    surely, hardly = sum(row.low >= least for row in rows), sum(row.high < most for row in rows)
    many, few = sum(row.value >= least for row in rows), sum(row.value < most for row in rows)
    # the sentence counts these models' pairs, and what the intervals decide for others is said beside it
    sentence = f"On {many or 'none'} of 8 benchmarks, at least {least:.0%} of similar pairs are told apart; "
    sentence += f"on {few or 'none'}, under {under}"
    answer = json.loads((tmp_path / "out" / "page.json").read_text())["answers"][1]
    assert (answer["sentence"], many + few > 0) == (sentence, True)
    assert f"by the 95% intervals: {surely} and {hardly}." in answer["basis"]
    cards = Cards(separated=least, not_separated=most)
    report_site(files[:1], tmp_path / "site", Given(*files[1:], section=Reports(resamples=0), cards=cards))
    first_page = (tmp_path / "site" / "index.html").read_text()
    assert sentence in first_page and all(f">{share:.0%}</text>" in first_page for share in (least, most))
    card = (tmp_path / "site" / "cards" / "task0" / "index.html").read_text()
    for share in (least, most):
        assert re.search(rf'x1="{round(2 + 96 * share, 2)}%"[^>]* class="chance"', card)


def one_reversed(declared: str, slope: float = 0.2) -> tuple[dict, str]:
    """Six benchmarks that agree, one of them a rate of errors; and their sheet."""
    rng, ability = np.random.default_rng(4), np.linspace(-1, 1, 16)
    table = {f"task{i}": 0.5 + 0.2 * ability + 0.05 * rng.normal(size=16) for i in range(5)}
    table["odd"] = 0.5 - slope * ability + 0.05 * rng.normal(size=16)
    rows = "".join(f"{name},{1 if name != 'odd' else declared}\n" for name in table)
    return {DIRECT: {name: of.round(4).tolist() for name, of in table.items()}}, f"benchmark,higher_is_better\n{rows}"


def test_an_order_against_the_others_with_an_unknown_direction_is_not_known_and_asks(tmp_path):
    table, sheet = one_reversed("")
    rows = score_rows(table, NAMES, 0.02).assign(metric=None)  # acc would say it
    page, found = agreement_page(tmp_path, rows, 50, models=MODELS, benchmarks=sheet)
    taus = by_subject(found, "tau_with_others", protocol=DIRECT)
    assert taus["odd"] < -0.5
    for said in (page.lede.heading, page.answers[0].sentence):
        assert said.startswith("Not known") and "is lower better on odd?" in said and len(said.split()) <= 18
    assert page.lede.interval == page.answers[0].interval == "" and page.panels[0].outcome == "not known"
    # no mean has an interval, in no finding either; its own is not given, those of the others hold either way
    for quantity in ("tau_mean", "tau_mean_corrected", "significance_tau_mean", "tau_mean_by_ratio"):
        assert all(row.low is None for row in found if row.quantity == quantity)
    assert not any("95%" in finding.sentence.partition(" picked at random")[0] for finding in page.findings)
    assert not is_known(range_of(found, "tau_with_others", "models", protocol=DIRECT, subject="odd"))
    assert any("`higher_is_better`" in note for note in page.notes)
    told, right = page_of(tmp_path, table, benchmarks=one_reversed("0")[1], stderr=0.02)
    assert not any("`higher_is_better`" in note for note in told.notes)
    assert f"{digits(right.value('tau_mean', protocol=DIRECT))} if so" in page.answers[0].sentence
    assert is_known(range_of(right, "tau_mean", "models", protocol=DIRECT))
    for i in range(5):
        place = {"protocol": DIRECT, "subject": f"task{i}"}
        low, high = range_of(found, "tau_with_others", "models", **place)
        assert low <= taus[f"task{i}"] < right.value("tau_with_others", **place) <= high
    # a benchmark that is known to count so is left as it is, however much it is against the others
    more, _ = page_of(tmp_path, table, benchmarks=one_reversed("1")[1], stderr=0.02)
    assert more.lede.heading == "Benchmarks disagree more than noise explains"
    # of one that may be against the others, and nobody knows its direction, the verdict says what it rests on
    table, sheet = one_reversed("", 0.01)
    rows = score_rows(table, NAMES, 0.01).assign(metric=None)
    unsure, found = agreement_page(tmp_path, rows, 50, models=MODELS, benchmarks=sheet)
    place = {"protocol": DIRECT, "subject": "odd"}
    assert -0.5 < found.value("tau_with_others", **place) < 0
    for said in (unsure.lede.heading, unsure.answers[0].sentence):
        assert said.startswith("Benchmarks disagree beyond noise, if higher is better on odd")
    # and its own interval, by which a card decides, holds whichever way it counts
    for quantity in ("tau_with_others", "tau_with_others_by_ratio"):
        low, high = range_of(found, quantity, "models", **place)
        assert low == -high < 0


def one_order(abilities, seed) -> np.ndarray:
    """Shares of right answers to test items, with one order of the models on all of six benchmarks."""
    rng = np.random.default_rng(seed)
    numbers = rng.integers(200, 1500, 6)
    shares = 1 / (1 + np.exp(-(np.asarray(abilities)[:, None] + rng.normal(0, 0.4, 6))))
    return rng.binomial(numbers, shares) / numbers


CLUMPS = {
    "two": [-0.5] * 10 + [0.5] * 10,
    "close": [-0.2] * 10 + [0.2] * 10,
    "three": [-0.7] * 7 + [0.0] * 7 + [0.7] * 6,
}


@pytest.mark.parametrize("kind", CLUMPS)
@pytest.mark.parametrize("seed", range(3))
def test_models_in_clumps_are_seen(kind, seed):
    """One order on all benchmarks; within a clump abilities have a standard deviation of .05 logits, else of .5."""
    rng = np.random.default_rng(seed)
    of_clumps, normal = np.array(CLUMPS[kind]) + rng.normal(0, 0.05, 20), rng.normal(0, 0.5, 20)
    for abilities, clumped in ((of_clumps, True), (normal, False), (np.linspace(-1, 1, 20), False)):
        assert in_clumps(one_order(abilities, seed)) == clumped
    normal[3] = -4.0
    assert np.flatnonzero(far_models(one_order(normal, seed))).tolist() == [3]


@pytest.mark.parametrize(
    ("lost", "models", "ending"),
    [("low", 24, "missing, and not by chance"), ("any", 24, ""), ("low", 6, "to see whether by chance")],
)
@pytest.mark.parametrize("protocols", [(DIRECT, TRAINED), (DIRECT,)])
def test_scores_that_are_missing_by_value_or_may_be_give_no_answer(tmp_path, lost, models, ending, protocols):
    """Half of the lower half of each benchmark's scores is missing, or a quarter of all."""
    rng = np.random.default_rng(models)
    ability, table = rng.normal(size=models), {}
    for protocol in protocols:
        values = 0.5 + 0.1 * (ability[:, None] + 0.5 * rng.normal(size=(models, 8)))
        low = values < np.median(values, axis=0) if lost == "low" else rng.random(values.shape) < 0.5
        gone = low & (rng.random(values.shape) < 0.5) & (protocol == protocols[-1])
        table[protocol] = {
            f"b{j}": [None if out else float(v) for v, out in zip(*column, strict=True)]
            for j, column in enumerate(zip(values.T, gone.T, strict=True))
        }
    names = [f"m{i:02}" for i in range(models)]
    sheets = {"models": "model\n" + "\n".join(names), "benchmarks": "benchmark\n" + "\n".join(table[DIRECT])}
    page, _ = page_of(tmp_path, table, names=names, **sheets)
    assert page.lede.heading.endswith(ending)
    assert (page.answers[0].interval == "") == bool(ending)
    assert ("by chance, it is assumed" in page.answers[0].basis) == (not ending)
