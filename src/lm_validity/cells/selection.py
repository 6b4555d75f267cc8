"""Which prompt and which adapter of a benchmark are selected, by results on the validation split."""

from lm_validity.errors import CellError
from lm_validity.run.cell import BenchmarkCell, Prompt, given
from lm_validity.run.records import Candidate, Choice
from lm_validity.run.rules.benchmarks import SELECT_ADAPTER, SELECT_PROMPT
from lm_validity.run.workspace import Workspace

# ----------------------------------------------------------------------------------------------------------------------
# Choosing on validation: the prompt of the direct regime, and the adapter of train-before-test.
#
# Reads validation results only. An adapter is chosen over the untouched model only where it is strictly better.

PROMPT_ORDER = ("plain", "chat")  # ties go to the earlier one


def select_prompt(workspace: Workspace, cell: BenchmarkCell) -> Choice:
    """The direct regime's prompt: the best on validation, ties to plain."""
    benchmark = workspace.run.benchmarks[cell.benchmark]
    values: dict[Prompt, float] = {}
    for direct in SELECT_PROMPT.stands_on(workspace.grid, cell):
        values[given(direct.prompt)] = workspace.finished(direct)["result"]["metrics"][benchmark.metric]["value"]
    better = 1 if benchmark.higher_is_better else -1
    best = max(values, key=lambda prompt: (better * values[prompt], -PROMPT_ORDER.index(prompt)))
    return {
        "prompt": best,
        "metric": benchmark.metric,
        "validation_value": values[best],
        "validation_values": values,
    }


def select_adapter(workspace: Workspace, cell: BenchmarkCell) -> Choice:
    """The best (learning rate, prompt, epoch) on validation for (model, benchmark, seed).

    Ties go to the earlier epoch, then the smaller rate, then plain. A fine-tune that diverged is recorded and left
    out; where all diverged the cell fails. The untouched model stays unless an adapter is strictly better than the
    best direct prompt: then `learning_rate`, `epoch` and `folder` are None and the test score is the direct cell's.
    """
    benchmark = workspace.run.benchmarks[cell.benchmark]
    better = 1 if benchmark.higher_is_better else -1
    direct = select_prompt(workspace, cell)
    rows: list[Candidate] = []
    folders: list[str] = []
    for candidate in SELECT_ADAPTER.candidates(workspace.grid, cell):
        trained = workspace.finished(candidate)
        result = trained["result"]
        rows.append(
            {
                "prompt": given(candidate.prompt),
                "learning_rate": given(candidate.learning_rate),
                "epoch": result["best_epoch"],
                "validation_value": result["best_value"],
                "diverged": result["diverged"],
                "adapted_share": result.get("adapted_share"),  # replays have none
            }
        )
        folders.append(trained["folder"])

    def order(number: int) -> tuple[float, ...]:
        row = rows[number]
        rate, prompt = float(row["learning_rate"]), PROMPT_ORDER.index(row["prompt"])
        return better * given(row["validation_value"]), -given(row["epoch"]), -rate, -prompt

    number = max((number for number, row in enumerate(rows) if not row["diverged"]), key=order, default=None)
    if number is None:
        raise CellError(
            f"every fine-tune of {cell.model} on {cell.benchmark} (seed {cell.seed}) diverged",
            "try smaller finetuning.learning_rates, or check the training data.",
        )
    chosen = rows[number]
    best = given(chosen["validation_value"])
    trained_is_better = better * best > better * direct["validation_value"]
    return {
        "metric": benchmark.metric,
        "direct_prompt": direct["prompt"],
        "direct_validation_value": direct["validation_value"],
        "candidates": rows,
        "prompt": chosen["prompt"] if trained_is_better else direct["prompt"],
        "learning_rate": chosen["learning_rate"] if trained_is_better else None,
        "epoch": chosen["epoch"] if trained_is_better else None,
        "validation_value": best if trained_is_better else direct["validation_value"],
        "folder": folders[number] if trained_is_better else None,
    }
