"""What `make demo` lets through to a pipe: tenths of the steps, and of a job that fails the end of its log."""

import re
import subprocess

from tests.workflow.conftest import ROOT

SNAKEFILE = """
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


def test_few_lines_reach_a_pipe_and_a_failed_jobs_log_ends_in_it(tmp_path):
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    assert QUIET in (ROOT / "Makefile").read_text()
    lines = subprocess.run(["bash", "-c", COMMAND], cwd=tmp_path, capture_output=True, text=True).stdout.splitlines()
    assert lines[0] == "jobs: 42" and sum("steps" in line for line in lines) <= 10
    shown = [line.strip() for line in lines if re.fullmatch(r" +1\d\d", line)]
    assert shown == [str(number) for number in range(147, 161)] and "    ValueError: the reason" in lines
    assert any(line == "Error in rule fails:" for line in lines) and len(lines) <= 60
