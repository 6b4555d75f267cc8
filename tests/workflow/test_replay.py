"""The whole workflow with made-up scores served instead of running a model; rules, paths, merges, reports are real.

Also a round that is added to a plan, seen from the outside: a dry run after round 1, and rounds until a goal.
"""

import itertools
import json
import os
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from scipy.stats import kendalltau
from tests.workflow.conftest import ROOT, Project

from lm_validity.results.put import Rows

CONFIG = ("--configfile", "replay/replay.yaml")
MADE_UP = Path(__file__).with_name("replay")


@pytest.fixture
def copied(replayed, tmp_path) -> Project:
    return replayed.copy_to(tmp_path / "copy")


def test_the_tables_hold_the_served_scores_and_say_so(replayed):
    """Each selected test score is the file's; direct and trained; no score can be taken for a model's."""
    served = json.loads((MADE_UP / "scores.json").read_text())
    table = pd.read_parquet(replayed.folder / "results/replay/tables/scores.parquet")
    path = dict(pd.read_csv(MADE_UP / "models.tsv", sep="\t")[["model", "path"]].itertuples(index=False))
    selected = table[table.selected & (table.split == "test")]
    assert len(selected) == 6 * 3 * 2
    for row in selected.itertuples():
        block = {"direct": "direct_eval", "train_before_test": "train_before_test"}[row.protocol]
        assert row.value == served[block][row.benchmark][path[row.model]]
    assert table.source.str.startswith("replay:").all()
    selections = pd.read_parquet(replayed.folder / "results/replay/tables/selections.parquet")
    kept = selections[selections.selected & selections.learning_rate.isna()]
    assert list(zip(kept.model, kept.benchmark, strict=True)) == [("oak-s", "sums")]  # no adapter was better


def test_the_report_is_of_the_served_scores_and_says_so(replayed):
    results = replayed.folder / "results/replay"
    served = json.loads((MADE_UP / "scores.json").read_text())
    rows = Rows.read(results / "reports/agreement/results.parquet")
    for key, block in (("direct", "direct_eval"), ("train_before_test", "train_before_test")):
        columns = pd.DataFrame(served[block])
        taus = [kendalltau(columns[a], columns[b]).statistic for a, b in (("riddles", "proverbs"), ("riddles", "sums"))]
        taus.append(kendalltau(columns["proverbs"], columns["sums"]).statistic)
        assert rows.value("tau_mean", protocol=key) == pytest.approx(sum(taus) / 3)
    for report in ("agreement", "factors"):
        assert "no model was run" in " ".join(
            json.loads((results / f"reports/{report}/page.json").read_text())["notes"]
        )
    assert "replayed scores: no model was run" in (results / "report/index.html").read_text()


