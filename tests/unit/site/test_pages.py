"""Pages that no study writes: the scores as a heat table, and what changed since a report, or without items."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from typer.testing import CliRunner

from lm_validity.cli.reports import app
from lm_validity.errors import InputError
from lm_validity.results.put import Rows
from lm_validity.site.pages import Earlier, changes, heat_picture, score_rows, sentences
from lm_validity.studies.items.statistics import p_by_errors
from lm_validity.studies.models.order import Leads, order_of
from lm_validity.tables.schema import ITEMS, SCORES, write_table

ABILITIES = {"ant": -0.6, "bee": 0.0, "cat": 0.5, "dog": 1.5}


def snapshot(ranks, answers=None):
    """A snapshot of one protocol and all benchmarks together, from {model: (rank, low, high, tier)}."""
    listed = {model: [*standing] for model, standing in ranks.items()}
    return {"format": 1, "ranks": {"direct": {"": listed}}, "answers": answers or {}}


def changed(old, new, without=""):
    return changes(Earlier(old, "old", without), new)


def test_what_came_and_went_and_turned():
    old = snapshot(
        {"a": (1, 1, 1, 1), "b": (2, 2, 3, 2), "c": (3, 2, 3, 2)}, {"x": {"ranks": "yes"}, "y": {"ranks": "no"}}
    )
    new = snapshot(
        {"b": (1, 1, 1, 1), "c": (2, 2, 2, 2), "d": (3, 3, 3, 3)}, {"x": {"ranks": "no", "apart": "yes"}, "z": {}}
    )
    found = changed(old, new)
    assert found.models == (["d"], ["a"]) and found.benchmarks == (["z"], ["y"])
    assert [(turn.benchmark, turn.then, turn.now) for turn in found.turned] == [("x", "yes", "no")]
    told = sentences(found, Earlier(old, "old"))
    assert len(told) <= 5 and all(name in " ".join(told) for name in ("d", "a", "z", "y", "x (ranks: yes, now no)"))
    # among b and c, b may have been the first before, since a that was may have been the one before it
    assert found.moved == [] and found.standings["b"][0].low == 1


def test_ranks_that_are_not_possible_both_times_changed():
    first, second = {"b": (1, 1, 1, 1), "c": (2, 2, 2, 2)}, {"b": (2, 2, 2, 2), "c": (1, 1, 1, 1)}
    assert [model for *_, model in changed(snapshot(first), snapshot(second)).moved] == ["b", "c"]


@pytest.mark.parametrize(("after", "every"), [("not known", False), ("no", True)])
def test_an_answer_that_is_not_known_turned_without_items_only(after, every):
    old, new = (snapshot({"a": (1, 1, 2, 1)}, {"x": {"ranks": word}}) for word in ("yes", after))
    assert bool(changed(old, new).turned) == every and changed(old, new, "1 item of x").turned
    assert not changed(old, old).turned and not changed(old, old, "1 item of x").turned


def test_another_sampling_of_the_same_models_changes_nothing():
    """200 worlds of 12 models, some equal and some apart, each measured twice: at most 5% with a change."""
    rng, any_changed = np.random.default_rng(1), 0
    for _ in range(200):
        truth, errors = rng.normal(size=12).round(0), rng.uniform(0.1, 0.6, 12)
        sides = []
        for _ in range(2):
            scores = truth + errors * rng.normal(size=12)
            order = order_of(Leads(scores[:, None] - scores, errors, errors, p_by_errors(scores, errors)[0]))
            rank = stats.rankdata(-scores)
            sides.append(snapshot({f"m{i}": (rank[i], order.low[i], order.high[i], order.tier[i]) for i in range(12)}))
        any_changed += bool(changed(*sides).moved)
    assert any_changed <= 10


@pytest.fixture
def answers(tmp_path):
    """A table of answers of four models to the items of two benchmarks: half of the first's are 0 or 1 at random."""
    rng, rows = np.random.default_rng(4), []
    for benchmark in ("maths", "logic"):
        hard = rng.normal(size=150)
        for model, ability in ABILITIES.items():
            right = rng.random(150) < 1 / (1 + np.exp(hard - ability))
            if benchmark == "maths":
                right[:75] = rng.random(75) < 0.5
            rows += [(model, benchmark, f"{benchmark}-{item}", int(value)) for item, value in enumerate(right)]
    table = pd.DataFrame(rows, columns=["model", "benchmark", "item", "acc"])
    table.to_csv(tmp_path / "answers.csv", index=False)
    return table


