"""Trials: arms, seeds, files, the library's Trainer beside them; prompts, adapters, packing, and a planted leak."""

import argparse
import importlib.util
import shutil
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from toy_texts import CLASSES, on_texts, table_bytes, toy_model, toy_plan, toy_rows, toy_task
from toy_world import edit, loglikelihood, never_fits
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSequenceClassification

from lm_validity.cells.trials import training
from lm_validity.cells.trials import worker as trials_worker
from lm_validity.cells.trials.data import draw_hash, draw_trial, read_task
from lm_validity.cells.trials.training import IGNORED, Batch, HeadTrials, ResidentModel, next_tokens, padded, share_rows
from lm_validity.cells.trials.worker import ResidentWorker, ZeroShotTrials, read_tables, write_tables
from lm_validity.config.sections import Adapter, BiasSettings
from lm_validity.errors import CellError, InputError
from lm_validity.run.rules.pretrain_on_test import ARMS, TrialPlan
from lm_validity.studies.bias.trials import pair_arms


def twice(plan: TrialPlan, experiment: str) -> TrialPlan:
    """Another experiment, of two epochs."""
    return replace(plan, experiment=experiment, pretraining=plan.pretraining.model_copy(update={"epochs": 2}))


def losses(trials) -> dict[str, list[float]]:
    return {arm: trials.loc[trials["arm"] == arm, "pretraining_loss"].tolist() for arm in ARMS}


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_a_trial_has_three_arms_on_one_test_set(plan_of, tmp_path, kind):
    plan = plan_of(kind)
    ResidentWorker().run(plan, tmp_path)
    trials, probabilities = read_tables(plan, tmp_path)
    wide = pair_arms(trials)  # the reports' own reader and its checks
    assert wide["subsample"].tolist() == [1, 2] and wide[["base", "extra", "test"]].notna().all(axis=None)
    task = read_task(plan.data)
    for subsample, own in probabilities.groupby("subsample"):
        draw = draw_trial(task, plan.m, plan.n, subsample)
        assert set(trials.loc[trials["subsample"] == subsample, "test_hash"]) == {draw_hash(task, draw.test)}
        for arm, rows in own.groupby("arm"):
            assert rows["row"].tolist() == draw.test.tolist()
            assert rows["label"].tolist() == task.labels[draw.test].tolist()
            found = np.stack(rows["probabilities"].to_list())
            assert found.shape == (15, 3) and np.allclose(found.sum(axis=1), 1, atol=1e-5)
            here = trials[(trials["subsample"] == subsample) & (trials["arm"] == arm)].iloc[0]
            assert here["correct"] == (found.argmax(axis=1) == task.labels[draw.test]).sum()
    assert all(np.isnan(loss) for loss in losses(trials)["base"])
    assert all(0.5 < loss < 8 for arm in ("extra", "test") for loss in losses(trials)[arm])


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_a_trial_depends_on_its_key_alone(plan_of, tmp_path, kind):
    """The same bytes whatever the batch, the order, what the process did before, and what stood in the folder."""
    plan = plan_of(kind, subsamples=(1, 2, 3))
    ResidentWorker().run(plan, tmp_path / "whole")
    expected = table_bytes(plan, tmp_path / "whole", tmp_path / "expected")
    worker, folder = ResidentWorker(), tmp_path / "parts"
    worker.run(twice(plan, "another"), folder)
    torch.manual_seed(99)
    for subsample in (3, 1):
        worker.run(replace(plan, subsamples=(subsample,)), folder)
    (folder / "trial-00002.parquet").write_bytes(b"half a file")
    worker.run(plan, folder)
    assert table_bytes(plan, folder, tmp_path / "found") == expected
    assert worker.counters["model_loads"] == 1
    before = worker.counters["trainings"]
    worker.run(plan, folder)
    assert worker.counters["trainings"] == before  # everything is there
    # another recipe in the same folder: not taken for the same trials
    ResidentWorker().run(replace(plan, n=16), folder)
    assert read_tables(plan, folder).trials.empty


