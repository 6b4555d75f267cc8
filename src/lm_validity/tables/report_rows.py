"""Which rows of a scores table the reports read: one function, so that every report reads the same ones."""

import numpy as np
import pandas as pd

_SHOWN = 6  # names that a note lists; the rest is counted
# what makes a score one of several of its benchmark; metrics of one evaluation count once
_EVALUATION = ["model", "checkpoint", "iteration", "tokens_b", "protocol", "prompt", "seed"]


def report_rows(rows: pd.DataFrame, sheet: pd.DataFrame | None, notes: list[str]) -> pd.DataFrame:
    """The selected test rows of each benchmark, under one wording of the prompt and one number of solved examples.

    Of several numbers of solved examples before a question (few-shot, `num_fewshot`) a benchmark's are those that the
    benchmarks sheet names, else the commonest among its evaluations, ties to the smaller. Rows of unknown number stay.
    Of several wordings (`prompt_variant`) the task's own (null) counts, else the commonest, ties to the first by name.
    `notes` gets what was used and what was left out. Rows of benchmarks that the sheet does not list are untouched.
    """
    test = rows["split"].isna() | (rows["split"] == "test")
    rows = rows[rows["selected"].fillna(True).astype(bool) & test]
    listed = np.ones(len(rows), dtype=bool) if sheet is None else rows["benchmark"].isin(sheet["benchmark"]).to_numpy()
    kept = _one_count(_one_wording(rows[listed], notes), sheet, notes)
    return pd.concat([kept, rows[~listed]]).sort_index()


def fewshot_count(counts: pd.Series) -> int | None:
    """The commonest of numbers of solved examples (null: unknown), ties to the smaller; None where all are unknown."""
    times = counts.dropna().astype(int).value_counts()
    return None if times.empty else int(times.index[times == times.max()].min())


def _one_wording(rows: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    keep, chosen = np.ones(len(rows), dtype=bool), {}
    variants = rows["prompt_variant"]
    for benchmark in sorted(rows.loc[variants.notna(), "benchmark"].unique()):
        here = (rows["benchmark"] == benchmark).to_numpy()
        own = here & variants.isna().to_numpy()
        if own.any():
            keep &= ~here | own
            continue
        times = variants[here].value_counts()
        chosen[benchmark] = min(times.index[times == times.max()])
        keep &= ~here | (variants == chosen[benchmark]).to_numpy(dtype=bool, na_value=False)
    if chosen:
        used = [f"{variant} on {benchmark}" for benchmark, variant in chosen.items()]
        notes.append(f"No score under the task's own wording of the prompt: used is {_listing(used)}.")
    if not keep.all():
        notes.append(f"Scores under other wordings of the prompt stay out: {(~keep).sum()}.")
    return rows[keep]


def _one_count(rows: pd.DataFrame, sheet: pd.DataFrame | None, notes: list[str]) -> pd.DataFrame:
    named = {} if sheet is None else sheet.set_index("benchmark")["num_fewshot"].dropna().astype(int).to_dict()
    known = rows[rows["num_fewshot"].notna()]
    used: dict[str, int] = {}
    for benchmark, found in known.drop_duplicates([*_EVALUATION, "benchmark", "num_fewshot"]).groupby("benchmark"):
        used[benchmark] = named.get(benchmark, fewshot_count(found["num_fewshot"]))
    if not used:
        return rows
    out = rows["num_fewshot"].notna() & (rows["num_fewshot"] != rows["benchmark"].map(used))
    notes.append(_used_note(used))
    if out.any():
        parts = [
            f"{count} on {_listing(sorted(found['benchmark'].unique()))} (models: {found['model'].nunique()})"
            for count, found in rows[out].groupby("num_fewshot")
        ]
        notes.append(f"Scores with another number of solved examples stay out ({out.sum()}): {'; '.join(parts)}.")
    return rows[~out.to_numpy(dtype=bool)]


def _used_note(used: dict[str, int]) -> str:
    by_count: dict[int, list[str]] = {}
    for benchmark, count in sorted(used.items()):
        by_count.setdefault(count, []).append(benchmark)
    if len(by_count) == 1:
        return f"Solved examples before each question (few-shot): {next(iter(by_count))}."
    parts = [f"{count} on {_listing(names)}" for count, names in sorted(by_count.items())]
    return f"Solved examples before each question (few-shot): {'; '.join(parts)}."


def _listing(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
