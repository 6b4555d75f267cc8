"""One cell, whole, against the published train-before-test program itself, run from a checkout of it.

    python benchmarks/published_program.py --output FILE [--checkout PATH] [--python PATH] [--rounds N] [--scale S]

The checkout (github.com/socialfoundations/lm-harmony; or the environment variable LM_HARMONY) is copied to a temporary
folder, where the benchmark's file is put among the tasks of the lm-eval that it brings with it; nothing else of it is
changed. The model is copied too, its tokenizer's class under the name that the older transformers knows. It runs under
an interpreter of its own that has the versions its environment.yml pins (`--python`, or LM_HARMONY_PYTHON), a process a
rate, with the flags of its README: evaluation before, after and at every epoch. Without a checkout nothing is measured.

The same cell as `whole_cell.py`, with adapters on the layers where that program puts them. Direct scores of validation
and test must be the same on both sides. Scores after training are no basis for refusing: that program draws its own
adapter, dropout and order of documents, and its trainer adds an end-of-text token. Both sides' selected test scores are
in the record instead.
"""

import argparse
import json
import os
import shutil
import tempfile
from pathlib import Path

from _measure import compare, describe_machine, interleave, run_quietly, write_records
from whole_cell import RATES, ours, write_world

METRIC = "acc,none"
VERSIONS = ("torch", "transformers", "trl", "peft", "datasets")


def prepare(checkout: Path, folder: Path) -> Path:
    """A copy of the checkout that knows the benchmark. Raises SystemExit where it is no such checkout."""
    if not (checkout / "main.py").is_file() or not (checkout / "lm_eval" / "tasks").is_dir():
        raise SystemExit(
            f"Error: {checkout}: no checkout of lm-harmony. Hint: it holds main.py and lm_eval/tasks; give --checkout."
        )
    program = folder / "program"
    shutil.copytree(checkout, program, ignore=shutil.ignore_patterns(".git", "results"))
    shutil.copytree(folder / "tasks", program / "lm_eval" / "tasks" / "toy")
    shutil.copytree(folder / "model", program / "model")
    path = program / "model" / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}))
    return program


def published(program: Path, python: Path, folder: Path) -> dict:
    """The program, once a rate, from an empty results folder; direct scores, and the selected one over rates."""
    shutil.rmtree(program / "results", ignore_errors=True)
    shutil.rmtree(folder / "program-cache", ignore_errors=True)
    cache = f"HF_DATASETS_CACHE={folder / 'program-cache'}"
    found = {}
    for rate in RATES:
        run_quietly(["env", cache, str(python), "main.py", *arguments_of(program, rate)], program)
        (result,) = (program / "results" / f"rate-{rate}").glob("*.result")
        found[rate] = read_record(result)
    first = found[RATES[0]]
    best = max(found.values(), key=lambda record: record["best_eval_score"])
    direct = first[f"before_train_eval_{METRIC}"], first[f"before_train_test_{METRIC}"]
    return {
        "direct validation": direct[0],
        "direct test": direct[1],
        "selected": best["best_test_score"] if best["best_eval_score"] > direct[0] else direct[1],
    }


def arguments_of(program: Path, rate: str) -> list[str]:
    """The command of its README, for our model, benchmark and rate."""
    return [
        *("--exp_name", f"rate-{rate}", "--base_model", str(program / "model"), "--task_name", "toy"),
        *("--train_param.num_train_epochs", "5", "--train_param.learning_rate", rate),
        *("--eval_before_train", "--eval_every_epoch", "--eval_after_train"),
        *("--train_param.greater_is_better", "--train_param.metric_for_best_model", f"eval_{METRIC}"),
        *("--dataset_param.max_num_train", "50000", "--dataset_param.max_num_valid", "1000"),
        *("--dataset_param.max_num_test", "10000", "--no-use_git"),
    ]


def read_record(path: Path) -> dict:
    """The program's results: a JSON object per line, of one key each, and a mark at the end."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("{"):
            found |= json.loads(line)
    return found


def versions(python: Path) -> str:
    code = f"from importlib.metadata import version\nprint(', '.join(f'{{n}} {{version(n)}}' for n in {VERSIONS}))"
    return run_quietly([str(python), "-c", code], Path.cwd()).strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--checkout", type=Path, default=os.environ.get("LM_HARMONY") or None)
    parser.add_argument("--python", type=Path, default=os.environ.get("LM_HARMONY_PYTHON", "python3"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0)
    arguments = parser.parse_args()
    if arguments.checkout is None:
        print("no checkout of lm-harmony (--checkout or LM_HARMONY): not measured")
        write_records(arguments.output, [])
        return
    print(describe_machine())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sizes, size, model = write_world(folder, arguments.scale, target_modules="paper")
        program = prepare(arguments.checkout, folder)
        sides = {
            "ours": lambda: ours(folder),
            "published": lambda: published(program, arguments.python, folder),
        }
        costs, results = interleave(sides, arguments.rounds)
    mine, theirs = results["ours"], results["published"]
    documents = ", ".join(f"{count} {split}" for split, count in sizes.items())
    part = "" if arguments.scale == 1 else f", {arguments.scale:g} of the documents"
    record = compare(
        f"one cell, 3 learning rates, whole process{part}",
        "the published program itself",
        costs["published"],
        costs["ours"],
        target=None,
        agreement=max(abs(mine[split] - theirs[split]) for split in ("direct validation", "direct test")),
        tolerance=0.0,
        detail=f"documents: {documents}; {size}; its versions: {versions(arguments.python)}; agreement in accuracy of "
        f"both direct evaluations; selected test accuracy {theirs['selected']:.3f} (its own adapter, dropout and "
        f"order) against {mine['selected']:.3f}",
        model=model,
    )
    write_records(arguments.output, [record])


if __name__ == "__main__":
    main()
