"""Models and tokenizers score as they were saved: against plain transformers, and the tokenizers library."""

import json
import shutil
from pathlib import Path

import pytest
import tokenizers
import torch
import transformers
from lm_eval.api.instance import Instance
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from tokenizers import Regex, decoders, pre_tokenizers, processors
from tokenizers.models import BPE, WordLevel
from tokenizers.trainers import BpeTrainer
from toy_world import load_toy, toy_model, toy_tokenizer

from lm_validity.cells.models.loading import check_saved_ends
from lm_validity.cells.models.prefetch import prefetch_model
from lm_validity.cells.models.tokenizing import check_question, close_thought, load_tokenizer, lost_bytes, open_thought
from lm_validity.config.sheets import Model
from lm_validity.errors import CellError, InputError

IDS = torch.arange(5, 45)[None]


def edit(path: Path, **changes) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def record_of(folder: Path, **columns) -> dict:
    return prefetch_model(Model(model="m", path=str(folder), **columns))


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits


# ---- the output head -------------------------------------------------------------------------------------------------

COMMON = {"vocab_size": 420, "initializer_range": 0.3, "tie_word_embeddings": False}
SMALL = COMMON | {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
OPT = {"ffn_dim": 64, "word_embed_proj_dim": 32, "init_std": 0.3}
KINDS = {
    "llama": transformers.LlamaConfig(**SMALL),
    "gemma3": transformers.Gemma3TextConfig(**SMALL, num_key_value_heads=1, head_dim=16),
    "gpt2": transformers.GPT2Config(**COMMON, n_embd=32, n_layer=1, n_head=2, n_positions=64),
    "opt": transformers.OPTConfig(**SMALL, **OPT, max_position_embeddings=64),
    "gpt_neox": transformers.GPTNeoXConfig(**SMALL, max_position_embeddings=64),
}


def saved_model(config: transformers.PretrainedConfig, folder: Path) -> transformers.PreTrainedModel:
    """A random model, and in the folder its files beside a tokenizer's."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            weight.data.normal_()
    model.save_pretrained(folder)
    toy_tokenizer(adds_bos=False, chat=False).save_pretrained(folder)
    return model


def with_own_head(kind: str, folder: Path) -> transformers.PreTrainedModel:
    """A model whose head is its own, under a configuration that ties it."""
    model = saved_model(KINDS[kind], folder)
    edit(folder / "config.json", tie_word_embeddings=True)
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_that_the_checkpoint_holds_is_the_one_that_scores(kind, tmp_path):
    saved = with_own_head(kind, tmp_path)
    assert torch.equal(logits(load_toy(tmp_path).base), logits(saved))


def test_a_configuration_that_wants_tuples_scores_as_any_other(tmp_path):
    saved = saved_model(KINDS["llama"], tmp_path)
    edit(tmp_path / "config.json", return_dict=False)
    request = Instance("loglikelihood", {}, ("the house", " is red"), 0)
    lm = load_toy(tmp_path)
    whole = torch.tensor([lm.tokenizer("the house is red")["input_ids"]])
    first = len(lm.tokenizer("the house")["input_ids"])
    with torch.no_grad():
        right = saved(input_ids=whole).logits[0, first - 1 : -1].log_softmax(-1)
    expected = right[range(whole.shape[1] - first), whole[0, first:]].sum().item()
    assert lm.loglikelihood([request])[0][0] == pytest.approx(expected, abs=1e-4)


LESS = {
    "layers": ({"num_hidden_layers": 1}, "model.layers.1.input_layernorm.weight"),
    "biases": ({"attention_bias": False}, "model.layers.0.self_attn.k_proj.bias"),
}


@pytest.mark.parametrize("part", LESS)
def test_a_configuration_of_less_than_the_weights_is_refused(part, tmp_path):
    """Of biases that are zero nothing is lost, and layers that predict further tokens are no part of the model."""
    config = transformers.LlamaConfig(**SMALL | {"num_hidden_layers": 2}, attention_bias=part == "biases")
    expected = logits(saved_model(config, tmp_path))
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


def test_a_configuration_with_which_the_code_fails_is_refused_by_its_name(tmp_path):
    """Whatever the code of an architecture raises: of ProphetNet, where no token pads."""
    sizes = {"hidden_size": 32, "decoder_ffn_dim": 32, "num_decoder_layers": 1, "num_decoder_attention_heads": 2}
    saved_model(transformers.ProphetNetConfig(vocab_size=420, ngram=1, **sizes), tmp_path)
    edit(tmp_path / "config.json", pad_token_id=None)
    with pytest.raises(CellError, match="ProphetNetForCausalLM cannot compute a text"):
        load_toy(tmp_path)


def test_an_architecture_whose_code_takes_no_text_is_refused_by_its_name(tmp_path):
    """xLSTM's code takes no text of a small model; where it does, its logits are those of a plain pass."""
    config = transformers.xLSTMConfig(hidden_size=32, num_heads=2, num_hidden_layers=2, num_blocks=2, vocab_size=420)
    saved = saved_model(config, tmp_path)
    try:
        expected = logits(saved)
    except ValueError:
        with pytest.raises(CellError, match="xLSTMForCausalLM cannot compute a text"):
            load_toy(tmp_path)
    else:
        assert torch.allclose(logits(load_toy(tmp_path).base), expected, atol=1e-5)


def test_an_adapter_is_added_beside_a_head_of_its_own(tmp_path):
    saved = with_own_head("llama", tmp_path / "base")
    torch.manual_seed(1)
    adapted = get_peft_model(saved, LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    adapted.save_pretrained(tmp_path / "adapter")
    lm = load_toy(tmp_path / "base", adapter=tmp_path / "adapter")
    torch.testing.assert_close(logits(lm.base), logits(adapted), atol=1e-5, rtol=1e-5)


# ---- the tokenizer is its file ---------------------------------------------------------------------------------------

TEXT = "In 2023 it was 841823.\nAnswer:"


def digits_by_three(folder: Path, **settings) -> tokenizers.Tokenizer:
    """A byte-level tokenizer that cuts numbers into groups of three, which transformers' class GPT2Tokenizer does
    not."""
    tokenizer = tokenizers.Tokenizer(BPE())
    split = pre_tokenizers.Split(Regex(r"\p{N}{1,3}| ?\p{L}+|[^\s\p{L}\p{N}]+[\r\n]*|\s+"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=400, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([TEXT + " 202 841 823 yes no"] * 50, trainer)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(
        folder
    )
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


# ---- nothing is appended ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("begins", [True, False])
def test_what_a_tokenizer_appends_is_left_out(begins, tmp_path):
    toy_model("llama", tmp_path)
    tokenizer = toy_tokenizer(adds_bos=False, chat=False)
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


# ---- thoughts --------------------------------------------------------------------------------------------------------

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


# ---- refused -------------------------------------------------------------------------------------------------------


def tensors_of(folder: Path, change) -> None:
    """The weights of a folder with changed names or tensors."""
    weights = load_file(folder / "model.safetensors")
    save_file(dict(change(*item) for item in weights.items()), folder / "model.safetensors", {"format": "pt"})


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


IN_EIGHT_BITS = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}
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
    "a thought without an end": (
        lambda folder: (folder / "chat_template.jinja").write_text(TURNS + BEGIN.replace("%s", "<|channel>thought\n")),
        r"opens a thought with '<\|channel>thought",
    ),
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


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (configured(quantization_config={"quant_method": "hqq"}), r"HQQ.*Hint: install what it names"),
        (configured(rope_parameters={"rope_type": "lineer"}), r"lineer.*Hint: a value of its config\.json is not"),
        (configured(intermediate_size=24), r"proj\.weight is \d+x\d+ in its weights, and \d+x\d+ by its config\.json"),
        (
            lambda folder: tensors_of(folder, lambda name, weight: (f"_orig_mod.{name}", weight)),
            r"they have _orig_mod\.\S+, which it does not know.*torch\.compile",
        ),
    ],
)
def test_what_keeps_a_model_from_loading_is_named_with_a_way_out(change, problem, tmp_path):
    change(toy_model("llama", tmp_path))
    with pytest.raises(CellError, match=problem):
        load_toy(tmp_path)


# ---- bits per byte ---------------------------------------------------------------------------------------------------


def words_only(folder: Path) -> None:
    """A tokenizer of whole words, all others being unknown."""
    vocabulary = {"<unk>": 0, "</s>": 1} | {
        word: 2 + place for place, word in enumerate(["the", "answer", "is", "yes"])
    }
    tokenizer = tokenizers.Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>")
    fast.save_pretrained(folder)


def test_bits_per_byte_of_what_a_tokenizer_cannot_write_is_no_number(tmp_path):
    words_only(toy_model("llama", tmp_path))
    lm = load_toy(tmp_path)
    request = type("Request", (), {"args": ("the capital of Peru is Lima",)})
    with pytest.raises(CellError, match=r"loses \d+ of 27 bytes of texts \('the capital"):
        lm.loglikelihood_rolling([request])
    request.args = ("the answer is yes",)
    assert lm.loglikelihood_rolling([request])[0] < 0


def test_what_counts_as_lost():
    tokenizer = toy_tokenizer(adds_bos=True, chat=False)
    assert lost_bytes(tokenizer, " Straße\n\n</s> cafe\u0301  ") == 0
    vocabulary = {"[UNK]": 0, "yes": 1}
    words = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(WordLevel(vocabulary, "[UNK]")))
    assert lost_bytes(words, "Köln") == 5  # two bytes of ö, one each of the others


