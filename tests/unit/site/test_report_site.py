"""`lm-validity report DIR_OR_FILES...`: from small made folders to a site; bad input leaves nothing behind."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.unit.studies.agreement.conftest import DIRECT, TRAINED, score_rows, written
from typer.testing import CliRunner

from lm_validity.cli.reports import app
from lm_validity.config.load import BY_SCORES
from lm_validity.config.sections import Reports
from lm_validity.errors import InputError
from lm_validity.results.put import Rows
from lm_validity.site.gather import Given, gather
from lm_validity.site.report import report_site
from lm_validity.tables import schema
from lm_validity.tables.formats.score_files import ImportOptions
from lm_validity.tables.schema import ITEMS, SCORES, TRIALS, read_scores, write_table

TBT = "train_before_test"
TASKS = ("arc_easy", "boolq", "piqa", "sciq")


def numbers(site) -> Rows:
    """The rows of the agreement report of a site."""
    return Rows.read(site / "agreement" / "results.parquet")


def put_results(folder, models: int = 4, steps: tuple[int, ...] = (), tasks=TASKS) -> None:
    """A result file a model, or a model and step, in a folder per model."""
    rng = np.random.default_rng(0)
    for i in range(models):
        for step in steps or (None,):
            name = f"org/toy-{i + 1}b"
            results = {
                task: {"acc,none": 0.4 + 0.05 * i + 0.02 * rng.random() + (step or 0) / 1e6, "acc_stderr,none": 0.01}
                for task in tasks
            }
            arguments = f"pretrained={name}" + (f",revision=step{step}" if step else "")
            path = folder / f"toy-{i + 1}b" / f"results_{step or 0}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"results": results, "config": {"model_args": arguments}}))


def write(paths, output, **options) -> list[str]:
    return report_site(paths, output, Given(**{"section": Reports(resamples=0)} | options))


def table_site(tmp_path, header: str, *lines: str) -> Path:
    """The site of a table."""
    (tmp_path / "table.csv").write_text("\n".join([header, *lines]) + "\n")
    write([tmp_path / "table.csv"], tmp_path / "site")
    return tmp_path / "site"


def refused(paths, output, words: str, **options) -> None:
    with pytest.raises(InputError, match=words):
        write(paths, output, **options)
    assert not output.exists()
    assert [path for path in output.parent.iterdir() if path.name.startswith(".")] == []


def reports(output) -> set[str]:
    return {path.parent.name for path in output.glob("*/page.json")}


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Path:
    """A folder for what several tests read and none changes."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture
def four(shared) -> Path:
    """The results of four models (`in`) and their site (`out`); to be copied where it is written over."""
    folder = shared / "four"
    if not folder.exists():
        put_results(folder / "in")
        write([folder / "in"], folder / "out")
    return folder


@pytest.fixture
def uneven(shared) -> Path:
    """As `four`, with a benchmark of one model alone, and a model on one benchmark alone."""
    folder = shared / "uneven"
    if not folder.exists():
        put_results(folder / "in")
        put_results(folder / "in" / "one", models=1, tasks=("aa_rare",))
        late = {"results": {"boolq": {"acc,none": 0.5}}, "model_name": "late-1b"}
        (folder / "in" / "late.json").write_text(json.dumps(late))
        write([folder / "in"], folder / "out")
    return folder


def test_direct_scores_give_agreement_without_an_empty_figure(uneven):
    assert reports(uneven / "out") == {"agreement", "factors", "models", "data"}
    assert {"index.html", "models.tsv", "benchmarks.tsv", "scores.parquet"} <= {
        p.name for p in (uneven / "out").iterdir()
    }
    assert numbers(uneven / "out").value("models") == 4
    compared = pd.read_csv(uneven / "out/cards/tables/benchmarks.csv")["benchmark"].tolist()
    assert {*compared} == {*TASKS, "aa_rare"}
    assert "rain before test" not in (uneven / "out/agreement/page.json").read_text()
    assert " 4 of the 5 benchmarks " in (uneven / "out/index.html").read_text()


