"""The GPU tier: scoring and training of models in the shapes of 0.5B and 7B, with random weights.

    python benchmarks/gpu.py --output FILE.json [--rounds N] [--device cuda] [--shapes 0.5B,7B] [--minutes 30]

Writes the records after each measurement, and at the end a table beside them (FILE.md). What is not begun after so many
minutes is left out and named. Without a GPU it writes an empty list. `--device cpu --shapes tiny` runs the same code on
a small shape, to see that it works. Times are on the clock with the device synchronised. float32 must agree within 1e-4
nats per token; in bfloat16 two questions more may be answered otherwise than lm-eval's own batch sizes differ by.
"""

import argparse
import gc
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import transformers
from _measure import compare, interleave, write_records
from _toys import describe_model, questions, word_tokenizer
from lm_eval.models.huggingface import HFLM
from run import page_table

from lm_validity.cells.lm_eval_internals import errors_only
from lm_validity.cells.models.language_model import LanguageModel
from lm_validity.cells.tasks.evaluation import Example
from lm_validity.cells.training.loop import FinetuneSettings, Member, Plan, train_side_by_side
from lm_validity.cells.workers import finetune
from lm_validity.files import read_json

# (width, inner width, layers, heads, key-value heads, vocabulary): Qwen2.5's 0.5B and 7B
SHAPES = {
    "tiny": (64, 128, 2, 2, 1, 1024),
    "0.5B": (896, 4864, 24, 14, 2, 151_936),
    "7B": (3584, 18_944, 28, 28, 4, 152_064),
}
DTYPES = {"tiny": ("float32", "bfloat16"), "0.5B": ("float32", "bfloat16"), "7B": ("bfloat16",)}
LENGTHS = {"arc-like 31 + 5": ((20, 42), (2, 8)), "hellaswag-like 62 + 28": ((45, 79), (18, 38))}
QUESTIONS, EXAMPLES = 256, 256
BATCHES = (1, 32, "auto")  # of lm-eval's HFLM
RATES = (1e-5, 2e-5, 5e-5)


def build(shape: str, dtype: str, device: str):
    """A random Qwen2 of a shape."""
    width, inner, layers, heads, shared, vocabulary = SHAPES[shape]
    config = transformers.Qwen2Config(
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=shared,
        vocab_size=vocabulary,
        max_position_embeddings=2048,
        initializer_range=0.05,
        tie_word_embeddings=shape != "7B",
    )
    torch.manual_seed(0)
    with torch.device(device):
        return transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).eval()


def synchronised(work, device: str):
    """`work` that ends when the device has."""

    def run():
        result = work()
        if device != "cpu":
            torch.cuda.synchronize()
        return result

    return run


@dataclass(frozen=True)
class Scoring:
    """One benchmark scored by one model, by the project's scorer and by HFLM at each batch size."""

    lm: LanguageModel
    name: str
    documents: list[dict]

    @property
    def requests(self) -> list[SimpleNamespace]:
        """Context and choice, for each choice."""
        return [SimpleNamespace(args=(doc["context"], f" {text}")) for doc in self.documents for text in doc["choices"]]

    def sides(self, device: str) -> dict[str, Callable[[], list]]:
        """The same requests by `ours` and by `batch ...`, each to its end."""
        with errors_only("lm_eval.models.huggingface"):
            lms = {
                batch: HFLM(pretrained=self.lm.base, tokenizer=self.lm.tokenizer, batch_size=batch) for batch in BATCHES
            }
        sides = {"ours": lambda: self.lm.loglikelihood(self.requests)}
        for batch, lm in lms.items():
            sides[f"batch {batch}"] = lambda lm=lm: lm.loglikelihood(self.requests, disable_tqdm=True)
        return {side: synchronised(work, device) for side, work in sides.items()}

    def records(self, device: str, rounds: int) -> Iterator[dict]:
        """Ours against each batch size."""
        sides, dtype, count = self.sides(device), str(self.lm.base.dtype).removeprefix("torch."), len(self.documents)
        for side, work in sides.items():
            if side != "batch auto":  # untimed
                work()
        costs, results = interleave(sides, rounds)
        # 16 bits: two questions more than lm-eval's own batch sizes answer differently
        own = difference(results["batch 1"], results["batch 32"], self.documents, self.requests, dtype)
        for batch in BATCHES:
            apart = difference(results["ours"], results[f"batch {batch}"], self.documents, self.requests, dtype)
            yield compare(
                f"{self.lm.model_id} {dtype}, scoring {self.name}",
                f"lm-eval's HFLM, batch {batch}",
                costs[f"batch {batch}"],
                costs["ours"],
                target=None,
                agreement=apart,
                tolerance=1e-4 if dtype == "float32" else own + 2 / count,
                detail=f"{count} questions of 4 choices",
                device=device,
                clock="wall",
                model=describe_model(self.lm.base),
            )


