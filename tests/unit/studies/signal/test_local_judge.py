"""A local causal model as judge: greedy, seeded repetitions, the global random state untouched."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast  # noqa: E402

from lm_validity.cells.workers import LocalJudge  # noqa: E402

WORDS = ["[unk]", "[end]", "accept", "reject", "question", "answer", "yes", "no"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny random model with a word tokenizer."""
    folder = tmp_path_factory.mktemp("judge")
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[unk]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[unk]", eos_token="[end]")
    fast.save_pretrained(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = GPT2LMHeadModel(GPT2Config(vocab_size=len(WORDS), n_positions=64, n_embd=16, n_layer=1, n_head=2))
    model.save_pretrained(folder)
    return folder


def test_replies_are_reproducible_and_repetitions_differ(folder):
    judge = LocalJudge(folder, dtype="float32", temperature=5.0)
    prompt = "question answer yes"
    before = torch.random.get_rng_state()
    replies, again = ([judge(prompt, repetition) for repetition in range(6)] for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert replies == again and len(set(replies)) > 1 and {*" ".join(replies).split()} <= {*WORDS}


def test_chat_templates_are_used(folder, monkeypatch):
    judge, prompts = LocalJudge(folder, dtype="float32"), []
    monkeypatch.setattr(judge.model, "generate", lambda tokens, **options: prompts.append(tokens.tolist()) or tokens)
    judge("yes", 0)
    judge.tokenizer.chat_template = "question {{ messages[0].content }} answer"
    judge("yes", 0)
    assert prompts == [[[6]], [[4, 6, 5]]]
