"""The page of what was computed: one sentence, and a row for each kind of job, from the counters of finished cells."""

from collections import Counter

import pandas as pd

from lm_validity.pages.page import Finding, Page, Section, Table
from lm_validity.run.rules import RULES
from lm_validity.run.store import Store
from lm_validity.words import count

COLUMNS = {
    "cells": "cells",
    "model_loads": "model loads",
    "evaluate_passes": "passes over a split",
    "optimizer_steps": "optimizer steps",
    "training_tokens": "tokens trained",
    "forward_tokens": "tokens scored",
    "generated_tokens": "tokens generated",
    "cut": "texts cut",
    "oom_halvings": "out of memory",
}


def count_spent(store: Store) -> dict[str, Counter[str]]:
    """Rule -> what its finished cells took, by the keys of `COLUMNS`, and `milliseconds` on the clock; `uncounted`:
    cells without counters (replayed scores). Cells of other recipes are among them."""
    spent: dict[str, Counter[str]] = {}
    for folder in store.folders():
        sidecar, rule = store.sidecar(folder), spent.setdefault(folder.partition("/")[0], Counter())
        counters = sidecar.get("counters") or {}
        rule.update(cells=1, uncounted=int(not counters), milliseconds=round(1000 * (sidecar.get("wall_seconds") or 0)))
        for phase in counters.get("by_phase", {"trials": counters}).values():
            rule.update({key: value for key, value in phase.items() if key in COLUMNS})
            rule["cut"] += phase.get("truncated_requests", 0)
        rule["cut"] += sidecar.get("truncated_texts", 0)
    return spent


def computation_page(spent: dict[str, Counter[str]]) -> Page | None:
    """The page; None where no cell was counted."""
    total = sum(spent.values(), Counter[str]())
    if total["cells"] == total["uncounted"]:
        return None
    hours = total["milliseconds"] / 3.6e6
    took = f"{hours:,.2f} hours" if hours >= 1 else f"{60 * hours:.1f} minutes"
    cut = f" Of {count(total['cut'], 'text')} the beginning was cut, to fit the model or the configured length."
    finding = Finding(
        f"{total['cells']:,} cells took {took}: {total['model_loads']:,} model loads, {total['evaluate_passes']:,} "
        f"passes over a split, {total['optimizer_steps']:,} optimizer steps.",
        f"On the clock, without starting processes, over all finished cells of this run.{cut * bool(total['cut'])}",
    )
    rows = []
    for rule, of in spent.items():
        job = RULES[rule].words if rule in RULES else rule
        rows.append({"job": job, "hours": of["milliseconds"] / 3.6e6} | {key: of[key] for key in COLUMNS})
    frame = pd.DataFrame(rows)
    table = Table("computation", "By kind of job", frame, formats={"hours": ".2f", **dict.fromkeys(COLUMNS, ",d")},
                  labels=COLUMNS)  # fmt: skip
    return Page("computation", "What was computed", [finding], [Section("Jobs", tables=[table])],
                question="What did this run take?")  # fmt: skip