# ---- whole files -----------------------------------------------------------------------------------------------------


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
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
            rf"{last.name} is a pointer of Git LFS",
        ),
        (None, rf"{last.name} is not in "),
    ):
        last.write_bytes(content) if content is not None else last.unlink()
        with pytest.raises(InputError, match=words):
            record_of(folder)
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(InputError, match=r"neither model\.safetensors nor model\.safetensors\.index\.json"):
        record_of(folder)


def test_one_tensor_with_two_values_in_two_shards_is_refused(tmp_path):
    """Which of the two is loaded depends on the order of the files."""
    folder = toy_model("llama", tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="60KB")
    first, *_, last = sorted(folder.glob("model-*.safetensors"))
    name, held = next(iter(load_file(first))), load_file(last)
    save_file(held | {name: load_file(first)[name]}, last, metadata={"format": "pt"})
    assert record_of(folder)["model"] == "m", "the same twice is one"
    save_file(held | {name: torch.zeros_like(load_file(first)[name])}, last, metadata={"format": "pt"})
    with pytest.raises(InputError, match=rf"{last.name} and a file before it hold different weights \({name}\)"):
        record_of(folder)


def test_one_file_beside_shards_of_another_training_is_refused(tmp_path):
    """transformers loads model.safetensors and does not look at the shards."""
    folder = toy_model("llama", tmp_path)
    whole = (folder / "model.safetensors").read_bytes()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    model.save_pretrained(folder, max_shard_size="60KB")
    (folder / "model.safetensors").write_bytes(whole)
    assert record_of(folder)["model"] == "m", "the same weights twice are one model"
    with torch.no_grad():
        model.model.norm.weight += 1
    model.save_pretrained(folder, max_shard_size="60KB")
    (folder / "model.safetensors").write_bytes(whole)
    with pytest.raises(
        InputError, match=r"model-.* and a file before it hold different weights \(model\.norm\.weight\)"
    ):
        record_of(folder)
    for shard in folder.glob("model-*.safetensors"):
        shard.unlink()
    assert record_of(folder)["model"] == "m", "an index without its shards says nothing"


