"""The comparison of two models, with verdicts that can stop a pipeline: where the two are found, what is decided, and
what is written of it.

What is compared is like with like: the same point of training, the same version and part of each benchmark. What
differs otherwise is said. A gate ends with 0, 1 or 3 (`EXIT_CODES`).
"""

import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lm_validity.config.rows import read_rows
from lm_validity.config.sheets import AcceptedLoss
from lm_validity.errors import InputError, did_you_mean
from lm_validity.files import absent, write_text
from lm_validity.pages.page import from_template
from lm_validity.results.put import Rows
from lm_validity.results.sections import write_rows
from lm_validity.site.gather import BENCHMARKS, MODELS, NO_ERRORS, Gathered, gather, guess_benchmarks, table_kind
from lm_validity.studies.items import compare as items_compare
from lm_validity.studies.items.answers import model_answers
from lm_validity.studies.items.compare import Comparison, Judged, Margin, Margins, to_decide, verdict_words
from lm_validity.tables.counted import Counted, Sources, count_scores
from lm_validity.tables.formats.score_files import ImportOptions
from lm_validity.tables.items import open_items
from lm_validity.tables.metrics import ASSUMED
from lm_validity.tables.schema import ITEMS, SCORES, SETTINGS, read_model_facts, read_scores, write_table
from lm_validity.tables.settings import FILE, Unlike, difference_notes
from lm_validity.words import count, is_known, listing, number

EXIT_CODES = {"not worse": 0, "worse": 1, "not known": 3}
MOST_LINES, MOST_NOTES = 12, 3  # in the terminal
MARK = "written by lm-validity compare"  # in a file for a pull request, which the command may then replace


@dataclass(frozen=True)
class Comparing:
    """What a reader asks for.

    training_point: `final`, billions of tokens, or None: the last point that both have. margin: a number or the path of
    a sheet (`benchmark`, `margin`, `must`). for_report: unlike versions stay out instead of being refused, and models
    without a common point of training are compared at their ends. for_page: the difference along training too.
    options: how files are imported."""

    training_point: str | None = None
    margin: str | None = None
    mix_versions: bool = False
    self_check: bool = False
    benchmarks: Path | None = None
    for_report: bool = False
    for_page: bool = False
    options: ImportOptions = field(default_factory=ImportOptions)


@dataclass(frozen=True)
class Compared:
    """A comparison with its verdicts, all together first. notes: lines above it: the point of training, and settings
    that differ. flips: the items that one model alone gets right. point: of those lines the one on the point of
    training, where one model goes on beyond it or they have none in common."""

    comparison: Comparison
    judgements: Sequence[Judged]
    rows: Rows
    notes: tuple[str, ...]
    flips: pd.DataFrame
    self_check: str | None = None
    point: str | None = None

    @property
    def decision(self) -> str:
        """The gate's decision on all benchmarks: `not worse`, `worse` or `not known`."""
        return items_compare.gate(self.judgements)

    @property
    def together(self) -> list[Judged]:
        """The verdicts on all benchmarks together, one a protocol."""
        return [judgement for judgement in self.judgements if judgement.benchmark is None]

    def place(self, judgement: Judged) -> str:
        """Of which benchmark and, of several, under which protocol; of all together also on how many benchmarks."""
        several = len(self.comparison.protocols) > 1
        under = f", {judgement.protocol.replace('_', ' ')}" if several else ""
        if judgement.benchmark is not None:
            return f"{judgement.benchmark}{under}"
        everything = len(self.comparison.under(judgement.protocol))
        part = f", {judgement.counted} of {count(everything, 'benchmark')}" if judgement.counted < everything else ""
        return f"All together{under}{part if is_known(judgement.verdict.change) else ''}"


