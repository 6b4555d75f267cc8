"""The golden master: everything that two trees of this project compute, held against each other.

    python tests/golden/golden_master.py check [COMMIT] [--values] [--fast]

`check` is the one to use: it records a commit (HEAD) and the tree at hand, compares them, and exits 1 where they
differ. Records lie in `build/golden/`; a commit's is kept and made once. In parts:

    python tests/golden/golden_master.py record OUTPUT [--tree TREE] [--fast]
    python tests/golden/golden_master.py compare OLD NEW [--values]

`record` copies a tree and keeps what it writes under OUTPUT: the runs of `config/test.yaml` and
`config/test_bias.yaml`; of the first also its items, a comparison of its models, `report FOLDER` and partial reports
with cells missing; the six reports on the published tables; agreement and factors on parts of these (`_parts`).
`compare` lists the differences:

- by default every byte: names of store folders (recipe hashes), cells, parquet, JSON, CSV, SVG;
- with `--values` parsed values: numbers to 1e-9, `notes` and prose left out, pictures and pages left out.

Two records of one tree are equal, since every random number has a seed. On two cores a record takes about 7 minutes,
with --fast 4. The page "What was computed" and the pages of the site that holds it tell seconds and are never compared;
cards are.

PDF files hold the time of writing and are never compared. Record both trees on one machine: processors differ in the
last digits of trained weights.
"""

import argparse
import csv
import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUNS = {"test": "config/test.yaml", "test_bias": "config/test_bias.yaml"}
TOLERANCE = 1e-9
TELL_SECONDS = {Path("reports/computation"), Path("report")}  # of a run
CARDS = Path("report/cards")
FORGOTTEN = "evaluate_adapter/*"  # the cells that the partial reports of config/test.yaml do without
PROSE = {"notes", "reason", "note", "findings"}
RESAMPLES, FEW = "200", "60"


