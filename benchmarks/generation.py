"""Generated answers: this project's batches against lm-eval's HFLM, at batch 1 as it is by default and at 32.

    python benchmarks/generation.py --output FILE [--rounds N]

Random weights, float32, one thread; prompts of 20 to 60 tokens, answers of at most 64. A random model ends no answer,
so the stop strings are words of its own answers, from places between 4 and 48: answers differ in length and in the
string that ends them. All sides must write the same answers.
"""

import argparse
import gc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from _measure import compare, describe_machine, interleave, write_records
from _toys import parameters, questions, random_model, word_tokenizer
from lm_eval.models.huggingface import HFLM

from lm_validity.cells.models.language_model import LanguageModel
from lm_validity.cells.models.provenance import errors_only

LONGEST, PROMPTS, BATCH = 64, 64, 32
SHAPES = {"tiny": (64, 2, 512), "small": (256, 6, 4096)}


def requests_of(prompts: list[str], stops: list[str]) -> list[SimpleNamespace]:
    options = {"until": stops, "max_gen_toks": LONGEST, "do_sample": False}
    return [SimpleNamespace(args=(prompt, options)) for prompt in prompts]


def choose_stops(lm: HFLM, prompts: list[str]) -> list[str]:
    """Words that end every answer early: one of its own, or one of an earlier prompt's."""
    random = np.random.default_rng(0)
    stops: list[str] = []
    for answer in lm.generate_until(requests_of(prompts, ["never said"]), disable_tqdm=True):
        words = answer.split()
        if not set(stops) & set(words[:48]):
            stops.append(words[random.integers(4, 48)])
    return [f"{stop} " for stop in stops]  # with the blank: w1 is not w12


def shape_records(name: str, rounds: int) -> list[dict]:
    width, layers, vocabulary = SHAPES[name]
    model, tokenizer = random_model(width, layers, vocabulary), word_tokenizer(vocabulary)
    prompts = [document["context"] for document in questions(PROMPTS, (20, 60), (1, 1), vocabulary)]
    with errors_only("lm_eval.models.huggingface"):
        lms = {
            f"HFLM, batch {batch}": HFLM(pretrained=model, tokenizer=tokenizer, batch_size=batch) for batch in (1, 32)
        }
    for cache in ("dynamic", "static"):
        lms[cache] = LanguageModel(
            model, tokenizer, model_id="toy", eval_batch_size=BATCH, scorer="rows", generation_cache=cache
        )
    requests = requests_of(prompts, choose_stops(lms["HFLM, batch 32"], prompts))
    for lm in lms.values():
        lm.generate_until(requests[:2], disable_tqdm=True)
    sides = {side: lambda lm=lm: lm.generate_until(requests, disable_tqdm=True) for side, lm in lms.items()}
    costs, answers = interleave(sides, rounds)
    lengths = [len(answer.split()) for answer in answers["dynamic"]]
    words = f"{min(lengths)} to {max(lengths)} tokens, on average {sum(lengths) / PROMPTS:.0f}"
    stops = len(requests[0].args[1]["until"])
    detail = (
        f"{PROMPTS} prompts, {stops} stop strings, answers of {words}; d {width}, {layers} layers, V {vocabulary} "
        f"({parameters(model)}); agreement: share of answers that differ"
    )
    pairs = (
        (f"generation, batch {BATCH}, {name}", "HFLM, batch 1", "dynamic"),
        (f"generation, batch {BATCH}, {name}", "HFLM, batch 32", "dynamic"),
        (f"generation, static cache, {name}", "dynamic", "static"),
    )
    return [
        compare(
            what,
            "this project's dynamic cache" if baseline == "dynamic" else f"lm-eval's {baseline}",
            costs[baseline],
            costs[ours],
            target=None,
            agreement=sum(a != b for a, b in zip(answers[ours], answers[baseline], strict=True)) / PROMPTS,
            tolerance=0.0,
            detail=detail,
        )
        for what, baseline, ours in pairs
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(describe_machine())
    records = []
    for name in SHAPES:
        print(f"-- {name}", flush=True)
        records += shape_records(name, arguments.rounds)
        gc.collect()
    write_records(arguments.output, records)


if __name__ == "__main__":
    main()
