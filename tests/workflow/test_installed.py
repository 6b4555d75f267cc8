"""The built wheel without the repository: a study's folder from it, in which the workflow runs."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tests.workflow.conftest import BIN, ROOT, Project
from tests.workflow.test_dry_run import jobs

MADE_UP = Path(__file__).with_name("replay")
WHERE = "import lm_validity; print(lm_validity.__file__)"
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "src", "workflow", "config", "profiles", "envs")


class Installed(Project):
    """A study made by the unpacked wheel; other packages are this environment's."""

    front = ""  # the commands that start warm are the repository's

    def __init__(self, folder: Path, package: Path):
        self.folder, self.package = folder, package

    def environment(self, **more: str) -> dict:
        return super().environment(PYTHONPATH=str(self.package), **more)

    def snakemake_command(self, *arguments: str) -> tuple[str, ...]:
        return ("snakemake", *arguments)


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Installed:
    pytest.importorskip("setuptools", reason="setuptools, which builds the wheel, is not installed")
    folder = tmp_path_factory.mktemp("installed")
    (folder / "sources").mkdir()  # building writes into the sources
    subprocess.run(("cp", "--archive", *SOURCES, str(folder / "sources")), cwd=ROOT, check=True)
    command = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder))
    subprocess.run((*command, str(folder / "sources")), check=True, capture_output=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(folder / "package")
    shutil.rmtree(folder / "sources")
    Installed(folder, folder / "package").lm_validity("init", "my-study")
    return Installed(folder / "my-study", folder / "package")


def test_every_file_of_the_workflow_and_of_the_package_is_in_the_wheel(study):
    package, sources = study.package / "lm_validity", ROOT / "src/lm_validity"
    names = ("workflow/Snakefile", "workflow/rules", "workflow/report", "config", "profiles", "envs")
    shipped = [path for name in names for path in (ROOT / name, *(ROOT / name).rglob("*")) if path.is_file()]
    for path in shipped:
        assert (package / "shipped" / path.relative_to(ROOT)).read_bytes() == path.read_bytes()
    assert not any(path.is_symlink() for path in (package / "shipped").rglob("*"))
    own = [path for path in sources.rglob("*") if path.is_file() and not {"shipped", "__pycache__"} & {*path.parts}]
    assert {path.suffix for path in own} > {".py", ".tsv", ".css", ".j2"}
    assert [path for path in own if not (package / path.relative_to(sources)).is_file()] == []


def test_a_table_has_its_pages(study, tmp_path):
    """The first command of README, with what the wheel holds: the list of lm-eval's tasks, templates and styles."""
    rows = [f"m{model},{task},acc,{model / 10}" for model in range(1, 6) for task in ("arc_challenge", "hellaswag")]
    (tmp_path / "scores.csv").write_text("\n".join(["model,benchmark,metric,value", *rows]) + "\n")
    study.lm_validity("report", str(tmp_path / "scores.csv"), "--output", str(tmp_path / "site"))
    assert "m5" in (tmp_path / "site/index.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_workflow_is_the_wheels(study):
    assert study.run(sys.executable, "-c", WHERE).stdout.startswith(str(study.package))
    done = study.snakemake("-n", "--verbose")
    # the commands may be installed in the repository's .venv
    assert str(ROOT) not in (done.stdout + done.stderr).replace(str(BIN), "")


DRY_RUNS = [
    ((), {"prefetch_model": 8, "prefetch_benchmark": 8}),
    (("--configfile", "config/config.yaml"), {"make_world": 1, "report_bias": 1}),
    (("--profile", "slurm"), {"prefetch_model": 8}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "expected"), DRY_RUNS, ids=["study", "demo", "slurm"])
def test_dry_runs(study, arguments, expected):
    command = ("snakemake", "-n", "--quiet", "rules", *(("--cores", "2") if "slurm" not in arguments else ()))
    assert expected.items() <= jobs(study.run(*command, *arguments).stdout).items()
    assert not (study.folder / "results").exists()


@pytest.mark.slow
def test_a_cell_is_computed(study):
    """Served scores: the rules, the command line and the store, without a model."""
    shutil.copytree(MADE_UP, study.folder / "replay")
    cell = "results/replay/cells/evaluate_model/oak-s/all-benchmarks.final.plain.test.json"
    study.snakemake(cell, "--configfile", "replay/replay.yaml")
    assert (study.folder / cell).is_file() and (study.folder / "results/replay/configuration.json").is_file()
