"""A site's first page: what its table says is what the cards say; which answers it shows; what it weighs."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lm_validity.config.load import load_run
from lm_validity.config.sections import Reports
from lm_validity.errors import InputError
from lm_validity.pages.page import Answer, Finding, Page, page_document, write_page
from lm_validity.pages.svg import svg
from lm_validity.results.put import Rows
from lm_validity.site.cards.card import make_card
from lm_validity.site.cards.values import NO, NOT_KNOWN, NOT_MEASURED, YES, CardSources, known, make_verdict, value_of
from lm_validity.site.first_page import _sampled, benchmark_table, build_site, chosen_answers
from lm_validity.site.report import SYNTHETIC, about_run
from lm_validity.studies.agreement.report import report_agreement
from lm_validity.studies.signal.report import report_signal
from lm_validity.tables.counted import Sources
from lm_validity.tables.schema import SCORES, write_table
from lm_validity.words import decimal

ROOT = Path(__file__).parents[3]
BENCHMARKS = ("alike", "noisy", "שפה", "a_benchmark_with_a_name_of_" + "eighty_letters_" * 4)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """20 models of four sizes, 12 of them trained first too, 6 at ten checkpoints: the site and what its cards read."""
    folder = tmp_path_factory.mktemp("site")
    rng = np.random.default_rng(0)
    sizes = np.repeat([1.0, 4.0, 16.0, 64.0], 5)
    ability = 0.2 + 0.15 * np.log(sizes) / np.log(4)
    rows = []
    for place, benchmark in enumerate(BENCHMARKS):
        for i in range(20):
            noise = (0.002, 0.3, 0.05, 0.1)[place]
            for protocol in ("direct", "train_before_test")[: 1 + (i < 12)]:
                value = float(np.clip(ability[i] + noise * rng.normal(), 0, 1))
                rows.append((f"m{i}", benchmark, protocol, "final", 100.0, value))
            for step in range(1, 10 * (i < 6)):
                value = float(np.clip(0.1 + ability[i] * step / 10 + noise * rng.normal() / 3, 0, 1))
                rows.append((f"m{i}", benchmark, "direct", f"s{step}", 10.0 * step, value))
    columns = ["model", "benchmark", "protocol", "checkpoint", "tokens_b", "value"]
    frame = pd.DataFrame(rows, columns=columns).assign(split="test", metric="acc,none", selected=True, n_items=2000)
    frame["stderr"] = np.sqrt(frame["value"] * (1 - frame["value"]) / 1999)
    write_table(frame, SCORES, folder / "scores.parquet")
    pd.DataFrame({"model": [f"m{i}" for i in range(20)], "parameters_b": sizes}).to_csv(folder / "m.csv", index=False)
    sheet = {"benchmark": [*BENCHMARKS, "nobody"], "metric": "acc", "output_type": "multiple_choice", "chance": 0.1}
    pd.DataFrame(sheet).to_csv(folder / "b.csv", index=False)
    paths = [folder / name for name in ("scores.parquet", "m.csv", "b.csv")]
    report_agreement(Sources(*paths), folder / "agreement", Reports(resamples=30))
    report_signal(Sources(*paths), folder / "signal", Reports(resamples=30))
    answer = Answer("Is it true?", "Yes: **1**", svg(380, 132, "1, 95%: 0 to 2"))
    write_page(Page("bias", "Bias", [], [], answers=[answer]), folder / "bias")
    reports = [folder / "agreement", folder / "signal", folder / "bias"]
    sources = CardSources(paths[0], paths[2], reports, paths[1])
    build_site(reports, folder / "site", cards=sources)
    return folder / "site", sources


def test_the_table_says_what_the_cards_say(made):
    sources = made[1]
    cards = [make_card(sources, name) for name in BENCHMARKS]
    table = benchmark_table(sources, cards, {name: name for name in BENCHMARKS})
    keys = [column.key for column in table.columns]
    assert keys == ["scores", "ranks", "apart", "gap", "steady", "ready"]
    assert table.sorted_by == "ranks"
    taus = [row.cells[keys.index("ranks")].sort for row in table.rows]
    assert taus == sorted(taus, reverse=True)
    for row in table.rows:
        rows = next(card.rows for card in cards if card.benchmark == row.name)
        label = {key: str(cell.picture) for key, cell in zip(keys, row.cells, strict=True)}
        for protocol, name in (("direct", "direct"), ("train_before_test", "train before test")):
            tau, ceiling = known(rows, f"tau.{protocol}"), value_of(rows, f"tau_ceiling.{protocol}")
            low, high = decimal(tau.low), decimal(tau.high)
            said = f"{name} {decimal(tau.value)} (95%: {low} to {high}), noise ceiling {decimal(ceiling)}"
            assert said in label["ranks"]
        share = known(rows, "separated_within_2.direct")
        assert f"{share.value:.0%} (95%: {share.low:.0%} to {share.high:.0%})" in label["apart"]
        assert f"signal quality {decimal(value_of(rows, 'signal_quality'))}" in label["steady"]
        gap = value_of(rows, "smallest_difference.direct")
        assert row.cells[keys.index("gap")].words == f"{100 * gap:.1f}"
        for cell in row.cells:
            unknown = cell.mark is not None and ("not known" in cell.mark.word or cell.mark.outcome == "not known")
            assert bool(cell.gap_reason) == unknown and (cell.picture or cell.mark or cell.words)


def test_panels_say_what_the_rows_say(made):
    """To the printed digits; two protocols are joined by an arrow only where they are of the same models."""
    card = make_card(made[1], "noisy")
    text = {panel.question: panel.text for panel in card.panels}
    taus = [decimal(value_of(card.rows, f"tau.{protocol}")) for protocol in ("direct", "train_before_test")]
    ranks = text["Does it rank models like the others?"]
    assert ranks == f"**{taus[0]}** direct (20 models), **{taus[1]}** train before test (12 models)"
    share, quality = known(card.rows, "separated_within_2.direct"), known(card.rows, "signal_quality")
    apart = text["Does it tell similar models apart?"]
    assert apart == f"**{share.value:.0%}** of similar pairs (95%: {share.low:.0%} to {share.high:.0%}), direct"
    gap = 100 * value_of(card.rows, "smallest_difference.direct")
    assert text["Smallest gap it can detect"] == f"**{gap:.1f} points**: with 80% power"
    ends = f"95%: {decimal(quality.low)} to {decimal(quality.high)}"
    training = text["Do scores improve steadily in training?"]
    assert training.startswith(f"**Signal quality {decimal(quality.value)}** ({ends}); 6 models")
    ends = [decimal(value_of(card.rows, f"{end}.direct")) for end in ("lowest", "highest")]
    assert text["What do scores look like?"].startswith(f"**{ends[0]} to {ends[1]}** direct, ")


def test_what_a_known_world_says(made):
    """Scores follow size with little noise: reliable, but models of a size are not separated."""
    card = make_card(made[1], "alike").to_json()
    found = {each["values"][0]: each["outcome"] for each in card["verdict"]["statements"]}
    assert found["separated_within_2.direct"] == NO and found["reliability.direct"] == YES
    assert found["bias"] == found["prompt_range"] == NOT_MEASURED
    assert list(card) == ["format", "benchmark", "source", "verdict", "rows", "notes"] and card["format"] == 4
    for row in card["rows"]:
        assert (row["value"] is None and row["text"] is None) <= (row["reason"] is not None)
        assert row["low"] is None or row["low"] <= row["value"] <= row["high"]
    reported = Rows.read(made[0].parent / "agreement" / "results.parquet")
    tau = reported.row("tau_with_others", subject="alike", protocol="direct").value
    assert next(row["value"] for row in card["rows"] if row["quantity"] == "tau") == tau


def test_a_telephone_shows_one_question_at_a_time(made):
    text = (made[0] / "index.html").read_text()
    columns = re.findall(r'<th scope="col" class="c c-(\w+)"', text)
    assert re.findall(r'id="q-(\w+)"', text) == columns == re.findall(r"#q-(\w+):checked~table", text)
    assert re.findall(r'id="q-(\w+)" checked', text) == ["ranks"]
    assert set(re.findall(r'<label for="q-(\w+)"', text)) == set(columns)


@pytest.mark.parametrize("page", ["index.html", "cards/alike/index.html"])
def test_pages_are_light_and_begin_with_a_picture(made, page):
    text = (made[0] / page).read_text()
    labels = re.findall(r'role="img"[^>]*aria-label="([^"]*)"', text)
    assert len(text) < 1_500_000 and not re.search(r'(src|href)="http', text)
    before = text.partition("<main")[2].partition('role="img"')[0]
    assert len(re.sub(r"<[^>]*>", " ", before).split()) <= 120 and all(labels)
    assert any("95%" in label for label in labels)


def in_training(folder, sizes: tuple[float, float], starts: tuple[float, float]) -> CardSources:
    """Two models of `sizes` on one benchmark `a`, each at three checkpoints from its start on."""
    rows = [(f"m{place}", step, start + step, 0.3 + step / 10)
            for place, start in enumerate(starts) for step in range(3)]  # fmt: skip
    frame = pd.DataFrame(rows, columns=["model", "iteration", "tokens_b", "value"])
    frame = frame.assign(benchmark="a", protocol="direct", split="test", metric="acc", selected=True)
    frame["checkpoint"] = "step" + frame["iteration"].astype(str)
    write_table(frame, SCORES, folder / "scores.parquet")
    pd.DataFrame({"model": ["m0", "m1"], "parameters_b": sizes}).to_csv(folder / "m.csv", index=False)
    (folder / "b.csv").write_text("benchmark,metric\na,acc\n")
    return CardSources(folder / "scores.parquet", folder / "b.csv", [], folder / "m.csv")


@pytest.mark.parametrize(("starts", "in_common"), [((0, 1), True), ((0, 10), False)])
def test_models_whose_training_has_nothing_in_common_have_no_mean(tmp_path, starts, in_common):
    """Then the table has the answer without a picture."""
    sources = in_training(tmp_path, (1, 2), starts)
    card = make_card(sources, "a")
    assert ("Do scores improve steadily in training?" in {panel.question for panel in card.panels}) == in_common
    cells = {column.key: cell for row in [benchmark_table(sources, [card], {"a": "a"})]
             for column, cell in zip(row.columns, row.rows[0].cells, strict=True)}  # fmt: skip
    assert bool(cells["steady"].picture) == in_common and (cells["steady"].words == "no common points") != in_common


def test_more_than_40_benchmarks_stand_in_groups(tmp_path):
    """By how their names begin, else by category; a group says how many of its benchmarks have each answer."""
    names = [f"mmlu_{place}" for place in range(38)] + ["math:a", "math:b", "one", "two", "three"]
    rows = [(model, name, 0.5) for name in names for model in "xyz"]
    frame = pd.DataFrame(rows, columns=["model", "benchmark", "value"])
    frame = frame.assign(protocol="direct", split="test", metric="acc", selected=True, checkpoint="final")
    write_table(frame, SCORES, tmp_path / "scores.parquet")
    categories = [None] * 38 + ["numbers", "numbers", "words", "words", None]
    sheet = pd.DataFrame({"benchmark": names, "metric": "acc", "category": categories})
    sheet.to_csv(tmp_path / "b.csv", index=False)
    sources = CardSources(tmp_path / "scores.parquet", tmp_path / "b.csv", [])
    cards = []
    for place, name in enumerate(names):
        card, ends = make_card(sources, name), (0.55, 0.65) if place < 30 else (0.3, 0.6)
        rows = Rows("card", [row for row in card.rows if row.quantity == "category"])
        rows.put("tau", sum(ends) / 2, "tau", {"models": ends}, protocol="direct")
        rows.put("smallest_difference", 0.09 + place / 1000, "score", protocol="direct")
        cards.append(replace(card, rows=rows, verdict=make_verdict(rows, sources.settings)))
    table = benchmark_table(sources, cards, dict(zip(names, names, strict=True)))
    assert [column.key for column in table.columns] == ["ranks", "gap"]  # scores are left to the cards
    groups = {row.group: row for row in table.rows if row.members}
    assert {name: row.members for name, row in groups.items()} == {"mmlu": 38, "numbers": 2, "words": 2}
    ranks, gap = groups["mmlu"].cells
    assert ranks.counts == ((YES, 30), (NOT_KNOWN, 8)) and ranks.sort == pytest.approx(0.6)
    assert gap.words == "9.0 to 12.7"
    places = [row.name for row in table.rows]
    assert places[:2] == ["mmlu", "mmlu_0"] and places[38] == "mmlu_37"
    inside = {row.name: row.group for row in table.rows}
    assert (inside["math:a"], inside["one"], inside["three"]) == ("numbers", "words", "")
    assert [filter_ for filter_, _ in table.filters] == ["ranks:not known"]


def test_three_answers_the_first_of_each_study_before_any_second():
    def study(name: str, answers: int):
        made = [Answer(f"{name} {place}", "", svg(1, 1, "")) for place in range(answers)]
        return page_document(Page(name, name, [], [], answers=made))

    def chosen(*studies: tuple[str, int]) -> list[str]:
        return [answer["question"] for answer in chosen_answers([study(*each) for each in studies])]

    assert chosen(("agreement", 2), ("factors", 1), ("signal", 2), ("bias", 1)) == ["agreement 0", "signal 0", "bias 0"]
    assert chosen(("agreement", 2), ("factors", 1)) == ["agreement 0", "agreement 1", "factors 0"]
    assert chosen(("signal", 3)) == ["signal 0", "signal 1", "signal 2"]
    assert chosen(("data", 0)) == []


def test_the_first_page_says_of_how_many_runs_scores_are_means():
    """10 and 4 runs; one score of one run beside them; none."""

    def words(*runs):
        return _sampled(pd.DataFrame({"runs": pd.array(runs, "Int64")}))

    assert words(10, 10) == "Each score is the mean of 10 sampled runs."
    assert words(10, 4, 1, None) == "2 of 4 scores are means of 4 to 10 sampled runs."
    assert words(None, 1) is None and words() is None


@pytest.mark.parametrize(
    ("configfile", "about"), [("config/config.yaml", SYNTHETIC), ("config/small/small.yaml", "")], ids=["demo", "real"]
)
def test_only_a_run_of_the_miniature_says_that_it_is_synthetic(tmp_path, monkeypatch, configfile, about):
    monkeypatch.chdir(ROOT)
    run = load_run(configfile)
    assert about_run(run) == about
    write_page(Page("agreement", "A", [Finding("One.")], []), tmp_path / "agreement")
    text = build_site([tmp_path / "agreement"], tmp_path / "site", name=run.name, about=about_run(run)).read_text()
    head = text.partition("<h1>")[2].partition("One.")[0]
    assert (SYNTHETIC in head) == bool(about) and f"The run {run.name}." in head


@pytest.mark.parametrize("version", [2, None])
def test_a_page_of_another_version_is_refused(tmp_path, version):
    write_page(Page("agreement", "A", [Finding("One.")], []), tmp_path / "agreement")
    path = tmp_path / "agreement" / "page.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": version}))
    with pytest.raises(InputError, match=r"page\.json: a page of another version"):
        build_site([tmp_path / "agreement"], tmp_path / "site")
    assert not (tmp_path / "site").exists()