def test_two_folders_of_two_protocols_are_compared(tmp_path):
    """One command: base and fine-tuned models in other places, names from paths, what the models were prepared on."""
    for folder in ("base", "tuned"):
        put_results(tmp_path / folder, models=3, tasks=TASKS[:2])
    paths = [f"direct={tmp_path / 'base'}", f"train_before_test={tmp_path / 'tuned'}"]
    more = ["--resamples", "0", "--output"]
    done = CliRunner().invoke(app, [*paths, *more, str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    rows = numbers(tmp_path / "out")
    means = [rows.row("tau_mean", protocol=each).value for each in ("direct", TBT)]
    assert rows.value("models") == 3 and None not in means
    assert "We assume" in (tmp_path / "out/index.html").read_text()
    done = CliRunner().invoke(app, [*paths, "--prepared-on", ", ".join(TASKS[:2]), *more, str(tmp_path / "said")])
    assert "We assume" not in (tmp_path / "said/index.html").read_text()
    done = CliRunner().invoke(app, [*paths, "--prepared-on", "a mixture", *more, str(tmp_path / "other")])
    assert numbers(tmp_path / "other").row("tau_mean", protocol=TBT).value is None
    notes = json.loads((tmp_path / "other/agreement/page.json").read_text())["notes"]
    (note,) = [note for note in notes if "a mixture" in note]
    assert all(task in note for task in TASKS[:2])


def test_a_second_call_leaves_no_report_of_the_first(tmp_path, four):
    shutil.copytree(four / "out", tmp_path / "out")
    put_results(tmp_path / "second", models=2, steps=(1000, 2000, 3000))
    assert reports(tmp_path / "out") == {"agreement", "factors", "models", "data"}
    own = tmp_path / "out" / "notes" / "page.json"  # a reader's own folder
    own.parent.mkdir()
    own.write_text('{"name": "mine"}')
    write([tmp_path / "second"], tmp_path / "out")
    assert reports(tmp_path / "out") == {"compare", "signal", "data", "notes"}
    write_trials(tmp_path / "third" / "trials.parquet")
    write([tmp_path / "third"], tmp_path / "out")
    assert reports(tmp_path / "out") == {"bias", "notes"}
    assert not {path.name for path in (tmp_path / "out").iterdir()} & {"cards", "models.tsv"}


def write_trials(path) -> None:
    rows = [
        ("x", "lm", f"task{task}", 50, 100, subsample, arm, correct + task, 100)
        for task in range(3)
        for subsample in range(2)
        for arm, correct in (("base", 50), ("extra", 55 + subsample), ("test", 57))
    ]
    names = ["experiment", "language_model", "task", "m", "n", "subsample", "arm", "correct", "total"]
    write_table(pd.DataFrame(rows, columns=names), TRIALS, path)


def test_the_sheets_are_passed_back(tmp_path, four):
    shutil.copytree(four / "out", tmp_path / "out")
    models = pd.read_csv(tmp_path / "out" / "models.tsv", sep="\t")
    assert models["family"].tolist() == ["toy"] * 4 and models["parameters_b"].tolist() == [1, 2, 3, 4]
    assert (
        models["guessed"].str.contains("family").all()
        and len(schema.read_model_facts(four / "out" / "models.tsv")) == 4
    )
    sheet = schema.read_benchmark_facts(four / "out" / "benchmarks.tsv").set_index("benchmark")
    assert sheet.loc["boolq", "metric"] == "acc,none" and sheet.loc["boolq", "higher_is_better"]
    models.assign(family=["x", "x", "y", "y"]).iloc[:3].to_csv(tmp_path / "mine.tsv", sep="\t", index=False)
    benchmarks = pd.read_csv(tmp_path / "out" / "benchmarks.tsv", sep="\t")
    benchmarks[benchmarks["benchmark"] != "sciq"].to_csv(tmp_path / "three.tsv", sep="\t", index=False)
    write([four / "in"], tmp_path / "out", models=tmp_path / "mine.tsv", benchmarks=tmp_path / "three.tsv")
    again = pd.read_csv(tmp_path / "out" / "models.tsv", sep="\t").set_index("model")
    assert again["family"].tolist() == ["x", "x", "y", "toy"]  # the fourth, which the sheet lacks, is guessed
    assert again["guessed"].isna().tolist() == [True, True, True, False]
    assert numbers(tmp_path / "out").value("benchmarks") == 3


@pytest.mark.parametrize("sheet", ["models", "benchmarks"])
def test_one_sheet_passed_back_leaves_out_what_was_left_out_and_is_kept(tmp_path, uneven, sheet):
    shutil.copytree(uneven / "out", tmp_path / "out")
    before = numbers(tmp_path / "out")
    assert (before.value("models"), before.value("benchmarks")) == (4, 4)
    own = tmp_path / "out" / f"{sheet}.tsv"
    own.write_text("".join(f"{line}\tmine\n" for line in own.read_text().splitlines()))
    text = own.read_text()
    write([uneven / "in"], tmp_path / "out", **{sheet: own})
    assert [*numbers(tmp_path / "out")] == [*before]
    assert own.read_text() == text


def test_a_model_that_is_nearly_one_with_scores_is_named(tmp_path, four):
    sheet = tmp_path / "models.tsv"
    sheet.write_text((four / "out" / "models.tsv").read_text().replace("org/toy-2b", "org/toi-2b"))
    lines = write([four / "in"], tmp_path / "again", models=sheet)
    (line,) = [line for line in lines if "has no scores" in line]
    assert "org/toi-2b" in line and "org/toy-2b" in line


def test_published_models_beside_a_readers_own(tmp_path, four):
    result = {task: {"acc,none": 0.47} for task in (*TASKS[:3], "my_task")}
    (tmp_path / "mine.json").write_text(json.dumps({"results": result, "model_name": "me/mine-1b"}))
    write([tmp_path / "mine.json"], tmp_path / "out", beside=four / "out" / "scores.parquet")
    assert {"beside", "agreement"} <= reports(tmp_path / "out")
    places = pd.read_csv(tmp_path / "out" / "beside" / "tables" / "places.csv")
    assert set(places["benchmark"]) == {"arc_easy", "boolq", "piqa"} and set(places["model"]) == {"mine-1b"}
    scores = read_scores(four / "out" / "scores.parquet").set_index(["benchmark", "model"])["value"]
    for row in places.itertuples():
        assert row.place == 1 + (scores[row.benchmark] > 0.47).sum() and row.of == 5
        assert row.next_better_score == scores[row.benchmark][scores[row.benchmark] > 0.47].min()
    page = json.loads((tmp_path / "out" / "beside" / "page.json").read_text())
    (answer,) = page["answers"]
    assert f"place {places['place'].min()} of 5" in answer["sentence"] and answer["svg"].count("<path d=") == 3
    finding = page["findings"][0]["sentence"]
    assert f"place {places['place'].min()} of 5" in finding and f"{places['place'].max()} of 5" in finding


def test_one_benchmark_is_an_order_of_models(tmp_path):
    """Scores 0.40 to 0.57 with standard errors of 0.01: two of them are told apart from 0.04 on."""
    put_results(tmp_path / "in", tasks=("piqa",))
    lines = write([tmp_path / "in"], tmp_path / "out")
    assert reports(tmp_path / "out") == {"models", "data"} and any("are 4 and 1" in line for line in lines)
    rows = Rows.read(tmp_path / "out/models/results.parquet")
    first = min(rows.all("model_rank"), key=lambda row: row.value)
    assert first.other == "org/toy-4b" and [row.value for row in rows.all("may_be_best")] == [1]
    (gap,) = (row.value for row in rows.all("smallest_detectable"))
    assert gap == pytest.approx((1.959964 + 0.841621) * 0.01 * np.sqrt(2), abs=1e-6)
    assert "toy-4b is best of 4 models on piqa" in (tmp_path / "out/index.html").read_text()


def test_two_models_are_compared(tmp_path):
    put_results(tmp_path / "in", models=2)
    write([tmp_path / "in"], tmp_path / "out")
    assert reports(tmp_path / "out") == {"compare", "data"}
    scores = read_scores(tmp_path / "out/scores.parquet").pivot(index="benchmark", columns="model", values="value")
    change = (scores["org/toy-2b"] - scores["org/toy-1b"]).mean()
    joint = Rows.read(tmp_path / "out/compare/results.parquet").row("joint_change")
    reach = 1.959964 * np.sqrt(2) * 0.01 / np.sqrt(len(TASKS))
    assert (joint.value, joint.low, joint.high) == pytest.approx((change, change - reach, change + reach), abs=1e-6)
    assert "Is toy-2b better than toy-1b?" in (tmp_path / "out/index.html").read_text()


def test_tables_and_files_are_joined_unless_they_differ(tmp_path, four):
    frame = read_scores(four / "out" / "scores.parquet")
    write_table(frame.iloc[:1].assign(source="other"), SCORES, tmp_path / "other" / "scores.parquet")
    write([tmp_path / "other", four / "in"], tmp_path / "out")
    joined = read_scores(tmp_path / "out" / "scores.parquet")
    assert len(joined) == 16 and (joined["source"] == "other").sum() == 1
    write_table(frame.iloc[:1].assign(value=0.9), SCORES, tmp_path / "other" / "scores.parquet")
    options = ImportOptions(protocols={tmp_path / "other": TBT})
    refused([tmp_path / "other"], tmp_path / "more", "has the protocol of each score", options=options)
    refused([tmp_path / "other", four / "in"], tmp_path / "more", "1 score with different values in .*other")
    refused([four / "out" / "agreement"], tmp_path / "more", "a report that this program wrote")


@pytest.mark.parametrize("models", [1, 2])
def test_data_that_allow_no_report_stay_to_be_corrected(tmp_path, models):
    """One model, and another that is a rerun of it."""
    put_results(tmp_path / "in", models=models)
    (tmp_path / "models.csv").write_text("model,rerun_of\norg/toy-1b,\norg/toy-2b,org/toy-1b\n")
    output = tmp_path / "out"
    with pytest.raises(InputError, match=r"no report.* nothing to compare org/toy-1b with") as caught:
        write([tmp_path / "in"], output, models=tmp_path / "models.csv" if models == 2 else None)
    left = {path.name for path in output.iterdir()}
    assert {"scores.parquet", "models.tsv", "benchmarks.tsv"} <= left
    assert "--models" in caught.value.hint and "--reading" not in caught.value.hint  # none was written
    assert not any(path.is_dir() for path in output.iterdir())


def test_bad_input_leaves_nothing(tmp_path):
    put_results(tmp_path / "in", models=2, tasks=TASKS[:2])
    (tmp_path / "in" / "broken.json").write_text("{")
    write([tmp_path / "in"], tmp_path / "fine")  # a broken file in a folder is listed and skipped
    assert "broken.json" in (tmp_path / "fine" / "import.json").read_text()
    refused([tmp_path / "in"], tmp_path / "out", "cannot be read", options=ImportOptions(strict=True))
    refused([tmp_path / "nowhere"], tmp_path / "out", "no such file or folder")
    (tmp_path / "x.parquet").write_text("no")
    refused([tmp_path / "x.parquet"], tmp_path / "out", "not a readable parquet file")
    (tmp_path / "x.json").write_text("{")
    refused([tmp_path / "x.json"], tmp_path / "out", "cannot be read")
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "y.parquet")
    refused([tmp_path / "y.parquet"], tmp_path / "out", "what do the columns")
    (tmp_path / "wrong.csv").write_text("model\nnobody\n")
    refused([tmp_path / "in"], tmp_path / "out", "names none of the models", models=tmp_path / "wrong.csv")
    (tmp_path / "wrong.csv").write_text("benchmark\nnothing\n")
    refused([tmp_path / "in"], tmp_path / "out", "names none of the benchmarks", benchmarks=tmp_path / "wrong.csv")


def test_a_table_without_rows_is_no_scores(tmp_path, four):
    empty = tmp_path / "scores.parquet"
    write_table(pd.DataFrame(columns=SCORES.names), SCORES, empty)
    refused([empty], tmp_path / "out", "scores.parquet: no rows")
    lines = write([empty, four / "in"], tmp_path / "out")
    assert f"{empty}: no rows." in lines and len(read_scores(tmp_path / "out" / "scores.parquet")) == 16


def test_a_negative_standard_error_is_blamed_on_the_file_that_was_given(tmp_path, four):
    rows = read_scores(four / "out" / "scores.parquet")
    rows.loc[rows.index[2], "stderr"] = -0.25
    write_table(rows, SCORES, tmp_path / "scores.parquet")
    named = f"^{tmp_path}/scores.parquet, row 2, column 'stderr': -0.25"
    refused([tmp_path / "scores.parquet"], tmp_path / "out", named)


def test_wide_parquet_tables_and_what_an_import_knew_of_the_models(tmp_path):
    """A parquet file of others is imported; what it says of its models is kept beside the scores for a later report."""
    wide = pd.DataFrame({"model": ["a", "b"], "x": [0.5, 0.6], "parameters_b": [7, 13]})
    wide.to_parquet(tmp_path / "wide.parquet")
    options = ImportOptions(columns="model=model, score=x")
    first = gather([tmp_path / "wide.parquet"], tmp_path / "imported", options)
    assert first.scores["value"].tolist() == [0.5, 0.6]
    later = gather([tmp_path / "imported"], tmp_path / "out", ImportOptions())
    assert later.facts == first.facts == {"a": {"parameters_b": 7.0}, "b": {"parameters_b": 13.0}}


def test_the_command_line_tells_folders_from_subcommands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    put_results(tmp_path / "signal", models=2, tasks=TASKS[:2])
    options = ["--output", "out", "--resamples", "0"]
    assert CliRunner().invoke(app, ["./signal", *options], catch_exceptions=False).exit_code == 0
    assert (tmp_path / "out" / "index.html").is_file()
    assert CliRunner().invoke(app, [*options, "./signal", "--single-file"], catch_exceptions=False).exit_code == 0
    whole = (tmp_path / "out" / "index.html").read_text()
    held = json.loads(re.search(r'id="site">(.*?)</script>', whole)[1])["pages"]
    assert {"index.html", "compare/index.html", "data/index.html"} <= set(held)
    missing = CliRunner().invoke(app, ["signal", *options[:2]])
    assert missing.exit_code == 2 and "--scores" in missing.output
    shown = CliRunner().invoke(app, ["--help"]).output
    assert "DIR_OR_FILES..." in shown and "agreement" in shown


def test_a_plan_reaches_the_reports_and_a_bad_one_is_refused(tmp_path):
    """Cells that earlier scores chose, and cells that are not planned, of `report FOLDER` and of `report screening`."""
    names, rng = [f"m{i}" for i in range(5)], np.random.default_rng(0)
    tables = {p: {b: rng.uniform(0.3, 0.9, 5) for b in "ab"} for p in (DIRECT, TRAINED)}
    rows = score_rows(tables, names)
    files = written(tmp_path, rows, "model\n" + "".join(f"{m}\n" for m in names), "benchmark,metric\na,acc\nb,acc\n")
    whole = [f"{m}\t{b}\tblock\n" for m in names for b in "ab" if (m, b) != ("m4", "b")]
    (tmp_path / "plan.tsv").write_text("model\tbenchmark\treason\n" + "".join(whole) + f"m4\tb\t{BY_SCORES}\n")
    given = ["--plan", str(tmp_path / "plan.tsv"), "--output", str(tmp_path / "out")]
    sheets = ["--models", str(files[1]), "--benchmarks", str(files[2])]
    options = [str(files[0]), *sheets, *given, "--resamples", "0"]
    assert CliRunner().invoke(app, options, catch_exceptions=False).exit_code == 0
    cells = [numbers(tmp_path / "out").value(name) for name in ("cells", "cells_by_scores", "cells_missing")]
    assert cells == [10, 1, 0]
    card = json.loads((tmp_path / "out/cards/b/card.json").read_text())["rows"]
    rows = {(row["quantity"], row["protocol"]): row for row in card}
    assert [rows["models", p]["value"] for p in (DIRECT, TRAINED)] == [5, 4] and rows["tau", TRAINED]["n"] == 4
    screened = ["screening", "--scores", str(files[0]), *sheets, *given[:3], str(tmp_path / "screened")]
    assert CliRunner().invoke(app, screened, catch_exceptions=False).exit_code == 0
    screened_rows = Rows.read(tmp_path / "screened" / "results.parquet")
    assert {row.subject: row.value for row in screened_rows.all("models")} == {"a": 5, "b": 4}
    refused([files[0]], tmp_path / "other", "nowhere", plan=tmp_path / "nowhere.tsv")


def test_a_failed_report_names_files_that_are_there(tmp_path):
    """A benchmark of one model at two checkpoints has two metrics, of which none is named: scores and sheets stay, and
    the error names them where they are."""
    rows = [(f"m{i}", "final", "c", "acc", 0.1 * i) for i in range(4)]
    rows += [("m0", step, "a", metric, 0.3) for step in ("step1", "step2") for metric in ("up", "down")]
    columns, output = ["model", "checkpoint", "benchmark", "metric", "value"], tmp_path / "out"
    pd.DataFrame(rows, columns=columns).to_csv(tmp_path / "scores.csv", index=False)
    with pytest.raises(InputError, match="several metrics") as caught:
        write([tmp_path / "scores.csv"], output)
    named = caught.value.problem.split(":")[0]
    assert named == str(output / "scores.parquet") and (output / "scores.parquet").is_file()


def test_benchmarks_whose_metric_is_not_known_are_the_reason_why_nothing_is_compared(tmp_path):
    unlike = {"up": 0.1, "down": 0.2}
    rows = [(f"m{i}", name, metric, step * i) for i in range(4) for name in "ab" for metric, step in unlike.items()]
    frame = pd.DataFrame(rows, columns=["model", "benchmark", "metric", "value"])
    frame.to_csv(tmp_path / "scores.csv", index=False)
    with pytest.raises(InputError, match=r"not known of a, b \(column 'metric' of benchmarks.tsv\)"):
        write([tmp_path / "scores.csv"], tmp_path / "out")


def test_answers_beside_a_table_of_scores_that_is_named_itself_are_said_not_to_be_read(tmp_path):
    put_results(tmp_path / "in")
    scores = gather([tmp_path / "in"], tmp_path / "first", ImportOptions()).scores
    (tmp_path / "alone").mkdir()
    write_table(scores, SCORES, tmp_path / "alone" / "scores.parquet")

    def lines(path):
        return gather([path], tmp_path / "second", ImportOptions()).lines

    assert not any("items.parquet" in line for line in lines(tmp_path / "alone" / "scores.parquet"))
    write_table(pd.DataFrame(columns=ITEMS.names), ITEMS, tmp_path / "alone" / "items.parquet")
    said = f"{tmp_path / 'alone'}/items.parquet is not read: give the folder, {tmp_path / 'alone'}."
    assert said in lines(tmp_path / "alone" / "scores.parquet") and said not in lines(tmp_path / "alone")


SCORE_COLUMNS = "model,benchmark,metric,value,stderr"


def test_two_models_on_a_benchmark_whose_metric_nobody_names(tmp_path):
    models = (("a", 0), ("b", 1))
    answers = [f"{model},quiz_of_ours,{item},{int(item % 3 > least)}" for model, least in models for item in range(60)]
    rows = Rows.read(table_site(tmp_path, "model,benchmark,item,score", *answers) / "compare" / "results.parquet")
    # 20 of 60 items are right for a alone
    assert rows.value("joint_change") == pytest.approx(-20 / 60) and rows.row("joint_verdict").text == "worse"


def test_bits_per_byte_between_0_and_1_are_no_points(tmp_path):
    lines = ["a,arc_challenge,acc,.50,.01", "b,arc_challenge,acc,.51,.01"]
    lines += ["a,wikitext,bits_per_byte,.90,.005", "b,wikitext,bits_per_byte,.70,.005"]
    rows = Rows.read(table_site(tmp_path, SCORE_COLUMNS, *lines) / "compare" / "results.parquet")
    assert rows.value("joint_change") == pytest.approx(0.01) and rows.row("joint_verdict").text == "not known"


def test_what_is_left_out_of_the_site_is_not_ranked(tmp_path):
    lines = [f"m{number},gsm8k,acc,{0.3 + number / 100},.01" for number in range(10)]
    lines += [f"m{number},arc_challenge,acc,{0.4 + number / 20},.01" for number in range(3)]
    rows = Rows.read(table_site(tmp_path, SCORE_COLUMNS, *lines) / "models" / "results.parquet")
    assert [(row.subject, row.value) for row in rows.all("models")] == [("gsm8k", 10)]


def test_a_gap_that_is_not_known_is_no_number(tmp_path):
    answers = [
        f"{model},quiz,{item},{0.1 * (item % 7) + more}" for more, model in enumerate("abc") for item in range(20)
    ]
    page = json.loads(
        (table_site(tmp_path, "model,benchmark,item,score", *answers) / "models" / "page.json").read_text()
    )
    words = json.dumps([page["lede"], page["findings"], page["answers"]])
    assert "unknown" not in words and "nan" not in words


def test_what_was_not_done_is_not_said_to_be(tmp_path):
    """Scores without errors are not tested; of a model whose family nobody knows it is not said that it is of one."""
    folder = table_site(tmp_path, "model,piqa", "base-1b,.5", "tuned-1b,.6", "tuned-3b,.7")
    answer = json.loads((folder / "models" / "page.json").read_text())["answers"][0]
    assert "Bonferroni" not in answer["basis"] and "95%" not in answer["basis"] and "?" not in answer["sentence"]
    assert "famil" not in (folder / "index.html").read_text().partition("<h1")[2].partition("</p>")[0]
