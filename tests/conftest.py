"""All tests."""

import gc
import os
import shutil
import tempfile
from pathlib import Path

import pytest

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


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI a skip ends the run with 1: silence would read as a pass."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") != "true" or reporter is None or hasattr(session.config, "workerinput"):
        return
    for report in reporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        reporter.write_line(f"skipped in CI: {report.nodeid.partition('::')[0]}: {reason}", red=True)
        session.exitstatus = session.exitstatus or 1
