"""A run notices that what it was computed from is another thing now, whatever the times of its files say.

Change, run again, and compare with a fresh run's scores: data and code outside of the task's folder,
replaced with size and time kept, and a link to weights. All files are dated ahead, which Snakemake itself refuses.
"""

import contextlib
import os
import re
import shutil
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.workflow.conftest import Project
from tests.workflow.test_own_models import write_models, write_task

from lm_validity.config.load import load_run
from lm_validity.files import read_json
from lm_validity.run.workspace import Grid

YAML = """\
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{train: data/capitals_train.jsonl, test: data/{data}.jsonl}}}}
output_type: multiple_choice
training_split: train
test_split: test
{code}doc_to_text: "{{{{q if q is defined else country}}}}"
doc_to_choice: "{{{{options}}}}"
doc_to_target: "{{{{options.index(capital)}}}}"
metric_list: [{{metric: acc}}]
"""
MAPPED = "def _add(doc):\n    return {**doc, 'q': ask(doc)}\n\n\ndef prepare(docs):\n    return docs.map(_add)\n"
ASK = "def ask(doc):\n    return f'The capital of {doc[\"country\"]} is'\n"
CODE = {"outside": f"import sys\n\nsys.path.insert(0, 'common')\nfrom wording import ask\n\n\n{MAPPED}"}
BENCHMARKS = (*CODE, "data", "kept")
MODELS = {"link": "models/latest", "same": "models/same"}


def write_project(folder: Path) -> None:
    """A benchmark with code outside of its folder, one with data of its own, one that nobody changes; two models."""
    texts = write_task(folder / "data")
    write_models(folder / "models", texts)
    shutil.copytree(folder / "models/neox", folder / "models/same")
    (folder / "models/latest").symlink_to("neox")
    for name in BENCHMARKS:
        place, data = folder / "tasks" / name, "changing" if name == "data" else "capitals_test"
        place.mkdir(parents=True)
        code = "process_docs: !function utils.prepare\n" if name in CODE else ""
        (place / f"{name}.yaml").write_text(YAML.format(name=name, data=data, code=code))
        if code:
            (place / "utils.py").write_text(CODE[name])
    (folder / "common").mkdir()
    (folder / "common/wording.py").write_text(ASK)
    shutil.copy(folder / "data/capitals_test.jsonl", folder / "data/changing.jsonl")
    rows = "".join(f"{name}\t{path}\tminiature\tfloat32\n" for name, path in MODELS.items())
    (folder / "models.tsv").write_text(f"model\tpath\tsize_class\tdtype\n{rows}")
    rows = "".join(f"{name}\ttasks/{name}\n" for name in BENCHMARKS)
    (folder / "benchmarks.tsv").write_text(f"benchmark\tinclude_path\n{rows}")
    (folder / "my.yaml").write_text("name: mine\nmodels: models.tsv\nbenchmarks: benchmarks.tsv\n")
    ahead = time.time() + 10_000  # Snakemake itself refuses inputs from the future, and removes what was made of them
    for path in (path for path in folder.rglob("*") if path.is_file()):
        os.utime(path, (ahead, ahead))


def in_place(path: Path, old: str, new: str) -> None:
    """Another content of the same size under the same time, as `cp -p` and a restored backup leave it."""
    before, text = path.stat(), path.read_text()
    assert old in text and len(old) == len(new)
    path.write_text(text.replace(old, new))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def change(folder: Path) -> None:
    """Everything but the model `same` and the benchmark `kept`, each with its size and an old time."""
    in_place(folder / "common/wording.py", "The capital of", "One capital in")
    lines = (folder / "data/changing.jsonl").read_text().splitlines(keepends=True)
    in_place(folder / "data/changing.jsonl", lines[0] + lines[1], lines[1] + lines[0])
    (folder / "models/latest").unlink()
    (folder / "models/latest").symlink_to("qwen")


class Study(Project):
    """The direct scores of the study, with caches of its own."""

    def environment(self, **more: str) -> dict:
        return super().environment(HF_HOME=str(self.folder / "cache"), **more)

    def compute(self, *options: str) -> str:
        with contextlib.chdir(self.folder):
            grid = Grid(load_run("my.yaml"))
        manifests = [path for job in grid.jobs.values() for path in grid.manifests(job) if job.rule == "evaluate_model"]
        return self.snakemake("--configfile", "my.yaml", *options, "--", *manifests).stdout

    def record(self, folder: str) -> tuple[tuple[str, str, str], object]:
        """(model, benchmark, split) of a cell, by its folder in the store; and what it computed."""
        record = read_json(self.folder / "results/mine/store" / folder / "cell.json")
        return tuple(record["key"][name] for name in ("model", "benchmark", "split")), record["result"]

    def scores(self) -> dict[tuple[str, str, str], object]:
        """What each cell computed, by model, benchmark and split."""
        manifests = self.folder.glob("results/mine/cells/evaluate_model/*/*.json")
        return dict(self.record(row["folder"]) for manifest in manifests for row in read_json(manifest)["cells"])


@pytest.mark.timeout(1800)
def test_what_changed_is_computed_again_and_nothing_else(tmp_path):
    study = Study(tmp_path / "study")
    write_project(study.folder)
    study.compute()
    first, sidecars = study.scores(), study.sidecars("mine")
    assert len(first) == 2 * len(MODELS) * len(BENCHMARKS)
    assert "prefetch" not in study.compute("-n"), "nothing is to be done"
    change(study.folder)
    said = study.lm_validity("preflight", "--configfile", "my.yaml", "--fast", code=None).stdout
    named = set(re.findall(r"will be computed again: (?:model|benchmark) '(\w+)'", said))
    assert named == {"link", *CODE, "data"}
    assert set(re.findall(r"prefetch/changed/\w+/(\w+)\.json", study.compute("-n"))) == named
    study.compute()
    second = study.scores()
    fresh = Study(tmp_path / "fresh")
    own = shutil.ignore_patterns("results", ".snakemake", "cache")
    shutil.copytree(study.folder, fresh.folder, symlinks=True, dirs_exist_ok=True, ignore=own)
    fresh.compute()
    assert second == fresh.scores()
    of_data = {("same", "data", "test")}  # its validation documents are of the training file, which nobody changed
    changed = of_data | {key for key in first if key[0] == "link" or key[1] in CODE}
    assert {key for key in first if first[key] != second[key]} <= changed
    stored = Counter(study.record(folder)[0] for folder in study.sidecars("mine"))
    assert {key for key, folders in stored.items() if folders > 1} == changed
    assert sidecars.items() <= study.sidecars("mine").items(), "what was finished is not computed again"
    assert "prefetch" not in study.compute("-n")
