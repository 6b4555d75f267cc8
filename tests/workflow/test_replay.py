"""The whole workflow with made-up scores served instead of running a model; rules, paths, merges, reports are real."""

import json
import os
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from scipy.stats import kendalltau
from tests.workflow.conftest import Project

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
