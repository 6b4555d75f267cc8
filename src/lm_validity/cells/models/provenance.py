"""What computed a cell: library versions, machine, and this program's own commit. For sidecars, never for tables."""

import functools
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

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
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def machine(device: torch.device) -> dict[str, Any]:
    """The computer and the device: host, processor, threads, GPU with driver and CUDA, Slurm job, git commit."""
    found = {
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
        found |= {
            "gpu": properties.name,
            "gpu_memory_mb": properties.total_memory // 2**20,
            "gpus": torch.cuda.device_count(),
            "cuda": torch.version.cuda,
        }
    return found


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
    here = Path(__file__).resolve().parent
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip() or None
