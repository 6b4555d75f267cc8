"""The sheets as the reports read them, and the rows that they take."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from lm_validity.config.groups import Group, members, with_columns
from lm_validity.config.rows import SheetRow, read_rows
from lm_validity.config.sheets import BenchmarkFacts, ModelFacts, check_reruns, metric_key
from lm_validity.errors import InputError
from lm_validity.tables.schema import TRAINED
from lm_validity.words import listing

# ----------------------------------------------------------------------------------------------------------------------
# Which rows of a scores table the reports read: one function, so that every report reads the same ones.

# what makes a score one of several of its benchmark; metrics of one evaluation count once
_EVALUATION = ["model", "checkpoint", "iteration", "tokens_b", "protocol", "prompt", "seed"]


def report_rows(rows: pd.DataFrame, sheet: pd.DataFrame | None, notes: list[str]) -> pd.DataFrame:
    """The selected test rows of each benchmark, under one wording of the prompt and one number of solved examples.

    Of several numbers of solved examples before a question (few-shot, `num_fewshot`) a benchmark's are those that the
    benchmarks sheet names, else the commonest among its evaluations, ties to the smaller. Rows of unknown number stay.
    Of several wordings (`prompt_variant`) the task's own (null) counts, else the commonest, ties to the first by name.
    A train-before-test row counts only if the model was prepared on the benchmark's own training set (`prepared_on` of
    the sheet, else of the row). `notes` gets what was used and what was left out. Rows of benchmarks that the sheet
    does not list are untouched.
    """
    test = rows["split"].isna() | (rows["split"] == "test")
    rows = rows[rows["selected"].fillna(value=True).astype(bool) & test]
    rows = _own_preparation(rows, sheet, notes)
    listed = np.ones(len(rows), dtype=bool) if sheet is None else rows["benchmark"].isin(sheet["benchmark"]).to_numpy()
    kept = _one_count(_one_wording(rows[listed], notes), sheet, notes)
    return pd.concat([kept, rows[~listed]]).sort_index()


def _own_preparation(rows: pd.DataFrame, sheet: pd.DataFrame | None, notes: list[str]) -> pd.DataFrame:
    """The rows without train-before-test scores of models that were prepared on something else than the benchmark."""
    prepared = rows["prepared_on"]
    if sheet is not None and "prepared_on" in sheet:
        said = rows["benchmark"].map(sheet.set_index("benchmark")["prepared_on"])
        prepared = said.where(said.notna(), prepared)
    own = np.array(
        [
            pd.isna(text) or name in re.split(r"\s*,\s*", text.strip())
            for name, text in zip(rows["benchmark"], prepared, strict=True)
        ],
        dtype=bool,
    )
    trained = (rows["protocol"] == TRAINED).to_numpy(dtype=bool)
    said = rows.loc[trained & own & prepared.notna().to_numpy(), "benchmark"]
    if len(said):
        notes.append(f"Prepared on their own training sets, as the source says: {listing(sorted(said.unique()))}.")
    other = trained & ~own
    for text, group in rows[other].groupby(prepared[other]):
        notes.append(
            f"Prepared on {text}, not on their own training sets, so not train before test: "
            f"{listing(sorted(group['benchmark'].unique()))}."
        )
    return rows[~other]


# in the name of a metric, or of a benchmark whose metric is unknown: less is better there
_LOSS = re.compile(
    r"(?:^|[^a-z])(?:bpb|bits?_per_byte|ppl|perplexity|nll|loss|cross_?entropy|brier|error|err|wer|cer)(?![a-z])",
    re.IGNORECASE,
)


def check_one_metric(rows: pd.DataFrame, path: str | Path) -> None:
    """Raises InputError for a benchmark whose rows have several metrics."""
    for benchmark, metrics in rows.groupby("benchmark")["metric"]:
        names = sorted(metrics.dropna().unique())
        if len(names) > 1:
            raise InputError(
                f"{path}: benchmark {benchmark!r} has several metrics: {listing(names)}.",
                "give --benchmarks with a sheet whose column 'metric' names one (lm-validity report writes one).",
            )


def check_directions(rows: pd.DataFrame, sheet: pd.DataFrame | None, path: str | Path) -> None:
    """Ask for the direction of benchmarks that are named like a loss and for which nothing says it.

    Raises InputError; of other benchmarks of unknown direction higher counts as better.
    """
    told = rows.groupby("benchmark")["higher_is_better"].count() > 0
    if sheet is not None:
        facts = sheet.set_index("benchmark").reindex(told.index)
        told |= facts["higher_is_better"].notna() | (facts["output_type"] == "loglikelihood_rolling")
    metrics = rows.dropna(subset=["metric"]).groupby("benchmark")["metric"].first()
    names = [name for name in told.index[~told] if _LOSS.search(str(metrics.get(name, name)))]
    if names:
        raise InputError(
            f"{path}: nothing says whether higher is better on {listing(names)}, named like a loss.",
            "fill in the column 'higher_is_better' of the benchmarks sheet: 0 where less is better, else 1.",
        )


def fewshot_count(counts: pd.Series) -> int | None:
    """The commonest of numbers of solved examples (null: unknown), ties to the smaller; None where all are unknown."""
    times = counts.dropna().astype(int).value_counts()
    return None if times.empty else int(times.index[times == times.max()].min())


def benchmark_metric(rows: pd.DataFrame, sheet: pd.DataFrame, path: str | Path, notes: list[str]) -> pd.DataFrame:
    """The rows of each benchmark's metric. A null metric in the table counts as that metric."""
    wanted = sheet.set_index("benchmark")["metric"].reindex(rows["benchmark"]).to_numpy(dtype=object)
    given = np.array([None if pd.isna(name) else metric_key(name) for name in rows["metric"]], dtype=object)
    keep = np.array([w is None or g is None or w == g for w, g in zip(wanted, given, strict=True)], dtype=bool)
    names = rows["benchmark"].to_numpy(dtype=object)
    cells = rows.groupby(["benchmark", "model", "checkpoint", "protocol"], dropna=False, sort=False).ngroup().to_numpy()
    lost = ~keep & ~np.isin(cells, cells[keep])  # rows of cells that have other metrics only
    for benchmark in sheet["benchmark"]:
        here = names == benchmark
        metrics = sorted({name for name in given[here] if name is not None})
        if here.any() and not (here & keep).any():
            metric = wanted[here][0]
            notes.append(f"{benchmark}: no score under its metric {metric}; the table has {listing(metrics)}.")
        elif here.any() and wanted[here][0] is not None:
            if (here & lost).any():
                pairs = rows.loc[here & lost, ["model", "protocol"]].drop_duplicates().to_numpy()
                scores = listing([f"{model} ({protocol})" for model, protocol in pairs], 6)
                notes.append(
                    f"{benchmark}: the scores of {scores} are not under its metric {wanted[here][0]} but under "
                    f"{listing(sorted(set(given[here & lost])))} only; they count as missing."
                )
        elif here.any() and len(metrics) > 1:
            raise InputError(
                f"{path}: {benchmark} has several metrics ({listing(metrics)}) and the benchmarks sheet names none.",
                "fill in the sheet's column 'metric'.",
            )
    return rows.assign(metric=given)[keep]


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
        notes.append(f"No score under the task's own wording of the prompt, so this is used: {listing(used)}.")
    if not keep.all():
        notes.append(f"Scores under other wordings of the prompt are left out: {(~keep).sum()}.")
    return rows[keep]


