"""A run in a terminal is one bar; few lines of it reach a pipe; of a failed job the end of the log is shown."""

import re

from tests.workflow.conftest import ROOT

from lm_validity.config.load import load_run
from lm_validity.run.workspace import Grid

BAR = re.compile(
    r"\r\[(#*)(\.*)\] (\d+) of (\d+) cells"
    r"(?:, ([\d,]+) an hour)?(?:, (\d+) (?:s|min) left)?(?:, step (\d+) of (\d+))?\033"
)
SNAKEFILE = """
from lm_validity.monitor.status import show_ends_of_logs
show_ends_of_logs()
rule all:
    input: expand("{n}.txt", n=range(40)), "fails.txt"
rule one:
    output: "{n,[0-9]+}.txt"
    message: "makes {wildcards.n}"
    shell: "touch {output}"
rule fails:
    output: "fails.txt"
    log: "fails.log"
    shell: "(seq 100 160; echo 'ValueError: the reason'; exit 1) > {log}"
"""
QUIET = "--quiet host reason 2>&1"
COMMAND = f"snakemake --cores 2 --keep-going --show-failed-logs {QUIET} | awk -f {ROOT}/workflow/scripts/progress.awk"


def test_a_terminal_shows_cells_done_rate_and_time_left(replayed, monkeypatch):
    monkeypatch.chdir(replayed.folder)
    total = len(Grid(load_run("replay/replay.yaml")).cells())
    written = (replayed.folder / "terminal.txt").read_bytes().decode()
    bars = [
        (len(filled), len(empty), *(int(number.replace(",", "") or 0) for number in numbers))
        for filled, empty, *numbers in BAR.findall(written)
    ]
    assert all(filled == (filled + empty) * done // total for filled, empty, done, *_ in bars)
    _, _, done, totals, rates, seconds_left, steps, last_steps = zip(*bars, strict=True)
    assert set(totals) == {total} and list(done) == sorted(done) and (done[0], done[-1]) == (0, total)
    assert steps[-1] == last_steps[-1] < total, "jobs have several cells"
    assert any(rate and left and 0 < cells < total for rate, left, cells in zip(rates, seconds_left, done, strict=True))


def test_few_lines_reach_a_pipe_and_a_failed_jobs_log_ends_in_it(project):
    (project.folder / "Snakefile").write_text(SNAKEFILE)
    assert QUIET in (ROOT / "Makefile").read_text()
    lines = project.run("bash", "-c", COMMAND).stdout.splitlines()
    assert lines[0] == "jobs: 42" and sum("steps" in line for line in lines) <= 10
    shown = [line.strip() for line in lines if re.fullmatch(r" +1\d\d", line)]
    assert shown == [str(number) for number in range(147, 161)] and "    ValueError: the reason" in lines
    assert any(line == "Error in rule fails:" for line in lines) and len(lines) <= 60
