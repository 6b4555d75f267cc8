"""Runs every measurement of this folder and gathers results/benchmark/summary.json (`make benchmark`).

    python benchmarks/run.py [NAME ...]        all of them, or those named

Each other script here is one measurement (but for `NO_MEASUREMENTS`; names that begin with `_` are helpers), called as
`python benchmarks/NAME.py --output FILE` in a process of its own (so that none warms another's caches), one after the
other (so that none takes another's processor). It writes a JSON list of records with the keys of `KEYS`. A measurement
that cannot run here (no GPU, say) writes an empty list and prints why.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from _measure import RUN, STARTED, TIME, write_records

from lm_validity.files import read_json, write_json, write_text

FOLDER = Path(__file__).resolve().parent
RESULTS = Path("results/benchmark")
PAGE = Path("docs/explanation/lab_record.md")  # where it exists, what is between the marks is what was measured last
MARKS = ("<!-- measured: begin -->\n", "<!-- measured: end -->\n")
NO_MEASUREMENTS = (
    "run",
    "sparse_grid",
    "demo",
    "against",
    "gpu_check",
    "gpu_pack",
    "gpu_quarter_hour",
)  # the others write tables of their own
KEYS = ("name", "baseline", "ratio", "ratio_low", "ratio_high", "target", "unit", "agreement", "device", "detail")


def measurements(names: list[str]) -> list[Path]:
    """The scripts to run, by name. Raises SystemExit for a name that is none of them."""
    scripts = {path.stem: path for path in sorted(FOLDER.glob("[!_]*.py")) if path.stem not in NO_MEASUREMENTS}
    for name in names:
        if name not in scripts:
            raise SystemExit(f"Error: no measurement {name!r}. Hint: there are {', '.join(scripts) or 'none'}.")
    return [scripts[name] for name in names or scripts]


def measure(script: Path) -> list[dict] | None:
    """One measurement's records; null where it failed or wrote something else."""
    output = RESULTS / f"{script.stem}.json"
    output.unlink(missing_ok=True)
    print(f"== {script.stem}", flush=True)
    if subprocess.run([sys.executable, str(script), "--output", str(output)]).returncode:
        return None
    records = read_json(output) if output.is_file() else None
    if not isinstance(records, list) or any(set(KEYS) - set(record) for record in records):
        print(f"Error: {output} is not a list of records with {', '.join(KEYS)}.", file=sys.stderr)
        return None
    if any("measured" not in record for record in records):
        write_records(output, records)
        records = read_json(output)
    return [record | {"measurement": script.stem} for record in records]


def page_table(found: dict[str, list[dict] | None]) -> str:
    """The records of each measurement as a table in Markdown, and where they come from."""
    records = [record for each in found.values() for record in each or []]
    names = ("work", "baseline", "times faster", "range", "target", "largest difference", "measured")
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for record in records:
        target = "–" if record["target"] is None else f"{record['target']:g}"
        agreement = "–" if record["agreement"] is None else f"{record['agreement']:.2g}"
        interval = f"{record['ratio_low']:.2f} to {record['ratio_high']:.2f}"
        ratio = f"**{record['ratio']:.2f}**"
        words = (record["name"], record["baseline"], ratio, interval, target, agreement, record["detail"])
        lines.append(f"| {' | '.join(map(str, words))} |")
    return "\n".join([*lines, "", *origins(found)]) + "\n"


def origins(found: dict[str, list[dict] | None]) -> list[str]:
    """When, where and on what source each measurement was made, a line each; which have no records, and why."""
    lines = []
    for name, records in found.items():
        if records:
            moment = records[0]["measured"]
            load = " to ".join(f"{value:g}" for value in moment["load"])
            when = f"the run of all begun {moment['run']}, {moment['begun']} to {moment['ended']}"
            where = f"load {load}, source {moment['source'][:12]}, {records[0]['machine']}"
            lines.append(f"- `{name}`: measured in {when}, {where}.")
    missing = {
        "Failed, so without a row": [name for name, records in found.items() if records is None],
        "Not measured on this machine": [name for name, records in found.items() if records == []],
    }
    return lines + [f"- {why}: {', '.join(f'`{name}`' for name in names)}." for why, names in missing.items() if names]


def write_page(found: dict[str, list[dict] | None]) -> None:
    """Put the table between the marks of docs/explanation/lab_record.md, where there is such a page."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.is_file() else ""
    if all(mark in text for mark in MARKS):
        before, _, rest = text.partition(MARKS[0])
        write_text(PAGE, before + MARKS[0] + "\n" + page_table(found) + "\n" + MARKS[1] + rest.partition(MARKS[1])[2])


def main() -> int:
    """Run, write the summary of what worked, say what each found. Exit 1 where one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    arguments = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    os.environ[RUN] = "" if arguments.names else STARTED.strftime(TIME)
    found = {script.stem: measure(script) for script in measurements(arguments.names)}
    records = [record for each in found.values() for record in each or []]
    write_json(RESULTS / "summary.json", records)
    if not arguments.names:
        write_page(found)
    for record in records:
        target = "" if record["target"] is None else f", target {record['target']:g}"
        interval = f"{record['ratio_low']:.2f} to {record['ratio_high']:.2f}"
        print(f"{record['name']}: {record['ratio']:.2f} times {record['baseline']} ({interval}{target})")
    print(RESULTS / "summary.json")
    failed = [name for name, each in found.items() if each is None]
    if failed:
        print(f"Error: failed: {', '.join(failed)}.", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
