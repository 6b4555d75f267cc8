"""Tokenizers, perplexity and adapters of the two real models."""

import itertools
import json
import math

import pytest
import torch
import transformers
from peft import PeftModel
from tests.real.conftest import DOCUMENTS, MODELS, model_folder

from lm_validity.cells.models.loading import put_on
from lm_validity.cells.tasks.evaluation import metric_value, prepare_requests, training_examples
from lm_validity.cells.tasks.finding import find_task
from lm_validity.cells.tasks.tasks import fetch_documents, load_task
from lm_validity.cells.training.loop import FinetuneSettings, Member, Plan
from lm_validity.cells.training.lora import use_adapter
from lm_validity.cells.workers import finetune

pytestmark = pytest.mark.real
SMOLLM, GEMMA = MODELS
CHAT = [{"role": "user", "content": "What do plants need?"}]


def test_gemma_begins_every_request_with_one_bos(load):
    lm = load(GEMMA)
    bos = lm.tokenizer.bos_token_id
    context, continuation = lm.encode_request("Question: what do plants need?\nAnswer:", " light")
    assert context[0] == bos and context.count(bos) == 1 and bos not in continuation
    assert lm.window_prefix == "every" and lm.tokenizer.chat_template is None
    assert lm.tokenizer.decode(context[1:]) + lm.tokenizer.decode(continuation) == (
        "Question: what do plants need?\nAnswer: light"
    )


def test_smollm_reads_its_chat_template_once(load):
    lm = load(SMOLLM)
    plain, _ = lm.encode_request("Question: what do plants need?\nAnswer:", " light")
    start, end = (lm.tokenizer.convert_tokens_to_ids(mark) for mark in ("<|im_start|>", "<|im_end|>"))
    assert start not in plain and lm.window_prefix == "once"
    text = lm.apply_chat_template(CHAT)
    assert text.endswith("<|im_start|>user\nWhat do plants need?<|im_end|>\n<|im_start|>assistant\n")
    # as lm-eval has it, white space at the end of a context goes to the continuation
    tokens = [*itertools.chain(*lm.encode_request(text, "Light."))]
    whole = lm.tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, tokenize=True, return_dict=True)
    assert tokens == [*whole["input_ids"], *lm.tok_encode("Light.")]
    assert tokens.count(start) == 3 and tokens.count(end) == 2
    assert lm.answer_start == ""


@pytest.mark.parametrize("model", MODELS)
def test_bits_per_byte_once_and_every(load, tasks, seen, model):
    """A document of several windows; the first of them is a plain forward pass over its tokens."""
    text = json.loads((tasks / "data/shakespeare.jsonl").read_text().splitlines()[0])["text"]
    text = text[: 4000 if DOCUMENTS else 20_000]
    bits = {}
    for prefix in ("once", "every"):
        lm = load(model, window_prefix=prefix, max_length=512)
        windows = lm.rolling_windows(text)
        assert len(windows) > 1 and sum(len(predicted) for _, predicted in windows) == len(lm.document_tokens(text))
        (nats,) = lm.loglikelihood_rolling([type("Request", (), {"args": (text,)})()])
        bits[prefix] = -nats / math.log(2) / len(text.encode())
        context, predicted = windows[0]
        ids = torch.tensor([[*context, *predicted]])
        with torch.no_grad():
            logits = lm.base(input_ids=ids[:, :-1]).logits.log_softmax(-1)
        direct = logits.gather(-1, ids[:, 1:, None]).sum().item()
        ((ours, _),) = lm._loglikelihood_tokens([(None, context, predicted)])
        assert ours == pytest.approx(direct, abs=1e-3 * max(1, len(predicted) ** 0.5))
    seen(model=model, bytes=len(text.encode()), **bits)
    assert min(bits.values()) > 0.3 and (model != GEMMA or bits["every"] < bits["once"])


@pytest.mark.parametrize("model", MODELS)
def test_a_fine_tuned_adapter_is_one_for_plain_peft(load, tasks, seen, tmp_path, model):
    """LoRA on OpenBookQA: the loss falls, the base comes back to the bit, and PEFT alone computes what we do."""
    lm = load(model)
    ids = torch.tensor([lm.tok_encode("Question: what do plants need?\nAnswer: light")])
    with torch.no_grad():
        before = lm.base(input_ids=ids).logits
    task = load_task(find_task("real_openbookqa", str(tasks)))
    train, test = (fetch_documents(task, kind, [f"{kind}:{i}" for i in range(32)]) for kind in ("train", "test"))
    examples = training_examples(lm, task, train, max_length=256, prompt="plain")
    settings = FinetuneSettings(learning_rate=2e-4, epochs=2, effective_batch=8)
    prepared = prepare_requests(lm, task, test, prompt="plain")
    found = finetune(
        Plan(lm, examples, [Member(settings, tmp_path)], lambda: metric_value(lm, prepared, "acc_norm,none"), 1)
    )
    losses = [epoch.train_loss for epoch in found.epochs]
    assert losses[1] < losses[0] and found.diverged is None
    with torch.no_grad():
        assert torch.equal(lm.base(input_ids=ids).logits, before)
        with use_adapter(lm, tmp_path / "adapter"):
            ours = lm.base(input_ids=ids).logits
        plain = transformers.AutoModelForCausalLM.from_pretrained(model_folder(model), dtype=torch.float32)
        theirs = PeftModel.from_pretrained(plain, str(tmp_path / "adapter")).eval()(input_ids=ids).logits
        torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-4)
        assert (ours - before).abs().max() > 1e-2
        put_on(lm.base, tmp_path / "adapter", model)  # as a row of the models sheet
        torch.testing.assert_close(lm.base(input_ids=ids).logits, theirs, atol=1e-3, rtol=1e-4)
    seen(model=model, documents=32, losses=losses, adapted_share=found.adapted_share)
