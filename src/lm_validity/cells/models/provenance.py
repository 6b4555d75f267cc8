"""What a result carries: versions, digests, machine and cost."""

import contextlib
import functools
import importlib.metadata
import logging
import os
import platform
import resource
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch


# ----------------------------------------------------------------------------------------------------------------------
# Third-party libraries that talk too much, or do what they should not.


@contextlib.contextmanager
def replaced(*changes: tuple[object, str, object]) -> Iterator[None]:
    """Inside the block each owner has the given value under the given name."""
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    try:
        for owner, name, new in changes:
            setattr(owner, name, new)
        yield
    finally:
        for owner, name, old in originals:
            setattr(owner, name, old)


@contextlib.contextmanager
def errors_only(name: str) -> Iterator[None]:
    """Silence a logger's warnings inside the block."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


# ----------------------------------------------------------------------------------------------------------------------
# What computed a cell: library versions, machine, and this program's own commit. For sidecars, never for tables.

PACKAGES = (
    "lm-validity",
    "lm_eval",
    "torch",
    "transformers",
    "tokenizers",
    "peft",
    "safetensors",
    "datasets",
    "accelerate",
    "numpy",
)


@functools.cache
def versions() -> dict[str, str]:
    """Versions of everything that can move a number, Python included."""
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in PACKAGES}


def machine(device: "torch.device") -> dict[str, object]:
    """The computer and the device that computed: host, threads, GPU and CUDA, Slurm job, and the commit of this
    program's checkout."""
    import torch

    record: dict[str, object] = {
        "host": platform.node(),
        "system": platform.platform(),
        "threads": torch.get_num_threads(),
        "device": str(device),
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
        "git": git_commit(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        record |= {"gpu": properties.name, "gpu_memory_mb": properties.total_memory // 2**20}
        record |= {"gpus": torch.cuda.device_count(), "cuda": torch.version.cuda}
    return record


@functools.cache
def git_commit() -> str | None:
    """The commit of the checkout this package runs from, with `+` where files differ; null outside of one."""
    command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
    folder, quiet = Path(__file__).resolve().parent, subprocess.DEVNULL
    try:
        return subprocess.check_output(command, cwd=folder, stderr=quiet, text=True, timeout=10).strip() or None
    except (OSError, subprocess.SubprocessError):
        return None


# ----------------------------------------------------------------------------------------------------------------------
# A cell's sidecar: what it cost and where it ran. It may differ from run to run and enters no table.


class Seconds(NamedTuple):
    """Seconds by the clock, and of processors."""

    wall: float
    cpu: float


class Stopwatch:
    """Costs from now on, of this process."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        self._started = time.time()

    @property
    def seconds(self) -> Seconds:
        """(seconds on the clock, seconds of the processor) until now."""
        return Seconds(time.perf_counter() - self._wall, time.process_time() - self._cpu)

    def add(self, seconds: Seconds) -> None:
        """Count seconds that were spent before."""
        self._wall, self._cpu = self._wall - seconds.wall, self._cpu - seconds.cpu

    def costs(self, device: "torch.device") -> dict[str, object]:
        """Time, memory, machine and versions; `device` is the torch device that computed. The peak of GPU memory is
        that of the GPU that used most, since the last cell."""
        import torch

        wall, cpu = self.seconds
        gpus = range(torch.cuda.device_count()) if device.type == "cuda" else ()
        peaks = [torch.cuda.max_memory_allocated(gpu) for gpu in gpus]
        for gpu in gpus:
            torch.cuda.reset_peak_memory_stats(gpu)
        return {
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._started)),
            "wall_seconds": round(wall, 3),
            "cpu_seconds": round(cpu, 3),
            "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            **({"peak_gpu_memory_mb": max(peaks) // 2**20} if peaks else {}),
            "machine": machine(device),
            "versions": versions(),
        }


# ----------------------------------------------------------------------------------------------------------------------
# What a process did with its model, counted by phase of the work, for the sidecar of each cell.


@dataclass
class Counters:
    """Counts since the last cell was committed.

    model_loads: times weights were read.
    evaluate_passes: times all documents of a split were scored.
    forward_tokens, forward_tokens_padded: tokens that scoring put through the model; padded ones include the real.
    shared_tokens: tokens that scoring did not compute again, because a choice shares them with another.
    generated_tokens: tokens of generated answers. training_tokens: of forward passes in training.
    optimizer_steps: taken.
    truncated_requests: requests longer than the model, which lost context on the left.
    oom_halvings: times a batch was halved because memory ran out.
    """

    model_loads: int = 0
    evaluate_passes: int = 0
    forward_tokens: int = 0
    forward_tokens_padded: int = 0
    shared_tokens: int = 0
    generated_tokens: int = 0
    training_tokens: int = 0
    optimizer_steps: int = 0
    truncated_requests: int = 0
    oom_halvings: int = 0
    by_phase: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What is counted inside the block is also booked under the phase `name`."""
        totals_before = Counter(self._totals())
        try:
            yield
        finally:
            self.by_phase[name].update(Counter(self._totals()) - totals_before)

    def add(self, counters: "Counters") -> None:
        """Count what others have counted."""
        for name, value in counters._totals().items():
            setattr(self, name, getattr(self, name) + value)
        for phase, counts in counters.by_phase.items():
            self.by_phase[phase].update(counts)

    def part(self, number: int, parts: int) -> "Counters":
        """Part `number` (from 0) of what several cells caused together. All parts have these counts as their sum."""

        def share(counts: dict[str, int]) -> dict[str, int]:
            return {name: (value + parts - 1 - number) // parts for name, value in counts.items()}

        part = Counters()
        vars(part).update(share(self._totals()))
        part.by_phase.update((phase, Counter(share(counts))) for phase, counts in self.by_phase.items())
        return part

    def _totals(self) -> dict[str, int]:
        return {key: value for key, value in vars(self).items() if key != "by_phase"}

    def to_json(self) -> dict[str, object]:
        """Totals, and under `by_phase` those of each phase that are not zero."""
        return self._totals() | {
            "by_phase": {name: dict(counts) for name, counts in sorted(self.by_phase.items()) if counts}
        }
