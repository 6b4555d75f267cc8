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
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NotRequired, TypedDict

if TYPE_CHECKING:
    import torch


# ----------------------------------------------------------------------------------------------------------------------
# Third-party libraries that talk too much.


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
    "vllm",
    "numpy",
)


@functools.cache
def versions() -> dict[str, str | None]:
    """Versions of everything that can move a number, Python included; null where a package is absent."""
    by_package: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            by_package[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            by_package[package] = None
    return by_package


class Machine(TypedDict):
    """The computer and the device that computed; the last four of a GPU only. git: of this program's checkout."""

    host: str
    system: str
    processor: str
    threads: int
    device: str
    slurm_job: str | None
    git: str | None
    gpu: NotRequired[str]
    gpu_memory_mb: NotRequired[int]
    gpus: NotRequired[int]
    cuda: NotRequired[str]


def machine(device: "torch.device") -> Machine:
    """The computer and the device: host, processor, threads, GPU with driver and CUDA, Slurm job, git commit."""
    import torch

    record: Machine = {
        "host": platform.node(),
        "system": platform.platform(),
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "device": str(device),
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
        "git": git_commit(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        record |= {
            "gpu": properties.name,
            "gpu_memory_mb": properties.total_memory // 2**20,
            "gpus": torch.cuda.device_count(),
            "cuda": torch.version.cuda,
        }
    return record


@functools.cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


@functools.cache
def git_commit() -> str | None:
    """The commit of the checkout this package runs from, with `+` where files differ; null outside of one."""
    package_folder = Path(__file__).resolve().parent
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"],
            cwd=package_folder,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip() or None


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
