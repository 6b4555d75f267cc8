"""A user's own PEFT adapter as a model: what plain PEFT computes, several in one run, and what is refused."""

import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import transformers
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from safetensors.torch import load_file, save_file
from toy_run import merged, record_model, run_all, ten_of_each, write_sheet
from toy_world import SIZES, edit, load_toy, loglikelihood, random_model, save_model, toy_model, toy_rows

from lm_validity.cells.models.language_model import LanguageModel
from lm_validity.cells.models.prefetch import check_unchanged, prefetch_model
from lm_validity.cells.training.loop import FinetuneSettings
from lm_validity.cells.training.lora import BatchPosition, adapter_tensors, add_adapter, save_adapter, use_adapter
from lm_validity.config.sheets import Model, read_models
from lm_validity.errors import CellError, InputError
from lm_validity.files import write_json, write_text
from lm_validity.run.inputs import states_of
from lm_validity.run.workspace import Workspace
from lm_validity.tables.merge import Merger

TEXT = "Question: what is the color of Melria?\nAnswer: green"


def write_adapter(base: Path, folder: Path, seed: int = 0, **options) -> Path:
    """An adapter as PEFT saves it, none of its weights zero."""
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    options = {"r": 4, "lora_alpha": 16, "target_modules": "all-linear"} | options
    adapted = get_peft_model(model, LoraConfig(task_type=TaskType.CAUSAL_LM, **options))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in adapted.named_parameters():
            if "lora_" in name and "magnitude" not in name:
                value.copy_(torch.randn(value.shape, generator=generator) * 0.2)
    adapted.save_pretrained(folder)
    return folder


def plain_peft(base: Path, adapter: Path, ids: torch.Tensor, before: str = "") -> torch.Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    exec(before, {"model": model})
    with torch.no_grad():
        return PeftModel.from_pretrained(model, str(adapter)).eval()(input_ids=ids).logits


def fetch(base: Path, adapter: Path | str | None = None, **columns) -> dict:
    """What the login node records of the adapter."""
    adapter = base.parent / "adapter" if adapter is None else adapter
    return prefetch_model(Model(model="m", path=str(base), adapter=str(adapter), **columns))


@pytest.fixture
def base(tmp_path) -> Path:
    return toy_model("llama", tmp_path / "base")


@pytest.fixture
def adapter(base) -> Path:
    return write_adapter(base, base.parent / "adapter")


PATTERNS = {"rank_pattern": {"layers.1.self_attn.q_proj": 8}, "alpha_pattern": {"layers.1.self_attn.q_proj": 64}}
OF_WEIGHTS = ({}, {"use_dora": True}, {"use_rslora": True}, PATTERNS)
BESIDE = ({"modules_to_save": ["norm"]}, {"modules_to_save": ["lm_head"]}, {"lora_bias": True}, {"bias": "lora_only"})


@pytest.mark.parametrize("options", [*OF_WEIGHTS, *BESIDE], ids=str)
def test_an_adapter_in_the_weights_computes_what_peft_computes(tmp_path, options):
    base = toy_model("gpt2" if {"lora_bias", "bias"} & set(options) else "llama", tmp_path / "base")
    adapter = write_adapter(base, tmp_path / "adapter", **options)
    lm = load_toy(base, adapter=adapter)
    ids = torch.tensor([lm.tok_encode(TEXT)])
    expected = plain_peft(base, adapter, ids)
    with torch.no_grad():
        untouched = load_toy(base).base(input_ids=ids).logits
        found = lm.base(input_ids=ids).logits
        assert (untouched - expected).abs().max() > 0.1
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_an_adapter_with_embeddings_of_its_own_is_used(base, adapter):
    own = {"base_model.model.model.embed_tokens.weight": embeddings(base) + 0.5}
    change_tensors(adapter, lambda tensors: tensors | own)
    lm = load_toy(base, adapter=adapter)
    torch.testing.assert_close(lm.base.get_input_embeddings().weight.data, embeddings(base) + 0.5)


