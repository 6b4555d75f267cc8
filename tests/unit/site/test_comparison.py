"""`compare A B` as a command: two folders, or two names and a page's folder; verdicts, exit codes, what is written."""

import json
import os
import subprocess
import sys
from itertools import permutations
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import typer
import yaml
from scipy import stats
from typer.testing import CliRunner

from lm_validity.cli import reports
from lm_validity.cli.reports import compare
from lm_validity.cli.warm import warm_commands
from lm_validity.errors import InputError
from lm_validity.results.put import Rows
from lm_validity.site.gather import gather
from lm_validity.tables.formats.score_files import ImportOptions
from lm_validity.tables.schema import ITEMS, SCORES, write_table

ITEMS_OF_EACH, SHEET = 400, ("--margin", "margins.csv")


def rows_of(model, benchmark, correct, tokens=None, **more):
    """(score, items) of answers 0 or 1."""
    correct = np.asarray(correct, dtype=float)
    own = {"model": model, "benchmark": benchmark, "protocol": "direct", "prompt": "plain", "split": "test"}
    own |= {"checkpoint": "final" if tokens is None else f"{tokens}b", "tokens_b": tokens}
    score = own | {"metric": "acc,none", "value": correct.mean(), "higher_is_better": True, "selected": True} | more
    score |= {"stderr": correct.std(ddof=1) / np.sqrt(len(correct)), "n_items": len(correct), "source": "test"}
    items = [
        own | {"doc_id": f"{benchmark} {place}", "correct": value, "response": f"{model} says {value:.0f}"}
        for place, value in enumerate(correct)
    ]
    return score, items


def table(folder, *cells):
    folder.mkdir(parents=True, exist_ok=True)
    scores, items = zip(*cells, strict=True)
    write_table(pd.DataFrame(list(scores)), SCORES, folder / "scores.parquet")
    rows = [row for own in items for row in own]
    if rows:
        write_table(pd.DataFrame(rows), ITEMS, folder / "items.parquet")
    return folder


def answers(right, lost=0, won=0):
    """400 answers, the first `right` of which are right; of these `lost` are wrong, and `won` of the others right."""
    values = np.zeros(ITEMS_OF_EACH)
    values[:right] = 1
    values[:lost] = 0
    values[right : right + won] = 1
    return values


def run(*words):
    app = typer.Typer()
    app.command()(compare)
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


@pytest.fixture
def folders(tmp_path):
    """Of b, `steady` differs by 3 and 3 of 400 items, `drops` loses 40 and wins 4."""
    a = table(tmp_path / "runs" / "a", rows_of("ant", "steady", answers(200)), rows_of("ant", "drops", answers(200)))
    cells = [rows_of("bee", "steady", answers(200, 3, 3)), rows_of("bee", "drops", answers(200, 40, 4))]
    return a, table(tmp_path / "runs" / "b", *cells)


