"""`benchmarks/coverage`: its truths against other computations, restarts, the page; a part of it in earnest (slow)."""

import csv
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # the folder of measurements is no package of the installation

from benchmarks.coverage import __main__ as program  # noqa: E402
from benchmarks.coverage import effects, gates, page, results, runs, truth, worlds  # noqa: E402
from benchmarks.coverage.results import Result  # noqa: E402
from benchmarks.coverage.studies import STUDIES  # noqa: E402

from lm_validity.tables.schema import PROTOCOLS  # noqa: E402


def run(monkeypatch, folder: Path, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["coverage", *arguments, "--results", str(folder)])
    program.main()


def rows(folder: Path) -> list[list[str]]:
    """Without the seconds, which differ."""
    with (folder / "bias-saturation-5.csv").open(newline="") as file:
        return [row[:1] + row[2:] for row in csv.reader(file)]


def test_a_killed_run_goes_on_and_gives_the_same_rows(monkeypatch, tmp_path):
    chosen = ("run", "--world", "saturation", "--size", "5", "--tables")
    run(monkeypatch, tmp_path / "whole", *chosen, "7")
    run(monkeypatch, tmp_path / "killed", *chosen, "4")
    with (tmp_path / "killed" / "bias-saturation-5.csv").open("a") as file:
        file.write("4,0.001,0.9")  # no end of line: killed while it was written
    computed = []
    whole = results.append
    monkeypatch.setattr(
        results, "append", lambda path, table, *rest: (computed.append(table), whole(path, table, *rest))
    )
    run(monkeypatch, tmp_path / "killed", *chosen, "7")
    assert computed == [4, 5, 6]
    assert rows(tmp_path / "killed") == rows(tmp_path / "whole")
    assert [row[0] for row in rows(tmp_path / "whole")] == ["table", *"0123456"]
    run(monkeypatch, tmp_path / "killed", *chosen, "7")
    assert computed == [4, 5, 6]


def test_page_counts_what_is_held_and_what_is_missing(tmp_path):
    path = tmp_path / "bias-normal-5.csv"
    for table in range(10):
        held = Result(float(table < 6), 0.5) if table < 8 else Result(float("nan"), float("nan"))
        results.append(path, table, 3.6, {"a|b|c": held})
    found, seconds = page.summarized("bias", "5", "normal", path)
    assert seconds == pytest.approx(36)
    assert (found[0].tables, found[0].without, found[0].coverage, found[0].width) == (10, 2, 0.75, 0.5)
    assert found[0].error == pytest.approx(np.std([1] * 6 + [0] * 2, ddof=1) / np.sqrt(8))
    text = tmp_path / "page.md"
    text.write_text("before\n" + "".join(page.MARKS) + "after\n")
    page.write_page(tmp_path, text)
    assert text.read_text().startswith("before\n") and text.read_text().endswith("after\n")
    with (tmp_path / "page.csv").open(newline="") as file:
        assert next(csv.DictReader(file))["coverage"] == "0.75"


def test_sign_products_are_those_of_a_bivariate_normal():
    mean, correlation = np.array([0.4, -0.7]), np.array([[1.0, 0.8], [0.8, 1.0]])
    both = stats.multivariate_normal(-mean, correlation).cdf([0.0, 0.0])
    one = stats.norm.cdf(mean)
    expected = 4 * both - 2 * one.sum() + 1
    assert truth.sign_product(mean, correlation)[0, 1] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_simulated_populations_agree_with_closed_forms(protocol):
    found = truth.simulated_population(worlds.WORLDS["normal"], protocol, np.random.default_rng(1), pairs=20_000)
    correlation = np.outer(worlds.LOADINGS[protocol], worlds.LOADINGS[protocol])
    assert found.noise_free == pytest.approx(2 / np.pi * np.arcsin(correlation), abs=0.03)
    assert found.tau == pytest.approx(2 / np.pi * np.arcsin(correlation / (1 + worlds.NOISE**2)), abs=0.03)
    assert found.correlation == pytest.approx(correlation / (1 + worlds.NOISE**2), abs=0.03)


@pytest.mark.parametrize("these_families", [True, False])
def test_truth_with_families_is_the_mean_of_large_tables(these_families):
    """Against tables of 40 times as many models of these families, or the mean over tables of many families."""
    from lm_validity.studies.agreement.statistics.ranking import kendall_tau_matrix, pair_signs

    world, size, rng = worlds.WORLDS["families"], worlds.Size((6, 3, 3), (1, 1, 1)), np.random.default_rng(5)
    table = worlds.draw_table(world, size, rng)
    direct = PROTOCOLS[0]
    expected = truth.normal_truth(world, size, table, direct, these_families)
    loading = worlds.LOADINGS[direct][table.types]
    corner, taus = np.sqrt(1 - loading**2), []
    for _ in range(400):
        means = table.family_means[direct]
        if not these_families:
            ability, shared = rng.normal(size=(3, 1)), rng.normal(size=(3, 3))
            means = np.sqrt(0.5) * (loading * ability + corner * shared)
        latent = np.sqrt(0.5) * (loading * rng.normal(size=(12, 1)) + corner * rng.normal(size=(12, 3)))
        scores = means[table.families] + latent + worlds.NOISE * rng.normal(size=(12, 3))
        taus.append(kendall_tau_matrix(pair_signs(scores))[np.triu_indices(3, 1)].mean())
    assert np.mean(taus) == pytest.approx(expected.tau, abs=4 * np.std(taus) / 20)


