"""config/test_bias.yaml through every rule of the bias study, what a second run computes after a cell was lost, and the
same study in batches."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy.stats import sem, t, ttest_1samp
from tests.workflow.conftest import Project

from lm_validity.results.put import Rows, ends_of

CONFIG = ("--configfile", "config/test_bias.yaml")
RESULTS = Path("results/test_bias")
TRIALS = f"{RESULTS}/tables/trials.parquet"


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Project:
    """One complete run of config/test_bias.yaml."""
    project = Project(tmp_path_factory.mktemp("bias"))
    project.snakemake(*CONFIG)
    return project


def test_a_run_gives_trials_probabilities_and_a_page(finished):
    tables = finished.folder / RESULTS / "tables"
    trials = pd.read_parquet(tables / "trials.parquet")
    sizes = trials.groupby(["experiment", "language_model", "task"]).subsample.agg(["nunique", "size"])
    assert len(sizes) == 2 * 2 + 3
    assert set(sizes.loc["clean"].itertuples(index=False, name=None)) == {(4, 4 * 3)}
    assert set(sizes.loc["planted"].itertuples(index=False, name=None)) == {(5, 5 * 3)}
    assert trials.total.eq(30).all() and trials.correct.between(0, 30).all()
    assert trials.pretraining_loss.isna().eq(trials.arm.eq("base")).all()
    # one draw of a task is the same texts for every language model and arm, in whatever experiment
    assert trials.groupby(["task", "subsample"]).test_hash.nunique().eq(1).all()
    probabilities = pd.read_parquet(tables / "probabilities.parquet")
    assert len(probabilities) == 30 * len(trials)
    keys = ["experiment", "language_model", "task", "m", "n", "subsample", "arm"]
    right = probabilities.probabilities.map(lambda each: each.argmax()).eq(probabilities.label)
    counted = right.groupby([probabilities[key] for key in keys]).sum()
    assert counted.sort_index().equals(trials.set_index(keys).correct.sort_index().rename(None))
    assert not (finished.folder / RESULTS / "tables" / "scores.parquet").exists()
    assert "Test text seen" in (finished.folder / RESULTS / "report" / "index.html").read_text()


def test_a_planted_bias_is_found_and_none_where_none_was_planted(finished):
    rows = Rows.read(finished.folder / RESULTS / "reports" / "bias" / "results.parquet")
    assert all(row.low > 0 for row in rows.all("beta", experiment="planted", effect="bias"))
    own = [row.value for row in rows.all("task_effect", experiment="planted", effect="bias")]
    reach = t.ppf(0.975, len(own) - 1) * sem(own)  # by itself; that of `effect` is of two experiments
    assert rows.value("effect", experiment="planted", effect="bias") - reach > 0
    assert rows.value("effect_experiments", experiment="planted", effect="bias") == 2
    clean = rows.row("beta", experiment="clean", effect="bias", formula="overdispersed")
    assert clean.low < 0 < clean.high
    found = [row.said["experiment"] for row in rows.all("permutation_p_adjusted", effect="bias") if row.value < 0.05]
    assert set(found) == {"planted"}


def test_a_lost_batch_is_computed_again_and_nothing_else(finished, tmp_path):
    project = finished.copy_to(tmp_path / "copy")
    before, expected = project.sidecars("test_bias"), (project.folder / TRIALS).read_bytes()
    lost = next(cell for cell in sorted(before) if "clean.first_number.m20.n30.subsamples3-4" in cell)
    shutil.rmtree(project.folder / RESULTS / "store" / lost)
    said = project.lm_validity("preflight", *CONFIG, code=1).stdout
    assert lost in said and "will be computed again" in said
    # the manifest by name: Snakemake does not restore a missing file whose descendants exist (`bias` lists them all)
    project.snakemake(f"{RESULTS}/cells/pretrain_on_test/{lost.split('/')[1]}/all-cells.json", TRIALS, *CONFIG)
    after = project.sidecars("test_bias")
    assert {cell for cell, written in after.items() if before.get(cell) != written} == {lost}
    assert (project.folder / TRIALS).read_bytes() == expected
    said = project.lm_validity("forget", "pretrain_on_test/forum-gpt2-xs/planted.*", *CONFIG).stdout
    assert said.count("forgot pretrain_on_test/forum-gpt2-xs/planted.") == 3 * 3
    assert not list((project.folder / RESULTS / "work" / "pretrain_on_test").glob("base_arms*"))
    # what is left makes tables and a page that name what is missing
    said = project.lm_validity("merge", "--partial", *CONFIG).stdout
    assert "9 cells missing" in said
    partial = pd.read_parquet(project.folder / RESULTS / "partial" / "tables" / "trials.parquet")
    assert set(partial.experiment) == {"clean"} and len(partial) == 2 * 2 * 4 * 3
    assert " 9" in next(
        line for line in project.lm_validity("status", *CONFIG).stdout.splitlines() if "bias trials" in line
    )


WIDTH, BATCH, LEAST, MOST = 0.02, 5, 10, 20


def in_batches(project: Project) -> pd.DataFrame:
    """Check the page against the trials; by task: subsamples, half-width, and whether it stopped."""
    trials = pd.read_parquet(project.folder / TRIALS)
    keys = ["task", "subsample"]
    arms = trials.pivot(index=keys, columns="arm", values="correct") / trials.groupby(keys).total.first().iloc[0]
    rows = Rows.read(project.folder / RESULTS / "reports/bias/results.parquet")
    found = {}
    for task, own in (arms.test - arms.extra).groupby("task"):
        low, high = ttest_1samp(own, 0).confidence_interval()
        subsamples, state = (rows.row(name, subject=task) for name in ("stop_subsamples", "stop_state"))
        width, shown = rows.value("stop_half_width", subject=task), rows.row("task_effect", subject=task, effect="bias")
        assert (subsamples.value, subsamples.n) == (len(own), MOST)
        assert width == pytest.approx((high - low) / 2)
        narrow, whole = width <= WIDTH, len(own) == MOST
        assert state.text == ("all subsamples" if whole else "stopped" if narrow else "too wide")
        reach = width if whole else max(width, WIDTH)
        assert np.mean(ends_of(shown)) == pytest.approx(own.mean())
        assert np.ptp(ends_of(shown)) == pytest.approx(2 * reach)
        found[task] = (len(own), width, state.text)
    return pd.DataFrame.from_dict(found, "index", columns=["subsamples", "half_width", "state"])


@pytest.mark.slow
def test_tasks_get_batches_until_their_interval_is_narrow(project):
    """Snakemake and `next` in turn; then the same study without stops, which computes what is missing of it."""
    values = yaml.safe_load((project.folder / CONFIG[1]).read_text())
    tasks = ["first_attribute", "first_number", "science_majority"]
    one = {"language_models": ["forum-gpt2-xs"], "tasks": tasks, "m": [20], "n": [30], "subsamples": MOST}
    values["bias"] |= {"experiments": {"clean": one}, "subsamples_a_cell": BATCH}
    stops = {"stop_at_half_width": WIDTH, "plan": "batches.tsv"}
    (project.folder / "whole.yaml").write_text(yaml.safe_dump(values))
    (project.folder / "stop.yaml").write_text(yaml.safe_dump(values | {"bias": values["bias"] | stops}))
    plan, rounds, before = project.folder / "batches.tsv", [], {}
    for number in range(1, 4):
        project.snakemake("--configfile", "stop.yaml")
        after = project.sidecars("test_bias")
        assert before.items() <= after.items(), "nothing is computed again"
        found = in_batches(project)
        rounds.append(found.subsamples.to_dict())
        new = [cell.split("/")[2].partition("--")[0] for cell in set(after) - set(before)]
        drawn = sum(rounds[-1].values()) - (sum(rounds[-2].values()) if number > 1 else 0)
        assert len(new) == drawn / BATCH
        said = project.lm_validity("plan", "next", "--configfile", "stop.yaml").stdout
        wide = set(found.index[found.state == "too wide"])
        if not wide:
            break
        planned = pd.read_csv(plan, sep="\t")
        assert set(planned.task[planned["round"] == number + 1]) == wide
        before = after
    assert "no task of the bias study gets another batch" in said
    assert rounds[0] == dict.fromkeys(tasks, LEAST) and max(rounds[-1].values()) > LEAST
    assert min(rounds[-1].values()) < MOST, "a task stopped"
    done = project.snakemake("--configfile", "stop.yaml")
    assert "Nothing to be done" in done.stdout + done.stderr
    few = pd.read_parquet(project.folder / TRIALS)
    project.snakemake("--configfile", "whole.yaml")
    assert after.items() < project.sidecars("test_bias").items()
    every = pd.read_parquet(project.folder / TRIALS)
    assert len(every) == len(tasks) * MOST * 3 and len(few.merge(every)) == len(few)