def test_two_folders_are_paired_by_item_and_a_page_lists_what_changed(folders, tmp_path):
    a, b = folders
    done = run(a, b, "--margin", "0.05", "--output", tmp_path / "page", "--markdown", tmp_path / "a.md",
               "--junit", tmp_path / "a.xml")  # fmt: skip
    assert done.exit_code == 0
    assert len(done.stdout.splitlines()) <= 12
    rows = Rows.read(tmp_path / "page" / "results.parquet")
    assert {row.subject: row.text for row in rows.all("verdict")} == {"drops": "worse", "steady": "not worse"}
    assert rows.value("change", subject="drops") == pytest.approx(-36 / 400)
    assert rows.value("change_p", subject="drops") == pytest.approx(2 * stats.binomtest(4, 44).pvalue)  # Holm over two
    assert rows.value("joint_change") == pytest.approx(-18 / 400)
    assert not (tmp_path / "page" / "summary.json").exists()
    flips = pd.read_csv(tmp_path / "page" / "tables" / "flipped_items.csv")
    assert flips.groupby(["benchmark", "right"]).size().to_dict() == {
        ("drops", "ant"): 40, ("drops", "bee"): 4, ("steady", "ant"): 3, ("steady", "bee"): 3
    }  # fmt: skip
    one = flips[(flips["benchmark"] == "drops") & (flips["doc_id"] == "drops 0")].iloc[0]
    assert (one["first_answer"], one["second_answer"]) == ("ant says 1", "bee says 0")
    suite = ElementTree.parse(tmp_path / "a.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    assert "| drops | worse by more than 5.0" in (tmp_path / "a.md").read_text()


@pytest.mark.parametrize("option", ["--markdown", "--junit"])
def test_a_file_for_a_pull_request_replaces_only_one_of_its_kind(folders, tmp_path, option):
    """The command's own file is written again; somebody's file and a link to one keep their bytes."""
    written, mine, link = tmp_path / "verdict", tmp_path / "NOTES.md", tmp_path / "link"
    mine.write_text("my notes")
    link.symlink_to(mine)
    assert run(*folders, option, written).exit_code == run(*folders, option, written).exit_code == 0
    for foreign in (mine, link):
        with pytest.raises(InputError, match=foreign.name):
            run(*folders, option, foreign)
    assert mine.read_text() == "my notes"


@pytest.mark.parametrize(
    ("lost", "won", "words", "code"),
    [
        (40, 4, (), 1),
        (40, 4, ("--margin", "0.08"), 3),  # -9 points, 95% from -12 to -5.6: surely a loss, of the margin or not
        (40, 4, ("--margin", "0.15"), 0),
        (3, 3, (), 3),
        (3, 3, ("--unknown", "pass"), 0),
        (3, 3, ("--unknown", "fail"), 1),
    ],
)
def test_the_gate_ends_with_its_code(tmp_path, lost, won, words, code):
    a = table(tmp_path / "a", rows_of("ant", "sums", answers(200)))
    b = table(tmp_path / "b", rows_of("ant", "sums", answers(200, lost, won)))  # one model twice: a candidate of it
    assert run(a, b, "--gate", *words).exit_code == code
    assert run(a, b, *words).exit_code == 0


def test_a_sheet_has_margins_and_says_where_the_gate_must_know(folders, tmp_path):
    a, b = folders
    sheet = tmp_path / "margins.csv"
    sheet.write_text("benchmark,margin,must\nsteady,0.05,1\ndrops,0.2,0\n")
    # each within its margin, and 4.5 points all together within the mean of both
    assert run(a, b, "--gate", "--margin", sheet).exit_code == 0
    for margin, must, code in ((0.1, 0, 0), (0.1, 1, 3), (0.05, 0, 1)):  # 9 points (from 5.6 to 12)
        sheet.write_text(f"benchmark,margin,must\nsteady,0.05,1\ndrops,{margin},{must}\n")
        assert run(a, b, "--gate", "--margin", sheet).exit_code == code


@pytest.fixture
def lengths(tmp_path):
    """owner/ant to 90 billion tokens, bee to 300; at 90 they are alike, and bee falls later."""
    cells = [rows_of("owner/ant", "sums", answers(150 + tokens), tokens) for tokens in (30, 60, 90)]
    cells += [rows_of("bee", "sums", answers(150 + tokens), tokens) for tokens in (30, 60, 90)]
    cells += [rows_of("bee", "sums", answers(100), 300)]
    return table(tmp_path / "page", *cells)


def test_the_last_point_that_both_have_is_compared_and_said(lengths):
    done = run("ant", "bee", lengths, "--gate")
    assert done.exit_code == 3
    assert "At 90 billion tokens" in done.stdout and "bee goes on to 300" in done.stdout
    assert run("ant", "bee", lengths, "--gate", "--at", "final").exit_code == 1
    assert "At 60 billion tokens" in run("ant", "bee", lengths, "--at", "60").stdout


def write_settings(folders, name, values):
    """A setting of the two models on `steady`."""
    for folder, model, value in zip(folders, ("ant", "bee"), values, strict=True):
        frame = pd.DataFrame({"model": [model], "benchmark": ["steady"], name: [value]})
        frame.to_parquet(folder / "settings.parquet")


def test_settings_that_differ_are_said_and_unlike_versions_refused(folders):
    write_settings(folders, "chat_template", (True, False))
    told = " ".join(run(*folders).stdout.split())
    assert all(words in told for words in ("chat template: ", "yes (ant)", "no (bee)", "on steady"))
    write_settings(folders, "task_version", ("1", "2"))
    with pytest.raises(InputError, match=r"different task versions: steady 1 \(ant\), where 2 is used") as caught:
        run(*folders)
    assert "--mix-versions" in caught.value.hint
    assert "as you asked" in run(*folders, "--mix-versions").stdout
    # another number of items is another test, unless a few of them alone were not scored
    for number in (400, 390):
        write_settings(folders, "n_items_scored", (400, number))
        assert run(*folders).exit_code == 0
    write_settings(folders, "n_items_scored", (400, 40))
    with pytest.raises(InputError, match="40 of 400 items"):
        run(*folders)


def test_answers_without_a_common_document_are_refused(tmp_path):
    a = table(tmp_path / "a", rows_of("ant", "sums", answers(200)))
    score, items = rows_of("bee", "sums", answers(200))
    b = table(tmp_path / "b", (score, [row | {"doc_id": f"other {row['doc_id']}"} for row in items]))
    with pytest.raises(InputError, match="no common document of sums") as caught:
        run(a, b)
    assert "--mix-versions" in caught.value.hint and str(a) in caught.value.problem
    done = run(a, b, "--mix-versions")
    assert done.exit_code == 0 and "0 compared item by item" in done.stdout


def test_a_count_of_examples_that_keeps_one_out_is_the_reason(tmp_path):
    a = table(tmp_path / "a", rows_of("ant", "sums", answers(200), num_fewshot=0))
    b = table(tmp_path / "b", rows_of("bee", "sums", answers(200), num_fewshot=5))
    with pytest.raises(InputError, match="share no benchmark") as caught:
        run(a, b)
    assert "another number of few-shot examples" in caught.value.hint


def test_the_difference_along_training_has_a_point_for_each_that_both_have(lengths, tmp_path):
    run("ant", "bee", lengths, "--output", tmp_path / "out")
    results = pd.read_parquet(tmp_path / "out" / "results.parquet")
    rows = results[results["quantity"] == "change_along_training"]
    rows = rows[rows["subject"].isna()]
    assert [json.loads(text)["point"] for text in rows["conditions"]] == [30, 60, 90] and (rows["value"] == 0).all()
    end = results[results["quantity"] == "joint_change"].iloc[0]
    assert (rows.iloc[-1]["low"], rows.iloc[-1]["high"]) == pytest.approx((end["low"], end["high"]))
    assert "The difference along training" in (tmp_path / "out" / "index.html").read_text()
    # ant and bee answer alike at 90 billion tokens; bee's answers at 300 are no flips
    assert not (tmp_path / "out" / "tables" / "flipped_items.csv").exists()
    run("ant", "bee", lengths, "--at", "final", "--output", tmp_path / "end")
    assert len(pd.read_csv(tmp_path / "end" / "tables" / "flipped_items.csv")) == 140


def marks(model, benchmark, value, stderr, metric):
    """A score of a loss, without items."""
    score, _ = rows_of(model, benchmark, answers(200))
    return score | {"value": value, "stderr": stderr, "metric": metric, "higher_is_better": False}, []


@pytest.mark.parametrize(
    ("metrics", "losses", "verdict", "change"),
    [
        (("bits_per_byte,none",) * 2, ((1.10, 1.00), (1.30, 1.28)), "better", 0.06),
        (("bits_per_byte,none", "word_perplexity,none"), ((1.10, 1.00), (20.0, 15.0)), "better", None),
        (("bits_per_byte,none", "word_perplexity,none"), ((1.10, 1.00), (20.0, 25.0)), "not known", None),
    ],
)
def test_all_together_of_scores_that_are_no_fractions(tmp_path, metrics, losses, verdict, change):
    """A mean of one unit, else what is decided on every benchmark."""
    folders = [
        table(tmp_path / model, *(marks(model, f"text{k}", losses[k][place], 0.005, metrics[k]) for k in range(2)))
        for place, model in enumerate(("ant", "bee"))
    ]
    done = run(*folders, "--output", tmp_path / "out")
    rows = Rows.read(tmp_path / "out" / "results.parquet")
    row = rows.row("joint_change")
    assert rows.row("joint_verdict").text == verdict
    assert row.value == (None if change is None else pytest.approx(change))
    if change is None:
        assert "different units" in " ".join(done.stdout.split())
    else:  # two independent differences, each with the error of two scores
        reach = stats.norm.ppf(0.975) * np.sqrt(4 * 0.005**2) / 2
        assert (row.low, row.high) == pytest.approx((change - reach, change + reach))


def test_benchmarks_in_other_units_are_counted(tmp_path):
    folders = []
    for model, right in (("ant", 200), ("bee", 220)):
        loss = marks(model, "text", 1.1, 0.1, "bits_per_byte,none")
        folders.append(table(tmp_path / model, rows_of(model, "sums", answers(right)), loss))
    assert "All together, 1 of 2 benchmarks: better" in " ".join(run(*folders).stdout.split())


@pytest.mark.parametrize(
    ("words", "sheet", "problem"),
    [
        (("--margin", "much"), "", "--margin much"),
        (("--margin", "-0.1"), "", "no margin"),
        (("--margin", "nan"), "", "no margin"),
        (("--at", "soon"), "", "--at soon"),
        (SHEET, "benchmark,margin\nstedy,0.1\n", "column 'benchmark': 'stedy'"),
        *((SHEET, f"benchmark,margin\nsteady,{bad}\n", "row 2, column 'margin'") for bad in ("much", "-0.1", "inf")),
        (SHEET, "benchmark,margin\nsteady,.1\ndrops,.1\nsteady,.2\n", "row 4, column 'benchmark', value 'steady'"),
        (SHEET, "benchmark,margin,must\nsteady,0.1,perhaps\n", "row 2, column 'must'"),
        (SHEET, "benchmark,loss\nsteady,1\n", "unknown column 'loss'"),
        (SHEET, "benchmark,margin\nsteady,2\n", "no loss on steady is greater than 2"),
        (SHEET, "", "margins.csv"),
    ],
)
def test_bad_options_and_sheets_are_named(folders, tmp_path, monkeypatch, words, sheet, problem):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "margins.csv").write_text(sheet)
    with pytest.raises(InputError, match=problem):
        run(*folders, *words)