def report(folder, *words):
    """`lm-validity report` of the answers."""
    words = [folder / "answers.csv", "--resamples", 0, *words]
    done = CliRunner().invoke(app, [*map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output


def test_the_same_files_change_nothing(tmp_path, answers):
    report(tmp_path, "--output", tmp_path / "one")
    assert (tmp_path / "one" / "snapshot.json").stat().st_size < 60_000
    for earlier in ("one", "one/snapshot.json"):
        report(tmp_path, "--output", tmp_path / "two", "--since", tmp_path / earlier)
        page = json.loads((tmp_path / "two" / "since" / "page.json").read_text())
        assert page["lede"]["heading"] == "Nothing changed beyond noise" and len(page["findings"]) == 1
    rows = Rows.read(tmp_path / "two" / "since" / "results.parquet")
    assert [row.value for row in rows.all("model_rank", report="then")] == [1.0, 2.0, 3.0, 4.0]
    assert [row.value for row in rows.all("model_rank", report="now")] == [1.0, 2.0, 3.0, 4.0]


def test_scores_without_items_are_means_of_the_others(tmp_path, answers):
    (tmp_path / "ids.txt").write_text("".join(f"maths-{item}\n" for item in range(75)))
    report(tmp_path, "--output", tmp_path / "site", "--without", tmp_path / "ids.txt")
    scores = pd.read_parquet(tmp_path / "site" / "scores.parquet").set_index(["model", "benchmark"])
    left = answers[(answers["benchmark"] == "logic") | (answers["item"].str[6:].astype(int) >= 75)]
    means = left.groupby(["model", "benchmark"])["acc"].agg(["mean", "sem", "size"])
    found = scores.loc[means.index, ["value", "stderr", "n_items"]]
    np.testing.assert_allclose(found.to_numpy(dtype=float), means)
    items = pd.read_parquet(tmp_path / "site" / "items.parquet")
    assert len(items) == 4 * 225 and not set(items["doc_id"]) & {f"maths-{item}" for item in range(75)}
    page = json.loads((tmp_path / "site" / "since" / "page.json").read_text())
    assert page["title"] == "Without 75 items of maths"


BAD = [
    (["--without", "none.txt"], "none.txt: no such file"),
    (["--without", "ids.txt"], "ids.txt, line 2: the item 'maths-999' is none"),
    (["--since", "answers.csv"], "answers.csv: no snapshot"),
    (["--since", "old"], "old/snapshot.json: no such file"),
    (["--since", "future.json"], "another version"),
    (["--since", "halves.json"], "no snapshot"),
    (["--since", "good.json", "--without", "ids.txt"], "--since and --without"),
]


@pytest.mark.parametrize(("words", "problem"), BAD, ids=[problem for _, problem in BAD])
def test_what_cannot_be_compared_is_refused_and_nothing_written(tmp_path, answers, monkeypatch, words, problem):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ids.txt").write_text("maths-1\nmaths-999\n")
    (tmp_path / "old").mkdir()
    (tmp_path / "good.json").write_text(json.dumps(snapshot({})))
    (tmp_path / "halves.json").write_text('{"format": 1, "ranks": {"direct": {"": {"a": [1, 2]}}}}')
    (tmp_path / "future.json").write_text(json.dumps(snapshot({}) | {"format": 99}))
    before = {path.name for path in tmp_path.iterdir()}
    with pytest.raises(InputError, match=problem):
        report(tmp_path, "--output", "site", *words)
    assert {path.name for path in tmp_path.iterdir()} == before


def test_an_id_of_several_benchmarks_needs_its_benchmark(tmp_path, answers):
    answers.assign(item=answers["item"].str.split("-").str[1]).to_csv(tmp_path / "answers.csv", index=False)
    (tmp_path / "ids.txt").write_text("7\n")
    with pytest.raises(InputError, match="one of logic, maths"):
        report(tmp_path, "--output", tmp_path / "site", "--without", tmp_path / "ids.txt")
    (tmp_path / "ids.txt").write_text("maths\t7\n")
    report(tmp_path, "--output", tmp_path / "site", "--without", tmp_path / "ids.txt")
    items = pd.read_parquet(tmp_path / "site" / "items.parquet")
    assert items.groupby("benchmark")["doc_id"].nunique().to_dict() == {"logic": 150, "maths": 149}


def test_a_table_of_the_user_stays_as_it_is_and_its_nulls_are_what_they_mean(tmp_path, answers):
    """Items and scores as tables of ours, without checkpoint, split and metric in one of the two."""
    keys = ["model", "benchmark"]
    items = answers.rename(columns={"item": "doc_id", "acc": "correct"})
    items = items.assign(protocol="direct", checkpoint="final", split="test", prompt="plain")
    items["correct"] *= 1.0
    scores = items.groupby(keys, as_index=False)["correct"].mean().rename(columns={"correct": "value"})
    folder = tmp_path / "mine"
    write_table(items, ITEMS, folder / "items.parquet")
    write_table(scores.assign(protocol="direct", higher_is_better=True), SCORES, folder / "scores.parquet")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    (tmp_path / "ids.txt").write_text("maths-3\nmaths-4\n")
    words = [folder, "--output", tmp_path / "site", "--without", tmp_path / "ids.txt", "--resamples", 0]
    assert CliRunner().invoke(app, [*map(str, words)], catch_exceptions=False).exit_code == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    found = pd.read_parquet(tmp_path / "site" / "scores.parquet").set_index(keys)["value"]
    means = items[~items["doc_id"].isin(["maths-3", "maths-4"])].groupby(keys)["correct"].mean()
    pd.testing.assert_series_equal(found.sort_index(), means.sort_index(), check_names=False)


def drawn(rows, lower=()) -> str:
    frame = pd.DataFrame(rows, columns=["model", "benchmark", "value", "stderr"]).assign(protocol="direct")
    sheet = pd.DataFrame({"higher_is_better": [name not in lower for name in frame["benchmark"].unique()]})
    sheet.index = frame["benchmark"].unique()
    return str(heat_picture(score_rows(SimpleNamespace(last_rows=frame, sheet=sheet)), sheet).svg)


def test_seeds_are_averaged_and_the_interval_is_that_of_the_mean_error():
    markup = drawn([("o/a", "x", 0.5, 0.05), ("o/b", "x", 0.6, 0.03), ("o/b", "x", 0.8, 0.04)])
    half = 195.9964 * np.sqrt((0.03**2 + 0.04**2) / 2)
    assert ">70.00<" in markup and f"(95%: +{70 - half:.2f} to +{70 + half:.2f})" in markup
    assert re.findall(r'scope="row"[^>]*>([^<]+)', markup) == ["o/b", "o/a"]  # the best first, as in the sheets
    assert len(re.findall(r'tabindex="0"', markup)) == 2  # one stop of the keyboard a row


def test_darker_is_better_in_either_direction_and_a_dash_is_no_score():
    markup = drawn([("a", "up", 0.9, 0.1), ("b", "up", 0.1, 0.1), ("a", "loss", 2.0, np.nan)], lower=("loss",))
    shades = dict(re.findall(r'data-v="([\d.]+)" class="h(\d)"', markup))
    assert shades["0.9"] > shades["0.1"] and shades["2"] == "7" and "—" in markup
    both = drawn([("a", "loss", 2.0, 0.1), ("b", "loss", 1.0, 0.1)], lower=("loss",))
    shades = dict(re.findall(r'data-v="([\d.]+)" class="h(\d)"', both))
    assert shades["1"] > shades["2"]


def test_names_that_are_markup_are_text():
    assert "<i>" not in drawn([("<i>a</i>", "<i>x</i>", 0.5, 0.1)])
