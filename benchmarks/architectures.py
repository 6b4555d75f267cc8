"""Which models work: a tiny random model of every causal architecture through scoring and LoRA.

    python benchmarks/architectures.py results/architectures.jsonl            # a line each; goes on where it ended
    python benchmarks/architectures.py results/architectures.jsonl --table    # docs/reference/which_models_work.md

Scores are held against one plain forward pass a request. Each architecture has a process of its own, forked after the
imports, so that one that fails takes none with it.
"""

import json
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from lm_validity.cells.models.language_model import LanguageModel, check_causal
from lm_validity.cells.rehearsal.rehearse import word_tokenizer
from lm_validity.cells.training.finetuning import FinetuneSettings, TrainingStopped, finetune
from lm_validity.cells.training.text import Example
from lm_validity.errors import CellError, first_line

SECONDS, LARGEST = 150, 60e6
EXACT = 2e-5  # nats per token: rounding in float32
SETTINGS = FinetuneSettings(learning_rate=3e-3, epochs=3, rank=4)
PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "which_models_work.md"
WORDS, WINDOW, LENGTH = 320, 16, 160

# a tiny configuration has two layers or so and 320 words: value -> how configurations call what gets it
_VALUES = {
    WORDS: "vocab_size vocab_size_per_layer_input",
    64: "hidden_size d_model n_embd dim n_embed emb_dim word_embed_proj_dim embedding_size lru_width conv_dim "
    "attention_hidden_size mamba_d_ssm block_dim",
    96: "intermediate_size ffn_dim n_inner ffn_hidden_size d_inner decoder_ffn_dim encoder_ffn_dim mlp_hidden_size "
    "feed_forward_size intermediate_size_mlp dense_intermediate_size prefix_dense_intermediate_size block_ff_dim",
    32: "moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size expert_hidden_size "
    "moe_shared_expert_intermediate_size",
    LENGTH: "max_position_embeddings n_positions max_seq_len n_ctx seq_length max_sequence_length max_target_positions "
    "context_length",
    WINDOW: "sliding_window window_size attention_window_size local_attention attention_chunk_size index_topk "
    "sliding_window_size head_dim attention_head_dim d_kv swa_head_dim swa_v_head_dim v_head_dim global_head_dim "
    "q_lora_rank kv_lora_rank qk_head_dim o_lora_rank index_head_dim mamba_d_head mamba_head_dim linear_key_head_dim "
    "linear_value_head_dim query_pre_attn_scalar",
    8: "rotary_dim qk_rope_head_dim qk_nope_head_dim mamba_d_state state_size ssm_state_size chunk_size "
    "mamba_chunk_size hidden_size_per_layer_input laurel_rank mamba_num_heads",
    4: "num_hidden_layers n_layer n_layers num_layers layers num_attention_heads n_head n_heads num_heads "
    "decoder_attention_heads encoder_attention_heads swa_num_attention_heads num_experts num_local_experts "
    "n_routed_experts moe_num_experts time_step_rank mamba_n_heads index_block_size mamba_dt_rank "
    "linear_num_value_heads",
    3: "index_topk_blocks",
    2: "decoder_layers encoder_layers num_key_value_heads num_kv_heads swa_num_key_value_heads "
    "num_global_key_value_heads num_experts_per_tok num_experts_per_token moe_k moe_topk moe_top_k top_k_experts "
    "zero_expert_num num_zero_experts index_n_heads expand mamba_expand n_mamba_heads linear_num_key_heads",
    1: "n_shared_experts num_shared_experts n_group topk_group first_k_dense_replace index_local_blocks "
    "mamba_n_groups n_groups mamba_ngroups num_kv_shared_layers n_codebooks",
    0.5: "qk_dim_factor",
    0.0: "hidden_dropout attention_dropout dropout activation_dropout resid_pdrop embd_pdrop attn_pdrop "
    "hidden_dropout_prob attention_probs_dropout_prob residual_dropout embedding_dropout resid_dropout",
}
SHRUNK = {name: value for value, names in _VALUES.items() for name in names.split()}
SHRUNK |= {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None, "is_decoder": True}
# architectures whose values hang together in their own way
OWN = {
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "use_mamba_kernels": False,
    },
    "recurrent_gemma": {"num_hidden_layers": 3, "num_key_value_heads": 1},
    "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 1},
}
_PER_LAYER = ("layer_types", "layers_block_type", "mlp_layer_types", "attn_type_list", "hybrid_override_pattern")
_PER_LAYER += ("block_types", "layers_types")


