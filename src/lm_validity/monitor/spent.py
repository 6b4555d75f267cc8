"""What a run's finished cells took to compute: the counters of their sidecars, summed by phase."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lm_validity.errors import InputError
from lm_validity.run.store import Store


@dataclass
class Spent:
    """cells: finished cells; uncounted: those whose sidecar has no counters (replayed scores, trials).
    phases: phase -> counter -> sum. wall_seconds: of the cells, without process start.
    written_by_vllm: cells whose answers vLLM wrote. truncated: (model, benchmark) -> phase -> requests of all passes,
    and under `train` texts of all fine-tunes, that were longer than allowed and lost tokens.
    early_stops: of fine-tunes with `early_stop` on, their number as `fine_tunes`, how many `stopped`, and their epochs,
    `trained` and `allowed`; empty without any."""

    cells: int = 0
    uncounted: int = 0
    wall_seconds: float = 0.0
    phases: dict[str, Counter[str]] = field(default_factory=dict)
    written_by_vllm: int = 0
    truncated: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)
    early_stops: Counter[str] = field(default_factory=Counter)


def count_spent(store: Store) -> Spent:
    """Sum the sidecars of every finished cell in the store, cells of older recipes included."""
    spent = Spent()
    for folder in store.folders():
        sidecar = store.sidecar(folder)
        spent.cells += 1
        spent.wall_seconds += sidecar.get("wall_seconds") or 0.0
        counters = sidecar.get("counters") or {}
        trials = {"trials": counters} if counters else {}  # which have no phases
        phases = counters.get("by_phase", trials)
        spent.uncounted += not counters
        spent.written_by_vllm += sidecar.get("generation_backend") == "vllm"
        spent.early_stops.update(_early_stop(sidecar))
        for phase, counts in phases.items():
            spent.phases.setdefault(phase, Counter()).update(counts)
        cut = Counter({phase: counts.get("truncated_requests", 0) for phase, counts in phases.items()})
        cut["train"] += sidecar.get("truncated_texts", 0)
        if cut.total():
            try:
                key = store.read(folder)["key"]
            except InputError:  # damaged, or of an older recipe and purged: no number depends on this
                continue
            spent.truncated.setdefault((key["model"], key["benchmark"]), Counter()).update(cut)
    return spent


def _early_stop(sidecar: Mapping[str, Any]) -> dict[str, int]:
    """What a cell adds to `Spent.early_stops`."""
    allowed, trained = sidecar.get("epochs_allowed"), sidecar.get("epochs")
    if not allowed:
        return {}
    return {"fine_tunes": 1, "stopped": int(trained < allowed), "trained": trained, "allowed": allowed}