@pytest.mark.slow
@pytest.mark.parametrize("study", [study for study in STUDIES if study.name != "signal"], ids=lambda study: study.name)
def test_intervals_hold_in_the_normal_world(study, tmp_path):
    """60 tables of the smallest size: no interval holds less often than 0.95 by more than chance explains."""
    program.run(study, "normal", study.sizes[0], 60, tmp_path, float("inf"))
    found, _ = page.summarized(study.name, study.sizes[0], "normal", next(tmp_path.iterdir()))
    assert found
    for row in found:
        assert row.coverage > 0.95 - 3.5 * np.sqrt(0.95 * 0.05 / 60), row


@pytest.mark.parametrize("world", list(effects.STOP_WORLDS))
def test_worlds_of_subsamples_have_the_effects_that_they_say(world):
    both = effects.differences(world, 400, np.random.default_rng(0))
    for values, true in both:
        error = values.std(axis=1, ddof=1) / np.sqrt(effects.MOST)
        assert abs(((values.mean(axis=1) - true) / error).mean()) < 4 / np.sqrt(400)
        assert np.sqrt((values.std(axis=1) ** 2).mean()) == pytest.approx(effects.NOISE, rel=0.9)
    (biases, _), (boosts, _) = both
    shared = [np.corrcoef(*own)[0, 1] for own in zip(biases, boosts, strict=True)]
    assert np.mean(shared) == pytest.approx(-0.5, abs=0.03)


def test_a_boost_is_read_at_the_subsample_where_its_bias_stopped(monkeypatch):
    calm, wild = (0.01 + spread * np.random.default_rng(0).normal(size=100) for spread in (0.005, 0.2))
    drawn = (np.stack([calm, wild]), np.full(2, 0.01)), (np.stack([wild, calm]), np.full(2, 0.01))
    monkeypatch.setattr(effects, "differences", lambda *_: drawn)
    found = effects.stop_results("normal", 2, np.random.default_rng(0))["boost of a task|subsamples|this task"]
    bounds = [stats.ttest_1samp(own, 0).confidence_interval() for own in (wild[:10], calm)]
    assert found.width == pytest.approx(np.mean([high - low for low, high in bounds]))
    assert found.covered == np.mean([low <= 0.01 <= high for low, high in bounds])


def test_a_stopped_task_is_shown_no_narrower_than_the_width():
    rng = np.random.default_rng(0)
    calm, wild = 0.01 + 0.005 * rng.normal(size=100), 0.01 + 0.2 * rng.normal(size=100)
    number, mean, (low, high), shown = effects.stopped(calm)
    assert number == 10 and high - low < 2 * effects.WIDTH and mean == pytest.approx(calm[:10].mean())
    assert shown == pytest.approx((mean - effects.WIDTH, mean + effects.WIDTH))
    number, mean, interval, shown = effects.stopped(wild)
    assert number == effects.MOST and shown == interval and interval[1] - interval[0] > 2 * effects.WIDTH
    assert interval == pytest.approx(tuple(stats.ttest_1samp(wild, 0).confidence_interval()))


def test_intervals_of_runs_hold():
    """A part of `benchmarks.coverage.runs`: each interval holds the truth in about 95% of 80 worlds."""
    every = [tuple(runs.held(200, 4, np.random.default_rng([7, world]), 0.1)) for world in range(80)]
    assert len(every[0]) == len(runs.COLUMNS)
    assert min(np.mean(every, axis=0)) > 0.87  # .93 less two standard errors of 80 worlds


@pytest.mark.parametrize("name", ["4 runs, shock 0.2", "8 subjects", "copies", "halves", "two protocols"])
def test_a_model_is_seldom_called_worse_than_its_equal(name):
    """A part of `benchmarks.coverage.gates`, 40 worlds: at most .06 and two standard errors; it was .1 to .4 once."""
    world = next(world for world in gates.WORLDS if world.name == name)
    rng = np.random.default_rng(0)
    found = [gates.gate(gates.judged(gates.compared(world, 0.0, rng), gates.Margins())) for _ in range(40)]
    assert found.count("worse") <= 5
