"""Prompts, their scoring against the plain way, adapters, packing, and a leak that must be found."""

from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from toy_texts import CLASSES, on_texts, toy_model, toy_plan, toy_rows
from toy_world import never_fits
from transformers import AutoModelForCausalLM

from lm_validity.cells.trials.data import draw_trial, read_task
from lm_validity.cells.trials.training import Batch, ResidentModel
from lm_validity.cells.trials.worker import PromptFormat, ResidentWorker, ZeroShotTrials, read_tables
from lm_validity.config.sections import Adapter
from lm_validity.errors import CellError

PROMPTED = {"method": "zero_shot"}
LONG_NAMES = ("animal that is big", "tool", "plant near a tool")
SETTINGS = {
    "all weights": {},
    "adapter": {"adapter": Adapter(rank=4, alpha=8)},
    "packed": {"adapter": Adapter(rank=4, alpha=8), "packing": 4, "batch_size": 1},
    "checkpointed": {"adapter": Adapter(rank=4, alpha=8), "gradient_checkpointing": True},
}


def three_rows_fit(batch: Batch, inputs=Batch.inputs):
    if len(batch.input_ids) > 3:
        raise torch.OutOfMemoryError("CUDA out of memory")
    return inputs(batch)


@pytest.fixture
def prompted(plan_of):
    """A plan of a GPT-2 that answers a prompt; `pretraining` with more options."""
    return partial(plan_of, "gpt2", classification=PROMPTED)


def zero_shot(plan, **changes) -> ZeroShotTrials:
    model = ResidentModel(plan)
    trials = ZeroShotTrials(plan, replace(read_task(plan.data), **changes), model, Counter())
    trials.prepare(np.arange(20))
    return trials


def plain_probabilities(trials: ZeroShotTrials, lm, rows) -> np.ndarray:
    """One forward pass a prompt and class: mean token log-probability of the name, normalised."""
    tokenizer, found = trials.model.tokenizer, []
    for row in rows:
        prompt, scores = trials.format.prompt(trials.task.texts[row]), []
        before = tokenizer(prompt)["input_ids"]
        for name in trials.task.class_names:
            whole = tokenizer(f"{prompt} {name}")["input_ids"]
            with torch.no_grad():
                logs = lm(torch.tensor([whole])).logits.log_softmax(dim=-1)[0]
            scores.append(np.mean([float(logs[at - 1, whole[at]]) for at in range(len(before), len(whole))]))
        found.append(np.exp(scores) / np.exp(scores).sum())
    return np.array(found)


@pytest.mark.parametrize("names", [CLASSES, LONG_NAMES])
@pytest.mark.parametrize("heeds", [True, False])
def test_scores_are_those_of_one_pass_a_prompt_and_class(plan_of, models, names, heeds, monkeypatch):
    """Also of a model that does not heed the mask under which answers are scored side by side."""
    trials = zero_shot(plan_of("gpt2", classification={**PROMPTED, "predict_batch": 7}), class_names=names)
    lm = AutoModelForCausalLM.from_pretrained(models["gpt2"]).eval()
    expected, forward = plain_probabilities(trials, lm, np.arange(20)), trials.model.lm.forward
    if not heeds:
        deaf = lambda *inputs, attention_mask=None, **options: forward(*inputs, **options)  # noqa: E731
        monkeypatch.setattr(trials.model.lm, "forward", deaf)
    assert np.ptp(expected) > 0.1 and np.abs(trials.probabilities(np.arange(20)) - expected).max() < 1e-5
    assert ("packed" in trials.model.scorer._allowed) is heeds and trials.counters["forward_tokens"] > 0


def test_the_prompt_is_the_papers():
    prompts = PromptFormat(("ham", "spam"), "The text is an email.", 5)
    assert prompts.prompt("123456789") == (
        "Your task is to classify a given text as one of these categories:\nham\nspam\n\nThe text is an email.\n\n"
        "### Text: 12345\n ### Answer:"
    )
    assert prompts.packed(["one", "two"]) == prompts.instruction + "### Text: one\n\n\n### Text: two\n"


