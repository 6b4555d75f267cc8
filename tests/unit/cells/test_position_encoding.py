"""longrope and dynamic scaling: a text's numbers are its own, whoever is in its batch and whatever came before."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from test_scorer import COMMON, LLAMA, LONG
from toy_run import run_of
from toy_world import toy_tokenizer

from lm_validity.cells.models.language_model import LanguageModel
from lm_validity.cells.models.passes import PositionEncoding
from lm_validity.cells.tasks.evaluation import Example
from lm_validity.cells.training.loop import FinetuneSettings

SWITCH = 24


@pytest.fixture(params=LONG)
def lm(request) -> LanguageModel:
    configuration, options = LONG[request.param]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        made = configuration(**(COMMON | LLAMA | options))
        model = transformers.AutoModelForCausalLM.from_config(made).eval()
    lm = LanguageModel(model, toy_tokenizer(adds_bos=False, chat=False), model_id="long", eval_batch_size=8)
    lm._max_length = 96  # a dynamic encoding is for texts beyond what the configuration says
    return lm


def spoil(lm) -> None:
    """A long text, which a dynamic encoding remembers."""
    with torch.no_grad():
        lm.base(input_ids=torch.arange(5, 85)[None])


def gradients(lm, micro_batch: int) -> list[torch.Tensor]:
    """Of one step on texts on both sides of the switch."""
    draw = np.random.default_rng(1)
    lengths = (60, SWITCH + 1, SWITCH, 20, 8, 40, 40, 5)
    examples = [Example(tuple(map(int, draw.integers(5, 400, size=size))), 1) for size in lengths]
    settings = FinetuneSettings(learning_rate=1e-3, rank=4, alpha=8, dropout=0.0, micro_batch=micro_batch)
    one = run_of(lm, examples, settings)
    one.pass_tokens = 1e9  # as few passes as possible
    for name, parameter in one.trainings[0].parameters.items():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(2))
    spoil(lm)
    one.accumulate(one.trainings, next(one.trainings[0].batches(1)))
    found = [parameter.grad.clone() for parameter in one.trainings[0].parameters.values()]
    one.end()
    return found


def test_gradients_do_not_depend_on_who_is_in_the_micro_batch(lm):
    alone, together = gradients(lm, 1), gradients(lm, 8)
    largest = max(float(each.abs().max()) for each in alone)
    for one, other in zip(alone, together, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4 * largest, rtol=0)


def test_answers_do_not_depend_on_who_is_in_the_batch(lm):
    draw = np.random.default_rng(4)
    words = [lm.tokenizer.decode([number]) for number in range(5, 200)]
    prompts = ["".join(draw.choice(words, size=size)) for size in (4, 12, 40, 6, 30)]
    wanted = {"until": ["\n"], "max_gen_toks": 8, "do_sample": False}
    requests = [SimpleNamespace(args=(prompt, dict(wanted))) for prompt in prompts]
    alone = []
    for request in requests:
        lm.position_encoding.forget()
        alone += lm.generate_until([request])
    spoil(lm)
    assert lm.generate_until(requests) == alone and len(set(alone)) > 1


def test_lm_evals_code_as_a_fallback_keeps_them_apart_too(lm):
    draw = np.random.default_rng(0)
    requests = [
        (None, draw.integers(420, size=size).tolist(), draw.integers(420, size=2).tolist()) for size in (60, 21, 22, 5)
    ]
    expected = lm._loglikelihood_tokens(requests)
    lm._allowed = frozenset()
    spoil(lm)
    np.testing.assert_allclose(
        [value for value, _ in lm._loglikelihood_tokens(requests)], [value for value, _ in expected], atol=1e-3
    )


def test_a_text_as_long_as_the_model_was_made_for_forgets_longer_ones(lm):
    """transformers itself goes back at shorter texts only."""
    row = torch.arange(5, 5 + SWITCH)[None]
    with torch.no_grad():
        before = lm.base(input_ids=row).logits
        spoil(lm)
        lm.position_encoding.forget()
        assert torch.equal(lm.base(input_ids=row).logits, before)


def test_other_encodings_do_not_depend_on_the_text():
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**(COMMON | LLAMA)))
    encoding = PositionEncoding(model)
    assert not encoding.varies and encoding.of(10**6) == 0
    encoding.forget()
