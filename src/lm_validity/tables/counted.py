"""Which scores count: the single place that decides it.

A table of scores holds more than a report compares: several metrics, checkpoints, prompts, numbers of solved examples
and splits of one benchmark. Which of them stands for a model on a benchmark was once decided in five places, which
differed, so that two pages of one site showed two scores. Every report, card and command takes `Counted` instead, and
nothing else orders checkpoints (by `iteration` or `tokens_b`) or compares a metric with a wanted one.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from lm_validity.config.plan import Group
from lm_validity.config.sheets import BenchmarkFacts, ModelFacts, metric_key
from lm_validity.errors import InputError, did_you_mean
from lm_validity.tables.metrics import settled_directions, unit_notes
from lm_validity.tables.runs import Sampling, average_runs
from lm_validity.tables.schema import DIRECT, TRAINED, read_scores, replay_notes
from lm_validity.tables.settings import (
    FILE,
    Difference,
    Unlike,
    difference_notes,
    differences,
    of_one_kind,
    settings_beside,
    with_settings,
)
from lm_validity.tables.sheets import (
    NO_STUDY,
    as_in_scores,
    of_study,
    read_benchmark_facts,
    read_model_facts,
    reruns_of,
    sheet_frame,
)
from lm_validity.tables.standard_errors import CheckedErrors, ErrorCheck, checked_errors, error_notes
from lm_validity.words import Reason, ReasonCode, listing, with_names

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
    checks: tuple[ErrorCheck, ...]
    source: str
    sheet: str | None
    sampling: Mapping[tuple[str, str], Sampling] = field(default_factory=dict)
    kept_out: tuple[str, ...] = ()
    differing: tuple[Difference, ...] = ()

    def last(self) -> "Counted":
        """Each model as it is finished, without reruns: the checkpoint called `final`, else its only or its last one.

        Raises InputError where the last of a model's checkpoints is not known, and for two scores of one thing.
        """
        rows = self.rows[~self.rows["model"].isin(reruns_of(self.models))]
        last = last_checkpoints(rows)
        for model, problem in last.unknown.items():
            raise InputError(
                f"{self.source}: {model} has the checkpoints {problem}.",
                "fill in 'iteration' or 'tokens_b', or call the checkpoint that counts 'final'.",
            )
        names_used = f"No final checkpoint: the only or last one is used for {listing(last.substitutes)}."
        return self._of(
            rows[last.rows], [names_used] if last.substitutes else [], ("model", "benchmark", "protocol", "seed")
        )

    def common_points(self) -> "CommonPoints":
        """The points of training at which all models were scored: billions of tokens where all of them say these, else
        steps. None where a model's finished state says neither, so that it stands for no point."""
        models = [rows for _, rows in self.rows.groupby("model")]
        for unit in ("tokens_b", "iteration"):
            ends = [rows[rows["checkpoint"].isna() | (rows["checkpoint"] == "final")] for rows in models]
            if all(rows[unit].notna().any() for rows in models) and not any(end[unit].isna().any() for end in ends):
                points_of_models = [(str(rows["model"].iloc[0]), set(_rounded(rows[unit].dropna()))) for rows in models]
                common = set.intersection(*(points_of_model for _, points_of_model in points_of_models))
                return CommonPoints(unit, tuple(sorted(common)), tuple(points_of_models))
        return CommonPoints(None, (), ())

    def at_point(self, unit: str, point: float) -> "Counted":
        """Every model at one point of `common_points`, reruns too. Raises InputError for two scores of one thing."""
        return self._of(self.rows[_rounded(self.rows[unit]) == point], [], ("model", "benchmark", "protocol", "seed"))

    def at_common_point(self, point_text: str | None = None, *, or_last: bool = False) -> tuple["Counted", list[str]]:
        """The models at one point of training, and what is said about it.

        at: `final`, each at its end; billions of tokens, found within half a percent; null: the last point that all
        have, or where a model has no points each at its end. `or_last`: also where they have none in common. Raises
        InputError as `last`, for an `point_text` that is neither, and where they have no such point.
        """
        wanted_point, points = _wanted_point(point_text), self.common_points()
        if wanted_point is not None and points.unit != "tokens_b":
            raise InputError(
                f"--at {point_text}: the scores do not say tokens for all models.", "give --at final, or nothing."
            )
        if point_text == "final" or points.unit is None:
            return self.last(), []
        shared = [
            candidate
            for candidate in points.common
            if wanted_point is None or abs(candidate - wanted_point) <= 0.005 * wanted_point
        ]
        if not shared and or_last:
            return self.last(), ["They have no common point of training: each is compared as it is at its end."]
        if not shared:
            spans = [
                f"{model} {points.words(min(points_of_model))} to {points.words(max(points_of_model))}"
                for model, points_of_model in points.by_model
            ]
            raise InputError(
                f"no common point of training{f' at {point_text}' if point_text else ''}: {listing(spans)}.",
                "give --at final to compare each at its end.",
            )
        point = max(shared)
        if all(points_of_model == {point} for _, points_of_model in points.by_model):
            return self.last(), []
        further = [
            f"{model} goes on to {points.words(max(points_of_model))}"
            for model, points_of_model in points.by_model
            if max(points_of_model) > point
        ]
        words = "as asked for" if wanted_point is not None else "the last that both have"
        sentence = f"At {points.words(point)}, {'; '.join([words, *further])}."
        return self.at_point(points.unit, point), [sentence]

    def along_training(self) -> "Counted":
        """The direct scores that have a value, at every checkpoint, of reruns too; no name of a checkpoint is null.

        Raises InputError for two scores of one thing.
        """
        rows = self.rows[self.rows["protocol"] == DIRECT]
        if rows.empty:
            raise InputError(
                f"{self.source}: no selected score of the test split with protocol 'direct'.",
                "learning curves are of direct evaluations along training.",
            )
        rows = rows.assign(checkpoint=rows["checkpoint"].fillna("final"))
        counted = self._of(rows, [], ("model", "benchmark", "checkpoint"))
        return replace(counted, rows=counted.rows[counted.rows["value"].notna()])

    def without_copies(self, *cell: str) -> "Counted":
        """Each model once: of those that have the same scores everywhere (in each `cell` of columns), the one of which
        the sheet says most, else its first, then by names. The others are named in a note. Reruns are no copies.

        So many equal scores, 0 and 1 apart, have to be chance in less than `COINCIDENCE` of such tables, were a value
        as likely as it is frequent in its cell: models that give one constant answer are several. Two copies are no two
        models: with them intervals are too narrow, and neither of two best is the best. Two models alone are two.
        """
        rows = self.rows[~self.rows["model"].isin(reruns_of(self.models))]
        scores = rows.groupby(["model", *cell])["value"].mean().unstack([*cell])
        facts = self.models.set_index("model").notna().sum(axis=1).sort_values(ascending=False, kind="stable")
        in_sheet = [model for model in facts.index if model in scores.index]
        scores = scores.reindex([*dict.fromkeys(in_sheet), *scores.index.difference(in_sheet)])
        pairs = len(scores) * (len(scores) - 1) / 2
        shares = np.array([_frequencies(cell) for cell in scores.to_numpy().T]).reshape(scores.shape[::-1]).T
        first, copies = dict[bytes, str](), dict[str, str]()
        for model, row, share in zip(scores.index, scores.to_numpy(), shares, strict=True):
            telling = np.isfinite(row) & ~np.isin(row, (0.0, 1.0))  # none or all right: many weak or strong models are
            if telling.any() and np.prod(share[telling]) * pairs < COINCIDENCE:
                original = first.setdefault(np.nan_to_num(row, nan=np.inf).tobytes(), model)
                copies |= {model: original} if original != model else {}
        names = [f"{model} (as {original})" for model, original in copies.items()]
        lines = with_names({"Models with the same scores everywhere count once: {}.": names})
        return replace(self, rows=self.rows[~self.rows["model"].isin(copies)], notes=(*self.notes, *lines))

    def _of(self, rows: pd.DataFrame, notes: Iterable[str], key: Sequence[str]) -> "Counted":
        """Some of the rows, with more notes, in which a `key` of columns is that of one score."""
        if rows.empty:
            population = "" if self.sheet is None else f" of any benchmark in {self.sheet}"
            raise InputError(
                f"{self.source}: no selected test score{population}.",
                "are the rows `selected` and of the test split, and do ids and metrics match those of the sheet?",
            )
        rows, lost = _finite(rows)
        for row in rows[rows.duplicated([*key], keep=False)].itertuples():
            ends = pd.isna(row.checkpoint) or row.checkpoint == "final"
            checkpoint = "" if ends else f" at checkpoint {row.checkpoint!r}"
            raise InputError(
                f"{self.source}: two selected test scores of {row.model} on {row.benchmark} ({row.protocol})"
                f"{checkpoint}.",
                "set 'selected' to false for all but one of prompt and metric.",
            )
        benchmarks = self.benchmarks[self.benchmarks["benchmark"].isin(rows["benchmark"].unique())].reset_index(
            drop=True
        )
        differing = differences(rows)
        notes = (*self.notes, *notes, *lost, *difference_notes(differing, len(benchmarks)))
        return replace(self, rows=rows, benchmarks=benchmarks, notes=notes, differing=differing)