@pytest.mark.parametrize("settings", SETTINGS)
def test_trials_are_the_same_bytes_again_and_leave_the_model_as_it_was(prompted, models, tmp_path, settings):
    plan = prompted(pretraining=SETTINGS[settings] | {"epochs": 2})
    worker = ResidentWorker()
    worker.run(plan, tmp_path / "one")
    worker.run(replace(plan, subsamples=(2,)), tmp_path / "two")
    ResidentWorker().run(replace(plan, subsamples=(1,)), tmp_path / "two")
    for name in ("trial-00001.parquet", "trial-00002.parquet"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    worker._model.reset()
    plain = AutoModelForCausalLM.from_pretrained(models["gpt2"]).state_dict()
    found = worker._model.lm.state_dict()
    assert found.keys() == plain.keys() and all(torch.equal(found[name], plain[name]) for name in plain)
    assert worker._model.quantized is False


NF4 = {"adapter": Adapter(rank=4, alpha=8, quantization="nf4")}


def test_nf4_without_bitsandbytes_is_an_error_and_never_other_weights(prompted, tmp_path, monkeypatch):
    monkeypatch.setattr("lm_validity.cells.trials.training.find_spec", lambda name: None)
    plan, plain = prompted(pretraining=NF4), prompted(pretraining=SETTINGS["adapter"])
    with pytest.raises(CellError, match="quantization is nf4, and bitsandbytes is missing") as raised:
        ResidentWorker().run(plan, tmp_path)
    assert "lm-validity[cells,nf4]" in raised.value.hint and not list(tmp_path.iterdir())
    assert plan.recipe()["four_bit_weights"] and plan.recipe() == replace(plan, device="cuda:0").recipe()
    assert "four_bit_weights" not in plain.recipe() and plain.base_recipe() != plan.base_recipe()


@pytest.mark.parametrize("packs", [False, True])
def test_nf4_is_four_bits_on_a_cpu_too(prompted, tmp_path, monkeypatch, packs):
    """Also on one that packs such weights anew, where bitsandbytes may: then no second trial starts from the first."""
    pytest.importorskip("bitsandbytes")
    monkeypatch.setattr("bitsandbytes.nn.modules.has_avx512bf16", lambda: packs)
    worker, plan = ResidentWorker(), prompted(pretraining=NF4, dtype="bfloat16")
    worker.run(plan, tmp_path)
    kinds = {type(module).__name__ for module in worker._model.lm.modules()}
    assert "Linear4bit" in kinds and worker._model.quantized
    assert len(read_tables(plan, tmp_path).trials) == 6
    ResidentWorker().run(replace(plan, subsamples=(2,)), tmp_path / "alone")
    assert (tmp_path / "trial-00002.parquet").read_bytes() == (tmp_path / "alone/trial-00002.parquet").read_bytes()


FAR_APART = {"share_base": ((15, 1), (60, 1)), "subsamples": (1,)}


def test_a_base_arm_is_shared_with_an_n_more_than_twice_as_large(prompted, tmp_path):
    """Most of its test texts are in no set of the smaller n."""
    alone, together, worker = tmp_path / "alone", tmp_path / "together", ResidentWorker()
    for n in (15, 60):
        plan = prompted(n=n, **FAR_APART)
        ResidentWorker().run(plan, alone / str(n))
        worker.run(plan, together / str(n), tmp_path / "shared")
        found, expected = (folder / str(n) / "trial-00001.parquet" for folder in (together, alone))
        assert found.read_bytes() == expected.read_bytes()
    assert worker.counters["shared_base_arms"] == 1


def test_a_text_of_another_n_that_does_not_fit_fails_that_n_alone(prompted, tmp_path):
    options = FAR_APART | {"drop_duplicate_texts": False}
    plan, rows = prompted(n=15, **options), toy_rows()
    task = read_task(plan.data)
    small, large = (draw_trial(task, plan.m, n, 1) for n in (15, 60))
    odd = next(row for row in large.test if row not in np.concatenate([small.train, small.extra, small.test]))
    rows[odd]["text"] = " ".join(["cat"] * 90)
    plan, worker, shared = on_texts(plan, tmp_path, rows), ResidentWorker(), tmp_path / "shared"
    worker.run(plan, tmp_path / "15", shared)
    assert len(read_tables(plan, tmp_path / "15").trials) == 3
    with pytest.raises(CellError, match=f"row {odd + 1}: its prompt and answer"):
        worker.run(replace(prompted(n=60, **options), data=plan.data), tmp_path / "60", shared)


def test_checkpointing_and_memory_that_runs_out_change_rounding_only(prompted, monkeypatch):
    """Dropout of an adapter belongs to the batch; the base model's own is off here."""
    found = []
    for name in ("adapter", "checkpointed"):
        if name == "checkpointed":
            monkeypatch.setattr(Batch, "inputs", three_rows_fit)
        plan = prompted(subsamples=(1,), pretraining=SETTINGS[name])
        model = ResidentModel(plan)
        for module in model.lm.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        for layer in model.lm.transformer.h:
            layer.attn.attn_dropout.p = layer.attn.resid_dropout.p = 0.0
        trials = ZeroShotTrials(plan, read_task(plan.data), model, Counter())
        rows = np.arange(12)
        trials.prepare(rows)
        loss = trials.pretrain(rows, 7, 0)
        assert trials.counters["oom_halvings"] == (2 if name == "checkpointed" else 0)  # 12 prompts, 6, 3
        monkeypatch.undo()
        found.append((loss, trials.probabilities(rows)))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    assert np.abs(found[0][1] - found[1][1]).max() < 1e-4


def test_packing_joins_consecutive_texts(prompted):
    trials = zero_shot(prompted(pretraining=SETTINGS["packed"]))
    texts = trials._pretraining_texts(np.arange(10), 0)
    assert [text.count("### Text:") for text in texts] == [4, 4, 2]
    assert all(text.startswith(trials.format.instruction) and "Answer:" not in text for text in texts)


def test_a_packed_sequence_that_the_model_would_cut_is_named_and_other_cuts_are_counted(prompted):
    pretraining = SETTINGS["packed"] | {"packing": 12, "epochs": 1}
    trials = zero_shot(prompted(pretraining=pretraining))  # 256 wanted, 96 read
    problem = r"task 'toy': a packed sequence has 1\d\d tokens, the model reads 96"
    with pytest.raises(CellError, match=problem) as caught:
        trials.pretrain(np.arange(13), 7, 0)
    assert "leave `packing` out" in caught.value.hint
    cut = zero_shot(prompted(pretraining=pretraining | {"max_length": 96}))
    cut.pretrain(np.arange(13), 7, 0)
    assert cut.counters["packed_sequences_cut"] == 1  # the second sequence holds one text


def test_a_planted_leak_is_found_and_nothing_without_one(record, tmp_path):
    """For testing only: with the labels in the pretraining prompts the test arm must win by far."""
    folder = toy_model("gpt2", tmp_path / "dry", dropout=0.0)
    gains = {}
    for leak in (0.0, 1.0):
        strong = {"epochs": 40, "learning_rate": 1e-2}
        options = {"n": 12, "subsamples": (1, 2), "classification": PROMPTED, "pretraining": strong}
        plan = toy_plan("gpt2", folder, record, planted_leak=leak, **options)
        ResidentWorker().run(plan, tmp_path / str(leak))
        counts = read_tables(plan, tmp_path / str(leak)).trials.groupby("arm")["correct"].sum()
        gains[leak] = (counts["test"] - counts["extra"]) / 24
    assert gains[1.0] > 0.4 and abs(gains[0.0]) < 0.3


def test_a_prompt_that_does_not_fit_is_named(prompted, tmp_path):
    rows = toy_rows()
    rows[6]["text"] = " ".join(["cat"] * 90)
    problem = r"task 'toy', row 7: its prompt and answer have 12[0-9] tokens, the model reads 96"
    with pytest.raises(CellError, match=problem):
        zero_shot(on_texts(prompted(), tmp_path, rows))


def test_memory_that_runs_out_fails_the_cell_and_names_the_key_that_spares_it(prompted, tmp_path, monkeypatch):
    monkeypatch.setattr(ZeroShotTrials, "pretrain", never_fits)
    with pytest.raises(CellError, match="out of memory with one batch of a trial") as caught:
        ResidentWorker().run(prompted(), tmp_path)
    assert "bias.zero_shot.gradient_checkpointing" in caught.value.hint


def test_classes_of_the_same_tokens_are_refused(prompted):
    """The toy tokenizer writes all words that it lacks as one token."""
    with pytest.raises(CellError, match="writes the classes 'quay' and 'zinc' as the same tokens"):
        zero_shot(prompted(), class_names=("animal", "quay", "zinc"))