def test_a_second_run_has_nothing_to_do(copied):
    done = copied.run(*copied.snakemake_command("-n", *CONFIG))
    assert "Nothing to be done" in done.stdout + done.stderr and "stale" not in done.stderr
    record = copied.folder / "results/replay/prefetch/models/oak-s.json"
    text, times = record.read_text(), os.stat(record)
    record.write_text(text.replace("made-up/Oak-S replayed", "found otherwise by another version"))
    os.utime(record, ns=(times.st_atime_ns, times.st_mtime_ns))
    done = copied.snakemake(*CONFIG)
    record.write_text(text)
    os.utime(record, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert "Nothing to be done" in done.stdout + done.stderr
    assert re.search(
        r"^replay: \d+ cells .*stale .*evaluate_model: 6.* preflight --configfile replay/replay.yaml`",
        done.stderr,
        re.M,
    )


def test_a_real_run_cannot_read_what_a_replay_wrote(copied):
    """The same run without `replay`: the replay's records and its folder are refused."""
    text = (MADE_UP / "replay.yaml").read_text()
    (copied.folder / "real.yaml").write_text(text.replace("replay: { scores: replay/scores.json }", ""))
    done = copied.lm_validity(
        *("evaluate-model", "--configfile", "real.yaml", "--model", "oak-s"),
        *("--batch", "all-benchmarks.final.plain"),
        code=2,
    )
    assert "made with another `replay` setting" in done.stderr
    done = copied.run(*copied.snakemake_command("-n", "--quiet", "rules", "--configfile", "real.yaml"), code=1)
    assert (
        "the results of another study" in done.stdout + done.stderr
        and "'replay' is another" in done.stdout + done.stderr
    )


def test_failed_cells_are_set_aside_and_the_rest_is_reported_where_results_has_a_blank(project):
    shutil.copytree(MADE_UP, project.folder / "replay")
    for sheet in ("models.tsv", "benchmarks.tsv"):
        path = project.folder / "replay" / sheet
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    served = json.loads((MADE_UP / "scores.json").read_text())
    del served["direct_eval"]["riddles"]["made-up/Oak-S"]
    (project.folder / "replay" / "scores.json").write_text(json.dumps(served))
    results = "my results/replay"
    done = project.snakemake(f"{results}/cells/check.json", *CONFIG, "--config", "results=my results", code=1)
    assert "failed cell: evaluate_model/oak-s/riddles.final.plain.test: " in done.stdout + done.stderr
    assert (project.folder / results / "partial/tables/scores.parquet").is_file()


def test_other_scores_are_other_cells(copied):
    """A changed file is a changed recipe: nothing of the old scores is mixed in."""
    folder = copied.folder
    served = json.loads((MADE_UP / "scores.json").read_text())
    del served["direct_eval"]["sums"]["made-up/Oak-L"]
    (folder / "replay" / "scores.json").write_text(json.dumps(served))
    done = copied.run(*copied.snakemake_command("-n", "--quiet", "rules", *CONFIG))
    assert "evaluate_model" in done.stdout and "finetune_adapter" in done.stdout
    job = ("--model", "oak-l", "--configfile", "replay/replay.yaml")
    copied.lm_validity("prefetch-model", *job)
    for benchmark in ("riddles", "proverbs", "sums"):
        for command in ("prefetch-benchmark", "split-benchmark"):
            copied.lm_validity(command, "--benchmark", benchmark, *job[2:])
    copied.lm_validity("evaluate-model", *job, "--batch", "all-benchmarks.final.plain")
    manifest = folder / "results/replay/cells/evaluate_model/oak-l/all-benchmarks.final.plain.test.json"
    states = {row["cell"]["benchmark"]: row for row in json.loads(manifest.read_text())["cells"]}
    assert {name: row["status"] for name, row in states.items()} == {
        "riddles": "done",
        "proverbs": "done",
        "sums": "failed",
    }
    assert "no direct score of made-up/Oak-L (final) on sums" in states["sums"]["error"]
    store = folder / "results/replay/store/evaluate_model/oak-l"
    assert len(list(store.glob("riddles.final.plain.test--*"))) == 2


MODELS = ("oak-s", "oak-m", "oak-l", "elm-s", "elm-m", "elm-m-chat")
ROUND_1 = [(m, "riddles") for m in MODELS] + [(m, b) for m in MODELS[::2] for b in ("proverbs", "sums")]
ROUND_2 = [("oak-m", "proverbs"), ("elm-s", "sums"), ("elm-m-chat", "proverbs"), ("elm-m-chat", "sums")]
TRAINING_RULES = {"finetune-adapter", "select-adapter", "evaluate-adapter"}
# made of the cells that are there, so they follow every new one
AFTERWARDS = {"check-cells", "merge"}


def write_plan(project: Project, *rounds: list) -> None:
    rows = "".join(f"{m}\t{b}\t{number}\n" for number, pairs in enumerate(rounds, 1) for m, b in pairs)
    (project.folder / "plan.tsv").write_text(f"model\tbenchmark\tround\n{rows}")


@pytest.fixture(scope="module")
def planned(replayed, tmp_path_factory) -> Project:
    """A finished replay of round 1; what comes before training is that of the replay without a plan."""
    project = replayed.copy_to(tmp_path_factory.mktemp("planned") / "copy")
    for name in ("tables", "reports", "report"):
        shutil.rmtree(project.folder / "results/replay" / name)
    for kind, rule in itertools.product(("store", "cells"), TRAINING_RULES):
        shutil.rmtree(project.folder / "results/replay" / kind / rule.replace("-", "_"), ignore_errors=True)
    config = project.folder / CONFIG[1]
    config.write_text(f"{config.read_text()}\nplan: plan.tsv\n")
    write_plan(project, ROUND_1)
    project.snakemake("scores", *CONFIG)
    assert jobs_of(project) == []
    return project


def jobs_of(project: Project) -> list[tuple[str, str, str]]:
    """(command, model or empty, batch or empty) of every job that a dry run would start, whatever its reason."""
    done = project.run(*project.snakemake_command("-n", "-p", "scores", *CONFIG))
    found = []
    for line in re.findall(r"^Shell command: (?:.* )?lm-validity (.+)$", done.stdout + done.stderr, re.MULTILINE):
        command, *words = line.split()
        given = dict(itertools.pairwise(words))
        found.append((command, given.get("--model", ""), given.get("--batch", "")))
    return found


def test_a_dry_run_computes_the_cells_of_the_new_round_and_no_other(planned, tmp_path):
    project = planned.copy_to(tmp_path / "copy")
    write_plan(project, ROUND_1, ROUND_2)
    jobs = jobs_of(project)
    assert {command for command, *_ in jobs} == TRAINING_RULES | AFTERWARDS
    training = [(model, batch) for command, model, batch in jobs if command in TRAINING_RULES]
    assert {model for model, _ in training} == {model for model, _ in ROUND_2}
    assert len(training) == 10 and all(batch.endswith(".round2") for _, batch in training)


def test_a_setting_of_round_1_that_changes_is_seen(planned, tmp_path):
    """The dry run above would show it."""
    project = planned.copy_to(tmp_path / "copy")
    config = project.folder / CONFIG[1]
    config.write_text(config.read_text().replace("finetuning: {", "finetuning: { max_length: 500,"))
    batches = [batch for command, _, batch in jobs_of(project) if command == "finetune-adapter"]
    assert batches and not any(".round2" in batch for batch in batches)


@pytest.mark.slow
def test_rounds_until_a_goal_with_real_snakemake(planned, tmp_path):
    project = planned.copy_to(tmp_path / "whole")
    before, snakemake = project.sidecars("replay"), ("--snakefile", str(ROOT / "Snakefile"), "--cores", "2")
    done = project.lm_validity("plan", "run", "--goal", "tau=.9999999", *CONFIG, "--", "scores", *snakemake)
    said = done.stdout + done.stderr
    assert "goal tau=0.9999999 is reached" in done.stdout, "the goal takes every cell"
    plan = pd.read_csv(project.folder / "plan.tsv", sep="\t")
    number = plan["round"].max()
    assert number >= 3 and len(re.findall(r"^round \d+: ", said, re.MULTILINE)) == number - 1
    assert before.items() <= project.sidecars("replay").items()
    cells = [cell.split("/") for cell in project.sidecars("replay") if cell.startswith("finetune_adapter")]
    assert {(model, name.split(".")[0]) for _, model, name in cells} == set(
        zip(plan.model, plan.benchmark, strict=True)
    )
