"""The page of what was computed: how often models were loaded and splits read, tokens and steps, by phase."""

import pandas as pd

from lm_validity.config.finetuning import PATIENCE
from lm_validity.monitor.spent import Spent
from lm_validity.pages.page import Finding, Page, Section, Table

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


def computation_page(spent: Spent, planned: Finding | None = None) -> Page | None:
    """The page, or None where no cell was counted. `planned`: what a plan spares."""
    if spent.cells == spent.uncounted:
        return None
    phases = [*(phase for phase in PHASES if phase in spent.phases), *sorted(set(spent.phases) - set(PHASES))]
    frame = pd.DataFrame([{"phase": phase} | {key: spent.phases[phase][key] for key in COLUMNS} for phase in phases])
    totals = sum(spent.phases.values(), start=type(spent.phases[phases[0]])())
    minutes = spent.wall_seconds / 60
    took = f"{minutes / 60:,.2f} hours" if minutes >= 60 else f"{minutes:.1f} minutes"
    sentence = (
        f"{spent.cells:,} cells took {took}: {totals['model_loads']:,} model loads, "
        f"{totals['evaluate_passes']:,} passes over a split, {totals['optimizer_steps']:,} optimizer steps."
    )
    basis = (
        "Counted over all finished cells that computed something, also those of older settings of this run. Selections "
        "compute nothing."
    )
    if spent.uncounted:
        basis += f" {spent.uncounted:,} cells have no counters."
    if spent.written_by_vllm:
        basis += f" vLLM wrote the answers of {spent.written_by_vllm:,} cells."
    if spent.truncated:
        basis += (
            f" Text was cut to fit the model in {len(spent.truncated):,} pairs of model and benchmark, listed below."
        )
    table = Table(
        "computation",
        "By phase",
        frame,
        formats=dict.fromkeys(COLUMNS, ",d"),
        labels=COLUMNS,
        caption="Spared by sharing: tokens of choices that were not computed again because another choice has them. "
        "The time above is that of the cells on the clock, without starting processes. Trials: the bias study.",
    )
    return Page(
        "computation",
        "What was computed",
        [one for one in (Finding(sentence, basis), planned, _early_stops(spent)) if one],
        [Section("Counts", tables=[table]), *([_truncation(spent)] if spent.truncated else [])],
        question="What did this run take?",
    )


def _early_stops(spent: Spent) -> Finding | None:
    """What `finetuning.early_stop` spared, where it was on."""
    found = spent.early_stops
    if not found["fine_tunes"]:
        return None
    return Finding(
        f"{found['stopped']:,} of {found['fine_tunes']:,} fine-tunes stopped early, which saved "
        f"{found['allowed'] - found['trained']:,} of {found['allowed']:,} epochs.",
        f"finetuning.early_stop: a learning rate ends after {PATIENCE} epochs without improvement on validation. "
        "A later epoch might have been better. Fine-tunes that diverged are not counted.",
    )


def _truncation(spent: Spent) -> Section:
    """What was longer than the model or than the configured lengths: scores that rest on less than the whole text."""
    phases = ("train", "validation", "test")
    rows = [
        {"model": model, "benchmark": benchmark} | {phase: cut[phase] for phase in phases}
        for (model, benchmark), cut in sorted(spent.truncated.items())
    ]
    table = Table(
        "truncation",
        "Cut to fit",
        pd.DataFrame(rows),
        formats=dict.fromkeys(phases, ",d"),
        labels={"train": "training texts", "validation": "requests on validation", "test": "requests on test"},
        caption="Requests that lost the beginning of their context, over all passes (each epoch and learning rate "
        "reads validation once), and training texts that lost tokens, over all fine-tunes. The models of a comparison "
        "may differ in this. What helps: a longer evaluation.max_length or finetuning.max_length if the model "
        "allows it, fewer examples in a prompt, or a shorter max_gen_toks.",
    )
    return Section("Truncation", tables=[table])
