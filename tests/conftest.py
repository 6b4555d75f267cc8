"""All tests."""

import gc
import os
import shutil
import tempfile
from pathlib import Path

import pytest

SKIPS = Path(__file__).with_name("skips_in_ci.txt")
IN_MEMORY, ROOM = Path("/dev/shm"), 2**30


def pytest_configure(config: pytest.Config) -> None:
    """Folders of tests are in memory where there is room: a file then costs a fifth. Slurm's jobs may see another."""
    if "not slurm" not in config.option.markexpr or not IN_MEMORY.is_dir():
        return
    runs_programs = not os.statvfs(IN_MEMORY).f_flag & os.ST_NOEXEC
    if runs_programs and shutil.disk_usage(IN_MEMORY).free > ROOM:
        os.environ.setdefault("TMPDIR", str(IN_MEMORY))
        tempfile.tempdir = None  # asked for already, perhaps


def pytest_collection_finish():
    """What was imported stays: the collector need not look at it again and again, nor at each few hundred objects."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 20, 20)


def unexpected_skips(skipped: list[tuple[str, str]], allowed: list[str]) -> list[str]:
    """`file: reason` of each skipped (file, reason) that no line of `allowed` begins with."""
    lines = [line.partition(": ") for line in allowed if line and not line.startswith("#")]
    return sorted(
        {
            f"{file}: {reason}"
            for file, reason in skipped
            if not any(file.startswith(path) and reason.startswith(start) for path, _, start in lines)
        }
    )


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI a skip that nobody listed ends the run with 1: silence would read as a pass."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") != "true" or reporter is None or hasattr(session.config, "workerinput"):
        return
    skipped = []
    for report in reporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        skipped.append((report.nodeid.partition("::")[0], reason.removeprefix("Skipped: ")))
    unexpected = unexpected_skips(skipped, SKIPS.read_text(encoding="utf-8").splitlines())
    if unexpected and session.exitstatus == 0:
        session.exitstatus = 1
    for line in unexpected:
        reporter.write_line(f"skipped in CI, and not in {SKIPS.name}: {line}", red=True)