def test_names_and_folders_that_are_not_there(lengths, folders, tmp_path):
    with pytest.raises(InputError, match="no score of the model 'beee'") as caught:
        run("ant", "beee", lengths)
    assert "'bee'" in caught.value.hint
    with pytest.raises(InputError, match="no such file or folder"):
        run("ant", "bee")
    with pytest.raises(InputError, match="2 models") as caught:
        run(lengths, folders[0])
    assert caught.value.hint == f"name two of them: lm-validity compare bee owner/ant {lengths}"
    other = table(tmp_path / "other", rows_of("cat", "words", answers(200)))
    with pytest.raises(InputError, match="share no benchmark"):
        run(folders[0], other, "--output", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_model_is_tried_against_itself_by_the_test_of_the_gate(tmp_path):
    """Of three runs, 0 and 1 differ by 20 items that one alone gets right: by McNemar, not by their errors."""
    runs = [answers(200), answers(200, 0, 20), answers(200, 5, 5)]
    cells = [rows_of("ant", "sums", correct, run=place) for place, correct in enumerate(runs)]
    cells = [(score, [row | {"run": score["run"]} for row in items]) for score, items in cells]
    folder = table(tmp_path / "page", *cells, rows_of("bee", "sums", answers(180)))
    done = run("ant", "bee", folder, "--self-check")
    expected = 0
    for first, second in permutations(runs, 2):
        lost, won = int((first > second).sum()), int((second > first).sum())
        expected += lost > won and stats.binomtest(lost, lost + won).pvalue < 0.05
    assert f"ant worse than itself in {expected} of 6 pairs of runs" in done.stdout and expected == 2
    assert "bee has one run" in done.stdout


def test_one_checkpoint_of_each_at_other_tokens_is_compared_and_said(tmp_path):
    """Two models of one checkpoint each are compared as they are; of several without a common one, only if asked."""
    folder = table(
        tmp_path / "page", rows_of("ant", "sums", answers(200), 90), rows_of("bee", "sums", answers(240), 300)
    )
    done = run("ant", "bee", folder, "--gate")
    assert done.exit_code == 0 and "no common point of training" in done.stdout
    cells = [rows_of("ant", "sums", answers(200), tokens) for tokens in (60, 90)]
    folder = table(tmp_path / "other", *cells, rows_of("bee", "sums", answers(240), 300))
    with pytest.raises(InputError, match="no common point"):
        run("ant", "bee", folder)


def test_a_benchmark_under_two_protocols_is_counted_and_named_once(tmp_path):
    cells = []
    for protocol in ("direct", "train_before_test"):
        for model, correct in (("ant", answers(200)), ("bee", answers(200, 60))):
            for name in ("sums", "words"):
                score, items = rows_of(model, name, np.roll(correct, len(name)))
                change = {"protocol": protocol}
                cells.append((score | change, [row | change for row in items]))
    done = run("ant", "bee", table(tmp_path / "page", *cells), "--gate")
    assert "2 benchmarks under two protocols, 2 compared item by item" in done.stdout
    assert "Worse on at least one, after Holm: sums, words." in done.stdout and done.exit_code == 1


def test_models_of_a_file_of_results_are_compared_by_name(tmp_path):
    """.64 ± .004 against .70 ± .003: z = 12; without errors, what to type where the number of items is known."""
    path = tmp_path / "all.csv"
    path.write_text("model,benchmark,acc,acc_stderr\nx/ant,mmlu,.64,.004\nx/bee,mmlu,.70,.003\n")
    pd.read_csv(path).to_parquet(parquet := tmp_path.parent / f"{tmp_path.name}.parquet")  # another program's
    for source in (path, tmp_path, parquet):
        outcome = run("ant", "x/bee", source, "--gate")
        assert outcome.exit_code == 0 and "+6.0 points (95%: +5.0 to +7.0)" in outcome.output
    path.write_text("model,benchmark,metric,value,n_items\nx/ant,mmlu,acc,.64,1000\nx/bee,mmlu,acc,.70,1000\n")
    outcome = run("ant", "bee", path, "--gate")
    assert outcome.exit_code == 3 and "error=COLUMN(items)" in outcome.output
    CliRunner().invoke(reports.imports, [str(path), "--output", str(tmp_path / "tables")])
    outcome = run("ant", "bee", tmp_path / "tables")
    assert "COLUMN" not in outcome.output  # what would not work with a table of ours is not advised
    with pytest.raises(InputError, match="read as they are"):  # what is said of files is not passed over
        gather([tmp_path / "tables"], tmp_path, ImportOptions(reading=tmp_path / "reading.yaml"))


# ---- the shell lines of the pipelines in docs/how_to/gate.md, as a shell of GitHub or GitLab runs them ----

PAGE = (Path(__file__).parents[3] / "docs" / "how_to" / "gate.md").read_text()


def block(title):
    """The indented block under a heading, as YAML."""
    lines = PAGE.partition(f"## {title}\n")[2].splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith("    "))
    own = []
    for line in lines[start:]:
        if line and not line.startswith("    "):
            break
        own.append(line[4:])
    return yaml.safe_load("\n".join(own))


