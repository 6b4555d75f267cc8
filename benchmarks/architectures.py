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
from tiny_architectures import WORDS, kinds, tiny_config

from lm_validity.cells.models.language_model import LanguageModel, check_causal
from lm_validity.cells.rehearsal.rehearse import word_tokenizer
from lm_validity.cells.training.text import Example
from lm_validity.cells.training.worker import FinetuneSettings, TrainingStopped, finetune
from lm_validity.errors import CellError, first_line

SECONDS, LARGEST = 150, 60e6
EXACT = 2e-5  # nats per token: rounding in float32
SETTINGS = FinetuneSettings(learning_rate=3e-3, epochs=3, rank=4)


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


if __name__ == "__main__":
    transformers.utils.logging.set_verbosity_error()
    if "--table" in sys.argv:
        from architectures_table import write_table

        write_table(Path(sys.argv[1]))
    else:
        run_all(Path(sys.argv[1]), sys.argv[2:] or kinds())
