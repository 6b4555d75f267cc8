"""Trains one tiny language model of the miniature world from scratch and writes it in hub format.

    <output>/checkpoint-<iteration>/   weights, tokenizer and configuration at points of training
    <output>/training.json             loss, tokens and documents at each of them
    <output>/model.safetensors, …      the final model; config.json comes last: where it is, the rest is too

Budgets are steps, not seconds. One thread and a generator of its own: on a CPU with the same library
versions the same settings, world and row give the same bytes.
"""

import hashlib
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypedDict

import torch
import torch.nn.functional as F
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertForPreTraining,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)
from transformers.utils import logging as transformers_logging

from lm_validity.config.sections import MiniatureSettings
from lm_validity.config.sheets import MiniatureModel
from lm_validity.errors import CellError, InputError
from lm_validity.files import read_json_or, write_json
from lm_validity.miniature.build import (
    BEGIN_ID,
    CLASS_ID,
    CONTEXT_LENGTH,
    MASK_ID,
    MASKED_SHIFT,
    MASKED_SPECIALS,
    SEPARATOR_ID,
    masked_vocabulary,
    training_batches,
    vocabulary,
)
from lm_validity.miniature.world import World, make_world, read_world

# Transformers' 0.02 is meant for wide layers; these narrow ones would stay longer on the plateau
INITIALIZER_RANGE = 0.08
WARMUP_STEPS = 50
FINAL_LEARNING_RATE = 0.1  # of the peak
BETAS, WEIGHT_DECAY, CLIP = (0.9, 0.95), 0.01, 1.0
IGNORED = -100  # no loss where the target is padding, or a word that is not masked
MASK_SHARE = 0.15
CHAT_FAMILIES = ("forum",)  # whose tokenizer has a chat template


def pretrain_model(
    settings: MiniatureSettings,
    world: Path,
    row: MiniatureModel,
    output: Path,
    *,
    start: Path | None = None,
    progress: Callable[[int, int, float], None] = lambda step, steps, loss: None,
) -> None:
    """Train the model of a pool row and write it, with its checkpoints, into `output`.

    settings: the section the world was written from. world: its folder. start: the finished model that a tuned one
    goes on from (null for all others). progress: called at each checkpoint (or tenth of the steps) with (step, steps,
    loss). Raises InputError where the world is another's, and CellError where
    the loss is not finite; nothing is written then. Everything is trained and written beside `output` first, then
    renamed into it.
    """
    earlier = _earlier(output, row.model)
    output.parent.mkdir(parents=True, exist_ok=True)
    facts = read_world(world)
    if facts != make_world(settings):
        raise InputError(
            f"{world}: not the world of these settings (seed {settings.seed}, formats {settings.formats!r}).",
            "write it again with `lm-validity miniature world`.",
        )
    made = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # whatever the environment says: sums over several threads depend on their number
    try:
        chat = row.tuned_from is not None or row.family in CHAT_FAMILIES
        causal = "tokenizer_chat" if chat else "tokenizer"
        tokenizer = world / ("tokenizer_masked" if row.architecture == "bert" else causal)
        transformers_logging.disable_progress_bar()  # one bar per checkpoint written
        with torch.random.fork_rng(devices=[]):
            points = _train(settings, facts, row, start, tokenizer, made, progress)
        write_json(made / "training.json", {"model": row.model, "points": points})
        _move_into(made, output, earlier)
    finally:
        torch.set_num_threads(threads)
        shutil.rmtree(made, ignore_errors=True)


def build_model(row: MiniatureModel, vocabulary_size: int) -> PreTrainedModel:
    """An untrained model of a pool row: no dropout, weights drawn from torch's generator.

    The configuration of a causal model names no padding token: Llama would never train the embedding of token 0, which
    begins every text. The tokenizer names it. A BERT comes with the pooler that hub BERTs have, but untrained: there is
    no next-sentence task here, so it stays as drawn.
    """
    shape = {
        "vocab_size": vocabulary_size,
        "hidden_size": row.hidden_size,
        "num_hidden_layers": row.layers,
        "num_attention_heads": row.heads,
        "max_position_embeddings": CONTEXT_LENGTH,
        "initializer_range": INITIALIZER_RANGE,
        "dtype": "float32",
    }
    if row.architecture == "bert":
        dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        return BertForPreTraining(
            BertConfig(intermediate_size=row.feedforward_size, pad_token_id=0, **dropout, **shape)
        )
    shape |= {"bos_token_id": BEGIN_ID, "eos_token_id": BEGIN_ID, "tie_word_embeddings": True}
    if row.architecture == "llama":
        inner, heads = row.feedforward_size, row.heads
        return LlamaForCausalLM(LlamaConfig(intermediate_size=inner, num_key_value_heads=heads, **shape))
    dropout = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(n_inner=row.feedforward_size, **dropout, **shape))


def learning_rate(row: MiniatureModel, step: int) -> float:
    """Rate of a 1-based step: linear warm-up, then linear decay to a tenth of the peak."""
    warmup = min(1.0, step / WARMUP_STEPS)
    return row.learning_rate * warmup * (FINAL_LEARNING_RATE + (1 - FINAL_LEARNING_RATE) * (1 - step / row.steps))


class TrainingPoint(TypedDict):
    """A checkpoint: what was seen until then, and the mean loss in nats per token since the last."""

    iteration: int
    tokens: int
    documents: int
    loss: float