def record(tree: Path, output: Path, fast: bool) -> None:
    """Run the workflow (`fast`: config/test.yaml only) and the reports of a tree; keep the results under `output`."""
    work = output / "work"
    shutil.rmtree(output, ignore_errors=True)
    for folder in ("src", "workflow", "config", "profiles", "envs"):
        shutil.copytree(tree / folder, work / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(tree / "Snakefile", work)
    for name, configuration in RUNS.items():
        if not fast or name == "test":
            _run(work, "snakemake", "--profile", "profiles/local", "--cores", "2", "--configfile", configuration)
            _keep(work / "results" / name, output / name)
    _record_test_run(work, output.resolve())
    _record_published(work, output.resolve() / "published", ROOT.parent / "shared" / "published")
    shutil.rmtree(work)


def _run(work: Path, *command: str) -> None:
    source = f"{work.resolve() / 'src'}"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PYTHONPATH": source, "PATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")


def _keep(results: Path, output: Path) -> None:
    """The tables and reports of a run, and a list of its cells with the digest of each."""
    for folder in ("tables", "reports", "report"):
        shutil.copytree(results / folder, output / folder)
    cells = {}
    for path in sorted(results.glob("store/*/*/*/sha256.json")):
        cells[path.parent.relative_to(results / "store").as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()
    (output / "cells.json").write_text(json.dumps(cells, indent=1))


def _record_test_run(work: Path, output: Path) -> None:
    """The run of config/test.yaml as items, as tables that `report` is given, and with cells missing."""
    run, tables = work / "results" / "test", work / "results" / "test" / "tables"
    items = ("--scores", f"{tables}/scores.parquet", "--items", f"{tables}/items.parquet")
    _run(work, "lm-validity", "report", "items", *items, "--output", f"{output / 'items'}")
    models = [row.split("\t")[0] for row in (work / "config/test_models.tsv").read_text().splitlines()[1:]]
    _run(work, "lm-validity", "compare", *models, *items, "--at", "final", "--output", f"{output / 'compared'}")
    _run(work, "lm-validity", "report", f"{tables}", "--output", f"{output / 'site'}")
    _run(work, "lm-validity", "forget", FORGOTTEN, "--configfile", RUNS["test"])
    _run(work, "lm-validity", "partial-reports", "--configfile", RUNS["test"])
    shutil.copytree(run / "partial", output / "partial")


def _record_published(work: Path, output: Path, published: Path) -> None:
    """Imports of the published tables and the reports on them; without bootstrap where that takes long."""
    if not published.is_dir():
        print(f"SKIPPED: no published tables in {published}", file=sys.stderr)
        return
    harmony, curves, trials = (output / name for name in ("train_before_test", "early_training", "pretrain_on_test"))
    of_harmony = published / "train_before_test"
    _run(work, "lm-validity", "import", "lm-harmony", f"{of_harmony}/scores.json", "--output", f"{harmony}")
    of_curves = published / "early_training"
    _run(work, "lm-validity", "import", "e2lm", f"{of_curves}/curves.csv", "--output", f"{curves}")
    of_trials = published / "pretrain_on_test" / "accuracies.csv.gz"
    _run(work, "lm-validity", "import", "pretrain-on-test", f"{of_trials}", "--output", f"{trials}")
    sheets = ("--models", f"{of_harmony}/models.csv", "--benchmarks", f"{of_harmony}/benchmarks.csv")
    for name in ("agreement", "factors"):
        report = ("lm-validity", "report", name, "--scores", f"{harmony}/scores.parquet", *sheets)
        _run(work, *report, "--resamples", RESAMPLES, "--output", f"{harmony / name}")
    for name, options in (("readiness", ("--group", "instruction_tuned")), ("screening", ())):
        report = ("lm-validity", "report", name, "--scores", f"{harmony}/scores.parquet", *sheets)
        _run(work, *report, *options, "--output", f"{harmony / name}")
    for part, rows, plan in _parts(harmony / "scores.parquet", of_harmony / "models.csv", work):
        for name in ("agreement", "factors"):
            report = ("lm-validity", "report", name, "--scores", f"{rows}", *sheets, *plan)
            _run(work, *report, "--resamples", FEW, "--output", f"{output / part / name}")
    report = ("lm-validity", "report", "signal", "--scores", f"{curves}/scores.parquet")
    models = ("--models", f"{of_curves}/models.csv", "--selection", "e2lm")
    _run(work, *report, *models, "--resamples", RESAMPLES, "--output", f"{curves / 'signal'}")
    _run(
        work, "lm-validity", "report", "bias", "--trials", f"{trials}/trials.parquet", "--output", f"{trials / 'bias'}"
    )


def _parts(scores: Path, models: Path, work: Path) -> Iterator[tuple[str, Path, tuple[str, ...]]]:
    """Parts of the published scores, each with its name, its table and the options of the report.

    One protocol only, two families, three models fine-tuned so far, and a planned table: fewer than half of the
    fine-tunes, which are every third cell and a block of four models.
    """
    import pandas as pd

    table = pd.read_parquet(scores)
    families = pd.read_csv(models).set_index("model_id")["family"]
    trained = table["protocol"] == "train_before_test"
    ids, tasks = sorted(set(table["model"])), sorted(set(table["benchmark"]))
    model, task = table["model"].map(ids.index), table["benchmark"].map(tasks.index)
    planned = ((model + task) % 3 == 0) | (model < 4)
    sheet = work / "plan.tsv"
    table.loc[trained & planned, ["model", "benchmark"]].drop_duplicates().to_csv(sheet, sep="\t", index=False)
    for name, kept, options in (
        ("one_protocol", ~trained, ()),
        ("two_families", table["model"].map(families).isin(families.value_counts().index[:2]), ()),
        ("three_trained", ~trained | (model < 3), ()),
        ("planned", ~trained | planned, ("--plan", f"{sheet}")),
    ):
        path = work / f"{name}.parquet"
        table[kept].to_parquet(path)
        yield name, path, options


def check(commit: str, values: bool, fast: bool) -> list[str]:
    """Record a commit, unless that was done before, and the tree at hand; every difference between the two."""
    sha = subprocess.check_output(["git", "rev-parse", "--short", commit], cwd=ROOT, text=True).strip()
    kept = ROOT / "build" / "golden"
    old, new, here = kept / (f"{sha}_fast" if fast else sha), kept / "tree", kept / "now"  # one path, which pages name
    if not old.is_dir():
        with tempfile.TemporaryDirectory() as folder:
            archive = subprocess.check_output(["git", "archive", sha], cwd=ROOT)
            subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
            record(Path(folder), here, fast)
        here.rename(old)
    record(ROOT, here, fast)
    shutil.rmtree(new, ignore_errors=True)
    here.rename(new)
    return compare(old, new, values)


def compare(old: Path, new: Path, values: bool) -> list[str]:
    """Every difference between two records, a line each."""
    kinds = (".parquet", ".json", ".csv") if values else (".parquet", ".json", ".csv", ".svg", ".html")
    left, right = ({p.relative_to(r): p for p in sorted(r.rglob("*")) if p.suffix in kinds} for r in (old, new))
    left, right = ({n: p for n, p in side.items() if not _tells_seconds(n)} for side in (left, right))
    if values:
        left, right = ({n: p for n, p in side.items() if _holds_values(n)} for side in (left, right))
    found = [f"only in {old}: {name}" for name in left if name not in right]
    found += [f"only in {new}: {name}" for name in right if name not in left]
    for name in left:
        if name in right and left[name].read_bytes() != right[name].read_bytes():
            found += _different_values(name, left[name], right[name]) if values else [f"differs: {name}"]
    return found


def _tells_seconds(name: Path) -> bool:
    inner = Path(*name.parts[1:])
    return any(inner.is_relative_to(folder) for folder in TELL_SECONDS) and not inner.is_relative_to(CARDS)


def _holds_values(name: Path) -> bool:
    """Whether a file is data rather than a page, the specification of a picture, or a list of files' digests."""
    return name.name not in ("page.json", "lm-validity.json") and not name.name.endswith(".vl.json")


def _different_values(name: Path, left: Path, right: Path) -> Iterator[str]:
    for where, one, other in differences(_parse(left), _parse(right)):
        yield f"{name}: {where}: {one!r} -> {other!r}"


def _parse(path: Path):
    if path.suffix == ".json":
        return json.loads(path.read_text(encoding="utf-8"))
    if path.suffix == ".csv":
        with open(path, encoding="utf-8", newline="") as handle:
            return [{key: _number(value) for key, value in row.items()} for row in csv.DictReader(handle)]
    import pyarrow.parquet as pq

    return pq.read_table(path).to_pylist()


def _number(text: str):
    try:
        return float(text)
    except (TypeError, ValueError):
        return text


def differences(old, new, where: str = "") -> Iterator[tuple[str, object, object]]:
    """(place, old, new) of every value that differs. Keys that only `new` has are no difference: summaries grow."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key, value in old.items():
            if key in PROSE:
                continue
            if key not in new:
                yield f"{where}.{key}", value, "no such key"
            else:
                yield from differences(value, new[key], f"{where}.{key}")
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield where, f"{len(old)} values", f"{len(new)} values"
        for index, (one, other) in enumerate(zip(old, new, strict=False)):
            yield from differences(one, other, f"{where}[{index}]")
    elif not equal(old, new):
        yield where, old, new


def equal(old, new) -> bool:
    """Equal, numbers up to the tolerance (relative above 1, absolute below)."""
    numbers = [isinstance(value, int | float) and not isinstance(value, bool) for value in (old, new)]
    if all(numbers):
        return (math.isnan(old) and math.isnan(new)) or math.isclose(old, new, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return old == new


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    checker = commands.add_parser("check")
    checker.add_argument("commit", nargs="?", default="HEAD")
    recorder = commands.add_parser("record")
    recorder.add_argument("output", type=Path)
    recorder.add_argument("--tree", type=Path, default=ROOT)
    comparer = commands.add_parser("compare")
    comparer.add_argument("old", type=Path)
    comparer.add_argument("new", type=Path)
    for command in (checker, recorder):
        command.add_argument("--fast", action="store_true", help="config/test.yaml only, no run of the bias study")
    for command in (checker, comparer):
        command.add_argument("--values", action="store_true", help="parsed values to 1e-9, without prose")
    chosen = parser.parse_args()
    if chosen.command == "record":
        record(chosen.tree, chosen.output, chosen.fast)
        return
    if chosen.command == "check":
        found = check(chosen.commit, chosen.values, chosen.fast)
    else:
        found = compare(chosen.old, chosen.new, chosen.values)
    print(*found, f"{len(found)} differences" if found else "equal", sep="\n")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