def test_a_missing_trial_is_not_committed(plan_of, tmp_path):
    plan = plan_of("gpt2")
    ResidentWorker().run(replace(plan, subsamples=(1,)), tmp_path)
    with pytest.raises(CellError, match=r"task 'toy': 1 trials are missing \(subsample 2\)"):
        write_tables(plan, tmp_path, tmp_path)
    assert not (tmp_path / "trials.parquet").exists()


def test_the_base_arm_is_trained_once_for_all_n_and_experiments(plan_of, tmp_path):
    """With sharing or without, in whatever order: the same bytes."""
    sizes = ((15, 2), (20, 2), (30, 1))
    plans = [plan_of("gpt2", n=n, subsamples=tuple(range(1, count + 1)), share_base=sizes) for n, count in sizes]
    again = twice(plans[1], "overtraining")
    alone, together = tmp_path / "alone", tmp_path / "together"
    worker = ResidentWorker()
    for number, plan in enumerate([*plans, again]):
        ResidentWorker().run(plan, alone / str(number))
        worker.run(plan, together / str(number), shared=tmp_path / "shared")
        expected = table_bytes(plan, alone / str(number), tmp_path / f"expected{number}")
        assert table_bytes(plan, together / str(number), tmp_path / f"found{number}") == expected
    trials = 2 + 2 + 1 + 2
    assert worker.counters["shared_base_arms"] == trials - 2
    assert worker.counters["trainings"] == 5 * trials - worker.counters["shared_base_arms"]
    next((tmp_path / "shared").glob("*/n20-00001.npy")).write_bytes(b"\x93NUMPY half a file")
    worker.run(plans[1], together / "later", shared=tmp_path / "shared")
    expected = table_bytes(plans[1], alone / "1", tmp_path / "again")
    assert table_bytes(plans[1], together / "later", tmp_path / "found") == expected


def test_trials_draw_from_the_first_row_of_each_text(plan_of, tmp_path):
    """Every text thrice: without duplicates the trials are those of the texts once."""
    plan, rows = plan_of("gpt2", subsamples=(1,)), toy_rows()
    thrice = on_texts(plan, tmp_path, rows * 3)
    found, worker = {}, ResidentWorker()
    for name, each in (("once", plan), ("thrice", thrice), ("all rows", replace(thrice, drop_duplicate_texts=False))):
        worker.run(each, tmp_path / name)
        found[name] = read_tables(each, tmp_path / name).probabilities
    assert found["thrice"].equals(found["once"])
    assert found["all rows"]["row"].max() >= len(rows) > found["thrice"]["row"].max()


def test_seeds_differ_between_subsamples_and_not_between_arms(plan_of, tmp_path):
    """Without pretraining's effect (a rate of nearly nothing) the three arms are the same classifier."""
    plan = plan_of("gpt2", pretraining={"learning_rate": 1e-30})
    ResidentWorker().run(plan, tmp_path)
    found = read_tables(plan, tmp_path).probabilities
    by_arm = {arm: np.stack(found.loc[found["arm"] == arm, "probabilities"].to_list()) for arm in ARMS}
    assert np.array_equal(by_arm["base"], by_arm["extra"]) and np.array_equal(by_arm["base"], by_arm["test"])


def heads(plan: TrialPlan, arm: str, seeds=(5, 6)) -> list[dict[str, torch.Tensor]]:
    model = ResidentModel(plan)
    found = []
    for seed in seeds:
        model.reset()
        model.start_classifier(arm, seed)
        found.append({name: value.clone() for name, value in model.classifier.named_parameters()})
    return found


