"""Loading models: what is refused, and with which hint."""

import json
import shutil
from types import SimpleNamespace

import pytest
import torch
import transformers
from toy_world import load_toy, toy_model

from lm_validity.cells.models.language_model import load_language_model
from lm_validity.cells.models.loading import takes_rows
from lm_validity.errors import CellError

OPTIONS = {"device": "cpu", "eval_batch_size": 8}


def test_dtype_is_the_one_asked_for(tmp_path):
    folder = toy_model("llama", tmp_path / "m")
    lm = load_language_model(folder, dtype="bfloat16", **OPTIONS)
    assert lm.base.dtype == torch.bfloat16
    lm.base.save_pretrained(folder)  # a bfloat16 checkpoint is not loaded as one unless asked
    assert load_toy(folder).base.dtype == torch.float32


def test_folders_without_safetensors_are_refused(tmp_path):
    folder = toy_model("gpt2", tmp_path / "m")
    weights = folder / "model.safetensors"
    torch.save({}, folder / "pytorch_model.bin")
    shutil.copytree(folder, folder / "step10")
    weights.unlink()
    with pytest.raises(CellError, match=r"no \*.safetensors in the folder.*save_pretrained"):
        load_toy(folder)
    assert load_toy(folder, subfolder="step10").max_length == 96
    for file in (folder / "step10").glob("tokenizer*"):  # a checkpoint of weights alone has the model's tokenizer
        file.unlink()
    assert load_toy(folder, subfolder="step10").tokenizer.eos_token == "</s>"
    with pytest.raises(CellError, match=r"no \*.safetensors in step11"):
        load_toy(folder, subfolder="step11")
    with pytest.raises(CellError, match=r"no \*.safetensors in the folder"):
        load_toy(tmp_path / "absent")


def test_broken_folders_are_one_line(tmp_path):
    folder = toy_model("gpt2", tmp_path / "m")
    (folder / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(CellError, match="cannot be loaded as a causal language model") as caught:
        load_toy(folder)
    assert "\n" not in str(caught.value)
    folder = toy_model("gpt2", tmp_path / "n")
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "unheard_of"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CellError, match="cannot be loaded as a causal language model"):
        load_toy(folder)


def test_pad_token_is_end_of_text(lm):
    assert lm.tokenizer.pad_token_id == lm.tokenizer.eos_token_id == lm.eot_token_id
    assert lm.counters["model_loads"] == 1 and lm.model_id in ("llama", "gpt2")
    assert not any(parameter.requires_grad for parameter in lm.base.parameters())


def test_the_longest_context_is_never_more_than_the_model_takes(tmp_path):
    folder = toy_model("gpt2", tmp_path / "m")
    assert [load_toy(folder, max_length=length).max_length for length in (None, 2048, 40)] == [96, 96, 40]
    sizes = {"vocab_size": 420, "hidden_size": 16, "num_hidden_layers": 1, "state_size": 4}
    save_with_tokenizer(transformers.MambaForCausalLM(transformers.MambaConfig(**sizes)), folder, tmp_path / "mamba")
    assert load_toy(tmp_path / "mamba", max_length=4096).max_length == 4096, "a model without a limit of its own"


def save_with_tokenizer(model: transformers.PreTrainedModel, source, folder) -> None:
    model.save_pretrained(folder)
    for file in source.glob("tokenizer*"):
        shutil.copy(file, folder)


def test_weights_that_would_be_drawn_at_random_are_refused(tmp_path):
    folder = toy_model("llama", tmp_path / "m")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert not model.config.tie_word_embeddings
    save_with_tokenizer(model.model, folder, tmp_path / "headless")
    with pytest.raises(
        CellError, match=r"headless: its weights lack 1 of .* tensors \(lm_head.weight\).* its language"
    ):
        load_toy(tmp_path / "headless")
    config = json.loads((folder / "config.json").read_text()) | {"intermediate_size": 11}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CellError, match=r"down_proj\.weight is 32x64 in its weights, and 32x11"):
        load_toy(folder)


