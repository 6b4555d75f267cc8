"""The workflow at the size of the published grid: parse, dry run, no-op run, status and cost, against their limits.

    python benchmarks/workflow_scale.py --output FILE [--folder FOLDER] [--models N]

61 models x 24 benchmarks x 3 rates x 3 seeds, one cell per job (29,760 jobs with cells, 31,800 cells), under
profiles/local. The finished tree is built by a replay of random scores, so its manifests, store and tables are real
ones; Snakemake's own records of every job, which a run of 29,760 processes would leave, are written by Snakemake's code
without running them. The baseline of each record is a limit, its ratio the limit over what was measured. A dry run that
shows fewer jobs than it should, or a built tree in which anything is left to do, ends the measurement. `--models` takes
the first N models only, to try the script.
"""

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from _measure import write_records

from lm_validity.files import write_json

ROOT = Path(__file__).resolve().parents[1]
PARSES = 5
# seconds from the first line of the Snakefile to the last, Snakemake's own start left out
PARSE = """
import sys, time
from snakemake.cli import main
from snakemake.workflow import Workflow
original, depth = Workflow.include, []
def include(self, *arguments, **options):
    started = time.perf_counter()
    depth.append(0)
    try:
        return original(self, *arguments, **options)
    finally:
        depth.pop()
        if not depth:
            print("parsed in", time.perf_counter() - started, file=sys.stderr)
Workflow.include = include
sys.argv = ["snakemake", *sys.argv[1:]]
main()
"""
# Snakemake's record of every job with an output, as when the job has just finished; how many
RECORD = """
import sys
from snakemake.cli import main
from snakemake.dag import DAG
original = DAG.postprocess
async def postprocess(self, *arguments, **options):
    await original(self, *arguments, **options)
    jobs = [job for job in self.jobs if job.output]
    for job in jobs:
        await self.workflow.persistence.finished(job)
    print("recorded", len(jobs), "jobs", flush=True)
DAG.postprocess = postprocess
sys.argv = ["snakemake", *sys.argv[1:]]
main()
"""
# builds every cell of a configuration, in the order in which cells stand on each other
BUILD = """
import sys
from lm_validity.cells.runner import replayed_benchmark, replayed_model, run_job
from lm_validity.cells.tasks.splits import write_splits
from lm_validity.config.load import load_run
from lm_validity.files import write_json
from lm_validity.run.workspace import Workspace
run = load_run(sys.argv[1])
for row in run.models.values():
    write_json(run.results / "prefetch" / "models" / f"{row.model}.json", replayed_model(run, row))
workspace = Workspace(run)
for row in run.benchmarks.values():
    write_json(run.results / "prefetch" / "benchmarks" / f"{row.benchmark}.json", replayed_benchmark(run, row))
    write_splits(workspace, row.benchmark)
workspace = Workspace(run)
for rule in ("evaluate_model", "finetune_adapter", "select_prompt", "select_adapter", "evaluate_adapter"):
    for job in workspace.grid.jobs.values():
        if job.rule == rule:
            run_job(workspace, job)
"""


class Place:
    """A working directory with the configuration of the published grid and random scores for it."""

    def __init__(self, folder: Path, models: int | None):
        self.folder = folder.resolve()
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(ROOT / "config", self.folder / "config")
        sheet = self.folder / "config/paper/train_before_test_models.tsv"
        lines = sheet.read_text(encoding="utf-8").splitlines()
        sheet.write_text("\n".join(lines[: models + 1 if models else None]) + "\n", encoding="utf-8")
        settings = (ROOT / "config/paper/train_before_test.yaml").read_text(encoding="utf-8")
        settings = settings.replace("name: train_before_test", "name: scale")
        (self.folder / "scale.yaml").write_text(
            f"{settings}reports: {{ resamples: 0 }}\nreplay: {{ scores: scores.json }}\n", encoding="utf-8"
        )
        # as a user's own configuration, which leaves `batching` out
        batched = re.sub(r"\nbatching:(\n  .*)*", "", settings)
        (self.folder / "batched.yaml").write_text(batched, encoding="utf-8")
        self.write_scores([line.split("\t")[1] for line in sheet.read_text(encoding="utf-8").splitlines()[1:]])

    def write_scores(self, models: list[str]) -> None:
        """The authors' layout; preparation always helps."""
        rng = random.Random(0)
        sheet = self.folder / "config/paper/train_before_test_benchmarks.tsv"
        names = [line.split("\t")[0] for line in sheet.read_text(encoding="utf-8").splitlines()[1:]]
        direct = {name: {model: rng.uniform(0.2, 0.5) for model in models} for name in names}
        prepared = {name: {model: value + 0.3 for model, value in row.items()} for name, row in direct.items()}
        write_json(self.folder / "scores.json", {"direct_eval": direct, "train_before_test": prepared})

    def run(self, name: str, *command: str) -> tuple[float, float, float]:
        """Wall seconds, processor seconds and MB of a command; its output is in <name>.log."""
        environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
        started = time.perf_counter()
        with open(self.folder / f"{name}.log", "w") as log:
            child = subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log, stderr=subprocess.STDOUT)
            _, child.returncode, used = os.wait4(child.pid, 0)
        if child.returncode:
            raise SystemExit(f"Error: {name} failed. Hint: {self.folder / name}.log has its output.")
        found = time.perf_counter() - started, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
        print(f"{name}: {found[0]:.1f} s, {found[1]:.1f} CPU s, {found[2]:.0f} MB", flush=True)
        return found

    def snakemake(self, name: str, *arguments: str, configfile: str = "scale.yaml") -> tuple[float, float, float]:
        """The same for Snakemake on this project, with the profile a user has."""
        return self.run(name, "snakemake", *snakemake_arguments(*arguments, configfile=configfile))

    def log(self, name: str) -> str:
        """What a command printed."""
        return (self.folder / f"{name}.log").read_text(encoding="utf-8")


