"""Trains one tiny language model of the miniature world from scratch and writes it in hub format.

    <output>/checkpoint-<iteration>/   weights, tokenizer and configuration at points of training
    <output>/training.json             loss, tokens and documents at each of them
    <output>/model.safetensors, …      the final model; config.json comes last: where it is, the rest is too

Budgets are steps, not seconds. One thread and a generator of its own: on a CPU with the same library
versions the same settings, world and row give the same bytes.
"""

import hashlib
import logging
import math
import os
import shutil
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TypedDict

import torch
import torch.nn.functional as F
import transformers

from lm_validity.config.sections import MiniatureSettings
from lm_validity.config.sheets import MiniatureModel
from lm_validity.errors import CellError, InputError
from lm_validity.files import read_json_or, write_json
from lm_validity.miniature import build
from lm_validity.miniature.world import make_world, read_world

log = logging.getLogger(__name__)

# Transformers' 0.02 is meant for wide layers; these narrow ones would stay longer on the plateau
INITIALIZER_RANGE = 0.08
WARMUP_STEPS = 50
FINAL_LEARNING_RATE = 0.1  # of the peak
BETAS, WEIGHT_DECAY, CLIP = (0.9, 0.95), 0.01, 1.0
IGNORED = -100  # no loss where the target is padding, or a word that is not masked
MASK_SHARE = 0.15
CHAT_FAMILIES = ("forum",)  # whose tokenizer has a chat template


def pretrain_model(
    settings: MiniatureSettings, world: Path, row: MiniatureModel, output: Path, *, start: Path | None = None
) -> None:
    """Train the model of a pool row and write it, with its checkpoints, into `output`.

    settings: the section the world was written from. world: its folder. start: the finished model that a tuned one
    goes on from (null for all others). Raises InputError where the world is another's or `output` holds something else
    than this model, and CellError where the loss is not finite; nothing is written then. Everything is trained and
    written beside `output` first, then renamed.
    """
    earlier = _earlier(output, row.model)
    if read_world(world) != make_world(settings):
        problem = f"{world}: not the world of these settings (seed {settings.seed}, formats {settings.formats!r})."
        raise InputError(problem, "write it again with `lm-validity miniature world`.")
    output.parent.mkdir(parents=True, exist_ok=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # whatever the environment says: sums over several threads depend on their number
    transformers.utils.logging.disable_progress_bar()  # one bar per checkpoint written
    made = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    try:
        with torch.random.fork_rng(devices=[]):
            points = _train(settings, world, row, start, made)
        write_json(made / "training.json", {"model": row.model, "points": points})
        _move_into(made, output, earlier)
    finally:
        torch.set_num_threads(threads)
        shutil.rmtree(made, ignore_errors=True)


def build_model(row: MiniatureModel, vocabulary_size: int) -> transformers.PreTrainedModel:
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
        "max_position_embeddings": build.CONTEXT_LENGTH,
        "initializer_range": INITIALIZER_RANGE,
        "dtype": "float32",
    }
    if row.architecture == "bert":
        dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        return transformers.BertForPreTraining(
            transformers.BertConfig(intermediate_size=row.feedforward_size, pad_token_id=0, **dropout, **shape)
        )
    shape |= {"bos_token_id": build.BEGIN_ID, "eos_token_id": build.BEGIN_ID, "tie_word_embeddings": True}
    if row.architecture == "llama":
        shape |= {"intermediate_size": row.feedforward_size, "num_key_value_heads": row.heads}
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape))
    dropout = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_inner=row.feedforward_size, **dropout, **shape))


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
    settings: MiniatureSettings, folder: Path, row: MiniatureModel, start: Path | None, made: Path
) -> list[TrainingPoint]:
    """Train, and write checkpoints into subfolders of `made` and the final model into it; a point of each. folder: of
    the world."""
    torch.manual_seed(_torch_seed(settings.seed, row.model))
    world, masked, chat = read_world(folder), row.architecture == "bert", row.tuned_from or row.family in CHAT_FAMILIES
    tokenizer = folder / ("tokenizer_masked" if masked else "tokenizer_chat" if chat else "tokenizer")
    size = len(build.masked_vocabulary(world) if masked else build.vocabulary(world))
    loss_of = _causal_loss
    if masked:
        draw = torch.Generator().manual_seed(_torch_seed(settings.seed, f"masks of {row.model}"))
        loss_of = partial(_masked_loss, vocabulary_size=size, draw=draw)
    if start is None or masked:
        model = build_model(row, size)
    elif (start / "config.json").is_file():
        model = transformers.AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32, local_files_only=True)
    else:
        raise InputError(f"{start}: no model {row.tuned_from!r} there.", "pretrain it first.")
    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=row.learning_rate, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True
    )
    marks = {*row.checkpoints, row.steps}
    points: list[TrainingPoint] = []
    losses: list[float] = []
    tokens = documents = 0
    for step, batch in zip(range(1, row.steps + 1), build.training_batches(settings, world, row), strict=False):
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
        if step in marks:
            mean = sum(losses) / len(losses)
            if not math.isfinite(mean):
                hint = "lower its learning_rate in the pool sheet."
                raise CellError(f"pretraining of {row.model}: the loss is not finite before step {step}.", hint)
            points.append({"iteration": step, "tokens": tokens, "documents": documents, "loss": mean})
            log.info("step %d of %d, loss %.3f nats per token", step, row.steps, mean)
            losses.clear()
            point = made if step == row.steps else made / f"checkpoint-{step}"
            model.save_pretrained(point)
            shutil.copytree(tokenizer, point, dirs_exist_ok=True)
    return points


def _causal_loss(model: transformers.PreTrainedModel, rows: list[list[int]]) -> torch.Tensor:
    """Of right-padded rows, in nats per token; all tokens count.

    No attention mask: under causal attention no token sees the padding on its right.
    """
    width = max(map(len, rows))
    inputs = torch.tensor([row + [build.BEGIN_ID] * (width - len(row)) for row in rows])
    labels = torch.tensor([row + [IGNORED] * (width - len(row)) for row in rows])
    return model(input_ids=inputs, labels=labels, use_cache=False).loss


def _masked_loss(
    model: transformers.PreTrainedModel, rows: list[list[int]], vocabulary_size: int, draw: torch.Generator
) -> torch.Tensor:
    """Of rows of token ids, in nats per predicted word: 15% of the words are predicted; of these 80% are replaced by
    the mask, 10% by another word, 10% left."""
    words = [[token + build.MASKED_SHIFT for token in row if token != build.BEGIN_ID] for row in rows]
    width = max(map(len, words)) + 2
    inputs = torch.tensor([[build.CLASS_ID, *row, build.SEPARATOR_ID] + [0] * (width - 2 - len(row)) for row in words])
    attention = (inputs != 0).long()
    chosen = (torch.rand(inputs.shape, generator=draw) < MASK_SHARE) & (inputs >= len(build.MASKED_SPECIALS))
    labels = inputs.where(chosen, torch.tensor(IGNORED))
    fate = torch.rand(inputs.shape, generator=draw)
    random_tokens = torch.randint(len(build.MASKED_SPECIALS), vocabulary_size, inputs.shape, generator=draw)
    masked = inputs.where(~(chosen & (fate < 0.8)), torch.tensor(build.MASK_ID))
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