def kinds() -> list[str]:
    """Every model type that transformers loads as a causal language model."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def tiny_config(kind: str) -> transformers.PretrainedConfig:
    """The architecture's own configuration with small values; what it derives from them it derives again."""
    made, own = transformers.CONFIG_MAPPING[kind](), OWN.get(kind, {})
    given = made.to_dict()
    known = {name: value for name, value in SHRUNK.items() if given.get(name) is not None}
    known |= {name: SHRUNK[name] for name in ("vocab_size", "pad_token_id", "is_decoder") if name in given}
    try:
        config = type(made)(**known, **{name: value for name, value in own.items() if name not in known})
        if len(getattr(config, "layer_types", None) or range(config.num_hidden_layers)) != config.num_hidden_layers:
            config = made
    except Exception:  # whatever checks of its own it has: its defaults, with the values put in afterwards
        config = made
    _put_in(config, SHRUNK | own)
    return config


def _put_in(config: transformers.PretrainedConfig, values: dict, depth: int = 0) -> None:
    for name, value in values.items():
        if getattr(config, name, None) is not None or (name == "pad_token_id" and hasattr(config, name)):
            _set(config, name, value)
    layers = getattr(config, "num_hidden_layers", None) or 4
    for name in _PER_LAYER:
        old = getattr(config, name, None)
        if isinstance(old, list | tuple) and len(old) > layers:
            _set(config, name, (list(dict.fromkeys(old)) * layers)[:layers])
    for part in list(vars(config).values()):
        if isinstance(part, transformers.PretrainedConfig) and depth < 2:
            _put_in(part, values, depth + 1)


def _set(config: transformers.PretrainedConfig, name: str, value: object) -> None:
    try:
        setattr(config, name, value)
    except Exception:  # derived from others, or checked against them
        return


def try_architecture(kind: str) -> dict:
    """What works with a model type: `failed` where it could not even be made, `scoring`, `lora`."""
    start, found = time.process_time(), {"type": kind}
    try:
        config = tiny_config(kind)
        with torch.device("meta"):
            large = sum(one.numel() for one in transformers.AutoModelForCausalLM.from_config(config).parameters())
        if large > LARGEST:
            return found | {"failed": f"its smallest configuration here has {large / 1e6:.0f}M parameters"}
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        _randomise(model)
        expected = _plain(model, _requests())
    except Exception as error:
        return found | {"failed": f"{type(error).__name__}: {first_line(error)[:160]}"}
    lm = LanguageModel(model, word_tokenizer(WORDS), model_id=kind, eval_batch_size=8, max_length=120)
    found |= {"class": type(model).__name__, "scoring": _score(lm, expected)}
    found["lora"] = _attempt(lambda: _finetune(lm))
    return found | {"cpu_seconds": round(time.process_time() - start, 1)}


def _attempt(work) -> dict:
    try:
        return work()
    except CellError as error:
        return {"refused": error.problem}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {first_line(error)[:160]}"}


def _randomise(model: torch.nn.Module) -> None:
    """Weights large enough that a wrong token would show; those of recurrences stay, or they would explode."""
    generator = torch.Generator().manual_seed(3)
    kept = ("A_log", "conv1d", "dt_", "rg_lru", "recurrent_param")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() >= 2 and not any(word in name for word in kept):
                deviation = 0.25 if weight.shape[-1] <= 128 else 0.125
                weight.copy_(torch.randn(weight.shape, generator=generator) * deviation)
    model.tie_weights()


def _requests(questions: int = 6) -> list:
    """Questions with three to five choices, some of which begin alike or are another's beginning."""
    random, requests = np.random.default_rng(0), []
    for question in range(questions):
        context = random.integers(1, WORDS, size=int(random.integers(2, 12 if question % 2 else 60))).tolist()
        stem = random.integers(1, WORDS, size=3).tolist()
        for choice in range(int(random.integers(3, 6))):
            own = random.integers(1, WORDS, size=int(random.integers(2, 12))).tolist()
            continuation = [own, [*stem, *own], own[::-1], stem, own[:1]][choice]
            requests.append(((f"q{question}", f"c{choice}"), context, continuation))
    return requests


