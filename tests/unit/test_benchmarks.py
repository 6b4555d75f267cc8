"""`benchmarks/`: a ratio only where both sides computed the same; `run.py` gathers records and says what failed."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(FOLDER))

from _measure import Cost, compare, interleave, write_records  # noqa: E402


def record(agreement: float = 0.0) -> dict:
    theirs, ours = [Cost(4, 8), Cost(6, 12), Cost(9, 9)], [Cost(2, 2), Cost(2, 4), Cost(3, 3)]
    options = {"target": 2.0, "agreement": agreement, "tolerance": 1e-4, "detail": "toy"}
    return compare("work", "loop", theirs, ours, **options)


def test_the_ratio_is_the_median_of_the_rounds_in_which_sides_take_turns():
    found = record()
    assert (found["ratio"], found["ratio_low"], found["ratio_high"]) == (3.0, 2.0, 3.0)
    assert "6.00 against 2.00 CPU-s, 3 rounds; on the clock 3.00 times" in found["detail"]
    seen = []
    costs, results = interleave({"a": lambda: seen.append("a") or 1, "b": lambda: seen.append("b") or 2}, 3)
    assert seen == ["a", "b"] * 3 and results == {"a": 1, "b": 2}
    assert len(costs["a"]) == len(costs["b"]) == 3


@pytest.mark.parametrize("agreement", [2e-4, float("inf"), float("nan")])
def test_no_ratio_where_scores_differ(agreement):
    with pytest.raises(SystemExit, match=r"scores differ by .* no ratio is given"):
        record(agreement)


def test_rounds_of_an_unfinished_measurement_are_not_its_result(tmp_path):
    for finished, name in ((False, "work.partial.json"), (True, "work.json")):
        write_records(tmp_path / "work.json", [record()], finished=finished)
        assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.fixture
def run(tmp_path):
    """Runs a copy of run.py beside measurements that write these records (None: that fail); the process and summary."""
    page = tmp_path / "docs" / "explanation" / "lab_record.md"
    page.parent.mkdir(parents=True)
    page.write_text("above\n<!-- measured: begin -->\nold\n<!-- measured: end -->\nbelow\n")

    def with_measurements(found: dict[str, list[dict] | None], *arguments: str):
        folder = tmp_path / "benchmarks"
        folder.mkdir()
        for name in ("run.py", "_measure.py"):
            shutil.copy(FOLDER / name, folder)
        for name, records in found.items():
            text = f"json.dump({records!r}, open(sys.argv[sys.argv.index('--output') + 1], 'w'))"
            (folder / f"{name}.py").write_text(
                "raise SystemExit(3)" if records is None else f"import json, sys\n{text}\n"
            )
        command = [sys.executable, str(folder / "run.py"), *arguments]
        process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        summary = tmp_path / "results" / "benchmark" / "summary.json"
        return process, json.loads(summary.read_text()) if summary.exists() else None, page.read_text()

    return with_measurements


def test_records_are_gathered_and_what_failed_is_named(run):
    slower = record() | {"name": "slower", "ratio": 0.8, "machine": "a laptop"}
    incomplete = {key: value for key, value in record().items() if key != "ratio_low"}
    process, summary, text = run({"b": [slower], "a": [record()], "broken": None, "less": [incomplete], "none": []})
    assert process.returncode == 1 and "failed: broken, less." in process.stderr
    assert [(one["measurement"], one["ratio"]) for one in summary] == [("a", 3), ("b", 0.8)]
    assert "work: 3.00 times loop (2.00 to 3.00, target 2)" in process.stdout
    assert text.startswith("above\n") and text.endswith("below\n") and "old" not in text
    assert "| slower | loop | **0.80** | 2.00 to 3.00 | 2 | 0 |" in text, "ratios below 1 are printed"
    assert "- `b`: measured in the run of all begun 20" in text and "a laptop." in text
    assert "Failed, so without a row: `broken`, `less`." in text and "Not measured on this machine: `none`." in text


@pytest.mark.parametrize(("name", "code"), [("good", 0), ("goood", 1)])
def test_one_measurement_by_name_leaves_the_page_alone(run, name, code):
    process, summary, text = run({"good": [record()], "broken": None}, name)
    assert process.returncode == code and "\nold\n" in text
    assert len(summary or []) == 1 - code and ("there are broken, good." in process.stderr) == bool(code)


def test_what_writes_no_records_is_no_measurement():
    process = subprocess.run([sys.executable, FOLDER / "run.py", "goood"], capture_output=True, text=True)
    named = process.stderr.partition("there are ")[2].strip(" .\n").split(", ")
    assert [name for name in named if "write_records" not in (FOLDER / f"{name}.py").read_text()] == []