def compare(first: str, second: str, source: Path | None, request: Comparing, items: Path | None = None) -> Compared:
    """Compare two models: names of `source` (scores.parquet, or a folder that holds it), or without one two files or
    folders of result files. Raises InputError as `gather` and `compare_counted`, and for a bad margin or point."""
    with two_models(first, second, source, items, request.options) as models:
        sources = replace(models.sources, benchmarks=request.benchmarks or models.sources.benchmarks)
        margins, names = _margins(request.margin), (models.first, models.second)
        answers = None if sources.items is None else Path(sources.items)
        # what becomes of unlike versions and parts of a benchmark
        unlike: Unlike = "kept" if request.mix_versions else "out" if request.for_report else "refused"
        counted = count_scores(sources, only=names, unlike=unlike)
        one_state = bool((counted.rows.groupby("model")["checkpoint"].nunique(dropna=False) == 1).all())
        at_ends = request.for_report or (one_state and request.training_point is None)
        counted_there, point_lines = counted.at_common_point(request.training_point, or_last=at_ends)
        comparison = items_compare.compare_counted(names, counted_there, answers, unlike)
        lines = (
            *(note for note in counted.notes if note.startswith(ASSUMED)),  # first: the verdict stands on it
            *models.lines,
            *counted.kept_out,
            *difference_notes(counted_there.differing, len(counted_there.benchmarks)),
            *point_lines,
            *comparison.doubts,
        )
        comparison = replace(comparison, notes=tuple(note for note in comparison.notes if note not in lines))
        _check_margins(request.margin, margins, comparison)
        judgements = items_compare.judged(comparison, margins)
        rows = items_compare.comparison_rows(comparison, judgements)
        if request.for_page:
            items_compare.training_rows(rows, comparison, counted, answers)
        check = _self_check(names, sources, margins, unlike) if request.self_check else None
        flips, point = _flips(sources, counted_there, comparison), next(iter(point_lines), None)
        return Compared(comparison, judgements, rows, lines, flips, check, point)


# ----------------------------------------------------------------------------------------------------------------------
# The two models: by name in a table of scores, or as two files or folders.


class TwoModels(NamedTuple):
    """Two models of one table of scores, with what lies beside it, and lines on what an import left out."""

    first: str
    second: str
    sources: Sources
    lines: tuple[str, ...] = ()


@contextmanager
def two_models(
    first: str, second: str, source: Path | None, items: Path | None, options: ImportOptions
) -> Iterator[TwoModels]:
    """The models by name or label of `source`, or without one of two files or folders, as long as the block runs.
    options: how files are imported.
    Raises InputError as `gather`, in the words of what was given, and for a name that no model or several have."""
    if source is not None and not source.exists():
        order = f"the folder comes last: compare {second} {source} {first}."
        raise absent(source, "file or folder", order if Path(first).is_dir() else "check the path.")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            if source is None:
                yield _of_folders(first, second, folder, options)
            else:
                yield _of_table(first, second, source, items, folder, options)
        except InputError as error:  # about a table that will have been there only for a while
            places = {"items.parquet": f"{first} and {second}", "1": first, "2": second}
            places["scores.parquet"] = str(source or f"{first} and {second}")
            raise error.reworded({str(folder / part): words for part, words in places.items()}) from error


def _of_table(
    first: str, second: str, source: Path, items: Path | None, folder: Path, options: ImportOptions
) -> TwoModels:
    """The models by id or label, unique ends of ids included, of tables written by lm-validity or of result files."""
    places = [source / "scores.parquet", source / "tables" / "scores.parquet"] if source.is_dir() else [source]
    tables = (path for path in places if path.is_file() and path.suffix == ".parquet")
    scores = next((path for path in tables if table_kind(path) == "scores"), None)
    lines: tuple[str, ...] = ()
    if scores is None:
        gathered = _gathered(str(source), folder, options)
        _write_sheet_and_settings(folder, gathered.groups, gathered.settings)
        scores, items = folder / "scores.parquet", items or gathered.items
        lines = _left_out(gathered)
    items_beside, sheet, benchmarks = (
        path if (path := scores.with_name(name)).is_file() else None for name in ("items.parquet", MODELS, BENCHMARKS)
    )
    names = read_scores(scores)["model"].unique().tolist()
    facts = [] if sheet is None else read_model_facts(sheet)[["model", "label"]].itertuples(index=False)
    labels = dict[str, set[str]]()
    for model, label in (*facts, *((name, name.rsplit("/", 1)[-1]) for name in names)):
        if model in names and isinstance(label, str) and label != model:
            labels.setdefault(label, set()).add(model)
    first, second = (_named(text, names, labels, source) for text in (first, second))
    return TwoModels(first, second, Sources(scores, None, benchmarks, items or items_beside), lines)


def _gathered(name: str, folder: Path, options: ImportOptions) -> Gathered:
    """What result files or tables hold, imported into a folder. Raises InputError where there are no scores."""
    gathered = gather([name], folder, options)
    if gathered.scores is None:
        raise InputError(f"{name}: no scores.", "name result files, or a folder that holds them.")
    return gathered