def _one_count(rows: pd.DataFrame, sheet: pd.DataFrame | None, notes: list[str]) -> pd.DataFrame:
    named = {} if sheet is None else sheet.set_index("benchmark")["num_fewshot"].dropna().astype(int).to_dict()
    known = rows[rows["num_fewshot"].notna()]
    used: dict[str, int] = {}
    for benchmark, group in known.drop_duplicates([*_EVALUATION, "benchmark", "num_fewshot"]).groupby("benchmark"):
        count = named.get(benchmark, fewshot_count(group["num_fewshot"]))
        assert count is not None, "rows of known numbers alone"
        used[benchmark] = count
    if not used:
        return rows
    out = rows["num_fewshot"].notna() & (rows["num_fewshot"] != rows["benchmark"].map(used))
    by_count: dict[int, list[str]] = {}
    for benchmark, count in sorted(used.items()):
        by_count.setdefault(count, []).append(benchmark)
    parts = [f"{count} on {listing(names)}" for count, names in sorted(by_count.items())]
    shown = "; ".join(parts) if len(parts) > 1 else next(iter(by_count))
    notes.append(f"Solved examples before each question (few-shot): {shown}.")
    if out.any():
        parts = [
            f"{count} on {listing(sorted(group['benchmark'].unique()))} (models: {group['model'].nunique()})"
            for count, group in rows[out].groupby("num_fewshot")
        ]
        notes.append(f"Scores with another number of solved examples stay out ({out.sum()}): {'; '.join(parts)}.")
    return rows[~out.to_numpy(dtype=bool)]


# ----------------------------------------------------------------------------------------------------------------------
# The sheets of models and benchmarks that reports read, as tables: what is known about each beside its scores.
#
# CSV or TSV. `ModelFacts` and `BenchmarkFacts` are their columns, with other spellings of their names (those of the
# published train-before-test sheets: `model_id`, `params_B`, `tokens_B`, `task`, ...); all others are ignored. Absent
# columns and empty values mean unknown.

