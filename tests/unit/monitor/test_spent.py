"""The page of what was computed sums the counters of finished cells by rule."""

import re

from lm_validity.monitor.render import computation_page, count_spent
from lm_validity.run.cell import BenchmarkCell
from lm_validity.run.store import Store


def commit(store: Store, name: str, counters: dict | None, rule: str = "evaluate_model", **more) -> None:
    cell = BenchmarkCell(rule, "m", name, "final", "plain", split="test")
    sidecar = {"wall_seconds": 1800.0, "counters": {"by_phase": counters}} if counters is not None else {}
    store.commit(store.address(cell, {"name": name}), {}, sidecar | more, lambda folder: None)


def test_counters_are_summed_by_rule(tmp_path):
    store = Store(tmp_path)
    assert computation_page(count_spent(store)) is None
    commit(store, "replayed", None)
    assert computation_page(count_spent(store)) is None
    commit(store, "a", {"load": {"model_loads": 1}, "test": {"evaluate_passes": 1, "forward_tokens": 500}})
    commit(store, "b", {"test": {"evaluate_passes": 1, "forward_tokens": 700, "truncated_requests": 2}})
    train = {"train": {"optimizer_steps": 30}, "validation": {"evaluate_passes": 5}}
    commit(store, "c", train, rule="finetune_adapter", truncated_texts=3)
    page = computation_page(count_spent(store))
    (finding,) = page.findings  # cells, hours, model loads, passes, optimizer steps; texts that were cut
    numbers = re.compile(r"\d+(?:\.\d+)?").findall
    assert (numbers(finding.sentence), numbers(finding.basis)) == (["4", "1.50", "1", "7", "30"], ["5"])
    frame = page.sections[0].tables[0].frame.set_index("job")
    assert frame.loc["score models", ["cells", "hours", "forward_tokens", "cut"]].tolist() == [3, 1.0, 1200, 2]
    assert frame.loc["fine-tune", ["cells", "evaluate_passes", "cut"]].tolist() == [1, 5, 3]
