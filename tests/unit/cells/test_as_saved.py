"""Models and tokenizers score as they were saved, against plain transformers and the tokenizers library, or not."""

import json
import shutil
from pathlib import Path

import pytest
import tokenizers
import torch
import toy_world as toy
import transformers
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from tokenizers import Regex, pre_tokenizers, processors
from tokenizers.models import BPE
from toy_world import edit, load_toy, never_fits, random_model, request, save_model, toy_model, toy_tokenizer

from lm_validity.cells.models.loading import check_saved_ends, takes_rows
from lm_validity.cells.models.prefetch import prefetch_model
from lm_validity.cells.models.tokenizing import check_question, close_thought, load_tokenizer, lost_bytes, open_thought
from lm_validity.config.sheets import Model
from lm_validity.errors import CellError, InputError

IDS = torch.arange(5, 45)[None]


def record_of(folder: Path, **columns) -> dict:
    return prefetch_model(Model(model="m", path=str(folder), **columns))


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits


KINDS = ("llama", "gemma3_text", "gpt2", "opt", "gpt_neox")


def saved_model(kind: str, folder: Path, **sizes) -> transformers.PreTrainedModel:
    """A random model, no bias of which is zero, and in the folder its files beside a tokenizer's."""
    model = random_model(kind, tie_word_embeddings=False, **sizes)
    torch.manual_seed(0)
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            weight.data.normal_()
    save_model(model, folder)
    return model


def with_own_head(kind: str, folder: Path) -> transformers.PreTrainedModel:
    """A model whose head is its own, under a configuration that ties it."""
    model = saved_model(kind, folder)
    edit(folder / "config.json", tie_word_embeddings=True)
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_that_the_checkpoint_holds_is_the_one_that_scores(kind, tmp_path):
    saved = with_own_head(kind, tmp_path)
    assert torch.equal(logits(load_toy(tmp_path).base), logits(saved))


def test_a_configuration_that_wants_tuples_scores_as_any_other(tmp_path):
    saved = saved_model("llama", tmp_path)
    edit(tmp_path / "config.json", return_dict=False)
    lm = load_toy(tmp_path)
    whole, context = (lm.tokenizer(text)["input_ids"] for text in ("the house is red", "the house"))
    expected = toy.loglikelihood(saved, context, whole[len(context) :])
    assert lm.loglikelihood([request("the house", " is red")])[0][0] == pytest.approx(expected, abs=1e-4)


LESS = {
    "layers": ({"num_hidden_layers": 1}, "model.layers.1.input_layernorm.weight"),
    "biases": ({"attention_bias": False}, "model.layers.0.self_attn.k_proj.bias"),
}


@pytest.mark.parametrize("part", LESS)
def test_a_configuration_of_less_than_the_weights_is_refused(part, tmp_path):
    """Of biases that are zero nothing is lost, and layers that predict further tokens are no part of the model."""
    expected = logits(saved_model("llama", tmp_path, attention_bias=part == "biases"))
    change, named = LESS[part]
    edit(tmp_path / "config.json", **change)
    with pytest.raises(CellError, match=rf"tensors such as {named}, and by its config\.json"):
        load_toy(tmp_path)
    if part == "biases":
        tensors = load_file(tmp_path / "model.safetensors")
        none = {name: tensor * (0 if name.endswith("bias") else 1) for name, tensor in tensors.items()}
        save_file(none, tmp_path / "model.safetensors", {"format": "pt"})
        load_toy(tmp_path)
    else:
        edit(tmp_path / "config.json", num_nextn_predict_layers=1)
        assert not torch.allclose(logits(load_toy(tmp_path).base), expected)


def test_a_wish_for_flash_attention_is_passed_over_where_it_is_not_installed(tmp_path, caplog):
    expected = logits(load_toy(toy_model("llama", tmp_path)).base)
    edit(tmp_path / "config.json", _attn_implementation="flash_attention_2")
    torch.testing.assert_close(logits(load_toy(tmp_path).base), expected)
    assert "flash_attention_2" in caplog.text