def _write_sheet_and_settings(folder: Path, groups: Mapping[str, str], settings: pd.DataFrame | None) -> None:
    """The guessed sheet of benchmarks and the settings, beside the scores of a folder."""
    sheet = guess_benchmarks(read_scores(folder / "scores.parquet"), groups)
    sheet.to_csv(folder / BENCHMARKS, sep="\t", index=False)
    if settings is not None:
        write_table(settings, SETTINGS, folder / FILE)


def _left_out(gathered: Gathered) -> tuple[str, ...]:
    return tuple(line for line in gathered.lines if line.startswith(("No finite", "Left out", NO_ERRORS)))


def _named(text: str, names: Sequence[str], labels: Mapping[str, set[str]], source: Path) -> str:
    """The model that a reader means. Raises InputError where none or several are called so."""
    models = [text] if text in names else sorted(labels.get(text, ()))
    if len(models) == 1:
        return models[0]
    if models:
        raise InputError(f"{source}: {text!r} is the label of {listing(models)}.", "give one of these names.")
    hint = did_you_mean(text, [*names, *labels], f"models here are {listing(sorted(names), 6)}.")
    raise InputError(f"{source}: no score of the model {text!r}.", hint)


def _of_folders(first: str, second: str, folder: Path, options: ImportOptions) -> TwoModels:
    """The one model of each of two files or folders, which may have the same name in both."""
    gathered, models = list[Gathered](), list[str]()
    if os.path.realpath(first) == os.path.realpath(second):
        raise InputError(f"{first} and {second}: one place, where two models are compared.", "name two of them.")
    for subfolder, name in zip((folder / "1", folder / "2"), (first, second), strict=True):
        if not Path(name).exists():
            raise absent(name, "file or folder", "for two models of a page, name its folder: compare A B FOLDER.")
        subfolder.mkdir()
        gathered.append(_gathered(name, subfolder, options))
        names = gathered[-1].own_models
        if len(names) > 1:
            raise InputError(
                f"{name}: {count(len(names), 'model')} ({listing(names, 3)}), where one is compared.",
                f"name two of them: lm-validity compare {shlex.join([*names[:2], name])}",
            )
        models += names
    if models[0] == models[1]:
        models = [Path(name).name or name for name in (first, second)]
        models = [first, second] if models[0] == models[1] else models
    parts = list(zip(gathered, models, strict=True))
    frames = [
        part.scores.dropna(axis=1, how="all").assign(model=model) for part, model in parts if part.scores is not None
    ]
    scores, items = pd.concat(frames, ignore_index=True).reindex(columns=SCORES.names), None
    write_table(scores, SCORES, folder / "scores.parquet")
    if all(part.items for part in gathered):
        tables = [open_items(part.items).to_table().drop_columns(["model"]) for part in gathered if part.items]
        repeated = [pa.repeat(model, len(table)) for table, model in zip(tables, models, strict=True)]
        named = [table.append_column("model", column) for table, column in zip(tables, repeated, strict=True)]
        items = folder / "items.parquet"
        pq.write_table(pa.concat_tables(named, promote_options="default"), items)
    settings = [part.settings.assign(model=model) for part, model in parts if part.settings is not None]
    joined_groups = {**gathered[0].groups, **gathered[1].groups}
    _write_sheet_and_settings(folder, joined_groups, pd.concat(settings, ignore_index=True) if settings else None)
    sources = Sources(folder / "scores.parquet", None, folder / BENCHMARKS, items)
    return TwoModels(models[0], models[1], sources, tuple(line for part in gathered for line in _left_out(part)))


# ----------------------------------------------------------------------------------------------------------------------
# Margins.


def _margins(text: str | None) -> Margins:
    """A number, or the path of a sheet. Raises InputError for a margin that is no number of at least 0 and no sheet."""
    if text is None:
        return Margins()
    try:
        value = float(text)
    except ValueError:
        if not Path(text).is_file():
            raise InputError(
                f"--margin {text}: no number, and no sheet.", "for example --margin 0.01: one point of a share."
            ) from None
        rows = read_rows(text, AcceptedLoss)
        return Margins({name: Margin(row.margin, row.must) for name, row in rows.items()})
    if not 0 <= value < np.inf:
        raise InputError(f"--margin {text}: no margin.", "a margin is a loss that is accepted, from 0 up.")
    return Margins({}, Margin(value, must=False))