def trained_with_more_tokens(base: Path, folder: Path, tokens: int, *, save: dict | None = None, **options):
    """An adapter trained with `tokens` more than its base has (0: as many as its tokenizer, fewer), saved by PEFT
    with its tokenizer; and the model that was saved. All that was trained and all rows that were added are random."""
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    size = model.config.vocab_size
    tokenizer.add_tokens([f"<new{number}>" for number in range(size - len(tokenizer) + 3 if tokens else 3)])
    torch.manual_seed(1)
    model.resize_token_embeddings(size + tokens if tokens else len(tokenizer))
    options = {"r": 4, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]} | options
    adapted = get_peft_model(model, LoraConfig(task_type=TaskType.CAUSAL_LM, **options))
    with torch.no_grad():
        for value in adapted.parameters():
            if value.requires_grad:
                value.add_(torch.randn_like(value) * 0.1)
    adapted.save_pretrained(folder, **(save or {}))
    tokenizer.save_pretrained(folder)
    return adapted.eval()


EXPERTS = {
    "mixtral": {"num_local_experts": 2},
    "laguna": {"num_experts": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
    "dots1": {"n_routed_experts": 2, "n_shared_experts": 1, "moe_intermediate_size": 16, "first_k_dense_replace": 1},
}


def mixture(folder: Path, kind: str) -> Path:
    """A random mixture of experts."""
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "num_experts_per_tok": 2}
    return save_model(random_model(kind, 3, **sizes, **EXPERTS[kind]), folder, adds_bos=True)


def logits_of(base: Path, adapter: Path | None = None) -> torch.Tensor:
    with torch.no_grad():
        return load_toy(base, adapter=adapter).base(input_ids=torch.arange(5, 25)[None]).logits


def test_an_adapter_that_peft_looks_for_under_other_names_is_the_one_that_was_trained(tmp_path):
    """PEFT renames what it saved itself, and leaves the shared experts' part out."""
    base, folder = mixture(tmp_path / "base", "laguna"), tmp_path / "adapter"
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    config = LoraConfig(task_type=TaskType.CAUSAL_LM, target_modules=["down_proj"], init_lora_weights=False)
    adapted = get_peft_model(model, config).eval()
    adapted.save_pretrained(folder)
    with torch.no_grad():
        expected = adapted(input_ids=torch.arange(5, 25)[None]).logits
    torch.testing.assert_close(logits_of(base, folder), expected, atol=1e-4, rtol=1e-4)
    assert fetch(base, folder)["model"]


def test_an_adapter_with_one_part_for_each_expert_is_put_on_experts_that_are_one_tensor(tmp_path):
    """Names of transformers 4, beside weights that are merged by hand."""
    base, whole, folder = mixture(tmp_path / "base", "mixtral"), tmp_path / "whole", tmp_path / "adapter"
    shutil.copytree(base, whole)
    weights, parts, generator = load_file(base / "model.safetensors"), {}, torch.Generator().manual_seed(1)
    for name in [name for name in weights if name.split(".")[-2] in ("q_proj", "w1", "w2", "w3")]:
        rows, columns = weights[name].shape
        down, up = torch.randn(4, columns, generator=generator) / 5, torch.randn(rows, 4, generator=generator) / 5
        stem = f"base_model.model.{name.removesuffix('.weight')}"
        parts |= {f"{stem}.lora_A.weight": down, f"{stem}.lora_B.weight": up}
        weights[name] += 2 * up @ down
    save_file(weights, whole / "model.safetensors", metadata={"format": "pt"})
    settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8}
    write_json(folder / "adapter_config.json", settings | {"target_modules": ["q_proj", "w1", "w2", "w3"]})
    save_file(parts, folder / "adapter_model.safetensors")
    torch.testing.assert_close(logits_of(base, folder), logits_of(whole), atol=1e-4, rtol=1e-4)
    assert fetch(base, folder)["model"]
    change_tensors(folder, lambda tensors: {name: tensors[name] for name in tensors if "experts.1.w2" not in name})
    with pytest.raises(InputError, match="is not an adapter of this base model"):
        fetch(base, folder)