def _plain(model: torch.nn.Module, requests: list) -> list[float]:
    """Log-likelihoods in nats, a forward pass each."""
    found = []
    for _, context, continuation in requests:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([context + continuation[:-1]]), use_cache=False).logits[0].float()
        chosen = logits.log_softmax(-1)[len(context) - 1 :]
        found.append(float(chosen[range(len(continuation)), continuation].sum()))
    return found


def _score(lm: LanguageModel, expected: list[float]) -> dict:
    """ways: those that the probe allows; error: largest difference a token from a plain pass, in nats."""

    def work() -> dict:
        check_causal(lm.base, lm.model_id)
        requests = _requests()
        found = lm._loglikelihood_tokens(requests)
        errors = [
            abs(value - plain) / len(continuation)
            for (value, _), plain, (_, _, continuation) in zip(found, expected, requests, strict=True)
        ]
        return {"ways": sorted(lm._allowed), "shared": lm.counters.shared_tokens, "error": max(errors)}

    return _attempt(work)


def _finetune(lm: LanguageModel) -> dict:
    """An undisturbed fine-tune, and one that is stopped in its second epoch and goes on."""
    random = np.random.default_rng(1)
    rows = random.integers(1, WORDS, size=(12, 16)).tolist()
    examples = [Example(tuple(row[: int(random.integers(8, 16))]), 1) for row in rows]
    before = {name: tensor.clone() for name, tensor in lm.base.state_dict().items()}
    asked: list[int] = []

    def run(folder: Path, stop=lambda: False):
        arguments = {"seed": 1, "higher_is_better": True, "work": folder / "work", "adapter_output": folder / "adapter"}
        return finetune(lm, examples, lambda: 0.0, SETTINGS, stop=stop, **arguments)

    def second_epoch() -> bool:
        asked.append(1)
        return len(asked) == 4  # two steps an epoch

    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        whole = run(Path(first))
        stopped = False
        try:
            run(Path(second), second_epoch)
        except TrainingStopped:
            stopped = True
        resumed = run(Path(second))
    after = lm.base.state_dict()
    return {
        "losses": [round(epoch.train_loss, 4) for epoch in whole.epochs],
        "falls": whole.epochs[-1].train_loss < whole.epochs[0].train_loss,
        "restored": before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before),
        "resumed": stopped and resumed.resumed_epochs == 1 and resumed.step_losses == whole.step_losses,
        "share": round(whole.adapted_share, 3),
        "adapters": list(whole.target_modules),
    }


def _child(kind: str, output: str) -> None:
    Path(output).write_text(json.dumps(try_architecture(kind)))


def run_all(path: Path, names: list[str]) -> None:
    """A line per model type, appended to `path`; those that are in it already are left out."""
    torch.set_num_threads(1)
    path.parent.mkdir(parents=True, exist_ok=True)
    done = {json.loads(line)["type"] for line in path.read_text().splitlines()} if path.is_file() else set()
    forked = multiprocessing.get_context("fork")
    for kind in names:
        if kind in done:
            continue
        with tempfile.NamedTemporaryFile() as answer:
            child = forked.Process(target=_child, args=(kind, answer.name))
            child.start()
            child.join(SECONDS)
            if child.is_alive():
                child.kill()
                child.join()
            text = Path(answer.name).read_text()
        line = text or json.dumps({"type": kind, "failed": f"no answer in {SECONDS} s"})
        with open(path, "a") as handle:
            handle.write(line + "\n")


def write_table(results: Path) -> None:
    """Write the page. Raises nothing: an architecture that failed is a line of it."""
    found = sorted((json.loads(line) for line in results.read_text().splitlines()), key=lambda one: one["type"])
    PAGE.write_text("\n".join(page(found)) + "\n", encoding="utf-8")
    print(PAGE)