def _check_margins(text: str | None, margins: Margins, comparison: Comparison) -> None:
    """Raises InputError for a margin of a benchmark that is not compared, or that no loss exceeds."""
    compared = {row.benchmark for row in comparison.differences}
    for name in margins.by_benchmark:
        if name not in compared:
            raise InputError(
                f"{text}, column 'benchmark': {name!r} is not compared.",
                did_you_mean(name, compared, f"compared are {listing(sorted(compared))}."),
            )
    for row in comparison.differences:
        loss = margins.of(row.benchmark).loss
        if row.in_points and loss is not None and loss >= 1:
            raise InputError(
                f"--margin {text}: no loss on {row.benchmark} is greater than {loss:g}: its scores are fractions.",
                f"a margin of {loss:g} points is {loss / 100:g}; a sheet has one for each benchmark.",
            )


# ----------------------------------------------------------------------------------------------------------------------
# Items that changed, and the gate tried on a model against itself.


def _flips(sources: Sources, counted: Counted, comparison: Comparison) -> pd.DataFrame:
    """Items that one of the two alone gets right: `benchmark, protocol, doc_id, subject, right, first_answer,
    second_answer`; answers where they are known: the text written, or the number of the likeliest choice."""
    columns = ["benchmark", "protocol", "doc_id", "subject", "right", "first_answer", "second_answer"]
    paired = {(row.benchmark, row.protocol) for row in comparison.differences
              if row.paired is not None and row.paired.first_only is not None}  # fmt: skip
    if sources.items is None or not paired:
        return pd.DataFrame(columns=columns)
    frame = model_answers(sources.items, counted.rows, ["response", "choice_loglikelihoods"])
    frame = frame[[pair in paired for pair in zip(frame["benchmark"], frame["protocol"], strict=True)]]
    frame["answer"] = [
        text if isinstance(text, str) else _likeliest(values)
        for text, values in zip(frame["response"], frame["choice_loglikelihoods"], strict=True)
    ]
    key = ["benchmark", "protocol", "doc_id", "subject"]
    frame = frame.drop_duplicates(["model", *key], keep="last")
    first, second = (
        frame[frame["model"] == model].set_index(key)[["correct", "answer"]].add_prefix(side)
        for model, side in ((comparison.first, "first_"), (comparison.second, "second_"))
    )
    joined = first.join(second, how="inner").reset_index()
    joined = joined[joined["first_correct"] != joined["second_correct"]]
    is_first = joined["first_correct"] > joined["second_correct"]
    joined["right"] = np.where(is_first, comparison.first, comparison.second)
    return joined[columns].reset_index(drop=True)


def _likeliest(values: np.ndarray | None) -> str | None:
    """The choice of the greatest log-likelihood, by its number from 0."""
    return f"choice {int(np.argmax(values))}" if isinstance(values, np.ndarray) and len(values) else None


def _self_check(models: Sequence[str], sources: Sources, margins: Margins, unlike: Unlike) -> str:
    """How often this gate calls a model worse than itself, over the ordered pairs of its runs, by the same tests."""
    scores, lines = read_scores(sources.scores), []
    for model in models:
        of_model = scores[(scores["model"] == model) & scores["run"].notna()]
        runs = sorted(of_model["run"].unique())
        if len(runs) < 2:
            lines.append(f"{model} has one run, so the gate cannot be tried on it.")
            continue
        answers = None
        if sources.items is not None:
            answers = open_items(sources.items).to_table(filter=pc.field("model") == model).to_pandas()
        worse = 0
        with tempfile.TemporaryDirectory() as name:
            for number_of, of_run in enumerate(permutations(runs, 2)):
                folder = Path(name) / str(number_of)
                folder.mkdir()
                _of_runs(of_model, of_run).pipe(write_table, SCORES, folder / "scores.parquet")
                if answers is not None:
                    _of_runs(answers, of_run).pipe(write_table, ITEMS, folder / "items.parquet")
                counted = count_scores(Sources(folder / "scores.parquet", None, sources.benchmarks), unlike=unlike)
                items = None if answers is None else folder / "items.parquet"
                at_end = counted.at_common_point(None, or_last=True)[0]
                comparison = items_compare.compare_counted(("first run", "second run"), at_end, items, "kept")
                worse += items_compare.gate(items_compare.judged(comparison, margins)) == "worse"
        pairs = len(runs) * (len(runs) - 1)
        lines.append(f"The gate calls {model} worse than itself in {worse} of {pairs} pairs of runs.")
    return " ".join(lines)