def snakemake_arguments(*arguments: str, configfile: str) -> tuple[str, ...]:
    """What follows `snakemake` on every command line here."""
    project = ("--snakefile", str(ROOT / "Snakefile"), "--profile", str(ROOT / "profiles/local"))
    return (*project, "--cores", "1", "--quiet", "rules", *arguments, "--configfile", configfile)


def parse_seconds(place: Place) -> list[float]:
    """Seconds that parsing the Snakefile takes, several times."""
    found = []
    for number in range(PARSES):
        name = f"parse{number}"
        arguments = snakemake_arguments("--list-rules", configfile="scale.yaml")
        place.run(name, sys.executable, "-c", PARSE, *arguments)
        found.append(float(place.log(name).split("parsed in ")[1].split()[0]))
    return found


def planned_jobs(place: Place, name: str, at_least: int) -> int:
    """Jobs that a dry run wants to run; ends the measurement where they are too few to be the grid."""
    count = int(re.search(r"^total\s+(\d+)$", place.log(name), re.MULTILINE)[1])
    if count < at_least:
        raise SystemExit(f"Error: {name}: {count} jobs, expected at least {at_least}; no time is given.")
    return count


def nothing_to_do(place: Place, name: str) -> None:
    """Ends the measurement where a built tree is not wholly built, or Snakemake's records of it are not whole."""
    log = place.log(name)
    if "Nothing to be done" not in log or "missing provenance" in log:
        raise SystemExit(f"Error: {name}: something is left to do; no time is given. Hint: {place.folder / name}.log.")


def record(name: str, limit: float, found: list[float], detail: str, unit: str = "seconds") -> dict:
    """A limit over what was measured (seconds, MB)."""
    middle, short = sorted(found)[len(found) // 2], {"seconds": "s"}.get(unit, unit)
    return {
        "name": name,
        "baseline": f"the limit of {limit:g} {short}",
        "ratio": limit / middle,
        "ratio_low": limit / max(found),
        "ratio_high": limit / min(found),
        "target": 1.0,
        "unit": unit,
        "agreement": None,
        "device": f"cpu, one of {os.cpu_count()} cores",
        "detail": f"{middle:.3g} {short}; {detail}",
    }


def main() -> None:
    """Measure and write the records."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True)
    parser.add_argument("--folder", default="results/benchmark/scale", type=Path)
    parser.add_argument("--models", type=int)
    options = parser.parse_args()
    place = Place(options.folder, options.models)
    number = options.models or 61
    size = f"{number} models x 24 benchmarks x 3 rates x 3 seeds"
    parses = parse_seconds(place)
    fresh = place.snakemake("fresh", "-n", configfile="config/paper/train_before_test.yaml")
    jobs = planned_jobs(place, "fresh", 28_000 if number == 61 else 400 * number)
    batched = place.snakemake("batched", "-n", configfile="batched.yaml")
    few = planned_jobs(place, "batched", number)
    build = place.run("build", sys.executable, "-c", BUILD, "scale.yaml")
    reports = place.snakemake("reports")
    place.run("record", sys.executable, "-c", RECORD, *snakemake_arguments("-n", configfile="scale.yaml"))
    recorded = int(re.search(r"^recorded (\d+) jobs$", place.log("record"), re.MULTILINE)[1])
    if recorded < jobs - 1:  # `all` has no output
        raise SystemExit(f"Error: {recorded} of {jobs} jobs are built; no time is given.")
    built = place.snakemake("built", "-n")
    nothing = place.snakemake("nothing")
    nothing_to_do(place, "built")
    nothing_to_do(place, "nothing")
    status = place.run("status", "lm-validity", "status", "--configfile", "scale.yaml", "--html", "status.html")
    cost = place.run("cost", "lm-validity", "cost", "--configfile", "scale.yaml")
    times = (
        ("dry_run_fresh", 60, fresh, f"{jobs} jobs, nothing built"),
        ("dry_run_built", 60, built, f"{recorded} jobs, everything built"),
        ("no_op_run", 60, nothing, f"{recorded} jobs, everything built"),
        ("dry_run_batching_auto", 60, batched, f"{few} jobs, nothing built, `batching: auto`"),
        ("status", 5, status, "with the page; everything built"),
        ("cost", 5, cost, "everything built"),
        ("finish_the_built_cells", 600, reports, "check, merge, reports and site after the cells"),
        ("build_by_replay", 600, build, "every cell committed by one process"),
    )
    records = [record("parse_snakefile", 1, parses, f"median of {PARSES}")]
    for name, limit, (wall, cpu, memory), detail in times:
        records.append(
            record(name, limit, [wall], f"{cpu:.1f} CPU s, largest process {memory:.0f} MB; {detail}; {size}")
        )
    for name, (_, _, memory) in (("dry_run_fresh", fresh), ("dry_run_built", built), ("no_op_run", nothing)):
        records.append(record(f"{name}_memory", 1000, [memory], f"largest process; {jobs} jobs; {size}", "MB"))
    write_records(options.output, records)
    shutil.rmtree(place.folder)


if __name__ == "__main__":
    main()