def page(found: list[dict]) -> list[str]:
    """The page's lines."""
    tried = [one for one in found if "failed" not in one]
    scored = [one for one in tried if "error" in one["scoring"] and "ways" in one["scoring"]]
    exact = [one for one in scored if one["scoring"]["error"] <= EXACT]
    shared = [one for one in exact if {"packed", "cached"} & set(one["scoring"]["ways"])]
    rows = [one for one in exact if one["scoring"]["ways"] == ["rows"]]
    other = [one for one in exact if one not in shared and one not in rows]
    off = [one for one in scored if one not in exact]
    trained = [one for one in tried if "losses" in one["lora"]]
    whole = [one for one in trained if one["lora"]["falls"] and one["lora"]["restored"] and one["lora"]["resumed"]]
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    return [
        "# Which models work",
        "",
        f"transformers knows {len(kinds())} types of causal language models. This page says which of them this project",
        f"can score and fine-tune. {len(found)} were tried, each as a tiny random model on a CPU in float32, through",
        f"the code that computes cells ({versions}).",
        "`benchmarks/architectures.py` makes the figures and this page.",
        "",
        "A tiny random model cannot show two things: whether the weights on the hub fit transformers' code, and what",
        "16 bits do to the numbers. Before its first use the scorer tries each way on the real model, and leaves out a",
        "way that disagrees with lm-eval. Types that can be encoders or decoders were configured as decoders.",
        "A hub model whose `config.json` names an encoder, an encoder with a decoder, or a classifier is refused",
        "when it is fetched.",
        "",
        "| | architectures |",
        "|---|---|",
        f"| tried | {len(found)} |",
        f"| made and run | {len(tried)} |",
        f"| scores exact, contexts shared between choices | {len(shared)} |",
        f"| scores exact, each choice in a row of its own | {len(rows)} |",
        f"| scores exact by lm-eval's own code | {len(other)} |",
        f"| scores differ from a plain pass | {len(off)} |",
        f"| refused or failed while scored | {len(tried) - len(scored)} |",
        f"| LoRA: loss falls, base restored to the bit, resume to the bit | {len(whole)} |",
        f"| LoRA trains, but one of these three does not hold | {len(trained) - len(whole)} |",
        f"| LoRA refused or failed | {len(tried) - len(trained)} |",
        "",
        f"*Exact* means at most {EXACT:g} nats per token away from one plain forward pass per request. *Shared*:",
        "a question is computed once for all its choices. *Rows*: each choice is computed with its whole question.",
        "*LoRA* trains small added matrices instead of all weights.",
        "",
        *_list("Contexts shared, exact", shared),
        *_list("Rows, exact", rows),
        *_list("lm-eval's own code, exact", other),
        *_reasons(
            "Scores that differ from a plain pass", [(one, f"{one['scoring']['error']:.2g} nats") for one in off]
        ),
        *_reasons(
            "Refused or failed while scored",
            [(one, _why(one["scoring"])) for one in tried if one not in scored],
        ),
        *_reasons(
            "LoRA: what does not hold",
            [(one, _missing(one["lora"])) for one in trained if one not in whole],
        ),
        *_reasons("LoRA refused or failed", [(one, _why(one["lora"])) for one in tried if one not in trained]),
        *_adapted(trained),
        "The types under the next heading say nothing about the models. The small values do not fit an architecture's",
        "own rules, a library is missing here, or no answer came in 150 s.",
        "",
        *_reasons("Not made", [(one, one["failed"]) for one in found if "failed" in one]),
    ]


def _list(title: str, found: list[dict]) -> list[str]:
    return [f"## {title} ({len(found)})", "", ", ".join(f"`{one['type']}`" for one in found) or "None.", ""]


def _reasons(title: str, found: list[tuple[dict, str]]) -> list[str]:
    lines = [f"| `{one['type']}` | {reason.replace('|', '/')} |" for one, reason in found]
    table = ["| model type | reason |", "|---|---|", *lines] if lines else ["None."]
    return [f"## {title} ({len(found)})", "", *table, ""]


def _why(found: dict) -> str:
    return found.get("refused") or found.get("error") or "no reason was given"


def _missing(lora: dict) -> str:
    words = {"falls": "the loss does not fall", "restored": "the base is not restored", "resumed": "resume differs"}
    return ", ".join(text for key, text in words.items() if not lora[key])


def _adapted(trained: list[dict]) -> list[str]:
    partly = [one for one in trained if one["lora"]["share"] < 0.9]
    return _reasons(
        "Less than nine tenths of the weights adapted",
        [(one, f"{one['lora']['share']:.0%}: {', '.join(one['lora']['adapters'])}") for one in partly],
    )


if __name__ == "__main__":
    transformers.utils.logging.set_verbosity_error()
    if "--table" in sys.argv:
        write_table(Path(sys.argv[1]))
    else:
        run_all(Path(sys.argv[1]), sys.argv[2:] or kinds())
