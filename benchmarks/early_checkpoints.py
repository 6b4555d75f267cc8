"""Early checkpoints: 8 checkpoints on 4 benchmarks, one job of this project against one lm-eval process each.

    python benchmarks/early_checkpoints.py --output FILE [--rounds N] [--processes N]

The baseline is what a script around lm-eval does: for each checkpoint and benchmark a process that loads the model and
the task and calls lm-eval's `evaluate` at batch 16. Tasks are looked up in their own folder, not among all that lm-eval
ships (which takes 15 s more a process), and no environment is collected. Of the 32 processes, N are run a round and
their time is multiplied.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

from _measure import Cost, compare, describe_machine, interleave, run_quietly, write_records
from _toys import describe_model, parameters, questions, random_model, word_tokenizer, write_task

CHECKPOINTS, BENCHMARKS, DOCUMENTS = 8, 4, 100
WIDTH, LAYERS, VOCABULARY = 64, 2, 2048
LM_EVAL_ONCE = """
import json, sys
from lm_eval import evaluator
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
model, tasks, task, output = sys.argv[1:]
lm = HFLM(pretrained=model, dtype="float32", device="cpu", batch_size=16)
loaded = TaskManager(include_path=tasks, include_defaults=False).load([task])
results = evaluator.evaluate(lm, loaded, bootstrap_iters=0, log_samples=True)
json.dump(results["results"][task]["acc,none"], open(output, "w"))
"""


def write_world(folder: Path) -> tuple[str, dict]:
    """Checkpoints, tasks, sheets and a configuration in `folder`; the model's size in words and in numbers."""
    tokenizer = word_tokenizer(VOCABULARY)
    for number in range(CHECKPOINTS + 1):
        model = random_model(WIDTH, LAYERS, VOCABULARY, seed=number)
        place = folder / "model" / (f"step{number}" if number < CHECKPOINTS else "")
        model.save_pretrained(place)
        tokenizer.save_pretrained(place)
    names = [f"toy{number}" for number in range(BENCHMARKS)]
    for number, name in enumerate(names):
        write_task(folder / "tasks", name, {"test": questions(DOCUMENTS, (20, 44), (2, 8), VOCABULARY, seed=number)})
    points = "".join(f"step{number}\t{number + 1}\tstep{number}\n" for number in range(CHECKPOINTS))
    (folder / "points.tsv").write_text("checkpoint\titeration\tsubfolder\n" + points)
    (folder / "models.tsv").write_text(f"model\tpath\tdtype\tcheckpoints\nm\t{folder / 'model'}\tfloat32\tpoints.tsv\n")
    rows = "".join(f"{name}\t{name}\t{folder / 'tasks'}\n" for name in names)
    (folder / "benchmarks.tsv").write_text("benchmark\ttask\tinclude_path\n" + rows)
    configuration = {
        "name": "early",
        "studies": ["signal"],
        "models": str(folder / "models.tsv"),
        "benchmarks": str(folder / "benchmarks.tsv"),
        "evaluation": {"device": "cpu"},
    }
    (folder / "config.yaml").write_text(json.dumps(configuration))
    return f"d {WIDTH}, {LAYERS} layers, V {VOCABULARY} ({parameters(model)})", describe_model(model)


def ours(folder: Path) -> dict[tuple[str, str], float]:
    """One job over everything, from an empty store; (checkpoint, benchmark) -> accuracy."""
    command = [str(Path(sys.executable).parent / "lm-validity")]
    store = folder / "results/early/store"
    shutil.rmtree(store, ignore_errors=True)
    batch = "all-benchmarks.all-checkpoints.plain"
    run_quietly([*command, "evaluate-model", "--model", "m", "--batch", batch, "--configfile", "config.yaml"], folder)
    found = {}
    for path in store.glob("evaluate_model/m/*/cell.json"):
        cell = json.loads(path.read_text())
        key = cell["key"]["checkpoint"], cell["key"]["benchmark"]
        found[key] = cell["result"]["metrics"]["acc,none"]["value"]
    return found


def baseline(folder: Path, processes: int) -> dict[tuple[str, str], float]:
    """The first `processes` of the 32, going through the benchmarks first."""
    found = {}
    for number in range(processes):
        checkpoint, task = f"step{number // BENCHMARKS}", f"toy{number % BENCHMARKS}"
        model, output = folder / "model" / checkpoint, folder / "baseline.json"
        run_quietly([sys.executable, "-c", LM_EVAL_ONCE, str(model), str(folder / "tasks"), task, str(output)], folder)
        found[checkpoint, task] = json.loads(output.read_text())
    return found


def prepare(folder: Path) -> None:
    """Prefetch and split once: both are the login node's work, and the baseline needs neither."""
    command = str(Path(sys.executable).parent / "lm-validity")
    run_quietly([command, "prefetch-model", "--model", "m", "--configfile", "config.yaml"], folder)
    for number in range(BENCHMARKS):
        name = ["--benchmark", f"toy{number}", "--configfile", "config.yaml"]
        run_quietly([command, "prefetch-benchmark", *name], folder)
        run_quietly([command, "split-benchmark", *name], folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=4)
    arguments = parser.parse_args()
    print(describe_machine())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size, model = write_world(folder)
        prepare(folder)
        sides = {"ours": lambda: ours(folder), "lm-eval": lambda: baseline(folder, arguments.processes)}
        costs, results = interleave(sides, arguments.rounds)
    assert len(results["ours"]) == (CHECKPOINTS + 1) * BENCHMARKS, "the final model is scored too"
    times = CHECKPOINTS * BENCHMARKS / arguments.processes
    theirs = [Cost(cost.cpu * times, cost.wall * times) for cost in costs["lm-eval"]]
    agreement = max(abs(results["ours"][key] - value) for key, value in results["lm-eval"].items())
    detail = (
        f"{CHECKPOINTS} checkpoints x {BENCHMARKS} benchmarks of {DOCUMENTS} questions, {size}; the baseline's "
        f"{CHECKPOINTS * BENCHMARKS} processes from {arguments.processes} a round; ours also scores the final model"
    )
    record = compare(
        "early checkpoints",
        "one lm-eval process each, batch 16",
        theirs,
        costs["ours"],
        target=4.0,
        agreement=agreement,
        tolerance=0.0,
        detail=detail,
        model=model,
    )
    write_records(arguments.output, [record])


if __name__ == "__main__":
    main()
