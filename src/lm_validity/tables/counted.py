"""Which scores count: the single place that decides it.

A table of scores holds more than a report compares: several metrics, checkpoints, prompts, numbers of solved examples
and splits of one benchmark. Which of them stands for a model on a benchmark was once decided in five places, which
differed, so that two pages of one site showed two scores. Every report, card and command takes `Counted` instead, and
nothing else orders checkpoints (by `iteration` or `tokens_b`) or compares a metric with a wanted one.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from lm_validity.config.rows import Group
from lm_validity.config.sheets import BenchmarkFacts, ModelFacts, metric_key
from lm_validity.errors import InputError, did_you_mean
from lm_validity.tables import schema, settings, standard_errors, training
from lm_validity.tables.metrics import settled_directions, unit_notes
from lm_validity.words import listing, with_names

_SCORE = ("model", "benchmark", "protocol", "seed")  # columns that name one score of a checkpoint
COINCIDENCE = 0.01  # of equal scores of two models: below it they are one model


@dataclass(frozen=True)
class Sources:
    """The files that a report reads: the table of scores, the sheets of models and of benchmarks, the table of items,
    and the plan of what was to be fine-tuned; None where there is none."""

    scores: str | Path
    models: str | Path | None = None
    benchmarks: str | Path | None = None
    items: str | Path | None = None
    plan: str | Path | None = None


@dataclass(frozen=True)
class Counted:
    """The scores that count, and what is known about their models and benchmarks.

    rows: of SCORES, on the test split, one metric (in lm-eval's form `name,filter`), number of solved examples and
    wording of the prompt for each benchmark; their standard errors are NaN where they cannot be right. At first they
    are those of all checkpoints and of reruns; `last` and `along_training` go on from there. models: the models sheet's
    rows with the ids that the scores use, whether or not they have scores. benchmarks: the benchmarks sheet's rows of
    benchmarks that have scores; `higher_is_better` is known for each, and `direction_known` says whether sheet or table
    say it. notes: what was used and what stays out. checks: standard errors that are not used. source,
    sheet: the paths of the table and of the benchmarks sheet, for errors. sampling: by (protocol, benchmark) how far
    scores move between sampled runs, which are averaged in `rows`. kept_out: the notes on unlike versions of a task and
    parts of its items. differing: the settings that differ between models that are compared.
    """

    rows: pd.DataFrame
    models: pd.DataFrame
    benchmarks: pd.DataFrame
    notes: tuple[str, ...]
    checks: tuple[standard_errors.ErrorCheck, ...]
    source: str
    sheet: str | None
    sampling: Mapping[tuple[str, str], training.Sampling] = field(default_factory=dict)
    kept_out: tuple[str, ...] = ()
    differing: tuple[settings.Difference, ...] = ()

    def last(self) -> "Counted":
        """Each model as it is finished, without reruns: the checkpoint called `final`, else its only or its last one.

        Raises InputError where the last of a model's checkpoints is not known, and for two scores of one thing.
        """
        rows = self.rows[~self.rows["model"].isin(schema.reruns_of(self.models))]
        last = last_checkpoints(rows)
        for model, problem in last.unknown.items():
            raise InputError(
                f"{self.source}: {model} has the checkpoints {problem}.", "call the one that counts 'final'."
            )
        names_used = f"No final checkpoint: the only or last one is used for {listing(last.substitutes)}."
        return self._of(rows[last.rows], _SCORE, names_used if last.substitutes else None)

    def common_points(self) -> "CommonPoints":
        """The points of training of all models: billions of tokens where all of them say these, else steps. None where
        a model's finished state says neither, so that it stands for no point."""
        is_end = self.rows["checkpoint"].isna() | (self.rows["checkpoint"] == "final")
        for unit in ("tokens_b", "iteration"):
            points = self.rows[unit].dropna()
            by_model = {str(name): set(_rounded(part)) for name, part in points.groupby(self.rows["model"])}
            if len(by_model) == self.rows["model"].nunique() and self.rows.loc[is_end, unit].notna().all():
                return CommonPoints(unit, by_model)
        return CommonPoints(None, {})

    def at_common_point(self, point_text: str | None = None, *, or_last: bool = False) -> tuple["Counted", list[str]]:
        """The models at one point of training, and what is said about it.

        at: `final`, each at its end; billions of tokens, found within half a percent; null: the last point that all
        have, or where a model has no points each at its end. `or_last`: also where they have none in common. Raises
        InputError as `last`, for an `point_text` that is neither, and where they have no such point.
        """
        goal, points = _wanted_point(point_text), self.common_points()
        if goal is not None and points.unit != "tokens_b":
            raise InputError(f"--at {point_text}: not all models have tokens.", "give --at final, or nothing.")
        if point_text == "final" or points.unit is None:
            return self.last(), []
        shared = [point for point in points.common if goal is None or abs(point - goal) <= 0.005 * goal]
        if not shared and or_last:
            return self.last(), ["They have no common point of training: each is compared as it is at its end."]
        if not shared:
            spans = [f"{m} {points.words(min(its))} to {points.words(max(its))}" for m, its in points.by_model.items()]
            asked_for = f" at {point_text}" if point_text else ""
            raise InputError(
                f"no common point of training{asked_for}: {listing(spans)}.", "compare each at its end: --at final."
            )
        point = max(shared)
        if all(its == {point} for its in points.by_model.values()):
            return self.last(), []
        ends = {model: max(its) for model, its in points.by_model.items()}
        parts = [f"{model} goes on to {points.words(end)}" for model, end in ends.items() if end > point]
        parts.insert(0, "as asked for" if goal is not None else "the last that both have")
        return self.at_point(points.unit, point), [f"At {points.words(point)}, {'; '.join(parts)}."]

    def at_point(self, unit: str, point: float) -> "Counted":
        """Every model at one point of `common_points`, reruns too. Raises InputError for two scores of one thing."""
        return self._of(self.rows[_rounded(self.rows[unit]) == point], _SCORE)

    def along_training(self) -> "Counted":
        """The direct scores that have a value, at every checkpoint, of reruns too; no name of a checkpoint is null.

        Raises InputError for two scores of one thing.
        """
        rows = self.rows[self.rows["protocol"] == schema.DIRECT]
        if rows.empty:
            problem = f"{self.source}: no selected test score with protocol 'direct'."
            raise InputError(problem, "learning curves are made of these.")
        rows = rows.assign(checkpoint=rows["checkpoint"].fillna("final"))
        counted = self._of(rows, ("model", "benchmark", "checkpoint"))
        return replace(counted, rows=counted.rows[counted.rows["value"].notna()])

    def without_copies(self, *cell: str) -> "Counted":
        """Each model once: of those that have the same scores everywhere (in each `cell` of columns), the one of which
        the sheet says most, else its first, then by names. The others are named in a note. Reruns are no copies.

        So many equal scores, 0 and 1 apart, have to be chance in less than `COINCIDENCE` of such tables, were a value
        as likely as it is frequent in its cell: models that give one constant answer are several. Two copies are no two
        models: with them intervals are too narrow, and neither of two best is the best. Two models alone are two.
        """
        rows = self.rows[~self.rows["model"].isin(schema.reruns_of(self.models))]
        scores = rows.groupby(["model", *cell])["value"].mean().unstack([*cell])
        facts = self.models.set_index("model").notna().sum(axis=1).sort_values(ascending=False, kind="stable")
        in_sheet = [model for model in facts.index if model in scores.index]
        scores = scores.reindex([*dict.fromkeys(in_sheet), *scores.index.difference(in_sheet)])
        pairs = len(scores) * (len(scores) - 1) / 2
        shares = scores.apply(lambda values: values.map(values.value_counts(normalize=True))).to_numpy()
        first, copies = dict[bytes, str](), dict[str, str]()
        for model, row, share in zip(scores.index, scores.to_numpy(), shares, strict=True):
            telling = np.isfinite(row) & ~np.isin(row, (0.0, 1.0))  # none or all right: many weak or strong models are
            if telling.any() and np.prod(share[telling]) * pairs < COINCIDENCE:
                original = first.setdefault(np.nan_to_num(row, nan=np.inf).tobytes(), model)
                copies |= {model: original} if original != model else {}
        names = [f"{model} (as {original})" for model, original in copies.items()]
        lines = with_names({"Models with the same scores everywhere count once: {}.": names})
        return replace(self, rows=self.rows[~self.rows["model"].isin(copies)], notes=(*self.notes, *lines))

    def _of(self, rows: pd.DataFrame, key: Sequence[str], note: str | None = None) -> "Counted":
        """Some of the rows, with a note, in which a `key` of columns is that of one score."""
        if rows.empty:
            population = "" if self.sheet is None else f" of any benchmark in {self.sheet}"
            raise InputError(
                f"{self.source}: no selected test score{population}.",
                "are the rows `selected` and of the test split, and do ids and metrics match those of the sheet?",
            )
        rows, lost = _finite(rows)
        for row in rows[rows.duplicated([*key], keep=False)].itertuples():
            is_end = pd.isna(row.checkpoint) or row.checkpoint == "final"
            checkpoint = "" if is_end else f" at checkpoint {row.checkpoint!r}"
            problem = f"two selected test scores of {row.model} on {row.benchmark} ({row.protocol}){checkpoint}."
            raise InputError(f"{self.source}: {problem}", "set 'selected' to false for one of them.")
        scored = self.benchmarks["benchmark"].isin(rows["benchmark"].unique())
        benchmarks, differing = self.benchmarks[scored].reset_index(drop=True), settings.differences(rows)
        notes = (*self.notes, *([note] if note else []), *lost, *settings.difference_notes(differing, len(benchmarks)))
        return replace(self, rows=rows, benchmarks=benchmarks, notes=notes, differing=differing)


def count_scores(
    sources: Sources,
    *,
    study: str | None = None,
    groups: Sequence[Group] = (),
    only: Collection[str] = (),
    unlike: settings.Unlike = "out",
) -> Counted:
    """The scores of a table that count, at all checkpoints.

    The benchmarks sheet decides which benchmarks count and names their metrics; without one, every benchmark counts,
    and each must have one metric. The models sheet only adds what is known about each model. study: what the sheets
    give to other studies only is left out. groups: whose columns `models` has too. only: the models that are compared,
    by default all. unlike: what becomes of scores of another version of a benchmark's task, or of another part of its
    items, than most. Raises InputError for bad files, a model of `only` without scores, a score without a model or
    benchmark, a metric of the sheet that the table does not know, several metrics of a benchmark without a sheet, two
    directions or two units of one benchmark, and unlike scores that are "refused".

    The reports of a site ask about the same files: the last two answers are kept while their files stay as they are.
    Where no row of a sheet names its studies, all studies have one answer.
    """
    files = (sources.scores, Path(sources.scores).with_name(settings.FILE), sources.models, sources.benchmarks)
    question = (tuple(map(_stamp, files)), sources, tuple(groups), tuple(only))
    sheets = (_read(*question).models, _read(*question).benchmarks)
    counted = _count(question, study if any(sheet["studies"].notna().any() for sheet in sheets) else None, unlike)
    return replace(counted, **{name: getattr(counted, name).copy() for name in ("rows", "models", "benchmarks")})


def _stamp(path: str | Path | None) -> tuple[str, int, int, int] | None:
    """What changes with a file: which one it is, its size, its time; None where there is none."""
    if path is None or not Path(path).exists():
        return None
    status = Path(path).stat()
    return str(Path(path).resolve()), status.st_ino, status.st_size, status.st_mtime_ns


class _Read(NamedTuple):
    """The rows that reports read, both sheets, and notes."""

    rows: pd.DataFrame
    models: pd.DataFrame
    benchmarks: pd.DataFrame
    notes: tuple[str, ...]


# the stamps of the files, the files, the groups of models, and the models that are compared
_Question = tuple[tuple[object, ...], Sources, tuple[Group, ...], tuple[str, ...]]


@lru_cache(maxsize=1)
def _read(stamps: tuple[object, ...], sources: Sources, groups: tuple[Group, ...], only: tuple[str, ...]) -> _Read:
    rows = schema.read_scores(sources.scores)
    for model in only:
        if model not in set(rows["model"]):
            hint = did_you_mean(model, rows["model"].unique(), "see the table's column `model` for the names.")
            raise InputError(f"{sources.scores}: no score of the model {model!r}.", hint)
    rows = rows[rows["model"].isin(only)] if only else rows
    notes = schema.replay_notes(rows)
    rows = rows.assign(metric=_keys(rows["metric"]))
    sheet = _no_sheet(rows) if sources.benchmarks is None else schema.read_benchmark_facts(sources.benchmarks)
    check_metrics(rows, sheet, sources.benchmarks)
    rows = report_rows(rows, sheet, notes)
    model_sheet = schema.sheet_frame([], ModelFacts)
    if sources.models is not None:
        model_sheet = schema.as_in_scores(schema.read_model_facts(sources.models, groups), set(rows["model"]))
    return _Read(rows, model_sheet, sheet, tuple(notes))


@lru_cache(maxsize=2)
def _count(question: _Question, study: str | None, unlike: settings.Unlike) -> Counted:
    rows, model_sheet, sheet, notes_read = _read(*question)
    scores, benchmarks, notes = str(question[1].scores), question[1].benchmarks, list(notes_read)
    model_sheet, rows = _of_this_study(model_sheet, rows, "model", study, notes)
    sheet, rows = _of_this_study(sheet, rows, "benchmark", study, notes)
    without_score = sorted(set(sheet["benchmark"]) - set(rows["benchmark"]))
    notes += with_names({"Benchmarks of the sheet without any score: {}.": without_score})
    rows = _of_its_metric(rows, sheet, scores, notes)
    kept_out: list[str] = []
    rows = settings.with_settings(rows, settings.settings_beside(scores))
    rows = settings.of_one_kind(rows, kept_out, scores, unlike)
    total = rows["model"].map(model_sheet.set_index("model")["tokens_b"]).astype("float64")
    is_end = rows["checkpoint"].fillna("final") == "final"  # has the sheet's tokens where it names none
    rows = rows.assign(tokens_b=rows["tokens_b"].astype("float64").fillna(total.where(is_end)))
    rows, checks = standard_errors.checked_errors(rows, sheet)
    averaged = training.average_runs(rows, scores)
    rows, notes = averaged.rows, [*notes, *kept_out, *averaged.notes]
    facts, direction_notes = settled_directions(rows, sheet, scores)
    notes += direction_notes + unit_notes(rows, facts, scores) + standard_errors.error_notes(checks)
    of_sheet = (scores, None if benchmarks is None else str(benchmarks), averaged.noise, tuple(kept_out))
    return Counted(rows, model_sheet, facts, tuple(notes), tuple(checks), *of_sheet)


def _no_sheet(rows: pd.DataFrame) -> pd.DataFrame:
    """A sheet of the benchmarks that have scores, of which nothing is known but, where a table has several metrics of
    one and says the direction of one of them alone, as the tables of our own runs do, that metric."""
    several = rows.groupby("benchmark")["metric"].transform("nunique") > 1
    metrics_told = rows[several & rows["higher_is_better"].notna()].groupby("benchmark")["metric"].unique()
    metric_of_benchmark = {benchmark: metrics[0] for benchmark, metrics in metrics_told.items() if len(metrics) == 1}
    names = sorted(rows["benchmark"].unique())
    facts = [BenchmarkFacts(benchmark=name, metric=metric_of_benchmark.get(name)) for name in names]
    return schema.sheet_frame(facts, BenchmarkFacts)


# ----------------------------------------------------------------------------------------------------------------------
# Which metric.


def under_metric(metrics: pd.Series, metric: object) -> np.ndarray:
    """(n,) True where a metric is the wanted one (a name, or one for each): `acc` is `acc,none`, and a null on either
    side is the other."""
    metric_keys, named = _keys(metrics), _keys(pd.Series(metric, metrics.index, dtype=object))
    result: np.ndarray = (metric_keys.isna() | named.isna() | (metric_keys == named)).to_numpy(dtype=bool)
    return result


def _keys(metrics: pd.Series) -> pd.Series:
    keys = {name: metric_key(name) for name in metrics.unique() if not pd.isna(name)}
    return metrics if all(name == key for name, key in keys.items()) else metrics.map(keys)


def of_metric(rows: pd.DataFrame, sheet: pd.DataFrame) -> np.ndarray:
    """(n,) True for the rows under their benchmark's metric in the sheet."""
    return under_metric(rows["metric"], rows["benchmark"].map(sheet.set_index("benchmark")["metric"]))


def check_metrics(rows: pd.DataFrame, sheet: pd.DataFrame, path: str | Path | None) -> None:
    """Refuse a metric of the sheet at `path` that no score has, though its benchmark has scores: it is misspelt.

    `rows`: of all scores, whether they count or not. One that other benchmarks have is none of these.
    """
    metrics = _keys(rows["metric"])
    for fact in sheet[sheet["metric"].notna() & ~sheet["metric"].isin(metrics)].itertuples():
        metrics_of_benchmark = metrics[rows["benchmark"] == fact.benchmark]
        if len(metrics_of_benchmark) and metrics_of_benchmark.notna().all():
            names = sorted(metrics_of_benchmark.unique())
            raise InputError(
                f"{path}, benchmark {fact.benchmark!r}, column 'metric': no score has the metric {fact.metric!r}.",
                did_you_mean(fact.metric, names, f"the scores of the benchmark have {listing(names)}."),
            )


def _of_its_metric(rows: pd.DataFrame, sheet: pd.DataFrame, path: str | Path, notes: list[str]) -> pd.DataFrame:
    """The rows of each benchmark's metric. `notes` gets the scores that have other metrics only."""
    metrics = rows.dropna(subset="metric").groupby("benchmark")["metric"].unique().map(sorted).to_dict()
    several = [benchmark for benchmark, names in metrics.items() if len(names) > 1]
    is_open, named = sheet["metric"].isna() & sheet["benchmark"].isin(several), sheet.set_index("benchmark")["metric"]
    for benchmark in sheet.loc[is_open & (sheet["studies"] != schema.NO_STUDY), "benchmark"]:
        raise InputError(
            f"{path}: {benchmark} has several metrics ({listing(metrics[benchmark])}), and no sheet names one.",
            "give --benchmarks a sheet whose column 'metric' names one (lm-validity report writes one).",
        )
    unnamed = sheet.loc[is_open, "benchmark"].tolist()
    rows = rows[~rows["benchmark"].isin(unnamed)]
    keep = pd.Series(of_metric(rows, sheet), rows.index)
    cells = keep.groupby([rows[name] for name in ("benchmark", "model", "checkpoint", "protocol")], dropna=False)
    lost = rows[:0] if keep.all() else rows[~cells.transform("any")]
    for benchmark, out in lost.groupby("benchmark"):
        names = listing(dict.fromkeys(out["model"] + out["checkpoint"].map(_at) + " (" + out["protocol"] + ")"), 6)
        only = listing(sorted(out["metric"].unique()))
        notes.append(
            f"{benchmark}: {names} under {only} only, not under its metric {named[benchmark]}, count as missing."
        )
    notes += with_names({"Benchmarks with several metrics, of which the sheet names none, stay out: {}.": unnamed})
    return rows[keep]


def _at(checkpoint: object) -> str:
    """` at step1000`; nothing for the final checkpoint."""
    return "" if pd.isna(checkpoint) or checkpoint == "final" else f" at {checkpoint}"


def completed(scores: pd.DataFrame, sheet: pd.DataFrame) -> pd.DataFrame:
    """Scores with what they leave open (metric, direction, number of solved examples) from the benchmarks sheet.

    The sheet's direction is that of its metric: scores of a benchmark under another metric do not get it.
    """
    facts = sheet.set_index("benchmark").reindex(scores["benchmark"]).set_axis(scores.index)
    facts["higher_is_better"] = facts["higher_is_better"].astype("boolean").mask(~of_metric(scores, sheet))
    facts["num_fewshot"] = facts["num_fewshot"].astype("Int64")
    open_columns = ("metric", "higher_is_better", "num_fewshot")
    return scores.assign(**{name: scores[name].where(scores[name].notna(), facts[name]) for name in open_columns})


# ----------------------------------------------------------------------------------------------------------------------
# Which split, preparation, wording of the prompt and number of solved examples.

# what makes a score one of several of its benchmark; metrics of one evaluation count once
_EVALUATION = ["model", "checkpoint", "iteration", "tokens_b", "protocol", "prompt", "seed"]


def report_rows(rows: pd.DataFrame, sheet: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """The selected test rows of each benchmark of the sheet, under one wording of the prompt and one number of solved
    examples, by the `RULES`. `notes` gets what was used and what was left out."""
    test = rows["split"].isna() | (rows["split"] == "test")
    rows = rows[rows["selected"].fillna(value=True).astype(bool) & test]
    unlisted = ~rows["benchmark"].isin(sheet["benchmark"])
    names = sorted(rows.loc[unlisted, "benchmark"].unique())
    rows, of_rules = rows[~unlisted], list[str]()
    for rule in RULES:
        rows = rule(rows, sheet.set_index("benchmark"), of_rules)
    notes += of_rules
    notes += with_names({"Benchmarks with scores that are not in the benchmarks sheet stay out: {}.": names})
    return rows


def _own_preparation(rows: pd.DataFrame, facts: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """A train-before-test row counts only if the model was prepared on the benchmark's own training set
    (`prepared_on` of the sheet, else of the row)."""
    sources = rows["benchmark"].map(facts["prepared_on"]).astype(object)
    sources = sources.where(sources.notna(), rows["prepared_on"]).where(rows["protocol"] == schema.TRAINED).dropna()
    names = rows.loc[sources.index, "benchmark"]
    is_own = [name in re.split(r"\s*,\s*", text.strip()) for name, text in zip(names, sources, strict=True)]
    is_foreign = ~np.array(is_own, dtype=bool)
    for text, foreign in names[is_foreign].groupby(sources[is_foreign]):
        names_out = listing(sorted(foreign.unique()))
        notes.append(f"Prepared on {text}, not on their own training sets, so not train before test: {names_out}.")
    return rows[~rows.index.isin(names.index[is_foreign])]


def _one_wording(rows: pd.DataFrame, facts: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """Of several wordings (`prompt_variant`) the task's own (null) counts, else the commonest, ties to the first by
    name."""
    variants, benchmarks = rows["prompt_variant"], rows["benchmark"]
    without_own = variants[variants.isna().groupby(benchmarks).transform("sum") == 0]
    chosen = {name: training.commonest(values, min) for name, values in without_own.groupby(benchmarks)}
    keep = (variants.isna() | (variants == benchmarks.map(chosen))).to_numpy(dtype=bool, na_value=False)
    if chosen:
        choices_used = [f"{variant} on {benchmark}" for benchmark, variant in chosen.items()]
        notes.append(f"No score under the task's own wording of the prompt, so this is used: {listing(choices_used)}.")
    if not keep.all():
        notes.append(f"Scores under other wordings of the prompt are left out: {(~keep).sum()}.")
    return rows[keep]


def _one_count(rows: pd.DataFrame, facts: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """Of several numbers of solved examples before a question (few-shot, `num_fewshot`) a benchmark's are those that
    the sheet names, else the commonest among its evaluations, ties to the smaller. Rows of unknown number stay where
    the same score is not there with a number."""
    counts, benchmarks = rows["num_fewshot"], rows["benchmark"]
    named = facts["num_fewshot"].dropna().astype(int).to_dict()
    times = rows[counts.notna()].drop_duplicates([*_EVALUATION, "benchmark", "num_fewshot"]).groupby("benchmark")
    counts_used = {name: named.get(name, int(training.commonest(group, min))) for name, group in times["num_fewshot"]}
    if not counts_used:
        return rows
    chosen = benchmarks.map(counts_used)
    by_count = {f"{number:g}": listing(sorted(set(names))) for number, names in benchmarks.groupby(chosen)}
    parts = [f"{number} on {names}" for number, names in by_count.items()]
    notes.append(f"Few-shot examples: {'; '.join(parts if len(parts) > 1 else by_count)}.")
    out = (counts.notna() & (counts != chosen)).to_numpy(dtype=bool)
    if out.any():
        groups = rows[out].groupby("num_fewshot")[["benchmark", "model"]]
        parts = [f"{number} on {listing(sorted(set(group['benchmark'])))} (models: {group['model'].nunique()})"
                 for number, group in groups]  # fmt: skip
        notes.append(f"Scores with another number of few-shot examples stay out ({out.sum()}): {'; '.join(parts)}.")
    of_score = [rows[name] for name in (*_EVALUATION, "run", "benchmark", "metric")]
    counted_too = counts.mask(out).groupby(of_score, dropna=False, sort=False).transform("count") > 0
    again = (counts.isna() & counted_too).to_numpy(dtype=bool)
    if again.any():
        notes.append(f"Scores with few-shot examples nobody counted stay out beside counted ones: {again.sum()}.")
    return rows[~out & ~again]


RULES = (_own_preparation, _one_wording, _one_count)


# ----------------------------------------------------------------------------------------------------------------------
# Which checkpoint. Tokens say how far a model was trained, steps say it where tokens are not known at all checkpoints.


class CommonPoints(NamedTuple):
    """unit: `tokens_b` or `iteration`, None where models do not say it; the points of each model in it."""

    unit: str | None
    by_model: Mapping[str, set[float]]

    @property
    def common(self) -> list[float]:
        """The points of all models, in order of training."""
        return sorted(set.intersection(*self.by_model.values())) if self.by_model else []

    def words(self, point: float) -> str:
        """`90 billion tokens`, `step 1000`."""
        return f"{point:g} billion tokens" if self.unit == "tokens_b" else f"step {point:g}"


def _rounded(points: pd.Series) -> np.ndarray:
    """Points as they are compared: to a thousand tokens."""
    result: np.ndarray = np.round(points.astype("float64").to_numpy(dtype=float), 6)
    return result


def _wanted_point(point_text: str | None) -> float | None:
    """Billions of tokens; None for `final` and for nothing."""
    if point_text is None or point_text == "final":
        return None
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)b?", point_text.strip().lower())
    if match is None:
        raise InputError(f"--at {point_text}: neither `final` nor billions of tokens.", "for example --at 90.")
    return float(match[1])


class LastCheckpoints(NamedTuple):
    """rows: (n,) True for the scores of a model's last checkpoint. substitutes: the models without one called final,
    each with the checkpoint used instead. unknown: by model, the checkpoints of which the last is not known, and why;
    none of their rows count."""

    rows: np.ndarray
    substitutes: list[str]
    unknown: dict[str, str]


def last_checkpoints(rows: pd.DataFrame) -> LastCheckpoints:
    """The finished models: of each the checkpoint called `final` (or null), else its only or its last one.

    The last one is that with the most tokens if all of the model's have tokens, else with the most iterations if all
    have these. If both are known and contradict each other, the last one is not known.
    """
    final = (rows["checkpoint"].fillna("final") == "final").to_numpy(dtype=bool)
    is_last, names_used, unknown = final.copy(), [], {}
    for model, group in rows[~rows["model"].isin(rows.loc[final, "model"])].groupby("model", sort=True):
        last = _last_of(group.groupby("checkpoint")[["tokens_b", "iteration"]].max().astype("Float64"))
        if isinstance(last, str):
            unknown[str(model)] = last
            continue
        is_last |= ((rows["model"] == model) & rows["checkpoint"].isin(last)).to_numpy(dtype=bool)
        names_used.append(f"{model} ({last[0]})")
    return LastCheckpoints(is_last, names_used, unknown)


def _last_of(points: pd.DataFrame) -> list[str] | str:
    """The last of a model's checkpoints (several only if nothing tells them apart), or why it is not known.

    points: `tokens_b` and `iteration` by checkpoint.
    """
    names: list[str] = points.index.tolist()
    if len(names) == 1:
        return names
    ends = [set(points.index[column == column.max()]) for _, column in points.items() if column.notna().all()]
    last = set.intersection(*ends) if ends else set()
    return sorted(last) or f"{listing(sorted(names))}, of which neither tokens nor iterations say which is the last"


# ----------------------------------------------------------------------------------------------------------------------
# Which models and benchmarks.


def _of_this_study(
    sheet: pd.DataFrame, rows: pd.DataFrame, key: str, study: str | None, notes: list[str]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The sheet and the scores without models (benchmarks) that the sheet gives to other studies only; `notes` gets
    those with scores."""
    if study is None:
        return sheet, rows
    in_study = schema.of_study(sheet, study)
    out = sheet.loc[~in_study, key]
    scored = sorted(out[out.isin(rows[key].unique())])
    notes += with_names(
        {f"{key.capitalize()}s that the sheet's column `studies` gives elsewhere stay out: {{}}.": scored}
    )
    return sheet[in_study].reset_index(drop=True), rows[~rows[key].isin(out)]


# ----------------------------------------------------------------------------------------------------------------------
# Whether values, errors, units and directions can be what table and sheet say.


def _finite(rows: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The rows, in which values that are no numbers are NaN, and a note that names them."""
    finite = np.isfinite(rows["value"].to_numpy(dtype=float))
    lost = (rows["model"] + " on " + rows["benchmark"] + rows["checkpoint"].map(_at))[~finite]
    errors = rows["stderr"].to_numpy(dtype=float)
    rows = rows.assign(value=rows["value"].where(finite), stderr=np.where(np.isfinite(errors), errors, np.nan))
    return rows, with_names({"Scores without a finite value count as missing: {}.": lost.tolist()})