def test_pooler_options(plan_of, record, tmp_path):
    """keep: the model's own in every arm; paper: a fresh one after pretraining."""
    folder = toy_model("bert", tmp_path / "bert", pooler=True)
    own = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=3).bert.pooler.dense.weight
    name = "bert.pooler.dense.weight"
    for pooler, arm in (("keep", "base"), ("keep", "test"), ("paper", "base")):
        one, other = heads(toy_plan("bert", folder, record, classification={"pooler": pooler}), arm)
        assert torch.equal(one[name], own) and torch.equal(other[name], own)
        assert not torch.equal(one["classifier.weight"], other["classifier.weight"])
        assert not one["classifier.bias"].any()
    one, other = heads(toy_plan("bert", folder, record, classification={"pooler": "paper"}), "test")
    assert not torch.equal(one[name], own) and not torch.equal(one[name], other[name])
    # a model whose files have no pooler gets a fresh one in every arm, the same within a subsample
    bare = plan_of("bert")
    assert torch.equal(heads(bare, "base")[0][name], heads(bare, "test")[0][name])


def test_paper_options_are_the_authors(plan_of, tmp_path):
    settings = BiasSettings.model_validate({"paper": True})
    options = settings.model_dump(include={"seeds", "drop_duplicate_texts"})
    plan = plan_of("bert", classification=settings.training.model_dump(include={"max_length", "pooler"}), **options)
    assert (plan.classification.max_length, plan.classification.pooler, plan.seeds) == (None, "paper", "fixed")
    assert plan.recipe() != plan_of("bert").recipe()
    ResidentWorker().run(plan, tmp_path)
    assert len(read_tables(plan, tmp_path).trials) == 6


def test_truncation_is_256_or_the_models_limit(record, models, tmp_path):
    long = [{**row, "text": " ".join([row["text"]] * 30)} for row in toy_rows()]
    record = toy_task(tmp_path / "long", long)
    model = ResidentModel(toy_plan("gpt2", models["gpt2"], record))
    text = long[0]["text"]
    assert [len(model.encode([text], length)[0][0]) for length in (None, 40, 4000)] == [96, 40, 96]
    bert = ResidentModel(toy_plan("bert", models["bert"], record))
    tokens, special = bert.encode([text], 40)[0]
    assert tokens[-1] == bert.tokenizer.sep_token_id and special == [1, *[0] * 38, 1]


def unequal_batch(model: ResidentModel) -> tuple[torch.Tensor, torch.Tensor]:
    """Texts of 1 to 40 words, one per row."""
    words = " ".join(row["text"] for row in toy_rows(12)).split()
    texts = [" ".join(words[start : start + length]) for start, length in enumerate((3, 40, 7, 1, 22, 12, 5, 30))]
    return padded([tokens for tokens, _ in model.encode(texts, None)], model.tokenizer.pad_token_id)


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
@pytest.mark.parametrize("shared", [True, False])
def test_logits_and_losses_are_those_of_one_text_a_row(plan_of, models, kind, shared, monkeypatch):
    """Against the library's own models; texts that share rows, and one per row for architectures that cannot."""
    if not shared:
        monkeypatch.setattr("lm_validity.cells.trials.training.SHARED_ROWS", frozenset())
    plan = plan_of(kind)
    model = ResidentModel(plan)
    model.start_classifier("base", 1)
    trials = HeadTrials(plan, read_task(plan.data), model, Counter())
    ids, attention = unequal_batch(model)
    loader = AutoModelForMaskedLM if kind == "bert" else AutoModelForCausalLM
    plain = loader.from_pretrained(models[kind]).eval()
    library = AutoModelForSequenceClassification.from_pretrained(models[kind], num_labels=3).eval()
    library.load_state_dict(model.classifier.state_dict())
    library.config.pad_token_id = model.tokenizer.pad_token_id
    chosen = torch.rand(ids.shape, generator=torch.Generator().manual_seed(0)) < 0.3
    labels = torch.where(chosen & (attention == 1), ids, IGNORED) if kind == "bert" else next_tokens(ids, attention)
    model.lm.eval(), model.classifier.eval()
    with torch.no_grad():
        batch = trials.batch(ids, attention, labels)
        logits, wanted = trials._masked_logits(batch) if kind == "bert" else trials._causal_logits(batch)
        found = F.cross_entropy(logits, wanted, ignore_index=IGNORED)
        expected = plain(input_ids=ids, attention_mask=attention).logits
        expected = F.cross_entropy(expected.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
        assert abs(found - expected) < 1e-5
        batch = trials.batch(ids, attention, torch.zeros(len(ids)))
        expected = library(input_ids=ids, attention_mask=attention).logits
        assert torch.allclose(trials._class_logits(batch).logits, expected, atol=1e-5) and expected.std() > 0.01
    assert (len(batch.input_ids) < len(ids)) is shared and batch.tokens == attention.sum()


def test_rows_are_filled_longest_first_and_labels_move_with_their_tokens():
    ids, attention = padded([[5, 6, 7], [8, 9, 10, 11, 12], [13], [14, 15]], 0)
    labels = next_tokens(ids, attention)
    batch = share_rows(ids, attention, labels, causal=True, dtype=torch.float32)
    assert batch.input_ids.tolist() == [[8, 9, 10, 11, 12], [5, 6, 7, 14, 15], [13, 5, 5, 5, 5]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 4], [0, 1, 2, 0, 1], [0, 0, 0, 0, 0]]
    assert batch.labels[1].tolist() == [6, 7, IGNORED, 15, IGNORED]
    assert batch.places.tolist() == [[1, 0, 2], [0, 0, 4], [2, 0, 0], [1, 3, 4]]
    seen = ["10000", "11000", "11100", "00010", "00011"]
    assert ["".join(map(str, row)) for row in (batch.attention_mask[1, 0] == 0).int().tolist()] == seen
    assert batch.rows(1, 2).labels.tolist() == batch.labels[1:2].tolist()


