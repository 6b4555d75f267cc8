"""`benchmarks/run.py`: gathers what the measurements write, and says which failed."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / "benchmarks" / "run.py"
RECORD = {
    "name": "scoring",
    "baseline": "loop",
    "ratio": 4.0,
    "ratio_low": 3.5,
    "ratio_high": 4.5,
    "target": None,
    "unit": "CPU seconds",
    "agreement": 0.0,
    "device": "cpu",
    "detail": {},
}


def script(records) -> str:
    return f"import json, sys\njson.dump({records!r}, open(sys.argv[sys.argv.index('--output') + 1], 'w'))\n"


@pytest.fixture
def run(tmp_path):
    """Runs a copy of run.py beside the given measurements; returns the process and the summary."""

    def with_measurements(scripts: dict[str, str], *arguments: str):
        folder = tmp_path / "benchmarks"
        folder.mkdir(exist_ok=True)
        for name in ("run.py", "_measure.py"):
            shutil.copy(RUN.with_name(name), folder)
        for name, text in scripts.items():
            (folder / f"{name}.py").write_text(text, encoding="utf-8")
        process = subprocess.run(
            [sys.executable, str(folder / "run.py"), *arguments], cwd=tmp_path, capture_output=True, text=True
        )
        summary = tmp_path / "results" / "benchmark" / "summary.json"
        return process, json.loads(summary.read_text()) if summary.exists() else None

    return with_measurements


def test_records_of_all_measurements_are_gathered_in_order(run):
    process, summary = run({"b": script([RECORD | {"name": "second"}]), "a": script([RECORD, RECORD])})
    assert process.returncode == 0, process.stderr
    assert [record["name"] for record in summary] == ["scoring", "scoring", "second"]
    assert "second: 4.00 times loop (3.50 to 4.50)" in process.stdout


def test_a_failed_measurement_is_named_and_the_others_stay(run):
    incomplete = {key: value for key, value in RECORD.items() if key != "ratio_low"}
    scripts = {"good": script([RECORD]), "broken": "raise SystemExit(3)", "incomplete": script([incomplete])}
    process, summary = run(scripts)
    assert process.returncode == 1
    assert "failed: broken, incomplete." in process.stderr
    assert [record["name"] for record in summary] == ["scoring"]


def test_one_measurement_by_name(run):
    scripts = {"good": script([RECORD]), "broken": "raise SystemExit(3)"}
    process, summary = run(scripts, "good")
    assert process.returncode == 0 and len(summary) == 1
    process, _ = run(scripts, "goood")
    assert process.returncode == 1 and "there are broken, good." in process.stderr


def test_the_page_holds_what_was_measured_last(run, tmp_path):
    page = tmp_path / "docs" / "explanation" / "lab_record.md"
    page.parent.mkdir(parents=True)
    page.write_text("above\n<!-- measured: begin -->\nold\n<!-- measured: end -->\nbelow\n")
    slower = RECORD | {"name": "slower", "ratio": 0.8, "ratio_low": 0.7, "ratio_high": 0.9, "machine": "a laptop"}
    run({"a": script([RECORD]), "b": script([slower])})
    text = page.read_text()
    assert text.startswith("above\n") and text.endswith("below\n") and "old" not in text
    assert "| slower | loop | **0.80** | 0.70 to 0.90 | – | 0 |" in text, "ratios below 1 are printed"
    assert "- `b`: measured in the run of all begun 20" in text and "a laptop." in text
    process, _ = run({}, "a")
    assert process.returncode == 0 and page.read_text() == text, "one measurement does not replace the page"


def test_what_writes_no_records_is_no_measurement():
    process = subprocess.run([sys.executable, str(RUN), "goood"], capture_output=True, text=True)
    named = process.stderr.partition("there are ")[2].strip(" .\n").split(", ")
    assert [name for name in named if "write_records" not in RUN.with_name(f"{name}.py").read_text()] == []


DIFFERENT = """
import sys
from pathlib import Path
from _measure import Cost, compare, write_records
sides = [Cost(4, 4)], [Cost(1, 1)]
options = {"target": None, "agreement": 0.5, "tolerance": 0.1, "detail": ""}
write_records(Path(sys.argv[2]), [compare("work", "loop", *sides, **options)])
"""


def test_no_ratio_reaches_summary_or_page_where_scores_differ(run, tmp_path):
    page = tmp_path / "docs" / "explanation" / "lab_record.md"
    page.parent.mkdir(parents=True)
    page.write_text("<!-- measured: begin -->\n<!-- measured: end -->\n")
    process, summary = run({"different": DIFFERENT, "good": script([RECORD]), "nothing": script([])})
    assert process.returncode == 1 and "no ratio is given" in process.stderr
    assert [record["measurement"] for record in summary] == ["good"]
    text = page.read_text()
    assert "| work |" in text.splitlines()[2] and text.count("| loop |") == 1
    assert "Failed, so without a row: `different`." in text
    assert "Not measured on this machine: `nothing`." in text
    same, summary = run({"different": DIFFERENT.replace("0.5", "0.05")})
    assert same.returncode == 0, same.stderr
    found = {record["measurement"]: record for record in summary}["different"]
    assert found["ratio"] == 4 and found["machine"] and found["rounds"]["ours"] == [{"cpu": 1, "wall": 1}]
