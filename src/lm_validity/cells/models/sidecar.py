"""A cell's sidecar: what it cost and where it ran. It may differ from run to run and enters no table."""

import resource
import time
from typing import TYPE_CHECKING, Any

from lm_validity.cells.models.provenance import machine, versions

if TYPE_CHECKING:
    import torch

    from lm_validity.cells.models.language_model import LanguageModel


class Stopwatch:
    """Costs from now on, of this process."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        self._started = time.time()

    @property
    def seconds(self) -> tuple[float, float]:
        """(seconds on the clock, seconds of the processor) until now."""
        return time.perf_counter() - self._wall, time.process_time() - self._cpu

    def add(self, wall: float, cpu: float) -> None:
        """Count seconds that were spent before."""
        self._wall, self._cpu = self._wall - wall, self._cpu - cpu

    def sidecar(self, lm: "LanguageModel") -> dict[str, Any]:
        """What the cell cost; `lm` is the loaded model, whose counters are read and set back."""
        counters = lm.counters.to_json()
        lm.counters = type(lm.counters)()
        scoring = {"eval_batch_size": lm.batch_size, "generation_cache": lm.generation_cache} | lm.describe_scorer()
        return self.costs(lm.device) | {"counters": counters} | scoring

    def costs(self, device: "torch.device") -> dict[str, Any]:
        """Time, memory, machine and versions; `device` is the torch device that computed."""
        wall, cpu = self.seconds
        return {
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._started)),
            "wall_seconds": round(wall, 3),
            "cpu_seconds": round(cpu, 3),
            "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            **_gpu_cost(device),
            "machine": machine(device),
            "versions": versions(),
        }


def _gpu_cost(device: "torch.device") -> dict[str, int]:
    """Peak GPU memory since the last cell, of the GPU that used most; the GPUs are held for the wall time."""
    import torch

    if device.type != "cuda":
        return {}
    gpus = range(torch.cuda.device_count())
    peak = max(torch.cuda.max_memory_allocated(gpu) for gpu in gpus) // 2**20
    for gpu in gpus:
        torch.cuda.reset_peak_memory_stats(gpu)
    return {"peak_gpu_memory_mb": peak}