def _frequencies(values: np.ndarray) -> np.ndarray:
    """(n,) how frequent each of `values` (n,) is among those that are known; NaN where it is not."""
    is_known, frequencies = ~np.isnan(values), np.full(len(values), np.nan)
    _, place, number = np.unique(values[is_known], return_inverse=True, return_counts=True)
    frequencies[is_known] = number[place] / is_known.sum()
    return frequencies


def count_scores(
    sources: Sources,
    *,
    study: str | None = None,
    groups: Sequence[Group] = (),
    only: Collection[str] = (),
    unlike: Unlike = "out",
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
    files = (sources.scores, Path(sources.scores).with_name(FILE), sources.models, sources.benchmarks)
    question = _Question(tuple(map(_stamp, files)), sources, tuple(groups), tuple(only))
    counted = _count(question, study if study is not None and _read(question).by_study else None, unlike)
    return replace(counted, **{name: getattr(counted, name).copy() for name in ("rows", "models", "benchmarks")})


def _stamp(path: str | Path | None) -> tuple[str, int, int, int] | None:
    """What changes with a file: which one it is, its size, its time; None where there is none."""
    if path is None or not Path(path).exists():
        return None
    status = Path(path).stat()
    return str(Path(path).resolve()), status.st_ino, status.st_size, status.st_mtime_ns


class _Question(NamedTuple):
    """Which scores are to be counted, and the stamps of the files."""

    stamps: tuple[object, ...]
    sources: Sources
    groups: tuple[Group, ...]
    only: tuple[str, ...]


class _Read(NamedTuple):
    """The rows that reports read, both sheets, notes, and whether a row of a sheet names its studies."""

    rows: pd.DataFrame
    models: pd.DataFrame
    benchmarks: pd.DataFrame
    notes: tuple[str, ...]
    by_study: bool


@lru_cache(maxsize=1)
def _read(question: _Question) -> _Read:
    sources, only = question.sources, question.only
    rows = read_scores(sources.scores)
    for model in only:
        if model not in set(rows["model"]):
            hint = did_you_mean(model, rows["model"].unique(), "see the table's column `model` for the names.")
            raise InputError(f"{sources.scores}: no score of the model {model!r}.", hint)
    rows = rows[rows["model"].isin(only)] if only else rows
    notes = replay_notes(rows)
    rows = rows.assign(metric=_keys(rows["metric"]))
    sheet = _no_sheet(rows) if sources.benchmarks is None else read_benchmark_facts(sources.benchmarks)
    check_metrics(rows, sheet, sources.benchmarks)
    rows = report_rows(rows, sheet, notes)
    model_sheet = sheet_frame([], ModelFacts)
    if sources.models is not None:
        model_sheet = as_in_scores(read_model_facts(sources.models, question.groups), set(rows["model"]))
    by_study = bool(model_sheet["studies"].notna().any() or sheet["studies"].notna().any())
    return _Read(rows, model_sheet, sheet, tuple(notes), by_study)


@lru_cache(maxsize=2)
def _count(question: _Question, study: str | None, unlike: Unlike) -> Counted:
    rows, model_sheet, sheet, notes_read, _ = _read(question)
    scores, benchmarks, notes = str(question.sources.scores), question.sources.benchmarks, list(notes_read)
    notes += _other_study_notes(model_sheet, rows, "model", study) + _other_study_notes(sheet, rows, "benchmark", study)
    model_sheet, rows = _of_this_study(model_sheet, rows, "model", study)
    sheet, rows = _of_this_study(sheet, rows, "benchmark", study)
    scored, listed = set(rows["benchmark"]), set(sheet["benchmark"])
    notes += with_names(
        {
            "Benchmarks with scores that are not in the benchmarks sheet stay out: {}.": sorted(scored - listed),
            "Benchmarks of the sheet without any score: {}.": sorted(listed - scored),
        }
    )
    rows = _of_its_metric(rows[rows["benchmark"].isin(listed)], sheet, scores, notes)
    kept_out: list[str] = []
    rows = of_one_kind(with_settings(rows, settings_beside(scores)), kept_out, scores, unlike)
    rows, checks = _with_checked_errors(_with_final_tokens(rows, model_sheet), sheet)
    averaged = average_runs(rows, scores)
    rows, notes = averaged.rows, [*notes, *kept_out, *averaged.notes]
    facts, direction_notes = settled_directions(rows, sheet, scores)
    notes += direction_notes + unit_notes(rows, facts, scores) + error_notes(checks)
    of_sheet = (scores, None if benchmarks is None else str(benchmarks), averaged.noise, tuple(kept_out))
    return Counted(rows, model_sheet, facts, tuple(notes), tuple(checks), *of_sheet)


def _no_sheet(rows: pd.DataFrame) -> pd.DataFrame:
    """A sheet of the benchmarks that have scores, of which nothing is known but, where a table has several metrics of
    one and says the direction of one of them alone, as the tables of our own runs do, that metric."""
    several = rows.groupby("benchmark")["metric"].transform("nunique") > 1
    metrics_told = rows[several & rows["higher_is_better"].notna()].groupby("benchmark")["metric"].unique()
    metric_of_benchmark = {benchmark: metrics[0] for benchmark, metrics in metrics_told.items() if len(metrics) == 1}
    names = sorted(rows["benchmark"].unique())
    return sheet_frame(
        [BenchmarkFacts(benchmark=name, metric=metric_of_benchmark.get(name)) for name in names], BenchmarkFacts
    )


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
    return under_metric(rows["metric"], _named(rows, sheet))


def _named(rows: pd.DataFrame, sheet: pd.DataFrame) -> pd.Series:
    """The metric that the sheet names for the benchmark of each row."""
    return rows["benchmark"].map(sheet.set_index("benchmark")["metric"])


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


_CELL = ["benchmark", "model", "checkpoint", "protocol"]  # a score under each metric that was computed


def _of_its_metric(rows: pd.DataFrame, sheet: pd.DataFrame, path: str | Path, notes: list[str]) -> pd.DataFrame:
    """The rows of each benchmark's metric. `notes` gets the scores that have other metrics only."""
    keep = of_metric(rows, sheet).copy()
    metrics_by_benchmark: dict[str, list[str]] = {name: [] for name in rows["benchmark"].unique()}
    pairs = rows[["benchmark", "metric"]].dropna().drop_duplicates()
    for benchmark, metric in zip(pairs["benchmark"], pairs["metric"], strict=True):
        metrics_by_benchmark[benchmark].append(metric)
    lost = dict[str, pd.DataFrame]()
    if not keep.all():
        cells = pd.Series(keep, rows.index).groupby([rows[name] for name in _CELL], dropna=False)
        lost = {str(name): out for name, out in rows[~cells.transform("any")].groupby("benchmark")}
    in_no_study, unnamed = set(sheet.loc[sheet["studies"] == NO_STUDY, "benchmark"]), list[str]()
    for benchmark, metric in zip(sheet["benchmark"], sheet["metric"], strict=True):
        if benchmark not in metrics_by_benchmark:
            continue
        metrics = sorted(metrics_by_benchmark[benchmark])
        if pd.isna(metric) and len(metrics) > 1 and benchmark in in_no_study:
            unnamed.append(benchmark)
            keep[(rows["benchmark"] == benchmark).to_numpy()] = False
            continue
        if pd.isna(metric) and len(metrics) > 1:
            raise InputError(
                f"{path}: {benchmark} has several metrics ({listing(metrics)}), and no benchmarks sheet names one.",
                "give --benchmarks a sheet whose column 'metric' names one (lm-validity report writes one).",
            )
        out = lost.get(benchmark)
        if out is not None and len(out) == (rows["benchmark"] == benchmark).sum():
            notes.append(f"{benchmark}: no score under its metric {metric}; the table has {listing(metrics)}.")
        elif out is not None:
            names = listing(dict.fromkeys(out["model"] + out["checkpoint"].map(_at) + " (" + out["protocol"] + ")"), 6)
            notes.append(
                f"{benchmark}: the scores of {names} are not under its metric {metric} but under "
                f"{listing(sorted(out['metric'].unique()))} only; they count as missing."
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
    under_other_metric = ~of_metric(scores, sheet)
    values_known = {
        "metric": facts["metric"],
        "higher_is_better": facts["higher_is_better"].astype("boolean").mask(under_other_metric),
        "num_fewshot": facts["num_fewshot"].astype("Int64"),
    }
    return scores.assign(
        **{name: scores[name].where(scores[name].notna(), values) for name, values in values_known.items()}
    )


# ----------------------------------------------------------------------------------------------------------------------
# Which split, preparation, wording of the prompt and number of solved examples.

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
    rows_kept = _one_count(_one_wording(rows[listed], notes), sheet, notes)
    if listed.all():
        return rows_kept.sort_index()
    return pd.concat([rows_kept, rows[~listed]]).sort_index()


def _own_preparation(rows: pd.DataFrame, sheet: pd.DataFrame | None, notes: list[str]) -> pd.DataFrame:
    """The rows without train-before-test scores of models that were prepared on something else than the benchmark."""
    trained = (rows["protocol"] == TRAINED).to_numpy(dtype=bool)
    benchmarks, prepared = (rows.loc[trained, name] for name in ("benchmark", "prepared_on"))
    if sheet is not None and "prepared_on" in sheet:
        preparation = benchmarks.map(sheet.set_index("benchmark")["prepared_on"])
        prepared = preparation.where(preparation.notna(), prepared)
    is_said = prepared.notna().to_numpy(dtype=bool)
    if not is_said.any():
        return rows
    is_own = np.array(
        [
            pd.isna(text) or name in re.split(r"\s*,\s*", text.strip())
            for name, text in zip(benchmarks, prepared, strict=True)
        ],
        dtype=bool,
    )
    own_names = sorted(benchmarks[is_own & is_said].unique())
    if own_names:
        notes.append(f"Prepared on their own training sets, as the source says: {listing(own_names)}.")
    for text, names in benchmarks[~is_own].groupby(prepared[~is_own]):
        notes.append(
            f"Prepared on {text}, not on their own training sets, so not train before test: "
            f"{listing(sorted(names.unique()))}."
        )
    keep = ~trained
    keep[trained] = is_own
    return rows[keep]


def _one_wording(rows: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    keep, chosen = np.ones(len(rows), dtype=bool), {}
    variants = rows["prompt_variant"]
    for benchmark in sorted(rows.loc[variants.notna(), "benchmark"].unique()):
        of_this_benchmark = (rows["benchmark"] == benchmark).to_numpy()
        without_variant = of_this_benchmark & variants.isna().to_numpy()
        if without_variant.any():
            keep &= ~of_this_benchmark | without_variant
            continue
        times = variants[of_this_benchmark].value_counts()
        chosen[benchmark] = min(times.index[times == times.max()])
        keep &= ~of_this_benchmark | (variants == chosen[benchmark]).to_numpy(dtype=bool, na_value=False)
    if chosen:
        choices_used = [f"{variant} on {benchmark}" for benchmark, variant in chosen.items()]
        notes.append(f"No score under the task's own wording of the prompt, so this is used: {listing(choices_used)}.")
    if not keep.all():
        notes.append(f"Scores under other wordings of the prompt are left out: {(~keep).sum()}.")
    return rows[keep]


def _one_count(rows: pd.DataFrame, sheet: pd.DataFrame | None, notes: list[str]) -> pd.DataFrame:
    named = {} if sheet is None else sheet.set_index("benchmark")["num_fewshot"].dropna().astype(int).to_dict()
    with_count = rows[rows["num_fewshot"].notna()]
    counts_used: dict[str, int] = {}
    for benchmark, group in with_count.drop_duplicates([*_EVALUATION, "benchmark", "num_fewshot"]).groupby("benchmark"):
        count = named.get(benchmark, fewshot_count(group["num_fewshot"]))
        assert count is not None, "rows of known numbers alone"
        counts_used[benchmark] = count
    if not counts_used:
        return rows
    out = rows["num_fewshot"].notna() & (rows["num_fewshot"] != rows["benchmark"].map(counts_used))
    by_count: dict[int, list[str]] = {}
    for benchmark, count in sorted(counts_used.items()):
        by_count.setdefault(count, []).append(benchmark)
    parts = [f"{count} on {listing(names)}" for count, names in sorted(by_count.items())]
    counts_shown = "; ".join(parts) if len(parts) > 1 else next(iter(by_count))
    notes.append(f"Few-shot examples: {counts_shown}.")
    if out.any():
        parts = [
            f"{count} on {listing(sorted(group['benchmark'].unique()))} (models: {group['model'].nunique()})"
            for count, group in rows[out].groupby("num_fewshot")
        ]
        notes.append(f"Scores with another number of few-shot examples stay out ({out.sum()}): {'; '.join(parts)}.")
    rows = rows[~out.to_numpy(dtype=bool)]
    uncounted = rows["num_fewshot"].isna()
    if not uncounted.any():
        return rows
    one_score = rows.groupby([*_EVALUATION, "run", "benchmark", "metric"], dropna=False, sort=False)["num_fewshot"]
    again = (uncounted & (one_score.transform("count") > 0)).to_numpy(dtype=bool)
    if again.any():
        notes.append(f"Scores with few-shot examples nobody counted stay out beside counted ones: {again.sum()}.")
    return rows[~again]


def fewshot_count(counts: pd.Series) -> int | None:
    """The commonest of numbers of solved examples (null: unknown), ties to the smaller; None where all are unknown."""
    times = counts.dropna().astype(int).value_counts()
    return None if times.empty else int(times.index[times == times.max()].min())


# ----------------------------------------------------------------------------------------------------------------------
# Which checkpoint. Tokens say how far a model was trained, steps say it where tokens are not known at all checkpoints.


def training_order(iterations: np.ndarray, tokens_b: np.ndarray) -> np.ndarray:
    """Indices that put checkpoints (n,) in order of training, by tokens, else by iteration (NaN: unknown).

    Where neither is known of all, those without an iteration come last: that is where a final checkpoint stands.
    """
    progress = iterations if np.isnan(tokens_b).any() else tokens_b
    return np.argsort(progress, kind="stable")


def last_iterations(rows: pd.DataFrame) -> pd.Series:
    """The most steps that any score of a model says, by model; null where none says any."""
    return rows.groupby("model")["iteration"].max()


def progress(rows: pd.DataFrame) -> pd.Series:
    """How far the model of each score was trained: billions of tokens where any curve has these at two checkpoints,
    else steps; NaN where unknown."""
    return rows["tokens_b" if in_tokens(rows) else "iteration"].astype("float64")


def in_tokens(rows: pd.DataFrame) -> bool:
    """Whether any learning curve has tokens at two of its checkpoints, so that curves are drawn over tokens."""
    n_with_tokens = rows["tokens_b"].notna().groupby([rows["benchmark"], rows["model"]]).sum()
    return bool((n_with_tokens > 1).any())


def _with_final_tokens(rows: pd.DataFrame, models: pd.DataFrame) -> pd.DataFrame:
    """The scores, of which those of the final checkpoint have the models sheet's tokens where they name none."""
    if models["tokens_b"].isna().all():
        return rows.assign(tokens_b=rows["tokens_b"].astype("float64"))
    total = (
        rows["model"].map(models.set_index("model")["tokens_b"]).where(rows["checkpoint"].fillna("final") == "final")
    )
    return rows.assign(tokens_b=rows["tokens_b"].astype("float64").fillna(total.astype("float64")))


def checkpoints_in_order(rows: pd.DataFrame) -> list[str]:
    """The names of the checkpoints of scores in order of training; a null name is `final`."""
    points = rows.groupby(rows["checkpoint"].fillna("final"))[["iteration", "tokens_b"]].max().astype("Float64")
    order = training_order(*points.to_numpy(dtype=float, na_value=np.nan).T)
    result: list[str] = points.index[order].tolist()
    return result


@dataclass(frozen=True)
class CommonPoints:
    """unit: `tokens_b` or `iteration`, None where models do not say it. common: the points of all models, in order of
    training; by_model: the points of each model."""

    unit: str | None
    common: tuple[float, ...]
    by_model: tuple[tuple[str, set[float]], ...]

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
    try:
        value = float(point_text.strip().lower().removesuffix("b"))
    except ValueError:
        value = np.nan
    if not np.isfinite(value) or value < 0:
        raise InputError(f"--at {point_text}: neither `final` nor billions of tokens.", "for example --at 90.")
    return value


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
    final = (rows["checkpoint"].isna() | (rows["checkpoint"] == "final")).to_numpy(dtype=bool)
    is_last, names_used, unknown = final.copy(), [], {}
    unfinished = ~rows["model"].isin(rows.loc[final, "model"].unique()).to_numpy()
    for model, group in rows[unfinished].groupby("model", sort=True):
        points = group.groupby("checkpoint")[["tokens_b", "iteration"]].max().astype("Float64")
        last = _last_of(points)
        if isinstance(last, str):
            unknown[str(model)] = last
            continue
        is_last |= unfinished & ((rows["model"] == model) & rows["checkpoint"].isin(last)).to_numpy(dtype=bool)
        names_used.append(f"{model} ({last[0]})")
    return LastCheckpoints(is_last, names_used, unknown)


def _last_of(points: pd.DataFrame) -> list[str] | str:
    """The last of a model's checkpoints (several only if nothing tells them apart), or why it is not known.

    points: `tokens_b` and `iteration` by checkpoint.
    """
    names: list[str] = points.index.tolist()
    if len(names) == 1:
        return names
    columns_known = [column for column in points if points[column].notna().all()]
    ends = [set(points.index[points[column] == points[column].max()]) for column in columns_known]
    listed = f"{listing(sorted(names))}, none of them 'final', and"
    if not ends:
        untold = points[points.columns[points.notna().sum().argmax()]].isna()
        return f"{listed} how far {listing(sorted(points.index[untold]))} was trained is not in the table"
    last = set.intersection(*ends)
    if not last:
        by_tokens, by_iteration = (listing(sorted(end)) for end in ends)
        return f"{listed} the last is {by_tokens} by their tokens and {by_iteration} by their iterations"
    return sorted(last)


# ----------------------------------------------------------------------------------------------------------------------
# Which models and benchmarks.


def _of_this_study(
    sheet: pd.DataFrame, rows: pd.DataFrame, key: str, study: str | None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The sheet and the scores without models (benchmarks) that the sheet gives to other studies only."""
    if study is None:
        return sheet, rows
    in_study = of_study(sheet, study)
    return sheet[in_study].reset_index(drop=True), rows[~rows[key].isin(sheet.loc[~in_study, key])]


def _other_study_notes(sheet: pd.DataFrame, rows: pd.DataFrame, key: str, study: str | None) -> list[str]:
    if study is None:
        return []
    rows_of_others = sheet[~of_study(sheet, study) & sheet[key].isin(rows[key].unique())]
    sparse = rows_of_others["studies"] == NO_STUDY
    kind = f"{key.capitalize()}s"
    left_out = (
        f"{kind} with `{NO_STUDY}` in the sheet's column `studies` stay out: {{}}. `lm-validity report` writes that "
        "where fewer than half of the scores are known."
    )
    return with_names(
        {
            f"{kind} of other studies stay out: {{}}.": sorted(rows_of_others.loc[~sparse, key]),
            left_out: sorted(rows_of_others.loc[sparse, key]),
        }
    )


# ----------------------------------------------------------------------------------------------------------------------
# Whether values, errors, units and directions can be what table and sheet say.


def _finite(rows: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The rows, in which values that are no numbers are NaN, and a note that names them."""
    finite = np.isfinite(rows["value"].to_numpy(dtype=float))
    lost = (rows["model"] + " on " + rows["benchmark"] + rows["checkpoint"].map(_at))[~finite]
    errors = rows["stderr"].to_numpy(dtype=float)
    rows = rows.assign(
        value=np.where(finite, rows["value"], np.nan), stderr=np.where(np.isfinite(errors), errors, np.nan)
    )
    return rows, with_names({"Scores without a finite value count as missing: {}.": lost.tolist()})


def _with_checked_errors(rows: pd.DataFrame, sheet: pd.DataFrame) -> CheckedErrors:
    """The rows, in their order, whose standard errors were checked in order of training."""
    if rows["stderr"].isna().all():
        return CheckedErrors(rows, [])
    tokens, iterations = rows["tokens_b"].astype("float64"), rows["iteration"].astype("float64")
    progress = tokens.where(tokens.notna().groupby(rows["model"]).transform("all"), iterations)
    checked, checks = checked_errors(rows.iloc[np.argsort(progress.to_numpy(), kind="stable")], sheet)
    return CheckedErrors(rows.assign(stderr=checked["stderr"]), checks)


# ----------------------------------------------------------------------------------------------------------------------
# Models that were trained twice: the noise of training, which no number of items shows.

LAST_CHECKPOINTS = 5  # of which the noise is the mean: those of one training hardly differ, so one would do
NOT_MEASURED = Reason(
    "The noise of training was not measured: the models sheet names no second training of a model (column rerun_of).",
    ReasonCode.NO_RERUNS,
)


@dataclass(frozen=True)
class TrainingNoise:
    """How far a score moves if the model is trained again.

    sd: between trainings of one model, in the score's unit, on the same items. reruns: its degrees of freedom.
    """

    sd: float
    reruns: int


def training_noise(rows: pd.DataFrame, reruns: Mapping[str, str]) -> dict[str, TrainingNoise]:
    """The noise of training by benchmark, from scores (`model, benchmark, checkpoint, iteration, tokens_b, value`) of
    one protocol and metric.

        sd^2 = sum over models of (their squared deviations from the mean of their trainings, averaged over the last
               five checkpoints that all of these have) / sum of (trainings - 1)

    Several scores of a checkpoint (seeds of a fine-tune) are averaged. Trainings of one model have the same schedule,
    so checkpoints of one name are one point of training. Benchmarks without a model of which two trainings have a
    checkpoint in common are absent.
    """
    rows = rows.assign(checkpoint=rows["checkpoint"].fillna("final"), root=rows["model"].map(reruns))
    rows["root"] = rows["root"].where(rows["root"].notna(), rows["model"])
    rows = rows[rows["root"].isin(set(reruns.values()))]
    variances: dict[str, list[tuple[float, int]]] = {}
    for (benchmark, _), group in rows.groupby(["benchmark", "root"], sort=True):
        values = group.pivot_table(index="checkpoint", columns="model", values="value")
        values = values.reindex(checkpoints_in_order(group)).dropna()
        if values.shape[1] < 2 or values.empty:
            continue
        variance = float(values.tail(LAST_CHECKPOINTS).var(axis=1, ddof=1).mean())
        variances.setdefault(benchmark, []).append((variance, values.shape[1] - 1))
    return {
        benchmark: TrainingNoise(
            float(
                np.sqrt(np.average([part_noise for part_noise, _ in parts], weights=[number for _, number in parts]))
            ),
            sum(number for _, number in parts),
        )
        for benchmark, parts in variances.items()
    }
