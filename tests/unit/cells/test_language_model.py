"""Loading models: what is refused, and with which hint."""

import shutil

import pytest
import torch
import transformers
from toy_world import SIZES, answers_of, edit, load_toy, never_fits, random_model, request, save_model, toy_model

from lm_validity.cells.models.loading import takes_rows
from lm_validity.errors import CellError


def test_dtype_is_the_one_asked_for(tmp_path):
    folder = toy_model("llama", tmp_path / "m")
    lm = load_toy(folder, dtype="bfloat16")
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
    edit(folder / "config.json", model_type="unheard_of")
    with pytest.raises(CellError, match="cannot be loaded as a causal language model"):
        load_toy(folder)


def test_pad_token_is_end_of_text(lm):
    assert lm.tokenizer.pad_token_id == lm.tokenizer.eos_token_id == lm.eot_token_id
    assert lm.counters["model_loads"] == 1 and lm.model_id in ("llama", "gpt2")
    assert not any(parameter.requires_grad for parameter in lm.base.parameters())


def test_the_longest_context_is_never_more_than_the_model_takes(tmp_path):
    folder = toy_model("gpt2", tmp_path / "m")
    assert [load_toy(folder, max_length=length).max_length for length in (None, 2048, 40)] == [96, 96, 40]
    save_model(random_model("mamba", state_size=4), tmp_path / "mamba")
    edit(tmp_path / "mamba" / "config.json", max_position_embeddings=None)
    assert load_toy(tmp_path / "mamba", max_length=4096).max_length == 4096, "a model without a limit of its own"


def test_weights_that_would_be_drawn_at_random_are_refused(tmp_path):
    folder = toy_model("llama", tmp_path / "m")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert not model.config.tie_word_embeddings
    save_model(model.model, tmp_path / "headless")
    lacks = r"headless: its weights lack 1 of .* tensors \(lm_head.weight\).* its language"
    with pytest.raises(CellError, match=lacks):
        load_toy(tmp_path / "headless")
    edit(folder / "config.json", intermediate_size=11)
    with pytest.raises(CellError, match=r"down_proj\.weight is 32x64 in its weights, and 32x11"):
        load_toy(folder)


@pytest.mark.parametrize(("kind", "decodes"), [("roberta", False), ("roberta", True), ("gpt_neox", None)])
def test_encoders_are_refused(kind, decodes, tmp_path):
    """Of Pythia the configuration says that it is no decoder; it is causal all the same."""
    model = random_model(kind, **({} if decodes is None else {"is_decoder": decodes}))
    assert model.config.is_decoder is bool(decodes)
    save_model(model, tmp_path)
    if decodes is False:
        with pytest.raises(CellError, match="RobertaForCausalLM sees the tokens that it is to predict"):
            load_toy(tmp_path)
    else:
        load_toy(tmp_path)


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


def test_out_of_memory_with_one_row_fails_the_cell(llama, model_folders, monkeypatch):
    """It ended the job before, so that cells behind it were never computed, and retries asked for more host memory."""
    choice, text = request("red is", " a color"), request("red is a color")
    llama.loglikelihood([choice])  # the probe, while there is memory
    halvings = llama.counters["oom_halvings"]
    monkeypatch.setattr(llama.base, "forward", never_fits)
    for ask in (lambda: llama.loglikelihood([choice]), lambda: llama.loglikelihood_rolling([text])):
        with pytest.raises(CellError, match="llama: out of memory with one text to score"):
            ask()
    with pytest.raises(CellError, match="out of memory with one answer to write"):
        answers_of(llama, ["red is"] * 8, ["."], 3)
    assert llama.counters["oom_halvings"] == halvings + 3 and llama.batch_size == 8, "8, 4, 2, 1 answers were tried"
    monkeypatch.setattr(transformers.PreTrainedModel, "to", never_fits)
    with pytest.raises(CellError, match="llama: out of memory with its weights to load"):
        load_toy(model_folders["llama"])


SEE_ALL = {
    "XLNetLMHeadModel": transformers.XLNetConfig(vocab_size=50, d_model=16, n_layer=1, n_head=2, d_inner=16),
    "XLMWithLMHeadModel": transformers.XLMConfig(vocab_size=50, emb_dim=16, n_layers=1, n_heads=2),
    "CpmAntForCausalLM": transformers.CpmAntConfig(**SIZES, dim_head=8, dim_ff=16),
}


@pytest.mark.parametrize("name", SEE_ALL)
def test_a_model_that_sees_all_tokens_is_refused_whatever_its_configuration_says(name):
    """None of them has an is_decoder that says so."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = getattr(transformers, name)(SEE_ALL[name]).eval()
    with pytest.raises(CellError, match=f"mine: {name} sees the tokens that it is to predict"):
        takes_rows(model, "mine")
