"""Learning rates side by side: each must be the training it would have been alone."""

import json
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from toy_run import SETTINGS, Killed, check_unchanged, jobs_of, run, run_all, sidecars, start_run, steps_of, weights

from lm_validity.cells.training import loop, lora
from lm_validity.cells.training.loop import Member, Plan, micro_batches, train_side_by_side
from lm_validity.cells.training.lora import CannotStack
from lm_validity.cells.workers import AdapterTrainer

RATES = (1e-3, 3e-3, 1e-2)


def members(folder, **changes) -> list[Member]:
    return [
        Member(SETTINGS.model_copy(update={"learning_rate": rate, **changes}), folder / str(rate)) for rate in RATES
    ]


def side_by_side(lm, examples, validate, group) -> int:
    return train_side_by_side(Plan(lm, examples, group, validate, 7))


def saved(folder) -> tuple[dict, list]:
    with safe_open(folder / "training.safetensors", framework="pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}, json.loads(file.metadata()["history"])["epochs"]  # noqa: SIM118


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_each_rate_is_what_it_is_alone(lm, world, tmp_path, dropout):
    examples, validate = world(lm)
    before = weights(lm)
    group = members(tmp_path / "together", dropout=dropout, epochs=2)
    assert side_by_side(lm, examples, validate, group) == 3
    together = [run(lm, examples, validate, member.work, member.settings) for member in group]
    assert {result.resumed_epochs for result in together} == {2}, "all was trained already"
    for member, found in zip(group, together, strict=True):
        alone = run(lm, examples, validate, tmp_path / "alone" / str(member.settings.learning_rate), member.settings)
        np.testing.assert_allclose(found.step_losses, alone.step_losses, rtol=1e-5, atol=1e-5)
        assert [epoch.validation_value for epoch in found.epochs] == [epoch.validation_value for epoch in alone.epochs]
        assert found.best_epoch == alone.best_epoch and found.steps == alone.steps
        mine, _ = saved(member.work)
        theirs, _ = saved(tmp_path / "alone" / str(member.settings.learning_rate))
        assert mine.keys() == theirs.keys()
        for name in mine:
            torch.testing.assert_close(mine[name], theirs[name], rtol=1e-3, atol=1e-4)
    assert len({result.step_losses[-1] for result in together}) == 3, "three different trainings"
    check_unchanged(lm, before)


def test_the_same_bytes_twice_and_members_catch_up(llama, world, tmp_path):
    examples, validate = world(llama)
    for name in ("a", "b"):
        side_by_side(llama, examples, validate, members(tmp_path / name))
    for rate in RATES:
        first, second = (tmp_path / name / str(rate) / "training.safetensors" for name in ("a", "b"))
        assert first.read_bytes() == second.read_bytes()
    # interrupted after one member saved its second epoch: the others are one behind
    group = members(tmp_path / "c")

    def stop_after_first(epoch):
        if epoch.number == 2:
            raise Killed

    group[0] = group[0]._replace(on_epoch=stop_after_first)
    with pytest.raises(Killed):
        side_by_side(llama, examples, validate, group)
    assert [len(saved(member.work)[1]) for member in group] == [2, 1, 1]
    side_by_side(llama, examples, validate, members(tmp_path / "c"))
    for rate in RATES:
        whole, resumed = (saved(tmp_path / name / str(rate))[0] for name in ("a", "c"))
        for name in whole:
            torch.testing.assert_close(whole[name], resumed[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("rows", [16, 8, 3])
def test_out_of_memory_takes_fewer_rates_then_fewer_rows(llama, world, tmp_path, monkeypatch, rows):
    """A machine that holds `rows` rows: 16 are two rates of 8, 8 one rate, 3 a micro-batch of 2."""
    examples, validate = world(llama)
    real = loop.token_losses

    def limited(base, micro, **options):
        if len(micro.inputs) > rows:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(base, micro, **options)

    side_by_side(llama, examples, validate, members(tmp_path / "a", epochs=1))
    monkeypatch.setattr(loop, "token_losses", limited)
    llama.counters["oom_halvings"] = 0
    assert side_by_side(llama, examples, validate, members(tmp_path / "b", epochs=1)) == {16: 2, 8: 1, 3: 1}[rows]
    assert llama.counters["oom_halvings"] == {16: 1, 8: 2, 3: 4}[rows]
    for rate in RATES:
        whole, small = (saved(tmp_path / name / str(rate))[0]["step_losses"] for name in ("a", "b"))
        torch.testing.assert_close(whole, small, rtol=1e-5, atol=1e-5)


def test_a_rate_that_diverges_takes_nobody_with_it(llama, world, tmp_path):
    examples, validate = world(llama)
    group = members(tmp_path, epochs=2)
    for at, rate in enumerate((RATES[0], 1e9, RATES[2])):
        wild = group[at].settings.model_copy(update={"learning_rate": rate, "max_gradient_norm": 1e9})
        group[at] = group[at]._replace(settings=wild)
    side_by_side(llama, examples, validate, group)
    results = [run(llama, examples, validate, member.work, member.settings) for member in group]
    assert [bool(result.diverged) for result in results] == [False, True, False]
    alone = run(llama, examples, validate, tmp_path / "alone", group[0].settings)
    np.testing.assert_allclose(results[0].step_losses, alone.step_losses, rtol=1e-5, atol=1e-5)


def test_a_job_side_by_side_gives_the_cells_of_one_after_another(tmp_path, monkeypatch):
    results, joint, train = {}, [], AdapterTrainer.compute_together

    def timed(worker, places):
        start = time.perf_counter()
        train(worker, places)
        joint.append(time.perf_counter() - start)

    monkeypatch.setattr(AdapterTrainer, "compute_together", timed)
    for side in (False, True):
        folder = tmp_path / str(side)
        folder.mkdir()
        monkeypatch.chdir(folder)
        workspace = start_run(folder, finetuning={"epochs": 2, "rates_side_by_side": side})
        run_all(workspace, "finetune_adapter")
        found = sidecars(workspace.store)
        assert sum(steps_of(workspace.store)) == 12
        assert {one.get("side_by_side") for one in found.values()} == {3 if side else None}
        assert not any(one["resumed_epochs"] for one in found.values())
        if side:
            assert min(one["wall_seconds"] for one in found.values()) > joint[0] / 3 - 0.001
        (job,) = jobs_of(workspace, "finetune_adapter")
        results[side] = [workspace.store.read(workspace.address(cell).folder)["result"] for cell in job.cells]
    for one, other in zip(results[False], results[True], strict=True):
        assert one["best_epoch"] == other["best_epoch"] and one["best_value"] == other["best_value"]
        for first, second in zip(one["epochs"], other["epochs"], strict=True):
            assert first["train_loss"] == pytest.approx(second["train_loss"], rel=1e-5)


lengths = st.lists(st.integers(1, 60), min_size=1, max_size=8).map(lambda values: sorted(values, reverse=True))


@given(lengths, st.integers(1, 8), st.sampled_from([0.0, 5.0, 50.0, 1e9]))
def test_micro_batches_cover_every_row_once_at_least_cost(rows, most, pass_cost):
    runs = micro_batches(rows, most, pass_cost)
    assert [row for start, end in runs for row in range(start, end)] == list(range(len(rows)))
    assert all(end - start <= most for start, end in runs)

    def cost(cut) -> float:
        return sum(pass_cost + (end - start) * rows[start] for start, end in cut)

    def cuts(start=0):
        if start == len(rows):
            yield []
        for end in range(start + 1, min(len(rows), start + most) + 1):
            for rest in cuts(end):
                yield [(start, end), *rest]

    assert cost(runs) == min(map(cost, cuts()))
    if pass_cost == 1e9:
        assert len(runs) == -(-len(rows) // most)


def test_what_cannot_be_stacked_is_trained_in_turn(start, monkeypatch):
    """A layer that sees other tokens than the batch's (routed ones) ends the attempt; the cells are the same."""

    inner = lora.adapted_forward

    def routed(layer, position, x):
        if len(position.adapters) > 1:
            raise CannotStack
        return inner(layer, position, x)

    monkeypatch.setattr(lora, "adapted_forward", routed)
    workspace = start(finetuning={"epochs": 1, "rates_side_by_side": True})
    run_all(workspace, "finetune_adapter")
    assert sum(steps_of(workspace.store)) == 6


def test_a_layer_that_sees_other_tokens_is_noticed(llama, world, tmp_path, monkeypatch):
    examples, validate = world(llama)
    inner = lora.adapted_forward

    def half(layer, position, x):
        return inner(layer, position, x[: len(x) // 2] if len(position.adapters) > 1 else x)

    monkeypatch.setattr(lora, "adapted_forward", half)
    with pytest.raises(CannotStack):
        side_by_side(llama, examples, validate, members(tmp_path))
    assert "lora_A" not in str(llama.base), "the base model is given back"
