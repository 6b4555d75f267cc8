"""The page of what was computed sums the sidecars, and says what it does not know."""

import re

from lm_validity.monitor.computation import computation_page, count_spent
from lm_validity.pages.page import write_page
from lm_validity.run.cell import BenchmarkCell
from lm_validity.run.store import Store
from lm_validity.site.first_page import build_site

numbers = re.compile(r"\d+(?:\.\d+)?").findall


def commit(store: Store, name: str, sidecar: dict) -> None:
    cell = BenchmarkCell("evaluate_model", "m", name, "final", "plain", split="test")
    store.commit(store.address(cell, {"name": name}), {}, sidecar, lambda folder: None)


def sidecar(**phases) -> dict:
    return {"wall_seconds": 1800.0, "counters": {"by_phase": phases}}


def test_counters_are_summed_by_phase(tmp_path):
    store = Store(tmp_path)
    commit(store, "a", sidecar(load={"model_loads": 1}, test={"evaluate_passes": 1, "forward_tokens": 500}))
    commit(store, "b", sidecar(test={"evaluate_passes": 1, "forward_tokens": 700, "shared_tokens": 2100}))
    commit(store, "c", sidecar(train={"optimizer_steps": 30}, validation={"evaluate_passes": 5}))
    commit(store, "d", {})
    commit(store, "nothing of its own", sidecar() | {"wall_seconds": 0})
    spent = count_spent(store)
    assert (spent.cells, spent.uncounted, spent.wall_seconds) == (5, 1, 5400.0)
    assert spent.phases["test"] == {"evaluate_passes": 2, "forward_tokens": 1200, "shared_tokens": 2100}
    page = computation_page(spent)
    (finding,) = page.findings  # cells, hours, model loads, passes, optimizer steps; cells without counters
    assert (numbers(finding.sentence), numbers(finding.basis)) == (["5", "1.50", "1", "7", "30"], ["1"])
    frame = page.sections[0].tables[0].frame.set_index("phase")
    assert list(frame.index) == ["load", "train", "validation", "test"]
    assert frame.loc["test", "shared_tokens"] == 2100 and frame.loc["train", "evaluate_passes"] == 0
    assert "vLLM" not in finding.basis
    commit(store, "e", sidecar(test={"evaluate_passes": 1}) | {"generation_backend": "vllm"})
    (finding,) = computation_page(count_spent(store)).findings
    assert "vLLM" in finding.basis and numbers(finding.basis) == ["1", "1"]


def test_what_early_stops_spared_is_said_where_they_are_on(tmp_path):
    store = Store(tmp_path)
    commit(store, "a", sidecar(train={"optimizer_steps": 30}) | {"epochs": 5})
    assert len(computation_page(count_spent(store)).findings) == 1
    commit(store, "b", sidecar(train={"optimizer_steps": 18}) | {"epochs": 3, "epochs_allowed": 5})
    commit(store, "c", sidecar(train={"optimizer_steps": 30}) | {"epochs": 5, "epochs_allowed": 5})
    commit(store, "diverged", sidecar(train={"optimizer_steps": 2}))
    finding = computation_page(count_spent(store)).findings[1]
    assert numbers(finding.sentence) == ["1", "2", "2", "10"]  # of fine-tunes, of epochs


def test_replayed_runs_have_no_such_page(tmp_path):
    store = Store(tmp_path)
    commit(store, "a", {})
    assert computation_page(count_spent(store)) is None
    assert computation_page(count_spent(Store(tmp_path / "empty"))) is None


def test_the_page_is_part_of_the_site(tmp_path):
    store = Store(tmp_path / "store")
    commit(store, "a", sidecar(load={"model_loads": 1}, test={"evaluate_passes": 1, "forward_tokens": 1234567}))
    write_page(page := computation_page(count_spent(store)), tmp_path / "reports" / "computation")
    site = build_site([tmp_path / "reports" / "computation"], tmp_path / "site")
    assert page.title in site.read_text()
    assert "1234567" in (tmp_path / "reports" / "computation" / "page.json").read_text()
    assert "forward_tokens" in (tmp_path / "reports" / "computation" / "tables" / "computation.csv").read_text()


def test_what_was_cut_to_fit_is_listed_by_model_and_benchmark(tmp_path):
    store = Store(tmp_path / "store")
    commit(store, "whole", sidecar(test={"evaluate_passes": 1}) | {"truncated_texts": 0})
    assert len(computation_page(count_spent(store)).sections) == 1
    commit(store, "long", sidecar(test={"evaluate_passes": 1, "truncated_requests": 7}))
    trained = sidecar(train={"optimizer_steps": 3}, validation={"evaluate_passes": 5, "truncated_requests": 10})
    tuned = BenchmarkCell("finetune_adapter", "m", "long", None, "plain", "1e-3", 0)
    store.commit(store.address(tuned, {"name": "tuned"}), {}, trained | {"truncated_texts": 2}, lambda folder: None)
    page = computation_page(count_spent(store))
    frame = page.sections[1].tables[0].frame
    assert frame.to_dict("records") == [{"model": "m", "benchmark": "long", "train": 2, "validation": 10, "test": 7}]
    assert numbers(page.findings[0].basis) == ["1"]
    rate = store.address(tuned._replace(learning_rate="3e-3"), {"name": "rate"})
    store.commit(rate, {}, trained | {"truncated_texts": 4, "cut_answers": 3}, lambda folder: None)
    page = computation_page(count_spent(store))
    (row,) = page.sections[1].tables[0].frame.to_dict("records")
    assert (row["train"], row["answers"]) == (6, 3) and numbers(page.findings[0].basis) == ["1", "3"]
    store.remove(rate.folder)
    address = store.address(tuned, {"name": "tuned"})
    (store.root / address.folder / "cell.json").unlink()
    assert count_spent(store).truncated == {("m", "long"): {"test": 7, "train": 0}}, "a damaged cell stops no page"
    write_page(page, tmp_path / "page")
    build_site([tmp_path / "page"], tmp_path / "site")
    assert page.sections[1].tables[0].title in (tmp_path / "site/computation/index.html").read_text()