def github():
    # GitHub runs each step by itself: `bash -e`; a step with `always()` also after a failure
    steps = block("A GitHub Action")["jobs"]["gate"]["steps"]
    return [(step["run"], step.get("if") == "always()") for step in steps if "run" in step]


def gitlab():
    return [("\n".join(block("A GitLab job")["gate"]["script"]), False)]


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """A folder whose `lm-validity` starts warm."""
    imported = ("lm_validity.cli.reports", "lm_validity.site.compare")
    modules = ("lm_validity.cli", *imported, "tests.workflow.warm_programs")
    with warm_commands(tmp_path_factory.mktemp("warm") / "bin", dict(os.environ), modules) as bin:
        yield bin


@pytest.mark.parametrize("steps", [github, gitlab])
@pytest.mark.parametrize(("lost", "won", "code"), [(0, 0, 0), (60, 4, 1), (12, 12, 3)])
def test_its_lines_pass_fail_and_do_not_know(warm, tmp_path, steps, lost, won, code):
    table(tmp_path / "runs" / "main", rows_of("ant", "sums", answers(200)))
    table(tmp_path / "runs" / "candidate", rows_of("ant", "sums", answers(200, lost, won)))
    binaries = tmp_path / "bin"
    binaries.mkdir()
    (binaries / "pip").write_text("#!/bin/sh\nexit 0\n")  # what it would install is what is tested
    (binaries / "pip").chmod(0o755)
    path = f"{binaries}:{warm}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")}
    ended = 0
    for line, always in steps():
        if ended and not always:
            continue
        done = subprocess.run(["bash", "-e", "-c", line], cwd=tmp_path, env=environment, check=False)
        ended = ended or done.returncode
    assert ended == code
    assert (tmp_path / "gate.xml").is_file()
    if steps is github:
        assert "| sums |" in (tmp_path / "summary.md").read_text()
    else:
        assert block("A GitLab job")["gate"]["allow_failure"] == {"exit_codes": [3]}