def test_an_adapter_trained_here_on_a_mixture_of_experts_is_one_that_can_be_given(tmp_path):
    """Also to plain PEFT, in the way that docs/how_to names: by itself it doubles the rank of fused experts."""
    base = mixture(tmp_path / "base", "dots1")
    lm = load_toy(base)
    model = add_adapter(lm, FinetuneSettings(learning_rate=1e-3), "all-linear", BatchPosition(1))
    tensors = {name: torch.randn_like(tensor) / 5 for name, tensor in adapter_tensors(model).items()}
    save_adapter(model, tensors, tmp_path / "adapter")
    model.unload()
    with use_adapter(lm, tmp_path / "adapter"), torch.no_grad():
        expected = lm.base(input_ids=torch.arange(5, 25)[None]).logits
    torch.testing.assert_close(logits_of(base, tmp_path / "adapter"), expected, atol=1e-4, rtol=1e-4)
    assert (expected - logits_of(base)).abs().max() > 0.1
    with pytest.raises(RuntimeError, match="size mismatch"):
        plain_peft(base, tmp_path / "adapter", torch.arange(5, 25)[None])
    found = plain_peft(base, tmp_path / "adapter", torch.arange(5, 25)[None], before='model.config.model_type = ""')
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


BOTH = {"modules_to_save": ["embed_tokens", "lm_head"]}
LAST = {"trainable_token_indices": [420, 421, 422]}


@pytest.mark.parametrize("kind", ["llama", "gemma"], ids=["untied", "tied"])
@pytest.mark.parametrize(
    ("tokens", "options"),
    [(3, BOTH), (3, {}), (64, {}), (3, {"modules_to_save": ["embed_tokens"]}), (0, {}), (3, LAST)],
    ids=["trained", "saved", "padded", "embeddings trained", "as the tokenizer", "rows trained"],
)
def test_an_adapter_trained_with_added_tokens_is_the_model_that_was_saved(tmp_path, kind, tokens, options):
    """Logits of a text with an added token, against the model in memory when PEFT saved it."""
    base, size = toy_model(kind, tmp_path / "base"), SIZES["vocab_size"]
    trained = trained_with_more_tokens(base, tmp_path / "adapter", tokens, **options)
    lm = load_toy(base, adapter=fetch(base)["checkpoints"]["final"]["adapter"]["path"])
    ids = torch.tensor([[*lm.tok_encode(TEXT), *lm.tok_encode("<new2>"), len(lm.tokenizer) - 1]])
    assert len(lm.tokenizer) == size + 3 if tokens else len(lm.tokenizer) < size
    with torch.no_grad():
        expected, found = trained(input_ids=ids).logits, lm.base(input_ids=ids).logits
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"modules_to_save": ["lm_head"]}, "embeddings of no tokens and output layer of 423 tokens"),
        ({"modules_to_save": ["embed_tokens"]}, "embeddings of 423 tokens and output layer of no tokens"),
        (LAST, "token 422, of 420 embeddings"),
        ({}, "makes token 422, and the model has 420 embeddings"),
    ],
    ids=["output layer", "embeddings", "rows", "chat template"],
)
def test_added_tokens_that_were_not_all_saved_are_refused_when_fetched(base, tmp_path, options, problem):
    """Of tokens without any weights only if a chat template prints one: as a plain model it is scored."""
    trained_with_more_tokens(base, tmp_path / "adapter", 3, save={"save_embedding_layers": False}, **options)
    last = transformers.AutoTokenizer.from_pretrained(tmp_path / "adapter").convert_ids_to_tokens(422)
    template = f"{{% for m in messages %}}{last}{{{{ m['content'] }}}}{{% endfor %}}"
    (tmp_path / "adapter" / "chat_template.jinja").write_text(template)
    if not options:
        assert fetch(base, instruction_tuned=False)["chat_template"]
    with pytest.raises(InputError, match=problem):
        fetch(base, instruction_tuned=True)