SMALL = {
    "vocab_size": 420,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}


def test_encoders_are_refused(tmp_path):
    folder = toy_model("gpt2", tmp_path / "m")
    encoder, decoder = (transformers.RobertaConfig(**SMALL, is_decoder=decodes) for decodes in (False, True))
    save_with_tokenizer(transformers.RobertaForCausalLM(encoder), folder, tmp_path / "encoder")
    with pytest.raises(CellError, match="RobertaForCausalLM sees the tokens that it is to predict"):
        load_toy(tmp_path / "encoder")
    save_with_tokenizer(transformers.RobertaForCausalLM(decoder), folder, tmp_path / "decoder")
    load_toy(tmp_path / "decoder")
    pythia = transformers.GPTNeoXConfig(**SMALL)
    assert pythia.is_decoder is False, "causal all the same"
    save_with_tokenizer(transformers.GPTNeoXForCausalLM(pythia), folder, tmp_path / "pythia")
    load_toy(tmp_path / "pythia")


@pytest.mark.parametrize(
    ("error", "models"),
    [
        (ValueError("unknown architecture"), True),
        (OSError("no file named model.safetensors"), True),
        (OSError(28, "No space left on device"), False),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), False),
    ],
)
def test_the_machines_faults_are_not_the_models(error, models, tmp_path, monkeypatch):
    """They end the job, and retries apply; the model's end its cells."""
    folder = toy_model("gpt2", tmp_path / "m")

    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", fail)
    with pytest.raises(CellError if models else type(error)):
        load_toy(folder)


def never_fits(*arguments, **options):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def test_out_of_memory_with_one_row_fails_the_cell(llama, model_folders, monkeypatch):
    """It ended the job before, so that cells behind it were never computed, and retries asked for more host memory."""
    choice, text = SimpleNamespace(args=("red is", " a color")), SimpleNamespace(args=("red is a color",))
    answer = SimpleNamespace(args=("red is", {"until": ["."], "max_gen_toks": 3}))
    llama.loglikelihood([choice])  # the probe, while there is memory
    halvings = llama.counters["oom_halvings"]
    monkeypatch.setattr(llama.base, "forward", never_fits)
    for ask in (lambda: llama.loglikelihood([choice]), lambda: llama.loglikelihood_rolling([text])):
        with pytest.raises(CellError, match="llama: out of memory with one text to score"):
            ask()
    with pytest.raises(CellError, match="out of memory with one answer to write"):
        llama.generate_until([answer] * 8)
    assert llama.counters["oom_halvings"] == halvings + 3 and llama.batch_size == 8, "8, 4, 2, 1 answers were tried"
    monkeypatch.setattr(transformers.PreTrainedModel, "to", never_fits)
    with pytest.raises(CellError, match="llama: out of memory with its weights to load"):
        load_toy(model_folders["llama"])


SEE_ALL = {
    "XLNetLMHeadModel": lambda: transformers.XLNetConfig(vocab_size=50, d_model=16, n_layer=1, n_head=2, d_inner=16),
    "XLMWithLMHeadModel": lambda: transformers.XLMConfig(vocab_size=50, emb_dim=16, n_layers=1, n_heads=2),
    "CpmAntForCausalLM": lambda: transformers.CpmAntConfig(
        vocab_size=50, hidden_size=16, num_attention_heads=2, dim_head=8, dim_ff=16, num_hidden_layers=1
    ),
}


@pytest.mark.parametrize("name", SEE_ALL)
def test_a_model_that_sees_all_tokens_is_refused_whatever_its_configuration_says(name):
    """None of them has an is_decoder that says so."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = getattr(transformers, name)(SEE_ALL[name]()).eval()
    with pytest.raises(CellError, match=f"mine: {name} sees the tokens that it is to predict"):
        takes_rows(model, "mine")
