"""A task file beside a configured run: what its run computes, where it is written, what is refused."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from lm_validity.cli.study import card
from lm_validity.config.load import load_run
from lm_validity.errors import InputError
from lm_validity.run.scoring import named_code, task_sources
from lm_validity.run.workspace import Grid
from lm_validity.tables.schema import ITEMS, SCORES, SELECTIONS, write_table

pytest.importorskip("lm_eval")
from lm_validity.site.own_task import read_own_task, write_own_report, write_run

TASK = """\
task: rivers
dataset_path: json
output_type: multiple_choice
training_split: train
test_split: test
doc_to_text: "{{question}}"
doc_to_choice: "{{options}}"
doc_to_target: "{{answer}}"
metric_list:
  - metric: acc
  - metric: acc_norm
"""
DIRECT = TASK.replace("training_split: train\n", "")


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """Three models, one of them with checkpoints and one made by the workflow itself; a benchmark; a task."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sheets").mkdir()
    (tmp_path / "results/mine/models/own").mkdir(parents=True)
    Path("sheets/models.tsv").write_text(
        "model\tpath\tfamily\tcheckpoints\tstudies\n"
        "hub\torg/hub\tHub\t\tagreement\n"
        "own\tresults/{run}/models/own\tOwn\t\tagreement\n"
        "long\torg/long\tHub\tpoints.tsv\tagreement,signal\n"
    )
    Path("sheets/points.tsv").write_text("checkpoint\titeration\ns1\t1\ns2\t2\n")
    Path("sheets/benchmarks.tsv").write_text("benchmark\tcategory\narc_easy\tQA\n")
    configure("[agreement, signal]")
    Path("tasks").mkdir()
    Path("tasks/rivers.yaml").write_text(TASK)
    return tmp_path


def configure(studies: str, more: str = "") -> None:
    Path("my.yaml").write_text(
        f"name: mine\nstudies: {studies}\nmodels: sheets/models.tsv\nbenchmarks: sheets/benchmarks.tsv\n"
        f"finetuning: {{learning_rates: [1e-3]}}\nreports: {{resamples: 0}}\n{more}"
    )


def read(path: str = "tasks/rivers.yaml"):
    return read_own_task(Path(path), Path("my.yaml"))


def cells(run) -> set[str]:
    return {f"{cell.rule} {cell.model} {cell.name}" for cell in Grid(run).cells()}


def test_the_run_has_the_cells_of_the_new_benchmark_only(project):
    run = write_run(read())
    assert run.name == "mine-rivers" and {*run.benchmarks} == {"rivers"}
    row = run.benchmarks["rivers"]
    assert (row.metric, row.include_path, row.higher_is_better) == ("acc_norm,none", "tasks", True)
    found = cells(run)
    for model in ("hub", "own", "long"):
        assert f"finetune_adapter {model} rivers.plain.lr1e-3.seed0" in found
        assert f"evaluate_adapter {model} rivers.seed0" in found
    curves = {f"evaluate_model long rivers.{point}.plain.test" for point in ("s1", "s2", "final")}
    assert curves <= found and "evaluate_model hub rivers.s1.plain.test" not in found
    assert run.models["own"].path == "results/mine/models/own"


def test_an_adapter_of_the_run_stays_where_it_is(project):
    sheet = Path("sheets/models.tsv")
    header, *rows = sheet.read_text().splitlines()
    adapters = ("", "results/{run}/adapters/own", "me/lora@v2")
    lines = [f"{row}\t{adapter}" for row, adapter in zip(rows, adapters, strict=True)]
    sheet.write_text("\n".join([f"{header}\tadapter", *lines]) + "\n")
    found = [row.adapter for row in write_run(read()).models.values()]
    assert found == [None, "results/mine/adapters/own", "me/lora@v2"]


def test_without_training_documents_scores_are_direct(project):
    Path("tasks/rivers.yaml").write_text(DIRECT)
    own = read()
    assert "direct only" in own.lines()[0]
    points = {"hub": ["final"], "own": ["final"], "long": ["s1", "s2", "final"]}
    wanted = {f"evaluate_model {model} rivers.{p}.plain.test" for model, names in points.items() for p in names}
    assert cells(write_run(own)) == wanted