NO_STUDY = "none"  # in the column `studies`: in no comparison of models
NUMBERS = ("parameters_b", "tokens_b", "tokens_per_step", "n_items", "chance", "num_fewshot", "training_examples")
_BOOLEANS = ("instruction_tuned", "in_compute_analysis", "in_perplexity_analysis", "higher_is_better")


def read_models(path: str | Path, groups: Sequence[Group] = ()) -> pd.DataFrame:
    """One row per model with the fields of `ModelFacts` and the columns of `groups`; unknown values are null.

    Raises InputError for an unreadable file, a missing `model` column, an empty or repeated id, a value
    that is not of its column's kind, a `rerun_of` that names no first training.
    """
    kind = with_columns(ModelFacts, groups)
    rows = read_rows(path, kind)
    check_reruns(path, rows)
    return _frame(rows, kind)


def group_members(sheet: pd.DataFrame, group: Group, path: str | Path) -> list[bool | None]:
    """Which models of the sheet are in the group, None where that is unknown; `path`: of the sheet, for errors.

    Raises InputError as `members`.
    """
    facts = sheet.reindex(columns=["parameters_b", "tokens_b", "in_compute_analysis", group.column]).astype(object)
    facts = facts.where(facts.notna(), None)
    known = facts["parameters_b"].notna() & facts["tokens_b"].notna() & (facts["in_compute_analysis"] != 0)
    return members(group, facts[group.column].tolist(), known.tolist(), path)


def read_benchmarks(path: str | Path) -> pd.DataFrame:
    """One row per benchmark with the fields of `BenchmarkFacts`; a bare metric name gets the filter `none`.

    Other wordings of a benchmark (`variant_of`) are no rows: scores name them in `prompt_variant`. Raises InputError as
    `read_models` does.
    """
    facts = _frame(read_rows(path, BenchmarkFacts), BenchmarkFacts)
    return facts[facts.pop("variant_of").isna()].reset_index(drop=True)


def _frame(sheet_rows: Mapping[str, SheetRow], kind: type[SheetRow]) -> pd.DataFrame:
    rows = [row.model_dump() for row in sheet_rows.values()]
    types = dict.fromkeys(NUMBERS, "float64") | dict.fromkeys(_BOOLEANS, "boolean")
    columns = {
        name: pd.Series([row[name] for row in rows], dtype=types.get(name, "object")) for name in kind.model_fields
    }
    columns["studies"] = columns["studies"].map(lambda names: ",".join(names) or None)
    return pd.DataFrame(columns)


def as_in_scores(sheet: pd.DataFrame, names: set[str]) -> pd.DataFrame:
    """The models sheet with the ids that scores or items use, `names`: imported ones name a model by its `path`."""
    by_path = ~sheet["model"].isin(names) & sheet["path"].isin(names) & ~sheet["path"].duplicated(keep=False)
    label = sheet["label"].where(sheet["label"].notna() | ~by_path, sheet["model"])
    ids = sheet["model"].where(~by_path, sheet["path"])
    renamed = dict(zip(sheet["model"], ids, strict=True))
    return sheet.assign(model=ids, label=label, rerun_of=sheet["rerun_of"].map(renamed, na_action="ignore"))


def completed(scores: pd.DataFrame, sheet: pd.DataFrame) -> pd.DataFrame:
    """Scores with what they leave open (metric, direction, number of solved examples) from the benchmarks sheet.

    The sheet's direction is that of its metric: scores of a benchmark under another metric do not get it.
    """
    facts = sheet.set_index("benchmark").reindex(scores["benchmark"]).set_axis(scores.index)
    other = scores["metric"].notna() & facts["metric"].notna() & (scores["metric"] != facts["metric"])
    known = {
        "metric": facts["metric"],
        "higher_is_better": facts["higher_is_better"].astype("boolean").mask(other),
        "num_fewshot": facts["num_fewshot"].astype("Int64"),
    }
    return scores.assign(**{name: scores[name].where(scores[name].notna(), values) for name, values in known.items()})


def of_study(sheet: pd.DataFrame, study: str) -> np.ndarray:
    """Which rows (n,) of a sheet take part in a study: those that name it, and those that name none."""
    return np.array([pd.isna(names) or study in names.replace(" ", "").split(",") for names in sheet["studies"]], bool)


def unique_labels(labels: pd.Series, models: pd.Series) -> pd.Series:
    """Labels for figures; the model's id where there is none or where several models have the same."""
    labels = labels.where(labels.notna(), models)
    return labels.where(~labels.duplicated(keep=False), models)