def test_what_cannot_be_is_refused(plan_of, tmp_path):
    gpt2 = plan_of("gpt2")
    with pytest.raises(CellError, match="no mask token"):
        ResidentWorker().run(replace(gpt2, architecture="masked"), tmp_path)
    with pytest.raises(CellError, match=r"no \*.safetensors in the folder"):
        ResidentWorker().run(replace(gpt2, model_path=str(tmp_path / "nowhere")), tmp_path)
    with pytest.raises(CellError, match="task 'toy': 150 rows, m = 12 and n = 100 need 212"):
        ResidentWorker().run(replace(gpt2, n=100), tmp_path)
    diverging = replace(gpt2, pretraining=gpt2.pretraining.model_copy(update={"learning_rate": 1e30}))
    with pytest.raises(CellError, match=r"task 'toy', .*: the loss is not finite"):
        ResidentWorker().run(diverging, tmp_path)
    assert not list(tmp_path.glob("trial-*"))


def test_a_trial_runs_on_one_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    wanted = ("auto", "all", "cpu", "cuda:0")
    assert [trials_worker.trial_device(device, "large", 8) for device in wanted] == ["cuda", "cuda", "cpu", "cuda:0"]
    assert [trials_worker.trial_device(device, "large", 0) for device in wanted] == ["cpu", "cuda", "cpu", "cuda:0"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for device in ("auto", "all", "cuda", "cuda:1"):
        with pytest.raises(InputError, match="size class 'large' with gpu: 8"):
            trials_worker.trial_device(device, "large", 8)
    assert trials_worker.trial_device("cpu", "large", 8) == trials_worker.trial_device("auto", "large", 0) == "cpu"


def test_a_head_that_would_be_drawn_at_random_is_refused(record, tmp_path):
    folder = toy_model("bert", tmp_path / "m")
    AutoModelForMaskedLM.from_pretrained(folder).bert.save_pretrained(folder)
    with pytest.raises(CellError, match=r"its weights lack cls\.predictions"):
        ResidentModel(toy_plan("bert", folder, record))


@pytest.fixture(params=["gpt2", "bert"])
def copied(request, plan_of, models, tmp_path):
    """(a plan of a tiny model, its folder, which no other test reads)."""
    folder = shutil.copytree(models[request.param], tmp_path / request.param)
    return replace(plan_of(request.param), model_path=str(folder)), folder


def test_a_head_that_the_checkpoint_holds_stays(copied):
    """Also beside a classifier on the same backbone, for which weights are tied anew."""
    plan, folder = copied
    saved = training.LANGUAGE_MODELS[plan.architecture].from_pretrained(folder)
    saved.config.tie_word_embeddings = False
    head = saved.get_output_embeddings()
    head.weight = torch.nn.Parameter(torch.randn_like(head.weight))
    saved.save_pretrained(folder)
    edit(folder / "config.json", tie_word_embeddings=True)
    resident = ResidentModel(plan)
    assert torch.equal(resident.lm.get_output_embeddings().weight, head.weight)
    assert resident.lm.get_input_embeddings() is resident.classifier.get_input_embeddings()


def test_a_configuration_that_wants_tuples_is_loaded_as_any_other(copied):
    """`return_dict` false: logits and loss of the language model and of the classifier have their names."""
    plan, folder = copied
    plain = ResidentModel(plan)
    edit(folder / "config.json", return_dict=False)
    resident, rows = ResidentModel(plan), torch.arange(5, 25)[None]
    with torch.no_grad():
        found = [model.lm(input_ids=rows, labels=rows) for model in (resident, plain)]
        assert torch.equal(found[0].logits, found[1].logits) and torch.equal(found[0].loss, found[1].loss)
        assert resident.classifier(input_ids=rows).logits.shape == plain.classifier(input_ids=rows).logits.shape


SCRIPT = Path(__file__).parents[4] / "benchmarks" / "bias_trials.py"


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPT.parent)  # for the helpers beside it
    monkeypatch.setattr("accelerate.utils.memory.gc.collect", lambda: 0)  # of all that the tests imported
    specification = importlib.util.spec_from_file_location("bias_trials", SCRIPT)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    small = {"WIDTH": 8, "LAYERS": 1, "VOCABULARY": 100, "TRAINING_TEXTS": 20, "TEST_TEXTS": (10, 20)}
    for name, value in small.items():
        monkeypatch.setattr(module, name, value)
    return module