def _of_runs(rows: pd.DataFrame, runs: tuple[int, int]) -> pd.DataFrame:
    """The rows of two runs, as those of two models."""
    names = ("first run", "second run")
    parts = [rows[rows["run"] == run].assign(model=name, run=None) for name, run in zip(names, runs, strict=True)]
    return pd.concat(parts, ignore_index=True)


# ----------------------------------------------------------------------------------------------------------------------
# What is written: lines for a terminal, a page, Markdown and JUnit.


def terminal_lines(compared: Compared) -> list[str]:
    """What the terminal says of a comparison, in at most `MOST_LINES` lines."""
    comparison = compared.comparison
    first, second = items_compare.short_names(comparison.first, comparison.second)
    names = {row.benchmark for row in comparison.differences}
    paired = len({row.benchmark for row in comparison.differences if row.paired is not None})
    under = " under two protocols" if len(comparison.protocols) > 1 else ""
    lines = [f"{second} against {first}: {count(len(names), 'benchmark')}{under}, {paired} compared item by item."]
    lines += compared.notes[:MOST_NOTES]
    if (further := len(compared.notes) - MOST_NOTES) > 0:
        lines.append(f"{count(further, 'more note')} on the page (--output).")
    lines += [f"{compared.place(judgement)}: {verdict_words(judgement)}." for judgement in compared.together]
    single = [judgement for judgement in compared.judgements if judgement.benchmark is not None]
    if worse := [str(judgement.benchmark) for judgement in single if judgement.verdict.decision == "worse"]:
        lines.append(f"Worse on at least one, after Holm: {listing(list(dict.fromkeys(worse)), 4)}.")
    if compared.self_check is not None:
        lines.append(compared.self_check)
    room, ordered = MOST_LINES - len(lines) - 2, sorted(single, key=_interest)
    listed = ordered if len(ordered) <= room else ordered[: room - 1]
    for judgement in listed:
        decides = f"; {words} would decide" if (words := to_decide(judgement)) else ""
        lines.append(f"  {compared.place(judgement)}: {verdict_words(judgement)}{decides}")
    if len(listed) < len(ordered):
        lines.append(f"  {len(ordered) - len(listed)} more are on the page (--output).")
    return lines


def _interest(judgement: Judged) -> tuple[bool, float, float]:
    """What is worse comes first, then the surest differences."""
    verdict = judgement.verdict
    is_tested = is_known(verdict.p) and is_known(verdict.change)
    size = -abs(number(verdict.change)) if is_tested else 0.0
    return verdict.decision != "worse", number(verdict.p) if is_tested else 2.0, size


def report_comparison(sources: Sources, output: Path, *, first: str, second: str, mix_versions: bool) -> None:
    """The page of the two models of a site, whose scores, sheets and settings lie together."""
    request = Comparing(mix_versions=mix_versions, for_report=True, for_page=True)
    items = None if sources.items is None else Path(sources.items)
    write_page(compare(first, second, Path(sources.scores), request, items), output)


def write_page(compared: Compared, output: Path) -> None:
    """The page of the comparison with its rows, and all items that changed."""
    comparison, flips = compared.comparison, compared.flips
    parts = compared.judgements, compared.rows, compared.notes, flips, compared.point or ""
    page = items_compare.comparison_page(comparison, *parts)
    write_rows(page, compared.rows, output)
    if len(flips) > items_compare.MOST_FLIPS:
        flips.to_csv(output / "tables" / "flipped_items.csv", index=False)


def write_for_pipeline(compared: Compared, template: str, path: Path) -> None:
    """What a pipeline shows, by its template: `compare.md.j2` is a comment for a pull request, `junit.xml.j2` has a
    test case for each benchmark and one for all together: worse is a failure, not known is skipped."""
    decisions = [judgement.verdict.decision for judgement in compared.judgements]
    words = {"verdict_words": verdict_words, "to_decide": to_decide, "mark": MARK}
    write_text(path, from_template(template, compared=compared, decisions=decisions, **words))
