"""`lm-validity init`: what is in a new study's folder, and that it is a study."""

import importlib.util
import os
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from lm_validity.cli.study import init
from lm_validity.config.load import load_run
from lm_validity.errors import InputError
from lm_validity.template.folder import make_study


def call_init(folder: str) -> str:
    app = typer.Typer()
    app.command()(init)
    done = CliRunner().invoke(app, [folder])
    assert done.exit_code == 0, done.output
    return done.output


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


@pytest.mark.parametrize("name", ["2026-11-23", "on"])
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
    call_init(".")
    assert load_run("study.yaml").name == "here" and here.stat().st_ino == before
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def test_init_says_what_its_commands_lack(tmp_path, monkeypatch):
    """A plain install has no snakemake, and one that is called by its path has none for the shell."""
    find = importlib.util.find_spec
    monkeypatch.setattr("lm_validity.cli.study.find_spec", lambda name: None if name == "snakemake" else find(name))
    monkeypatch.setenv("PATH", str(tmp_path))
    said = " ".join(call_init(str(tmp_path / "a")).split())
    assert "Not installed: snakemake" in said and "lm-validity[cells]" in said and "torch" not in said