def test_probabilities_of_masked_models_are_the_trainers(benchmark, tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "TEST_TEXTS", (10,))
    record = benchmark.measure("masked", tmp_path, argparse.Namespace(subsamples=1, rounds=1))
    assert record["agreement"] < 1e-5 and record["ratio"] > 0 and record["target"] == 3


def test_probabilities_of_causal_models_are_the_trainers_and_others_are_refused(benchmark, tmp_path):
    model = benchmark.write_model("causal", tmp_path / "model")
    plans = benchmark.make_plans("causal", model, benchmark.write_task(tmp_path), 1)
    task = benchmark.read_task(plans[0].data)
    theirs = [{1: benchmark.AuthorsLoop(plan, task, tmp_path).run(1)} for plan in plans]
    ours = benchmark.resident(plans, tmp_path / "ours")
    assert len(plans) == 2 and max(map(benchmark.largest_difference, plans, [task] * 2, theirs, ours)) < 1e-5
    wrong = {key: np.roll(probabilities, 1, axis=1) for key, probabilities in ours[0].items()}
    with pytest.raises(SystemExit, match="accuracies differ between the two sides"):
        benchmark.largest_difference(plans[0], task, theirs[0], wrong)


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
    for prompt in (trials.format.prompt(trials.task.texts[row]) for row in rows):
        before, scores = tokenizer(prompt)["input_ids"], []
        for name in trials.task.class_names:
            behind = tokenizer(f"{prompt} {name}")["input_ids"][len(before) :]
            scores.append(loglikelihood(lm, before, behind) / len(behind))
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
    prompts = trials_worker.PromptFormat(("ham", "spam"), "The text is an email.", 5)
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