def test_an_architecture_whose_code_takes_no_text_is_refused_by_its_name(tmp_path):
    """Whatever it raises: ProphetNet's where no token pads, and xLSTM's of a small model, unless it takes one."""
    sizes = {"decoder_ffn_dim": 32, "num_decoder_layers": 1, "num_decoder_attention_heads": 2}
    config = transformers.ProphetNetConfig(vocab_size=420, hidden_size=32, ngram=1, **sizes)
    save_model(transformers.AutoModelForCausalLM.from_config(config), tmp_path / "a")
    edit(tmp_path / "a" / "config.json", pad_token_id=None)
    with pytest.raises(CellError, match="ProphetNetForCausalLM cannot compute a text"):
        load_toy(tmp_path / "a")
    saved = saved_model("xlstm", tmp_path / "b", num_heads=2, num_blocks=2)
    try:
        expected = logits(saved)
    except ValueError:
        with pytest.raises(CellError, match="xLSTMForCausalLM cannot compute a text"):
            load_toy(tmp_path / "b")
    else:
        assert torch.allclose(logits(load_toy(tmp_path / "b").base), expected, atol=1e-5)


def test_an_adapter_is_added_beside_a_head_of_its_own(tmp_path):
    saved = with_own_head("llama", tmp_path / "base")
    torch.manual_seed(1)
    adapted = get_peft_model(saved, LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    adapted.save_pretrained(tmp_path / "adapter")
    lm = load_toy(tmp_path / "base", adapter=tmp_path / "adapter")
    torch.testing.assert_close(logits(lm.base), logits(adapted), atol=1e-4, rtol=1e-4)


TEXT = "In 2023 it was 841823.\nAnswer:"


def digits_by_three(folder: Path, **settings) -> tokenizers.Tokenizer:
    """A byte-level tokenizer that cuts numbers into groups of three, which transformers' class GPT2Tokenizer does
    not."""
    tokenizer = tokenizers.Tokenizer(BPE())
    split = pre_tokenizers.Split(Regex(r"\p{N}{1,3}| ?\p{L}+|[^\s\p{L}\p{N}]+[\r\n]*|\s+"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    toy.train_bytes(tokenizer, [TEXT + " 202 841 823 yes no"] * 50, 400).save_pretrained(folder)
    edit(folder / "tokenizer_config.json", **settings)
    return tokenizer


def test_an_adapter_with_its_bases_tokenizer_files_encodes_as_its_base(tmp_path):
    """Without a config.json beside them transformers takes the class by name, which splits digits otherwise."""
    base, adapter = toy_model("llama", tmp_path / "base"), tmp_path / "adapter"
    raw = digits_by_three(base, tokenizer_class="GPT2Tokenizer")
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"])).save_pretrained(adapter)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(base / name, adapter)
    expected = raw.encode(TEXT).ids
    assert transformers.AutoTokenizer.from_pretrained(adapter).encode(TEXT) != expected
    lm = load_toy(base, adapter=adapter)
    assert lm.tok_encode(TEXT) == load_toy(base).tok_encode(TEXT) == expected
    assert (lm.tokenizer.eos_token, lm.tokenizer.bos_token) == ("</s>", "<s>")


@pytest.mark.parametrize("name", ["GPT2Tokenizer", "LlamaTokenizerFast", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize("kind", ["gpt2", "qwen2", "gpt_neox", "olmo2"])
def test_whatever_class_is_named_the_file_says_what_a_text_is(kind, name, tmp_path):
    raw = digits_by_three(tmp_path, tokenizer_class=name)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    tokenizer = load_tokenizer(tmp_path, "m")
    assert tokenizer.encode(TEXT, add_special_tokens=False) == raw.encode(TEXT).ids


def test_merges_are_never_left_out_at_random(tmp_path):
    """BPE dropout: scoring has none."""
    path = toy_model("llama", tmp_path) / "tokenizer.json"
    text, saved = "Straße, the capital of the world " * 5, json.loads(path.read_text())
    expected = load_toy(tmp_path).tokenizer.encode(text)
    path.write_text(json.dumps(saved | {"model": saved["model"] | {"dropout": 0.3}}))
    assert load_toy(tmp_path).tokenizer.encode(text) == expected


def test_a_vocabulary_that_is_not_there_is_no_model(tmp_path):
    """transformers makes an empty tokenizer of the class, for which a corpus costs nothing."""
    toy_model("gpt2", tmp_path)
    edit(tmp_path / "tokenizer_config.json", tokenizer_class="GPT2Tokenizer")
    (tmp_path / "tokenizer.json").unlink()
    for load, error in ((record_of, InputError), (load_toy, CellError)):
        with pytest.raises(error, match=r"no vocabulary: merges\.txt and tokenizer\.json and vocab\.json missing in"):
            load(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    with pytest.raises(InputError, match=r"cannot be used|no vocabulary"):
        record_of(tmp_path)


@pytest.mark.parametrize("begins", [True, False])
def test_what_a_tokenizer_appends_is_left_out(begins, tmp_path):
    toy_model("llama", tmp_path)
    tokenizer = toy_tokenizer()
    single = "<s> $A </s>" if begins else "$A </s>"
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=single, special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    tokenizer.save_pretrained(tmp_path)
    lm = load_toy(tmp_path)
    plain = tokenizer.encode("Answer: yes", add_special_tokens=False)
    begin = [0] if begins else []
    assert lm.tok_encode("Answer: yes") == [*begin, *plain]
    context, continuation = lm.encode_request("Answer:", " yes")
    assert [*context, *continuation] == [*begin, *plain] and continuation
    assert lm.tok_batch_encode(["Answer: yes"])[0].tolist() == [[*begin, *plain]]  # prompts of generation tasks
    assert load_tokenizer(tmp_path, "m", causal=False).encode("yes")[-1] == 1


TURNS = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
BEGIN = "{% if add_generation_prompt %}<assistant>%s{% endif %}"
SWITCH = "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% else %}<think>{% endif %}"


@pytest.mark.parametrize(
    ("opening", "ends"),
    [
        ("", "<assistant>"),
        ("<think>\n", "<assistant><think>\n\n</think>\n\n"),
        ("<|START_THINKING|>", "<assistant><|START_THINKING|>\n\n<|END_THINKING|>\n\n"),
        ("<think>\n\n</think>\n\n", "<assistant><think>\n\n</think>\n\n"),
        (SWITCH, "<assistant><think></think>"),  # the template's own empty thought
    ],
)
def test_a_thought_that_the_template_opens_is_closed(opening, ends, tmp_path):
    toy_model("llama", tmp_path)
    (tmp_path / "chat_template.jinja").write_text(TURNS + BEGIN.replace("%s", opening))
    lm = load_toy(tmp_path)
    prompt = lm.apply_chat_template([{"role": "user", "content": "do you think <think>"}])
    assert prompt == f"<user>do you think <think>{ends}"
    assert record_of(tmp_path, instruction_tuned=1)["chat_template"]


def test_what_is_no_open_thought_stays():
    for prompt in ("What do you think?", "a <b> c", "[/INST]", "<think>so</think>", "<|begin_of_thought|> x"):
        assert open_thought(prompt) is None and close_thought(prompt) == prompt
    assert close_thought("[THINK]") == "[THINK]\n\n[/THINK]\n\n"


def tensors_of(folder: Path, change) -> None:
    """The weights of a folder with changed names or tensors."""
    weights = load_file(folder / "model.safetensors")
    save_file(dict(change(*item) for item in weights.items()), folder / "model.safetensors", {"format": "pt"})


def compiled(folder: Path) -> None:
    tensors_of(folder, lambda name, weight: (f"_orig_mod.{name}", weight))


def quantized(dtype: torch.dtype):
    return lambda folder: tensors_of(folder, lambda name, w: (name, w.to(dtype) if "q_proj" in name else w))


def configured(**changes):
    return lambda folder: edit(folder / "config.json", **changes)


def merged(folder: Path) -> None:
    """The adapter beside weights that hold it already: transformers would add it again."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    adapted = get_peft_model(model, LoraConfig(target_modules=["q_proj"]))
    adapted.save_pretrained(folder)
    adapted.merge_and_unload().save_pretrained(folder)


def cut(folder: Path) -> None:
    text = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(text[: len(text) // 2])


def template(text: str):
    return lambda folder: (folder / "chat_template.jinja").write_text(text)


IN_EIGHT_BITS = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}
PARTS = "{% for m in messages %}<{{ m.role }}>{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}"
CUT = "{% for m in messages %}{{ m['content'] }}"
REFUSED_WHEN_FETCHED = {
    "int8": (quantized(torch.int8), r"q_proj\.weight in .* is quantized \(I8\)"),
    "float8": (quantized(torch.float8_e4m3fn), r"q_proj\.weight in .* is quantized \(F8_E4M3\)"),
    "no scales": (configured(**IN_EIGHT_BITS), "bitsandbytes quantized the weights, and the file has no scales"),
    "unknown": (configured(quantization_config={"quant_method": "newest"}), "quantization_config of the kind 'newest'"),
    # the tokenizer, which reads config.json too, was blamed for it
    "a text": (configured(max_position_embeddings="96"), r"config\.json cannot be used .*'max_position_embeddings'"),
    "merged": (merged, r"weights and an adapter \(adapter_config\.json\) beside each other"),
    "cut tokenizer": (cut, r"model 'm'.*the tokenizer in .* cannot be used"),
    "tokenizer of a larger model": (configured(vocab_size=100), r"makes token \d+, and the model has 100 embeddings"),
    "a thought without an end": (template(TURNS + BEGIN.replace("%s", "<|channel>thought\n")), r"opens a thought with"),
    "no question": (template(PARTS), "its chat template prints nothing of a question"),
    "half a template": (template(CUT), "its chat template cannot be rendered"),
}


@pytest.mark.parametrize("kind", REFUSED_WHEN_FETCHED)
def test_what_would_be_read_otherwise_is_refused_when_fetched(kind, tmp_path):
    change, problem = REFUSED_WHEN_FETCHED[kind]
    folder = toy_model("llama", tmp_path)
    (folder / "chat_template.jinja").write_text(TURNS + BEGIN.replace("%s", ""))
    assert record_of(folder, instruction_tuned=1)["model"]
    change(folder)
    with pytest.raises(InputError, match=problem):
        record_of(folder, instruction_tuned=1)
    if kind in ("no question", "half a template"):  # asked plainly it is none of the model's business
        assert record_of(folder)["model"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (configured(quantization_config={"quant_method": "hqq"}), r"HQQ.*Hint: install what it names"),
        (configured(rope_parameters={"rope_type": "lineer"}), r"lineer.*Hint: a value of its config\.json is not"),
        (configured(intermediate_size=24), r"proj\.weight is \d+x\d+ in its weights, and \d+x\d+ by its config\.json"),
        (compiled, r"they have _orig_mod\.\S+, which it does not know.*torch\.compile"),
    ],
)
def test_what_keeps_a_model_from_loading_is_named_with_a_way_out(change, problem, tmp_path):
    change(toy_model("llama", tmp_path))
    with pytest.raises(CellError, match=problem):
        load_toy(tmp_path)


def test_bits_per_byte_of_what_a_tokenizer_cannot_write_is_no_number(tmp_path):
    toy.word_tokenizer(["the", "answer", "is", "yes"]).save_pretrained(toy_model("llama", tmp_path))
    lm = load_toy(tmp_path)
    with pytest.raises(CellError, match=r"loses \d+ of 27 bytes of texts \('the capital"):
        lm.loglikelihood_rolling([request("the capital of Peru is Lima")])
    assert lm.loglikelihood_rolling([request("the answer is yes")])[0] < 0
    assert lost_bytes(toy_tokenizer(adds_bos=True), " Straße\n\n</s> cafe\u0301  ") == 0
    assert lost_bytes(toy.word_tokenizer(["yes"]), "Köln") == 5  # two bytes of ö, one each of the others


def test_weights_that_are_not_whole_are_named(tmp_path):
    folder = toy_model("llama", tmp_path)
    transformers.AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder, max_shard_size="60KB")
    (folder / "model.safetensors").unlink()
    *_, last = sorted(folder.glob("model-*.safetensors"))
    whole = last.read_bytes()
    assert record_of(folder)["model"]
    for content, words in (
        (whole[:-5], rf"{last.name} is damaged or cut"),
        (whole[:5], rf"{last.name} is damaged or cut"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", rf"{last.name} is a pointer of Git LFS"),
        (None, rf"{last.name} is not in "),
    ):
        last.write_bytes(content) if content is not None else last.unlink()
        with pytest.raises(InputError, match=words):
            record_of(folder)
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(InputError, match=r"neither model\.safetensors nor model\.safetensors\.index\.json"):
        record_of(folder)


def test_one_tensor_with_two_values_is_refused(tmp_path):
    """In two shards, of which the last is loaded; or in shards beside one file, which transformers loads alone."""
    folder = toy_model("llama", tmp_path)
    whole = folder / "model.safetensors"
    content, model = whole.read_bytes(), transformers.AutoModelForCausalLM.from_pretrained(folder)
    model.save_pretrained(folder, max_shard_size="60KB")
    whole.unlink(missing_ok=True)
    first, *_, last = sorted(folder.glob("model-*.safetensors"))
    name, held = next(iter(load_file(first))), load_file(last)
    save_file(held | {name: load_file(first)[name]}, last, metadata={"format": "pt"})
    assert record_of(folder)["model"] == "m", "the same twice is one"
    save_file(held | {name: torch.zeros_like(load_file(first)[name])}, last, metadata={"format": "pt"})
    with pytest.raises(InputError, match=rf"{last.name} and a file before it hold different weights \({name}\)"):
        record_of(folder)
    save_file(held, last, metadata={"format": "pt"})
    whole.write_bytes(content)
    assert record_of(folder)["model"] == "m", "the same weights twice are one model"
    with torch.no_grad():
        model.model.norm.weight += 1
    model.save_pretrained(folder, max_shard_size="60KB")
    whole.write_bytes(content)
    with pytest.raises(InputError, match=r"model-.* hold different weights \(model\.norm\.weight\)"):
        record_of(folder)
    for shard in folder.glob("model-*.safetensors"):
        shard.unlink()
    assert record_of(folder)["model"] == "m", "an index without its shards says nothing"


BATCHES = {
    "bart": {"d_model": 32, "decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 64, "init_std": 0.3},
    "recurrent_gemma": {"num_hidden_layers": 3, "num_key_value_heads": 1, "lru_width": 32, "attention_window_size": 16},
    "mixtral": {"num_key_value_heads": 2, "num_local_experts": 2, "output_router_logits": True},
    "llama": {},
}


@pytest.mark.parametrize("kind", BATCHES)
def test_an_answer_does_not_depend_on_its_batch(kind, tmp_path):
    """BART's decoder counts the padding before a shorter prompt as positions, RecurrentGemma's state holds it, and
    Mixtral computes a loss of its routers if its configuration was saved in training, which padding breaks. A prompt of
    one token RecurrentGemma takes for a part of the text before."""
    saved_model(kind, tmp_path, **BATCHES[kind])
    lm = load_toy(tmp_path)
    prompts = ("Question: what is the color of Mel?\nAnswer:", "yes no")
    alone = [toy.answers_of(lm, [prompt], ["never"], 6)[0] for prompt in prompts]
    assert toy.answers_of(lm, prompts, ["never"], 6) == alone
    assert lm.answers_alone == (kind in ("bart", "recurrent_gemma"))


def test_a_template_is_asked_for_a_question():
    """A cell asks too. One that wants a system message, or writes capitals, prints the question."""
    tokenizer = toy_tokenizer()
    wants = "{% if messages[0].role != 'system' %}{{ raise_exception('no system message') }}{% endif %}"
    tokenizer.chat_template = wants + "{{ messages[-1].content | upper }}"
    check_question(tokenizer, "m")
    for template, problem in ((PARTS, "prints nothing of a question"), (CUT, "cannot be rendered")):
        tokenizer.chat_template = template
        with pytest.raises(CellError, match=f"its chat template {problem}"):
            check_question(tokenizer, "m")


def test_what_is_in_memory_is_held_against_the_file(tmp_path):
    """Embeddings and head, whatever was done to them after loading."""
    model = transformers.AutoModelForCausalLM.from_pretrained(toy_model("llama", tmp_path))
    check_saved_ends(model, tmp_path, "m")
    model.get_output_embeddings().weight = model.get_input_embeddings().weight
    with pytest.raises(CellError, match=r"m: lm_head\.weight in memory is not that of"):
        check_saved_ends(model, tmp_path, "m")


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
        toy.answers_of(llama, ["red is"] * 8, ["."], 3)
    assert llama.counters["oom_halvings"] == halvings + 3 and llama.batch_size == 8, "8, 4, 2, 1 answers were tried"
    monkeypatch.setattr(transformers.PreTrainedModel, "to", never_fits)
    with pytest.raises(CellError, match="llama: out of memory with its weights to load"):
        load_toy(model_folders["llama"])


SEE_ALL = {
    "XLNetLMHeadModel": transformers.XLNetConfig(vocab_size=50, d_model=16, n_layer=1, n_head=2, d_inner=16),
    "XLMWithLMHeadModel": transformers.XLMConfig(vocab_size=50, emb_dim=16, n_layers=1, n_heads=2),
    "CpmAntForCausalLM": transformers.CpmAntConfig(**toy.SIZES, dim_head=8, dim_ff=16),
}


@pytest.mark.parametrize("name", SEE_ALL)
def test_a_model_that_sees_all_tokens_is_refused_whatever_its_configuration_says(name):
    """None of them has an is_decoder that says so."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = getattr(transformers, name)(SEE_ALL[name]).eval()
    with pytest.raises(CellError, match=f"mine: {name} sees the tokens that it is to predict"):
        takes_rows(model, "mine")