def embeddings(base: Path) -> torch.Tensor:
    return transformers.AutoModelForCausalLM.from_pretrained(base).get_input_embeddings().weight.data


def change_tensors(adapter: Path, change) -> None:
    file = adapter / "adapter_model.safetensors"
    save_file({name: value.clone() for name, value in change(load_file(file)).items()}, file)


def test_an_adapter_of_an_output_layer_tied_to_the_embeddings_is_refused(tmp_path):
    base = toy_model("gemma", tmp_path / "base")
    adapter = write_adapter(base, tmp_path / "adapter", target_modules=["lm_head"])
    with pytest.raises(CellError, match="computes something else"):
        load_toy(base, adapter=adapter)


def test_an_adapter_that_diverged_is_refused(base, adapter):
    change_tensors(adapter, lambda tensors: {name: value * torch.nan for name, value in tensors.items()})
    with pytest.raises(CellError, match="its logits are not finite"):
        load_toy(base, adapter=adapter)


def renamed(old: str, new: str, *, keep: bool = False):
    """A file whose tensors have other names, beside those of before where they are kept."""

    def rename(tensors):
        return (tensors if keep else {}) | {name.replace(old, new): tensor for name, tensor in tensors.items()}

    return lambda adapter: change_tensors(adapter, rename)


def settings(**changes):
    return lambda adapter: edit(adapter / "adapter_config.json", **changes)


def file(name: str, text: str):
    return lambda adapter: write_text(adapter / name, text)


def emptied(adapter: Path) -> None:
    change_tensors(adapter, lambda tensors: {name: tensors[name][:0] for name in tensors})


