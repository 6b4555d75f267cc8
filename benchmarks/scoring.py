"""Multiple-choice scoring: the shared-context scorer against lm-eval's HFLM as shipped, on the same requests.

    python benchmarks/scoring.py --output FILE [--rounds N]

Random weights, float32, one thread. Tokenising is part of the work on both sides. Log-likelihoods must agree within
1e-4 a token, and every question's best choice unless the two best are that close.
"""

import argparse
import gc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from _measure import compare, describe_machine, interleave, write_records
from _toys import describe_model, parameters, questions, random_model, word_tokenizer
from lm_eval.models.huggingface import HFLM

from lm_validity.cells.lm_eval_internals import errors_only
from lm_validity.cells.models.scorer import SharedContextLM

TOLERANCE = 1e-4  # nats per token, float32
# name, (width, layers, vocabulary, architecture), questions, context and choice lengths, batch sizes of HFLM -> target
WORK = (
    ("200-token contexts, 4 choices of 10", (512, 6, 8192, "llama"), 8, (200, 200), (8, 12), {16: 3.5}),
    ("the same, GPT-2", (512, 6, 8192, "gpt2"), 6, (200, 200), (8, 12), {16: 3.5}),
    ("arc-like, 32 + 5 tokens", (256, 6, 4096, "llama"), 48, (20, 44), (2, 8), {16: 2.5, 1: None, 32: None}),
    ("arc-like, a vocabulary of 50k", (128, 4, 50_304, "llama"), 24, (20, 44), (2, 8), {16: None}),
    ("one-token choices, 60 + 1", (256, 6, 4096, "llama"), 48, (45, 75), (1, 1), {16: None}),
)


def work_records(name, model, count, context, choice, batches, rounds, tokenizer, size) -> list[dict]:
    """Records of one kind of questions: a record for each batch size of the baseline."""
    documents = questions(count, context, choice, model.config.vocab_size)
    requests = [
        SimpleNamespace(args=(document["context"], f" {choice}"))
        for document in documents
        for choice in document["choices"]
    ]
    with errors_only("lm_eval.models.huggingface"):
        ours = SharedContextLM(pretrained=model, tokenizer=tokenizer, batch_size=16)
        theirs = {batch: HFLM(pretrained=model, tokenizer=tokenizer, batch_size=batch) for batch in batches}
    ours.loglikelihood(requests[:8], disable_tqdm=True)  # the probe, and an untimed warm-up on both sides
    for lm in theirs.values():
        lm.loglikelihood(requests[:8], disable_tqdm=True)
    sides = {"ours": lambda: ours.loglikelihood(requests, disable_tqdm=True)}
    for batch, lm in theirs.items():
        sides[f"HFLM, batch {batch}"] = lambda lm=lm: lm.loglikelihood(requests, disable_tqdm=True)
    costs, results = interleave(sides, rounds)
    records = []
    for batch, target in batches.items():
        side = f"HFLM, batch {batch}"
        agreement = largest_difference(results["ours"], results[side], requests)
        records.append(
            compare(
                f"scoring: {name}",
                f"lm-eval's {side}",
                costs[side],
                costs["ours"],
                target=target,
                agreement=agreement,
                tolerance=TOLERANCE,
                detail=f"{count} questions of 4 choices, {size}; agreement in nats per token",
                model=describe_model(model),
            )
        )
    return records


def largest_difference(ours, theirs, requests) -> float:
    """Largest difference in nats per token; infinite where a question's best choice differs by more than rounding."""
    lengths = np.array([len(request.args[1].split()) for request in requests])
    mine, others = (np.array([value for value, _ in side]) for side in (ours, theirs))
    largest = float((np.abs(mine - others) / lengths).max())
    for a, b in zip(mine.reshape(-1, 4), others.reshape(-1, 4), strict=True):
        if a.argmax() != b.argmax() and b.max() - b[a.argmax()] > 1e-3:
            return float("inf")
    return largest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(describe_machine())
    records = []
    for name, (width, layers, vocabulary, kind), count, context, choice, batches in WORK:
        print(f"-- {name}", flush=True)
        model = random_model(width, layers, vocabulary, kind=kind)
        size = f"{kind} d {width}, {layers} layers, V {vocabulary} ({parameters(model)})"
        tokenizer = word_tokenizer(vocabulary)
        records += work_records(name, model, count, context, choice, batches, arguments.rounds, tokenizer, size)
        del model
        gc.collect()
    write_records(arguments.output, records)


if __name__ == "__main__":
    main()
