"""The page of what was computed: how often models were loaded and splits read, tokens and steps, by phase."""

from collections import Counter
from dataclasses import dataclass, field

import altair as alt
import pandas as pd

from lm_validity.config.load import Run
from lm_validity.config.sections import PATIENCE
from lm_validity.errors import InputError
from lm_validity.monitor.cost import Estimator
from lm_validity.monitor.planning import savings_of, unplanned_pairs
from lm_validity.pages.figures import lines, tooltips
from lm_validity.pages.page import Figure, Finding, Page, Section, Table
from lm_validity.run.store import Store
from lm_validity.words import count

# ----------------------------------------------------------------------------------------------------------------------
# What a run's finished cells took to compute: the counters of their sidecars, summed by phase.


@dataclass
class Spent:
    """cells: finished cells; uncounted: those whose sidecar has no counters (replayed scores, trials).
    phases: phase -> counter -> sum. wall_seconds: of the cells, without process start.
    written_by_vllm: cells whose answers vLLM wrote. truncated: (model, benchmark) -> phase -> requests of all passes,
    and under `train` texts of all fine-tunes, that were longer than allowed and lost tokens; under `answers` those of
    the texts whose answer lost its beginning.
    early_stops: of fine-tunes with `early_stop` on, their number as `fine_tunes`, how many `stopped`, and their epochs,
    `trained` and `allowed`; empty without any."""

    cells: int = 0
    uncounted: int = 0
    wall_seconds: float = 0.0
    phases: dict[str, Counter[str]] = field(default_factory=dict)
    written_by_vllm: int = 0
    truncated: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)
    early_stops: Counter[str] = field(default_factory=Counter)


def count_spent(store: Store) -> Spent:
    """Sum the sidecars of every finished cell in the store, cells of older recipes included."""
    spent = Spent()
    for folder in store.folders():
        sidecar = store.sidecar(folder)
        spent.cells += 1
        spent.wall_seconds += sidecar.get("wall_seconds") or 0.0
        counters = sidecar.get("counters") or {}
        trials = {"trials": counters} if counters else {}  # which have no phases
        phases = counters.get("by_phase", trials)
        spent.uncounted += not counters
        spent.written_by_vllm += sidecar.get("generation_backend") == "vllm"
        allowed, trained = sidecar.get("epochs_allowed"), sidecar.get("epochs")
        if allowed and trained is not None:
            counts = {"fine_tunes": 1, "stopped": int(trained < allowed), "trained": trained, "allowed": allowed}
            spent.early_stops.update(counts)
        for phase, counts in phases.items():
            spent.phases.setdefault(phase, Counter()).update(counts)
        cut = Counter({phase: counts.get("truncated_requests", 0) for phase, counts in phases.items()})
        cut["train"] += sidecar.get("truncated_texts", 0)
        if sidecar.get("cut_answers"):
            cut["answers"] += sidecar["cut_answers"]
        if cut.total():
            try:
                key = store.read(folder)["key"]
            except InputError:  # damaged, or of an older recipe and purged: no number depends on this
                continue
            spent.truncated.setdefault((str(key["model"]), str(key["benchmark"])), Counter()).update(cut)
    return spent


def plan_finding(run: Run) -> Finding | None:
    """What the plan spares, for a page; None where there is no plan."""
    if run.plan is None:
        return None
    n_cells, savings = len(run.plan) + len(unplanned_pairs(run)), savings_of(Estimator(run), run.plan)
    sentence = (
        f"The plan fine-tunes {len(run.plan):,} of {n_cells:,} pairs of model and benchmark. It is expected to take "
        f"{savings.hours} hours and saves {savings.saved}."
    )
    learned = (
        f"the hours are calibrated with {count(savings.calibrated, 'finished cell')}"
        if savings.calibrated
        else "no finished cell calibrates the hours"
    )
    return Finding(
        sentence,
        f"Fine-tunes and their test scores, without the starts of processes; {learned}. In floating-point operations "
        f"{savings.operations}.",
    )


# ----------------------------------------------------------------------------------------------------------------------
# The page.

CURVES = 24  # figures of training on the page
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