UNFIT = "not an adapter of this base model"
# how the adapter was made, what was done to its folder, and what is said when it is fetched
REFUSED = {
    "biases without a place": ({"lora_bias": True}, None, r"it has biases \(lora_bias\) for layers that have none"),
    "behind tokens": ({"alora_invocation_tokens": [40]}, None, r"behind its invocation tokens only \(alora_inv"),
    "layers that stand twice": ({"layer_replication": [[0, 2], [0, 2]]}, None, "layer_replication"),
    # its file fits the base less a part, which PEFT computes anew: `pissa_niter_4` gives another part each time
    **{
        begun: ({"init_lora_weights": begun}, None, rf"out of the base's weights \(init_lora_weights {begun}\)")
        for begun in ("pissa", "pissa_niter_4", "olora")
    },
    "another rank": ({}, settings(r=8), r"\[4, \d+\].*\[8, \d+\]"),
    "tensors not gathered": ({}, emptied, r"\[0, \d+\]"),
    "another wrapper's names": ({}, renamed("layers.", "language_model.layers."), rf"{UNFIT} \(its file lacks"),
    "too few layers": ({}, renamed("layers.1.", "layers.0."), rf"{UNFIT} \(its file lacks"),
    "too many layers": ({}, renamed("layers.1.", "layers.9.", keep=True), rf"{UNFIT} \(its file has no place"),
    "half a file": ({}, file("adapter_model.safetensors", "half a file"), "damaged or cut"),
    "a broken pattern": ({}, settings(target_modules="["), UNFIT),
    "a rank in words": ({}, settings(r="four"), UNFIT),
    "another type": ({}, settings(peft_type="PROMPT_TUNING"), "of type PROMPT_TUNING"),
    "no safetensors": ({}, lambda adapter: (adapter / "adapter_model.safetensors").unlink(), "no adapter_model.safet"),
    **{text: ({}, file("adapter_config.json", text), "adapter_config.json cannot be read") for text in ("[]", "{")},
    # a template that would not be used, settings that would be read without a vocabulary
    "a template alone": ({}, file("chat_template.jinja", "{{ messages }}"), "a chat template and no vocabulary"),
    "settings alone": ({}, file("tokenizer_config.json", "{}"), "a tokenizer_config.json and no vocabulary"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_adapter_of_its_base_is_refused_when_fetched(kind, base, tmp_path):
    options, change, problem = REFUSED[kind]
    adapter = write_adapter(base, tmp_path / "adapter", **{"target_modules": ["q_proj"]} | options)
    if change is not None:
        change(adapter)
    with pytest.raises(InputError, match=problem):
        fetch(base)


def test_an_adapter_of_another_model_is_refused(base, tmp_path):
    """Of another architecture, by the login node and by a cell; and of a wider model."""
    adapter = write_adapter(toy_model("gpt2", tmp_path / "other"), tmp_path / "adapter")
    with pytest.raises(InputError, match=UNFIT):
        fetch(base)
    with pytest.raises(CellError, match=UNFIT):
        load_toy(base, adapter=adapter)
    random_model("llama", intermediate_size=24).save_pretrained(tmp_path / "wider")
    shutil.rmtree(adapter)
    write_adapter(tmp_path / "wider", adapter)
    with pytest.raises(InputError, match=r"size mismatch for .*: copying a param with shape"):
        fetch(base)


def test_a_file_that_changed_after_the_model_was_recorded_is_noticed(base, tmp_path):
    with pytest.raises(InputError, match=r"column 'adapter': .*adapter is not a folder") as refused:
        fetch(base)
    assert "`adapter`" in refused.value.hint and "sheet of checkpoints" in refused.value.hint
    adapter = write_adapter(base, tmp_path / "adapter")
    with pytest.raises(InputError, match="is a PEFT adapter, not a model"):
        prefetch_model(Model(model="m", path=str(adapter)))
    record, whole = {"sources": states_of(adapter.iterdir())}, adapter / "adapter_model.safetensors"

    def look(problem: str = "") -> None:
        expected = pytest.raises(InputError, match=rf"{problem} the model was recorded") if problem else nullcontext()
        with expected:
            check_unchanged("m", record, [*map(str, adapter.glob("*[!n]"))])  # without the .bin

    look()
    weights = whole.rename(adapter / "adapter_model.bin")
    look(r"adapter_model\.safetensors is gone since")
    shutil.copy(weights, whole)
    look()
    (adapter / "chat_template.jinja").touch()
    look(r"chat_template\.jinja is new since")
    whole.write_bytes(weights.read_bytes() + b" ")
    look(r"adapter_model\.safetensors changed after")


def put_adapters(workspace: Workspace, folder: Path, by: str = "checkpoint") -> Workspace:
    """The run's model under two adapters, and alone: as rows of their own (`by` is "model"), or one as the final model,
    one as a point of its training."""
    row = {"model": "m", "path": folder / "model", "dtype": "float32"}
    first, second = (write_adapter(folder / "model", folder / f"adapter{seed}", seed) for seed in (1, 2))
    points = [{"checkpoint": "first", "iteration": 1, "adapter": first}, {"checkpoint": "untouched", "iteration": 2}]
    rows = {
        "model": [row, row | {"model": "m1", "adapter": first}, row | {"model": "m2", "adapter": second}],
        "checkpoint": [row | {"adapter": second, "checkpoints": write_sheet("points.tsv", *points)}],
    }
    run = workspace.run
    run.models.clear()
    run.models.update(read_models(write_sheet("models.tsv", *rows[by]), "toy"))
    for model in run.models:
        record_model(run, model)
    return Workspace(run)


def by_choice(lm: LanguageModel, row: dict) -> list[float]:
    """Log-likelihoods of a question's choices, in plain passes over one text each."""
    context = f"Question: what is the color of {row['name']}?\nAnswer:"
    pairs = [lm.encode_request(context, f" {choice}") for choice in row["choices"]]
    return [loglikelihood(lm.base, *map(list, pair)) for pair in pairs]


ADAPTERS = {
    "checkpoint": {"first": "adapter1", "final": "adapter2", "untouched": None},
    "model": {"m": None, "m1": "adapter1", "m2": "adapter2"},
}


@pytest.mark.parametrize("by", ADAPTERS)
def test_adapters_have_the_scores_of_each(start, tmp_path, by):
    """Each checkpoint, or model, has the log-likelihoods of its adapter alone, and no two are equal."""
    workspace = put_adapters(start(studies=("signal",), rows=toy_rows), tmp_path, by)
    jobs = workspace.grid.jobs.values()
    assert sorted(len(job.cells) for job in jobs) == ([3] if by == "checkpoint" else [1, 1, 1])
    run_all(workspace, "evaluate_model")
    found = merged(workspace, "items").groupby(by)["choice_loglikelihoods"].first()
    for name, adapter in ADAPTERS[by].items():
        alone = load_toy(tmp_path / "model", adapter=adapter and tmp_path / adapter)
        assert list(found[name]) == pytest.approx(by_choice(alone, toy_rows("test")[0]), abs=1e-4)
    assert len({tuple(values) for values in found}) == len(found) == 3


def test_an_adapter_is_prepared_like_any_model(start, tmp_path):
    """Fine-tuned on top of it, selected and scored: the agreement study's whole chain."""
    before = start(finetuning={"epochs": 5, "learning_rates": ["2e-2"]})
    untouched = {cell: before.recipe(cell) for cell in before.grid.cells("scores") if cell.rule == "evaluate_model"}
    workspace = put_adapters(before, tmp_path)
    digest = workspace.model_record("m")["checkpoints"]["final"]["adapter"]["digest"]
    assert all(workspace.recipe(cell)["model"] == f"{recipe['model']}+{digest}" for cell, recipe in untouched.items())
    run_all(workspace)
    merger = Merger(workspace.run)
    merger.write_scores(tmp_path)
    assert not merger.missing
    # what was trained is on top of the user's adapter: base + adapter + trained one, loaded by plain PEFT
    cell = next(cell for cell in workspace.grid.cells() if cell.rule == "evaluate_adapter")
    choice = workspace.selection(cell)
    items = merged(workspace, "items")
    found = items[(items["protocol"] == "train_before_test") & (items["split"] == "test")]["choice_loglikelihoods"]
    lm = load_toy(tmp_path / "model", adapter=tmp_path / "adapter2")
    trained = choice["folder"] and workspace.store.root / choice["folder"] / "adapter"
    assert trained is not None and trained.is_dir()
    lm.base = PeftModel.from_pretrained(lm.base, str(trained)).eval()
    assert list(found.iloc[0]) == pytest.approx(by_choice(lm, ten_of_each("test")[0]), abs=1e-3)


def test_an_adapter_that_changes_nothing_and_settings_that_this_peft_does_not_know_are_said(base, adapter, caplog):
    fetch(base)
    assert "changes nothing" not in caplog.text
    change_tensors(adapter, lambda tensors: {name: 0 * v if "lora_B" in name else v for name, v in tensors.items()})
    edit(adapter / "adapter_config.json", sixth_sense={"rho": 2})
    with pytest.warns(UserWarning, match="sixth_sense"):
        fetch(base)
    assert "changes nothing" in caplog.text and str(adapter) in caplog.text


def test_its_own_tokenizer_and_chat_template_are_used(base, adapter):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(base / name, adapter)
    (adapter / "chat_template.jinja").write_text("{% for m in messages %}[own] {{ m['content'] }}{% endfor %}")
    lm = load_toy(base, adapter=adapter)
    assert lm.apply_chat_template([{"role": "user", "content": "hello"}]) == "[own] hello"
    (base / "chat_template.jinja").unlink(missing_ok=True)
    edit(base / "tokenizer_config.json", chat_template=None)
    assert fetch(base, instruction_tuned=True)["chat_template"]
