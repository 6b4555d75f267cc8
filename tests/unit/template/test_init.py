"""`lm-validity init`: what is in a new study's folder, and that it is a study."""

import importlib.util
import json
import os
import re
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from lm_validity.cli.study import init
from lm_validity.config.load import load_run
from lm_validity.errors import InputError
from lm_validity.template.folder import make_study, size_class

TASKS = ("arc_easy", "boolq", "piqa", "made_up_by_us")


def put_results(folder, models: int = 4) -> None:
    """lm-eval's result files of some models; the last one has one benchmark only."""
    rng = np.random.default_rng(0)
    for i in range(models):
        tasks = TASKS if i < models - 1 else TASKS[:1]
        results = {task: {"acc,none": rng.random(), "acc_stderr,none": 0.01} for task in tasks}
        path = folder / f"m{i}" / "results_0.json"
        path.parent.mkdir(parents=True)
        arguments = f"pretrained={'org' if i else '/models'}/Toy-{i + 1}b-Instruct"
        path.write_text(json.dumps({"results": results, "config": {"model_args": arguments}}))


def test_a_new_study_is_the_small_one_under_its_own_name(tmp_path, monkeypatch):
    make_study(tmp_path / "my-study")
    monkeypatch.chdir(tmp_path / "my-study")
    run, small = load_run("study.yaml"), load_run("config/small/small.yaml")
    assert run.name == "my-study" and run.models == small.models and run.benchmarks == small.benchmarks
    same = {"name": "small", "models": "config/small/models.tsv", "benchmarks": "config/small/benchmarks.tsv"}
    assert run.configuration.model_copy(update=same) == small.configuration
    assert load_run("config/config.yaml").name == "demo"
    assert load_run("config/paper/train_before_test.yaml").models
    assert os.readlink("slurm") == "profiles/slurm" and os.path.isfile("slurm/config.yaml")
    assert not re.search("{name}|{scores}", Path("README.md").read_text())


@pytest.mark.parametrize("name", ["2026-11-23", "123", "on", "null", "0x1F", "1e5"])
def test_a_name_that_yaml_takes_for_something_else_is_a_name(tmp_path, monkeypatch, name):
    make_study(tmp_path / name)
    monkeypatch.chdir(tmp_path / name)
    assert load_run("study.yaml").name == name


@pytest.mark.parametrize("place", ["/proc/x", "/proc/x/y"])
def test_a_place_where_nothing_can_be_written_is_refused(place):
    with pytest.raises(InputError, match="/proc") as caught:
        make_study(Path(place))
    assert "another place" in caught.value.hint


def test_a_folder_with_something_in_it_is_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    make_study(tmp_path / "mine")  # empty: as good as new
    with pytest.raises(InputError, match="not empty"):
        make_study(tmp_path / "mine")
    with pytest.raises(InputError, match="becomes the run's"):
        make_study(tmp_path / "my study")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_the_current_folder_becomes_a_study(tmp_path, monkeypatch):
    """`lm-validity init .`: named for the folder, which stays the same one under the shell that stands in it."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    before = here.stat().st_ino
    app = typer.Typer()
    app.command()(init)
    done = CliRunner().invoke(app, ["."])
    assert done.exit_code == 0, done.output
    assert load_run("study.yaml").name == "here" and here.stat().st_ino == before
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def test_a_study_around_scores_runs_the_models_and_tasks_of_the_scores(tmp_path, monkeypatch):
    put_results(tmp_path / "in")
    make_study(tmp_path / "mine", [tmp_path / "in"])
    monkeypatch.chdir(tmp_path / "mine")
    run = load_run("study.yaml")
    assert {name: row.path for name, row in run.models.items()} == {
        f"toy-{i}b-instruct": f"{place}/Toy-{i}b-Instruct" for i, place in ((1, "/models"), (2, "org"), (3, "org"))
    }
    row = run.models["toy-3b-instruct"]
    assert (row.parameters_b, row.size_class, row.instruction_tuned) == (3, "medium", True)
    # no task of lm-eval, and one model with a single score: comments
    assert set(run.benchmarks) == {"arc_easy", "boolq", "piqa"}
    assert (
        "\n# made_up_by_us\t" in Path("benchmarks.tsv").read_text()
        and "\n# toy-4b-instruct\t" in Path("models.tsv").read_text()
    )
    assert os.path.isfile("scores/scores.parquet") and "report scores --models" in Path("README.md").read_text()


def test_scores_of_no_task_make_no_study(tmp_path):
    (tmp_path / "scores.csv").write_text("model,benchmark,value\na,made_up,0.5\nb,made_up,0.6\n")
    with pytest.raises(InputError, match="none of the benchmarks is a task"):
        make_study(tmp_path / "mine", [tmp_path / "scores.csv"])
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize(
    "billions, expected", [(None, "small"), (0.1, "tiny"), (0.2, "small"), (3.9, "medium"), (7, "large"), (10, "huge")]
)
def test_size_classes_are_those_of_the_published_sheets(billions, expected):
    assert size_class(billions) == expected


def run_init(folder, monkeypatch, path: str, lacking: str = "") -> str:
    """What `init` prints where the shell looks for programs in `path` and Python finds no `lacking`."""
    find = importlib.util.find_spec
    monkeypatch.setattr("lm_validity.cli.study.find_spec", lambda name: None if name == lacking else find(name))
    monkeypatch.setenv("PATH", path)
    app = typer.Typer()
    app.command()(init)
    done = CliRunner().invoke(app, [str(folder)])
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def test_init_says_what_its_commands_lack(tmp_path, monkeypatch):
    """A plain install has no snakemake, and one that is called by its path has none for the shell."""
    said = run_init(tmp_path / "a", monkeypatch, str(tmp_path), "snakemake")
    assert "Not installed: snakemake" in said and "lm-validity[cells]" in said and "torch" not in said
    assert f'export PATH="{sysconfig.get_path("scripts")}:$PATH"' in run_init(
        tmp_path / "b", monkeypatch, str(tmp_path)
    )
    program = tmp_path / "snakemake"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    said = run_init(tmp_path / "c", monkeypatch, str(tmp_path))
    assert "export" not in said and "Not installed" not in said