def computation_page(spent: Spent, planned: Finding | None = None, losses: pd.DataFrame | None = None) -> Page | None:
    """The page, or None where no cell was counted. `planned`: what a plan spares. `losses`: with the columns of
    LOSSES."""
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
    if n_answers := sum(cut["answers"] for cut in spent.truncated.values()):
        basis += f" {count(n_answers, 'training answer')} lost {'their' if n_answers > 1 else 'its'} beginning."
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
        [finding for finding in (Finding(sentence, basis), planned, _early_stops(spent)) if finding],
        [
            Section("Counts", tables=[table]),
            *([_truncation(spent)] if spent.truncated else []),
            *([_training(losses)] if losses is not None and len(losses) else []),
        ],
        question="What did this run take?",
    )


def _training(losses: pd.DataFrame) -> Section:
    """The course of training: a figure for each model, benchmark, prompt and seed with a line for each rate."""
    fine_tunes = losses.groupby(["model", "benchmark", "prompt", "seed"], sort=False)
    figures, epochs = [], []
    for number, (names, steps) in enumerate(fine_tunes):
        if number == CURVES:
            break
        hover = tooltips(learning_rate="learning rate", epoch="epoch", step="step", loss="loss|.4f")
        rate = alt.Color("learning_rate:N", title="learning rate")
        chart = lines(
            steps, x="step", y="loss", x_title="step", y_title="loss (nats)", tooltip=hover, color=rate, points=False
        )
        figures.append(Figure(f"losses_{number}", ", ".join(map(str, names[:3])) + f", seed {names[3]}", chart))
        ends = steps.groupby(["learning_rate", "epoch"], sort=False)
        ends = ends.agg(loss=("loss", "mean"), validation_value=("validation_value", "last")).reset_index()
        epochs.append(ends.assign(**dict(zip(("model", "benchmark", "prompt", "seed"), names, strict=True))))
    frame = pd.concat(epochs)[["model", "benchmark", "prompt", "seed", *ends.columns]]
    labels = {"learning_rate": "learning rate", "loss": "mean training loss", "validation_value": "value on validation"}
    formats = {"loss": ".4f", "validation_value": ".4f", "seed": "d", "epoch": "d"}
    table = Table("training", "By epoch", frame, formats=formats, labels=labels, folded=True)
    n_unlisted = fine_tunes.ngroups - len(figures)
    unlisted = f" The other {n_unlisted:,} are in tables/losses.parquet of the run." if n_unlisted else ""
    note = (
        f"Loss in nats per predicted token of the training texts, dropout on, a line for each learning rate.{unlisted}"
    )
    return Section("Training", figures=figures, tables=[table], notes=[note])


def _early_stops(spent: Spent) -> Finding | None:
    """What `finetuning.early_stop` spared, where it was on."""
    counts = spent.early_stops
    if not counts["fine_tunes"]:
        return None
    return Finding(
        f"{counts['stopped']:,} of {counts['fine_tunes']:,} fine-tunes stopped early, which saved "
        f"{counts['allowed'] - counts['trained']:,} of {counts['allowed']:,} epochs.",
        f"finetuning.early_stop: a learning rate ends after {PATIENCE} epochs without improvement on validation. "
        "A later epoch might have been better. Fine-tunes that diverged are not counted.",
    )


def _truncation(spent: Spent) -> Section:
    """What was longer than the model or than the configured lengths: scores that rest on less than the whole text."""
    has_answers = any(cut["answers"] for cut in spent.truncated.values())
    phases = ("train", "answers", "validation", "test") if has_answers else ("train", "validation", "test")
    rows = [
        {"model": model, "benchmark": benchmark} | {phase: cut[phase] for phase in phases}
        for (model, benchmark), cut in sorted(spent.truncated.items())
    ]
    of_answers = (
        " Answers cut: training texts whose answer alone is longer than finetuning.max_length. It lost its beginning, "
        "and its question with it."
    )
    table = Table(
        "truncation",
        "Cut to fit",
        pd.DataFrame(rows),
        formats=dict.fromkeys(phases, ",d"),
        labels={
            "train": "training texts",
            "answers": "answers cut",
            "validation": "requests on validation",
            "test": "requests on test",
        },
        caption="Requests that lost the beginning of their context, over all passes (each epoch and learning rate "
        "reads validation once), and training texts that lost tokens, over all fine-tunes. The models of a comparison "
        "may differ in this. What helps: a longer evaluation.max_length or finetuning.max_length if the model "
        f"allows it, fewer examples in a prompt, or a shorter max_gen_toks.{of_answers if has_answers else ''}",
    )
    return Section("Truncation", tables=[table])