# ---- two models in one folder, other numbers, padding ----------------------------------------------------------------


BART = {"d_model": 32, "decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 64}
RECURRENT = SMALL | {"num_hidden_layers": 3, "num_key_value_heads": 1, "lru_width": 32, "attention_window_size": 16}
ROUTED = SMALL | {"num_key_value_heads": 2, "num_local_experts": 2, "output_router_logits": True}
BATCHES = {
    "bart": transformers.BartConfig(vocab_size=420, init_std=0.3, max_position_embeddings=96, **BART),
    "recurrent_gemma": transformers.RecurrentGemmaConfig(**RECURRENT),
    "mixtral": transformers.MixtralConfig(**ROUTED),
    "llama": KINDS["llama"],
}


@pytest.mark.parametrize("kind", BATCHES)
def test_an_answer_does_not_depend_on_its_batch(kind, tmp_path):
    """BART's decoder counts the padding before a shorter prompt as positions, RecurrentGemma's state holds it, and
    Mixtral computes a loss of its routers if its configuration was saved in training, which padding breaks. A prompt of
    one token RecurrentGemma takes for a part of the text before."""
    saved_model(BATCHES[kind], tmp_path)
    lm = load_toy(tmp_path)
    asked = {"until": ["never"], "max_gen_toks": 6, "do_sample": False}
    prompts = ["Question: what is the color of Mel?\nAnswer:", "yes no"]
    requests = [Instance("generate_until", {}, (prompt, asked), at) for at, prompt in enumerate(prompts)]
    assert lm.generate_until(requests) == [lm.generate_until([request])[0] for request in requests]
    assert lm.answers_alone == (kind in ("bart", "recurrent_gemma"))


PARTS = (
    "{% for m in messages %}<{{ m['role'] }}>{% for part in m['content'] %}{{ part['text'] }}{% endfor %}{% endfor %}"
)
CUT = "{% for m in messages %}{{ m['content'] }}"


@pytest.mark.parametrize(("template", "said"), [(PARTS, "prints nothing of a question"), (CUT, "cannot be rendered")])
def test_a_template_that_prints_no_question_is_refused(template, said, tmp_path):
    """At prefetch and by a cell; the same model asked plainly is none of its business."""
    (toy_model("llama", tmp_path) / "chat_template.jinja").write_text(template)
    with pytest.raises(InputError, match=f"its chat template {said}"):
        record_of(tmp_path, instruction_tuned=True)
    assert record_of(tmp_path)["model"]
    with pytest.raises(CellError, match=f"its chat template {said}"):
        check_question(load_toy(tmp_path).tokenizer, "m")


def test_a_template_that_wants_a_system_message_or_writes_capitals_is_none_of_these():
    tokenizer = toy_tokenizer(adds_bos=False, chat=False)
    wants = "{% if messages[0].role != 'system' %}{{ raise_exception('no system message') }}{% endif %}"
    tokenizer.chat_template = wants + "{{ messages[-1].content | upper }}"
    check_question(tokenizer, "m")


def test_what_is_in_memory_is_held_against_the_file(tmp_path):
    """Embeddings and head, whatever was done to them after loading."""
    model = transformers.AutoModelForCausalLM.from_pretrained(toy_model("llama", tmp_path))
    check_saved_ends(model, tmp_path, "m")
    model.get_output_embeddings().weight = model.get_input_embeddings().weight
    with pytest.raises(CellError, match=r"m: lm_head\.weight in memory is not that of"):
        check_saved_ends(model, tmp_path, "m")