def scorings(shape: str, dtype: str, device: str, count: int) -> Iterator[Scoring]:
    """So many questions of each of the lengths, for one model."""
    model = build(shape, dtype, device)
    tokenizer = word_tokenizer(min(50_000, model.config.vocab_size))
    lm = LanguageModel(model, tokenizer, model_id=shape, eval_batch_size=32)
    for name, (context, choice) in LENGTHS.items():
        yield Scoring(lm, name, questions(count, context, choice, len(tokenizer)))


def scoring_records(shape: str, dtype: str, device: str, rounds: int) -> list[dict]:
    """The scorer against HFLM at each batch size."""
    return [record for each in scorings(shape, dtype, device, QUESTIONS) for record in each.records(device, rounds)]


def difference(ours, theirs, documents, requests, dtype: str) -> float:
    """float32: nats per token, the largest. bfloat16: accuracy."""
    mine, others = (np.array([value for value, _ in side]) for side in (ours, theirs))
    if dtype == "float32":
        return float((np.abs(mine - others) / [len(request.args[1].split()) for request in requests]).max())
    gold = np.array([document["gold"] for document in documents])
    accuracies = [(side.reshape(-1, 4).argmax(1) == gold).mean() for side in (mine, others)]
    return float(abs(accuracies[0] - accuracies[1]))


def training_records(shape: str, dtype: str, device: str, rounds: int, count: int = EXAMPLES) -> list[dict]:
    """Three rates side by side against one after another; agreement of the epoch's mean loss."""
    model = build(shape, dtype, device)
    tokenizer = word_tokenizer(min(50_000, model.config.vocab_size))
    lm = LanguageModel(model, tokenizer, model_id=shape, eval_batch_size=32)
    random = np.random.default_rng(0)
    examples = [
        Example(tuple(random.integers(len(tokenizer), size=n).tolist()), 1) for n in random.integers(22, 68, count)
    ]
    settings = FinetuneSettings(learning_rate=RATES[0], epochs=1)

    def alone() -> list[float]:
        with tempfile.TemporaryDirectory() as name:
            return [
                finetune(
                    Plan(
                        lm,
                        examples,
                        [Member(settings.model_copy(update={"learning_rate": rate}), Path(name) / str(rate))],
                        float,
                        seed=1,
                    )
                )
                .epochs[0]
                .train_loss
                for rate in RATES
            ]

    def together() -> list[float]:
        losses: dict[float, float] = {}
        with tempfile.TemporaryDirectory() as name:
            members = [
                Member(
                    settings.model_copy(update={"learning_rate": rate}),
                    Path(name) / str(rate),
                    lambda epoch, rate=rate: losses.update({rate: epoch.train_loss}),
                )
                for rate in RATES
            ]
            train_side_by_side(Plan(lm, examples, members, float, seed=1))
        return [losses[rate] for rate in RATES]

    sides = {"alone": synchronised(alone, device), "together": synchronised(together, device)}
    for work in sides.values():
        work()
    costs, results = interleave(sides, rounds)
    agreement = max(abs(a / b - 1) for a, b in zip(results["alone"], results["together"], strict=True))
    record = compare(
        f"{shape} {dtype}, three rates side by side",
        "one after another",
        costs["alone"],
        costs["together"],
        target={"0.5B": 1.8, "7B": 1.15}.get(shape),
        agreement=agreement,
        tolerance=1e-5 if dtype == "float32" else 1e-2,
        detail=f"{count} texts of 22 to 67 tokens, one epoch; agreement: relative, of mean losses",
        device=device,
        clock="wall",
        model=describe_model(model),
    )
    return [record]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shapes", default="0.5B,7B")
    parser.add_argument("--minutes", type=float, default=30)
    arguments = parser.parse_args()
    records: list[dict] = []
    begun = time.monotonic()
    wanted = [(shape, dtype) for shape in arguments.shapes.split(",") for dtype in DTYPES[shape]]
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("no GPU: not measured")
        wanted = []
    for shape, dtype in wanted:
        for work in (scoring_records, training_records):
            if time.monotonic() - begun > 60 * arguments.minutes:
                print(f"not measured, the time is over: {work.__name__} of {shape} in {dtype}")
                continue
            records += work(shape, dtype, arguments.device, arguments.rounds)
            gc.collect()
            write_records(arguments.output, records, finished=False)
    write_records(arguments.output, records)
    if records:
        table = page_table({"gpu": read_json(arguments.output)})
        arguments.output.with_suffix(".md").write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()
