"""What the measurements share: interleaved rounds, processor and wall seconds, no ratio where scores differ."""

import datetime
import hashlib
import os
import platform
import resource
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import lm_validity
from lm_validity.files import write_json

TIME = "%Y-%m-%d %H:%M UTC"
RUN = "LM_VALIDITY_BENCHMARK_RUN"  # when the run of all measurements began that this process is part of
STARTED, LOAD = datetime.datetime.now(datetime.UTC), os.getloadavg()[0]


@dataclass(frozen=True)
class Cost:
    """Seconds of one run: of processors (this process and its children) and on the clock."""

    cpu: float
    wall: float


def measure(work: Callable[[], object]) -> tuple[Cost, object]:
    """Run once; its cost and result."""
    before, started = _cpu_seconds(), time.perf_counter()
    result = work()
    return Cost(_cpu_seconds() - before, time.perf_counter() - started), result


def interleave(
    sides: dict[str, Callable[[], object]],
    rounds: int,
    after_round: Callable[[dict[str, list[Cost]], dict[str, object]], None] = lambda costs, results: None,
) -> tuple[dict[str, list[Cost]], dict[str, object]]:
    """Every side once a round, A-B-C-A-B-C, so that what else the machine does meets all alike; costs and the last
    result of each. `after_round` gets what there is so far: a long measurement that is stopped keeps its rounds."""
    costs: dict[str, list[Cost]] = {name: [] for name in sides}
    results: dict[str, object] = {}
    for _ in range(rounds):
        for name, work in sides.items():
            cost, results[name] = measure(work)
            costs[name].append(cost)
            print(f"   {name}: {cost.cpu:.2f} CPU-s, {cost.wall:.2f} s", flush=True)
        after_round(costs, results)
    return costs, results


def compare(
    name: str,
    baseline: str,
    theirs: list[Cost],
    ours: list[Cost],
    *,
    target: float | None,
    agreement: float,
    tolerance: float,
    detail: str,
    device: str = "cpu",
    clock: Literal["cpu", "wall"] = "cpu",
    model: dict | None = None,
) -> dict:
    """A record of the summary: how many times more time the baseline took, by rounds; processor time, or on a GPU that
    on the clock.

    model: what `_toys.describe_model` says of it.
    Ends the measurement, without a ratio, where the two sides' scores differ by more than `tolerance`.
    """
    if not agreement <= tolerance:
        raise SystemExit(
            f"Error: {name}: scores differ by {agreement:.3g} (at most {tolerance:.3g}); no ratio is given."
        )
    by_clock = {
        name: [getattr(a, name) / getattr(b, name) for a, b in zip(theirs, ours, strict=True)]
        for name in ("cpu", "wall")
    }
    ratios, unit = by_clock[clock], {"cpu": "CPU-s", "wall": "s"}[clock]
    return {
        "name": name,
        "baseline": baseline,
        "ratio": statistics.median(ratios),
        "ratio_low": min(ratios),
        "ratio_high": max(ratios),
        "target": target,
        "unit": {"cpu": "CPU seconds", "wall": "seconds"}[clock],
        "agreement": agreement,
        "device": device,
        "machine": describe_machine(),
        "model": model,
        "rounds": {"baseline": [vars(cost) for cost in theirs], "ours": [vars(cost) for cost in ours]},
        "detail": f"{detail}; {_middle(theirs, clock):.2f} against {_middle(ours, clock):.2f} {unit}, "
        f"{len(ours)} round{'s' * (len(ours) != 1)}; on the clock {statistics.median(by_clock['wall']):.2f} times",
    }


def write_records(path: Path | str, records: list[dict], finished: bool = True) -> None:
    """A measurement's records, each with when it ran, beside what other work (load at its start and end), and on what
    source; `run` is when the run of all of them began, null in a run of its own. Until it is finished they go into
    <name>.partial.json beside it: rounds that a killed run had done, which nobody takes for the whole. Raises
    SystemExit where the source changed in the meantime."""
    partial = Path(path).with_suffix(".partial.json")
    now = datetime.datetime.now(datetime.UTC)
    moment = {
        "begun": STARTED.strftime(TIME),
        "ended": now.strftime(TIME),
        "run": os.environ.get(RUN) or None,
        "load": [round(LOAD, 1), round(os.getloadavg()[0], 1)],
        "source": SOURCE,
    }
    if source() != SOURCE:
        raise SystemExit(
            "Error: the package's source changed while it was measured; no record is written. Hint: measure again."
        )
    records = [{"machine": describe_machine()} | record | {"measured": moment} for record in records]
    write_json(path if finished else partial, records)
    if finished:
        partial.unlink(missing_ok=True)


def source() -> str:
    """sha256 over the package's Python files, names included."""
    root, digest = Path(lm_validity.__file__).parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


SOURCE = source()  # what this process, and those that it starts, were begun with


def _middle(costs: list[Cost], clock: str) -> float:
    return statistics.median(getattr(cost, clock) for cost in costs)


def _cpu_seconds() -> float:
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def run_quietly(command: list[str], folder: Path) -> str:
    """Run a command in a folder, offline and on one thread; its output, or SystemExit with the end of it."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"Error: {' '.join(command)}: exit {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def describe_machine() -> str:
    """Processor, its number and the versions that matter."""
    processor = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        processor = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    libraries = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "peft", "lm-eval"))
    versions = f"Python {platform.python_version()}, {libraries}"
    return f"{processor}, {os.cpu_count()} processors, one thread a process; {versions}"
