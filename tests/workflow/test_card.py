"""`lm-validity card TASK.yaml` as a user calls it: what it would run, and one whole run on the miniature."""

import json
import shutil

import pandas as pd
import pytest
import yaml
from tests.workflow.test_dry_run import jobs

from lm_validity.results.put import Rows

TASK = "task: rivers\ndataset_path: json\noutput_type: multiple_choice\ntraining_split: train\ntest_split: test\n"


def test_a_dry_run_says_what_one_benchmark_needs(project):
    folder = project.folder
    (folder / "models.tsv").write_text("model\tpath\none\torg/one\ntwo\torg/two\n")
    (folder / "benchmarks.tsv").write_text("benchmark\narc_easy\npiqa\n")
    (folder / "my.yaml").write_text("name: mine\nmodels: models.tsv\nbenchmarks: benchmarks.tsv\n")
    (folder / "rivers.yaml").write_text(TASK)
    done = project.lm_validity("card", "rivers.yaml", "--configfile", "my.yaml", "--dry-run")
    found = jobs(done.stdout)
    assert found["prefetch_model"] == found["evaluate_model"] == found["finetune_adapter"] == 2
    assert found["prefetch_benchmark"] == found["split_benchmark"] == found["merge_scores"] == 1
    assert not (folder / "results/mine-rivers/report").exists()
    done = project.lm_validity("card", "nothing.yaml", "--configfile", "my.yaml", code=2)
    assert done.stderr.count("\n") == 1 and "nothing.yaml: no such file" in done.stderr and "Hint: " in done.stderr


@pytest.mark.slow
def test_a_new_benchmark_goes_through_and_into_the_sheet(project):
    """Three models of the miniature; the new task is another's documents under another name."""
    config = project.folder / "config"
    for name in ("test_miniature.tsv", "test_models.tsv"):
        text = (config / name).read_text()
        (config / name).write_text(text + text.splitlines()[-1].replace("data-gpt2-xs", "third-gpt2-xs") + "\n")
    project.snakemake("scores", "--configfile", "config/test.yaml")
    before = project.sidecars()
    made = project.folder / "results/test/miniature/tasks/miniature_table.yaml"
    text = made.read_text()
    (project.folder / "mine").mkdir()
    (project.folder / "mine/rivers.yaml").write_text(text.replace("task: miniature_table", "task: rivers"))
    for code in made.parent.glob("*.py"):
        shutil.copy(code, project.folder / "mine")
    shutil.copytree(made.parents[1] / "data", project.folder / "data")
    done = project.lm_validity("card", "mine/rivers.yaml", "--configfile", "config/test.yaml")
    after = project.sidecars()
    assert before.items() <= after.items()
    assert len(after) > len(before) and all("/rivers." in cell for cell in after.keys() - before.keys())
    report = project.folder / "results/test-rivers/report"
    scores = pd.read_parquet(report / "scores.parquet")
    assert {*scores["benchmark"]} == {"cloze", "table", "rivers"}
    kept = scores[(scores["split"] == "test") & scores["selected"]].set_index(["benchmark", "protocol", "model"])[
        "value"
    ]
    assert kept["rivers", "direct"].equals(kept["table", "direct"])  # the same documents
    assert len(kept["rivers", "train_before_test"]) == 3
    assert Rows.read(report / "agreement/results.parquet").value("benchmarks") == 2  # the same items count once
    card = json.loads((report / "cards/rivers/card.json").read_text())
    rows = {(row["quantity"], row["protocol"]): row["value"] for row in card["rows"]}
    assert rows["models", "train_before_test"] == 3
    assert done.stdout.splitlines()[-1] == "The card: results/test-rivers/report/cards/rivers/index.html"
    # adopted: its row in the sheet computes nothing
    settings = yaml.safe_load((config / "test.yaml").read_text())
    row = "rivers\trivers\tmine\tstructured\texact_match,none\tgenerate_until\t1\tagreement\n"
    with open(project.folder / settings["benchmarks"], "a") as sheet:
        sheet.write(row)
    project.snakemake("scores", "--configfile", "config/test.yaml")
    assert project.sidecars() == after
    assert done.stdout.count("Run test-rivers") == 1