def test_the_store_and_the_records_are_those_of_the_run(project):
    record = Path("results/mine/prefetch/models/hub.json")
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"sha": 1}))
    for _ in range(2):  # the second call finds what the first wrote
        run = write_run(read())
        assert (run.results / "store").resolve() == (project / "results/mine/store").resolve()
        assert (run.results / "prefetch/models/hub.json").read_text() == record.read_text()
    assert Path("sheets/benchmarks.tsv").read_text() == "benchmark\tcategory\narc_easy\tQA\n"
    assert {*load_run("my.yaml").benchmarks} == {"arc_easy"}


def test_a_task_in_the_working_directory_takes_along_only_what_it_names(project):
    Path("rivers.yaml").write_text("include: base.yaml\nprocess_docs: !function lib.keep\n" + TASK)
    Path("base.yaml").write_text("description: x\n")
    Path("lib.py").write_text("def keep(docs):\n    return docs\n")
    Path("other.py").write_text("")
    own = read("rivers.yaml")
    folder = Path("results/mine-rivers/task")
    assert own.row["include_path"] == str(folder)
    assert {Path(path).name for path in task_sources(str(folder))} == {"rivers.yaml", "base.yaml", "lib.py"}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda: Path("tasks/rivers.yaml").unlink(), "no such file"),
        (lambda: Path("tasks/rivers.yaml").write_text("task: [rivers"), "lm-eval cannot read it"),
        (lambda: Path("tasks/rivers.yaml").write_text("doc_to_text: x\n"), "not an lm-eval task"),
        (lambda: Path("tasks/rivers.yaml").write_text("- rivers\n"), "lm-eval cannot read it"),
        (lambda: Path("tasks/rivers.yaml").write_text(TASK.replace("rivers", "arc_easy")), "has a benchmark"),
        (lambda: Path("tasks/rivers.yaml").write_text(TASK.replace("rivers", "all-x")), "'all-x': not a usable id"),
        (lambda: Path("tasks/rivers.yaml").write_text(TASK.replace("multiple_choice", "loglikelihood")),
         "'loglikelihood' is not supported"),
        (lambda: Path("tasks/rivers.yaml").write_text(TASK.replace("acc\n", "odd\n").replace("acc_norm", "strange")),
         "does not say whether a higher odd is better"),
        (lambda: Path("tasks/a.yaml").write_text(TASK), "declares the task 'rivers' too"),
        (lambda: Path("results/mine/models/own").rmdir(), "model 'own'"),
        (lambda: Path("results/mine-rivers").mkdir(), "the folder of another run"),
        (lambda: configure("[agreement]", "replay: {scores: x.json}\n"), "a replay runs no model"),
        (lambda: Path("my.yaml").unlink(), "no such configuration"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_before_anything_is_written(project, change, problem):
    change()
    before = {path for path in project.rglob("*")}
    with pytest.raises(InputError) as refused:
        read()
    assert problem in refused.value.problem and refused.value.hint
    assert {path for path in project.rglob("*")} == before


def test_a_bad_task_in_the_working_directory_leaves_no_copy(project):
    Path("rivers.yaml").write_text(TASK.replace("multiple_choice", "loglikelihood"))
    with pytest.raises(InputError):
        read("rivers.yaml")
    assert not Path("results/mine-rivers").exists()
    Path("rivers.yaml").write_text(TASK.replace("task: rivers", "task: rivers\ninclude: tasks/rivers.yaml"))
    with pytest.raises(InputError, match="it names tasks"):
        read("rivers.yaml")


class Finished:
    """Stands for the configured run's finished cells: scores of the three models on its benchmark, one cell missing."""

    missing = ("one",)

    def __init__(self, run, partial):
        assert run.name == "mine" and partial

    def write_scores(self, folder):
        write_scores(folder, "arc_easy")
        write_table(pd.DataFrame(columns=SELECTIONS.names), SELECTIONS, folder / "selections.parquet")

    def write_items(self, folder):
        write_table(pd.DataFrame(columns=ITEMS.names), ITEMS, folder / "items.parquet")


def write_scores(folder: Path, benchmark: str, trained: bool = True) -> None:
    frame = pd.DataFrame({"model": ["hub", "own", "long"] * 2, "value": [0.3, 0.4, 0.5, 0.4, 0.5, 0.6]})
    frame = frame.assign(protocol=["direct"] * 3 + ["train_before_test"] * 3, benchmark=benchmark, stderr=0.01)
    if benchmark == "arc_easy" and "more\t" in Path("sheets/models.tsv").read_text():  # not planned there
        frame = pd.concat([frame, frame[:1].assign(model="more", value=0.35)])
    frame = frame if trained else frame[frame["protocol"] == "direct"]
    frame = frame.assign(metric="acc_norm,none", split="test", selected=True, checkpoint="final")
    write_table(frame, SCORES, folder / "scores.parquet")


@pytest.fixture
def finished(monkeypatch):
    monkeypatch.setattr("lm_validity.site.own_task.Merger", Finished)


def report(trained: bool = True) -> list[str]:
    """What the report over the task's run prints."""
    own = read()
    write_run(own)
    tables = own.results / "tables"
    write_scores(tables, "rivers", trained)
    Finished(own.base, True).write_items(tables)
    write_table(pd.DataFrame(columns=SELECTIONS.names), SELECTIONS, tables / "selections.parquet")
    return write_own_report(own)


def gaps() -> list[tuple[str, str]]:  # cells that are not there, by the notes: how many, and which in brackets
    notes = json.loads(Path("results/mine-rivers/report/agreement/page.json").read_text())["notes"]
    return re.findall(r"(\d+ of \d+) cells [^;(]*(\(.*?\))?;", " ".join(notes))


def test_cells_that_nobody_planned_are_not_missing(project, finished):
    """A fourth model, which the configured run's plan does not prepare; it lacks a score on the new benchmark too."""
    with Path("sheets/models.tsv").open("a") as sheet:
        sheet.write("more\torg/more\tHub\t\tagreement\n")
    rows = "".join(f"{model}\tarc_easy\t0.5\n" for model in ("hub", "own", "long"))
    Path("sheets/plan.tsv").write_text("model\tbenchmark\tprobability\n" + rows)
    configure("[agreement, signal]", "plan: sheets/plan.tsv\n")
    report()
    assert gaps() == [("1 of 8", names) for names in ("(more on rivers)", "", "(more on rivers)")]
    assert {*pd.read_csv("results/mine-rivers/card/plan.tsv", sep="\t")["probability"].dropna()} == {0.5}


def test_a_task_that_does_not_train_is_not_planned(project, finished):
    Path("tasks/rivers.yaml").write_text(DIRECT)
    report(trained=False)
    assert gaps() == [("3 of 6", "")]


def test_the_report_has_a_card_of_the_task(project, finished):
    lines = report()
    assert lines[-1].endswith(": results/mine-rivers/report/cards/rivers/index.html")
    folder = Path("results/mine-rivers/report/cards/rivers")
    card = json.loads((folder / "card.json").read_text())
    rows = {(row["quantity"], row["protocol"]): row["value"] for row in card["rows"]}
    assert card["source"] == "the run mine-rivers" and rows["models", "train_before_test"] == 3
    assert card["verdict"]["sentence"] == lines[-2] and re.findall(r"\d+", lines[-3]) == ["1"]
    assert {*pd.read_parquet("results/mine-rivers/report/scores.parquet")["benchmark"]} == {"arc_easy", "rivers"}
    texts = [path.read_text() for path in folder.parents[1].rglob("*") if path.suffix in (".html", ".json", ".tsv")]
    assert not any("-draft" in text for text in texts)


def test_code_that_a_task_names_is_said_or_refused_before_it_runs(tmp_path, capsys):
    """However YAML's tag is written, and in what the file includes."""
    (tmp_path / "code").mkdir()
    for name in ("mine", "code/deep"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('it ran')\n")
    (tmp_path / "base.yaml").write_text("doc_to_text: !function code.deep.ask\n")
    (tmp_path / "task.yaml").write_text(
        "%TAG !f! !func\n---\ntask: carts\ninclude: base.yaml\nprocess_docs: !f!tion mine.load\n"
        "doc_to_target: !<!function> mine.gold\n# !function mine.commented\n"
    )
    code = [f"ask of {tmp_path}/code/deep.py", f"load of {tmp_path}/mine.py", f"gold of {tmp_path}/mine.py"]
    assert named_code(tmp_path / "task.yaml") == code
    with pytest.raises(InputError, match="names code"):
        card([str(tmp_path / "task.yaml")], configfile=tmp_path / "none.yaml", no_code=True)
    with pytest.raises(InputError, match=r"none\.yaml"):
        card([str(tmp_path / "task.yaml")], configfile=tmp_path / "none.yaml")
    assert all(each in capsys.readouterr().out for each in code[:1])
    (tmp_path / "plain.yaml").write_text("task: carts\ndoc_to_text: q\n")
    assert named_code(tmp_path / "plain.yaml") == []