def _train(
    settings: MiniatureSettings,
    world: World,
    row: MiniatureModel,
    start: Path | None,
    tokenizer: Path,
    made: Path,
    progress: Callable[[int, int, float], None],
) -> list[TrainingPoint]:
    """Train, and write checkpoints into subfolders of `made` and the final model into it; a point of each."""
    torch.manual_seed(_torch_seed(settings.seed, row.model))
    masked = row.architecture == "bert"
    size = len(masked_vocabulary(world) if masked else vocabulary(world))
    loss_of = _causal_loss
    if masked:
        draw = torch.Generator().manual_seed(_torch_seed(settings.seed, f"masks of {row.model}"))
        loss_of = partial(_masked_loss, vocabulary_size=size, draw=draw)
    model = (build_model(row, size) if start is None or masked else _parent(row, start)).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=row.learning_rate, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True
    )
    marks = {*row.checkpoints, row.steps}
    reports = marks if row.checkpoints else {row.steps * tenth // 10 for tenth in range(1, 11)}
    points: list[TrainingPoint] = []
    losses: list[float] = []
    tokens = documents = 0
    for step, batch in zip(range(1, row.steps + 1), training_batches(settings, world, row), strict=False):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(row, step)
        loss = loss_of(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_((weight for weight in model.parameters() if weight.grad is not None), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        tokens += sum(map(len, batch))
        documents += len(batch)
        if step in reports:
            progress(step, row.steps, losses[-1])
        if step in marks:
            mean = sum(losses) / len(losses)
            if not math.isfinite(mean):
                raise CellError(
                    f"pretraining of {row.model}: the loss is not finite before step {step}.",
                    "lower its learning_rate in the pool sheet.",
                )
            points.append({"iteration": step, "tokens": tokens, "documents": documents, "loss": mean})
            losses.clear()
            folder = made if step == row.steps else made / f"checkpoint-{step}"
            model.save_pretrained(folder)
            shutil.copytree(tokenizer, folder, dirs_exist_ok=True)
    return points


def _parent(row: MiniatureModel, folder: Path) -> PreTrainedModel:
    """The finished model that a tuned one goes on from."""
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder}: no model {row.tuned_from!r} there.", "pretrain it first.")
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)


def _causal_loss(model: PreTrainedModel, rows: list[list[int]]) -> torch.Tensor:
    """Of right-padded rows, in nats per token; all tokens count.

    No attention mask: under causal attention no token sees the padding on its right.
    """
    width = max(map(len, rows))
    inputs = torch.tensor([row + [BEGIN_ID] * (width - len(row)) for row in rows])
    labels = torch.tensor([row + [IGNORED] * (width - len(row)) for row in rows])
    return model(input_ids=inputs, labels=labels, use_cache=False).loss


def _masked_loss(
    model: PreTrainedModel, rows: list[list[int]], vocabulary_size: int, draw: torch.Generator
) -> torch.Tensor:
    """Of rows of token ids, in nats per predicted word: 15% of the words are predicted; of these 80% are replaced by
    the mask, 10% by another word, 10% left."""
    words = [[token + MASKED_SHIFT for token in row if token != BEGIN_ID] for row in rows]
    width = max(map(len, words)) + 2
    inputs = torch.tensor([[CLASS_ID, *row, SEPARATOR_ID] + [0] * (width - 2 - len(row)) for row in words])
    attention = (inputs != 0).long()
    chosen = (torch.rand(inputs.shape, generator=draw) < MASK_SHARE) & (inputs >= len(MASKED_SPECIALS))
    labels = inputs.where(chosen, torch.tensor(IGNORED))
    fate = torch.rand(inputs.shape, generator=draw)
    random_tokens = torch.randint(len(MASKED_SPECIALS), vocabulary_size, inputs.shape, generator=draw)
    masked = inputs.where(~(chosen & (fate < 0.8)), torch.tensor(MASK_ID))
    masked = masked.where(~(chosen & (fate >= 0.8) & (fate < 0.9)), random_tokens)
    logits = model(input_ids=masked, attention_mask=attention).prediction_logits
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def _torch_seed(seed: int, model: str) -> int:
    digest = hashlib.sha256(f"{seed}/weights/{model}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1  # torch takes signed 64 bits


def _earlier(output: Path, model: str) -> list[str]:
    """The checkpoints' folders of an earlier training of this model. Raises InputError where the folder holds something
    else: no list of files (`outputs`) is kept here, since a model's digest is over all files of its folder."""
    record = read_json_or(output / "training.json", None)
    if isinstance(record, dict) and record.get("model") == model and isinstance(record.get("points"), list):
        return [f"checkpoint-{int(point['iteration'])}" for point in record["points"]]
    if output.is_dir() and any(output.iterdir()):
        raise InputError(f"{output}: not empty, and not the model {model!r}.", "name a new folder.")
    return []


def _move_into(made: Path, output: Path, earlier: Sequence[str]) -> None:
    """Rename all of `made` into `output` in the place of what is called the same there, and of earlier checkpoints;
    config.json goes first and comes last."""
    output.mkdir(exist_ok=True)
    (output / "config.json").unlink(missing_ok=True)
    for name in {*earlier, *(path.name for path in made.iterdir() if path.is_dir())}:
        shutil.rmtree(output / name, ignore_errors=True)
    for new in sorted(made.iterdir(), key=lambda path: path.name == "config.json"):
        os.replace(new, output / new.name)
