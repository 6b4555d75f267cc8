"""The page of what was computed: how often models were loaded and splits read, tokens and steps, by phase."""

import pandas as pd

from lm_validity.reports.page import Finding, Page, Section, Table
from lm_validity.store.spent import Spent

PHASES = ("load", "train", "validation", "test", "trials")
COLUMNS = {
    "model_loads": "model loads",
    "evaluate_passes": "passes over a split",
    "optimizer_steps": "optimizer steps",
    "training_tokens": "tokens trained",
    "training_tokens_padded": "with padding",
    "forward_tokens": "tokens scored",
    "forward_tokens_padded": "with padding",
    "shared_tokens": "spared by sharing",
    "generated_tokens": "tokens generated",
    "oom_halvings": "out of memory",
}


def computation_page(spent: Spent) -> Page | None:
    """The page, or None where no cell was counted."""
    if spent.cells == spent.uncounted:
        return None
    phases = [*(phase for phase in PHASES if phase in spent.phases), *sorted(set(spent.phases) - set(PHASES))]
    frame = pd.DataFrame([{"phase": phase} | {key: spent.phases[phase][key] for key in COLUMNS} for phase in phases])
    totals = sum(spent.phases.values(), start=type(spent.phases[phases[0]])())
    hours = spent.wall_seconds / 3600
    sentence = (
        f"{spent.cells:,} cells took {hours:,.2f} hours: {totals['model_loads']:,} model loads, "
        f"{totals['evaluate_passes']:,} passes over a split, {totals['optimizer_steps']:,} optimizer steps."
    )
    basis = "Counted in the sidecars of all finished cells of the store, cells of older recipes included."
    if spent.uncounted:
        basis += f" {spent.uncounted:,} cells have no counters."
    if spent.written_by_vllm:
        basis += f" vLLM wrote the answers of {spent.written_by_vllm:,} cells."
    table = Table(
        "computation",
        "By phase",
        frame,
        formats=dict.fromkeys(COLUMNS, ",d"),
        labels=COLUMNS,
        caption="Spared by sharing: tokens of choices that were not computed again because another choice has them. "
        "The hours above are those of the cells on the clock, without starting processes. Trials: the bias study.",
    )
    return Page(
        "computation",
        "What was computed",
        [Finding(sentence, basis)],
        [Section("Counts", tables=[table])],
        question="What did this run take?",
    )
