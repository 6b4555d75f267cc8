"""`lm-validity compare A B`: from folders, files or labels to a verdict that can stop a pipeline.

What is compared is like with like: the same point of training, the same version and part of each benchmark. What
differs otherwise is said. A gate ends with 0, 1 or 3 (`EXIT_CODES`).
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from markupsafe import Markup

from lm_validity.config.rows import read_rows
from lm_validity.config.sheets import AcceptedLoss
from lm_validity.errors import InputError, did_you_mean
from lm_validity.files import write_text
from lm_validity.missing import Missing, is_known, number
from lm_validity.pages import svg
from lm_validity.pages.page import Answer, Page, Section, Table
from lm_validity.results.files import write_report
from lm_validity.site.gather import BENCHMARKS, MODELS, gather
from lm_validity.site.guess import guess_benchmarks
from lm_validity.studies.items.answers import model_answers
from lm_validity.studies.items.compare.numbers import (
    CompareSummary,
    Joint,
    Judged,
    Margin,
    along_training,
    compare_counted,
    compare_models,
    gate,
    judged,
)
from lm_validity.studies.items.compare.page import comparison_page, short_names, to_decide, verdict_words
from lm_validity.tables.counted import Counted, count_scores
from lm_validity.tables.formats.score_files import ImportOptions
from lm_validity.tables.items import open_items
from lm_validity.tables.schema import SCORES, SETTINGS, read_scores, write_table
from lm_validity.tables.settings import FILE, Unlike, difference_notes
from lm_validity.tables.sheets import read_model_facts
from lm_validity.words import count, decimal, listing

EXIT_CODES = {"not worse": 0, "worse": 1, "not known": 3}
MOST_LINES = 12
MOST_FLIPS = 1000  # on the page; the CSV has all


@dataclass(frozen=True)
class Comparing:
    """What a reader asks for. at: `final`, billions of tokens, or null: the last point that both have. margin: a number
    or the path of a sheet (`benchmark`, `margin`, `must`). for_report: unlike versions stay out instead of being
    refused, and models without a common point of training are compared at their ends. for_page: the difference along
    training too."""

    at: str | None = None
    margin: str | None = None
    mix_versions: bool = False
    self_check: bool = False
    benchmarks: Path | None = None
    for_report: bool = False
    for_page: bool = False

    @property
    def unlike(self) -> Unlike:
        """What becomes of unlike versions and parts of a benchmark."""
        return "kept" if self.mix_versions else "out" if self.for_report else "refused"


@dataclass(frozen=True)
class Compared:
    """A comparison with its verdicts. said: what comes first: the point of training, and settings that differ. flips:
    the items that one model alone gets right."""

    summary: CompareSummary
    said: tuple[str, ...]
    flips: pd.DataFrame
    self_check: str = ""

    @property
    def decision(self) -> str:
        """Of the gate: not worse, worse or not known."""
        return gate(self.summary)


@dataclass(frozen=True)
class _Sources:
    """Two models of one table of scores, with what lies beside it. folder: of what is there for a while only."""

    first: str
    second: str
    folder: Path
    scores: Path
    items: Path | None = None
    benchmarks: Path | None = None
    lines: tuple[str, ...] = field(default=())


# ----------------------------------------------------------------------------------------------------------------------
# What is compared: labels in a table, or two folders.


MARK = "written by lm-validity compare"  # in a file for a pull request, which the command may then replace


def compare(first: str, second: str, source: Path | None, request: Comparing, items: Path | None = None) -> Compared:
    """Compare two models: names of `source` (scores.parquet, or a folder that holds it), or without one two files or
    folders of result files. Raises InputError as `gather` and `compare_models`, and for a bad margin or point."""
    with _sources(first, second, source, items) as sources:
        sources = replace(sources, benchmarks=request.benchmarks or sources.benchmarks)
        margins, everywhere = _margins(request.margin)
        models = (sources.first, sources.second)
        counted = count_scores(sources.scores, None, sources.benchmarks, only=models, unlike=request.unlike)
        counted_there, point_lines = counted.at_common_point(request.at, or_last=request.for_report)
        lines = [
            *sources.lines,
            *counted.kept_out,
            *difference_notes(counted_there.differing, len(counted_there.benchmarks)),
            *point_lines,
        ]
        summary = compare_counted(*models, counted_there, sources.items, unlike=request.unlike)
        benchmarks_compared = {row.benchmark for row in summary.comparisons}
        for name in margins:
            if name not in benchmarks_compared:
                raise InputError(
                    f"{request.margin}, column 'benchmark': {name!r} is not compared.",
                    did_you_mean(name, benchmarks_compared, f"compared are {listing(sorted(benchmarks_compared))}."),
                )
        curve = along_training(*models, counted, sources.items) if request.for_page else ()
        summary = replace(judged(summary, margins, everywhere), along_training=curve)
        check = _self_check(sources, margins, everywhere) if request.self_check else ""
        return Compared(summary, tuple(lines), _flips(sources, counted_there, summary), check)


@contextmanager
def _sources(first: str, second: str, source: Path | None, items: Path | None) -> Iterator[_Sources]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            yield (
                _of_folders(first, second, folder)
                if source is None
                else _of_table(first, second, source, items, folder)
            )
        except InputError as error:  # about a table that will have been there only for a while
            source_name = str(source or f"{first} and {second}")
            places = {
                str(folder / "items.parquet"): f"{first} and {second}",
                str(folder / "1"): first,
                str(folder / "2"): second,
                str(folder / "scores.parquet"): source_name,
            }
            problem, hint = error.problem, error.hint
            for path, words in places.items():
                problem, hint = problem.replace(path, words), hint.replace(path, words)
            raise InputError(problem, hint) from error


def _of_table(first: str, second: str, source: Path, items: Path | None, folder: Path) -> _Sources:
    """The models by id or label, unique ends of ids included."""
    places = [source] if source.is_file() else [source / "scores.parquet", source / "tables" / "scores.parquet"]
    scores = next((scores_path for scores_path in places if scores_path.is_file()), None)
    if scores is None:
        raise InputError(
            f"{source}: no scores.parquet here.", "name the folder of a page, or leave it out and name two folders."
        )
    beside = scores.with_name("items.parquet")
    sheet, benchmarks_path = scores.with_name(MODELS), scores.with_name(BENCHMARKS)
    names = read_scores(scores)["model"].unique().tolist()
    labels = dict[str, list[str]]()
    if sheet.is_file():
        for model, label in read_model_facts(sheet)[["model", "label"]].itertuples(index=False):
            if model in names and isinstance(label, str):
                labels.setdefault(label, []).append(model)
    for name in names:
        if (short := name.rsplit("/", 1)[-1]) != name:
            labels.setdefault(short, []).append(name)
    return _Sources(
        _named(first, names, labels, source),
        _named(second, names, labels, source),
        folder,
        scores,
        items or (beside if beside.is_file() else None),
        benchmarks_path if benchmarks_path.is_file() else None,
    )


def _named(text: str, names: Sequence[str], labels: dict[str, list[str]], source: Path) -> str:
    """The model that a reader means. Raises InputError where none or several are called so."""
    if text in names:
        return text
    models = sorted(set(labels.get(text, ())))
    if len(models) == 1:
        return models[0]
    if models:
        raise InputError(f"{source}: {text!r} is the label of {listing(models)}.", "give one of these names.")
    hint = did_you_mean(text, [*names, *labels], f"models here are {listing(sorted(names), 6)}.")
    raise InputError(f"{source}: no score of the model {text!r}.", hint)


def _of_folders(first: str, second: str, folder: Path) -> _Sources:
    """The one model of each of two files or folders, which may have the same name in both."""
    gathered, models = [], []
    for index, name in enumerate((first, second)):
        if not Path(name).exists():
            raise InputError(
                f"{name}: no file or folder.", "for two models of a page, name its folder: compare A B FOLDER."
            )
        subfolder = folder / str(index + 1)
        subfolder.mkdir()
        imported = gather([name], subfolder, ImportOptions())
        if imported.scores is None:
            raise InputError(f"{name}: no scores.", "name result files, or a folder that holds them.")
        of_models = sorted(imported.scores["model"].unique())
        if len(of_models) > 1:
            raise InputError(
                f"{name}: {count(len(of_models), 'model')} ({listing(of_models, 3)}), where one is compared.",
                f"name two of them: lm-validity compare {of_models[0]} {of_models[1]} {name}",
            )
        gathered.append(imported)
        models += of_models
    if models[0] == models[1]:
        models = [f"{Path(name).name or name}" for name in (first, second)]
        models = [first, second] if models[0] == models[1] else models
    frames = [imported.scores.assign(model=model) for imported, model in zip(gathered, models, strict=True)]  # type: ignore[union-attr]
    scores = pd.concat([frame.dropna(axis=1, how="all") for frame in frames], ignore_index=True)
    write_table(scores.reindex(columns=SCORES.names), SCORES, folder / "scores.parquet")
    sheet = guess_benchmarks(read_scores(folder / "scores.parquet"), {**gathered[0].groups, **gathered[1].groups})
    sheet.to_csv(folder / BENCHMARKS, sep="\t", index=False)
    items = [imported.items for imported in gathered]
    joined = None
    if all(items):
        tables = [
            open_items(path).to_table().drop_columns(["model"]).append_column("model", pa.array([model] * rows))
            for path, model, rows in (
                (p, m, open_items(p).count_rows()) for p, m in zip(items, models, strict=True) if p
            )
        ]
        joined = folder / "items.parquet"
        pq.write_table(pa.concat_tables(tables, promote_options="default"), joined)
    settings = [
        imported.settings.assign(model=model)
        for imported, model in zip(gathered, models, strict=True)
        if imported.settings is not None
    ]
    if settings:
        write_table(pd.concat(settings, ignore_index=True), SETTINGS, folder / FILE)
    lines = [line for imported in gathered for line in imported.lines if line.startswith(("No finite", "Left out"))]
    return _Sources(
        models[0],
        models[1],
        folder,
        folder / "scores.parquet",
        joined,
        folder / BENCHMARKS,
        tuple(lines),
    )


# ----------------------------------------------------------------------------------------------------------------------
# Margins.


def _margins(text: str | None) -> tuple[dict[str, Margin], Margin]:
    """By benchmark, and elsewhere. Raises InputError for a margin that is no number of at least 0 and no sheet."""
    if text is None:
        return {}, Margin()
    try:
        value = float(text)
    except ValueError:
        if not Path(text).is_file():
            raise InputError(
                f"--margin {text}: no number, and no sheet.", "for example --margin 0.01: one point of a share."
            ) from None
        rows = read_rows(text, AcceptedLoss)
        return {name: Margin(row.margin, row.must) for name, row in rows.items()}, Margin()
    if not 0 <= value < np.inf:
        raise InputError(f"--margin {text}: no margin.", "a margin is a loss that is accepted, from 0 up.")
    return {}, Margin(value)


# ----------------------------------------------------------------------------------------------------------------------
# Items that changed, and the gate tried on a model against itself.


def _flips(sources: _Sources, counted: Counted, summary: CompareSummary) -> pd.DataFrame:
    """Items that one of the two alone gets right: `benchmark, protocol, doc_id, subject, right, first_answer,
    second_answer`; answers where they are known: the text written, or the number of the likeliest choice."""
    columns = ["benchmark", "protocol", "doc_id", "subject", "right", "first_answer", "second_answer"]
    paired = {(row.benchmark, row.protocol) for row in summary.comparisons if row.first_only is not None}
    if sources.items is None or not paired:
        return pd.DataFrame(columns=columns)
    frame = model_answers(sources.items, counted.rows, ["response", "choice_loglikelihoods"])
    frame = frame[[pair in paired for pair in zip(frame["benchmark"], frame["protocol"], strict=True)]]
    frame["answer"] = [
        text if isinstance(text, str) else _likeliest(values)
        for text, values in zip(frame["response"], frame["choice_loglikelihoods"], strict=True)
    ]
    key = ["benchmark", "protocol", "doc_id", "subject"]
    first_rows, second_rows = (
        frame[frame["model"] == model]
        .drop_duplicates(key, keep="last")
        .set_index(key)[["correct", "answer"]]
        .add_suffix(end)
        for model, end in ((sources.first, "_first"), (sources.second, "_second"))
    )
    joined = first_rows.join(second_rows, how="inner").reset_index()
    joined = joined[joined["correct_first"] != joined["correct_second"]]
    joined["right"] = np.where(joined["correct_first"] > joined["correct_second"], sources.first, sources.second)
    joined = joined.rename(columns={"answer_first": "first_answer", "answer_second": "second_answer"})
    return joined[columns].reset_index(drop=True)


def _likeliest(values: np.ndarray | None) -> str | None:
    """The choice of the greatest log-likelihood, by its number from 0."""
    return f"choice {int(np.argmax(values))}" if isinstance(values, np.ndarray) and len(values) else None


def _self_check(sources: _Sources, margins: dict[str, Margin], everywhere: Margin) -> str:
    """How often this gate calls a model worse than itself, over the ordered pairs of its runs."""
    scores = read_scores(sources.scores)
    lines = []
    for model in (sources.first, sources.second):
        rows_of_model = scores[(scores["model"] == model) & scores["run"].notna()]
        runs = sorted(rows_of_model["run"].unique())
        if len(runs) < 2:
            lines.append(f"{model} has one run, so the gate cannot be tried on it.")
            continue
        worse, pairs = 0, 0
        with tempfile.TemporaryDirectory() as name:
            for first_run in runs:
                for second_run in (run for run in runs if run != first_run):
                    path = Path(name) / "scores.parquet"
                    parts = [
                        rows_of_model[rows_of_model["run"] == run].assign(model=f"run {run}", run=None)
                        for run in (first_run, second_run)
                    ]
                    write_table(pd.concat(parts), SCORES, path)
                    of_runs = compare_models(f"run {first_run}", f"run {second_run}", path, None, sources.benchmarks)
                    worse += gate(judged(of_runs, margins, everywhere)) == "worse"
                    pairs += 1
        lines.append(f"The gate calls {model} worse than itself in {worse} of {pairs} pairs of runs.")
    return " ".join(lines)


# ----------------------------------------------------------------------------------------------------------------------
# What is written: lines for a terminal, a page, Markdown and JUnit.


def terminal_lines(compared: Compared) -> list[str]:
    """What the terminal says of a comparison, in at most `MOST_LINES` lines."""
    summary = compared.summary
    first, second = short_names(summary.first, summary.second)
    paired = sum(is_known(row.items) for row in summary.comparisons)
    lines = [
        f"{second} against {first}: {count(len(summary.comparisons), 'benchmark')}, {paired} compared item by item."
    ]
    lines += compared.said[:3]
    lines += [f"All together{_of_all(summary, judged)}: {verdict_words(judged)}." for judged in summary.joint]
    worse = [judged.benchmark for judged in summary.verdicts if judged.verdict == "worse"]
    if worse:
        lines.append(f"Worse on at least one, after Holm: {listing(worse, 4)}.")
    if compared.self_check:
        lines.append(compared.self_check)
    room = MOST_LINES - len(lines) - 2
    ordered = sorted(summary.verdicts, key=_interest)
    lines_shown = ordered if len(ordered) <= room else ordered[: room - 1]
    lines += [
        f"  {judged.benchmark}{_under(summary, judged.protocol)}: {verdict_words(judged)}{_to_decide(judged)}"
        for judged in lines_shown
    ]
    if len(lines_shown) < len(ordered):
        lines.append(f"  {len(ordered) - len(lines_shown)} more are on the page (--output).")
    return lines


def _interest(judged: Judged) -> tuple[bool, float, float]:
    """What is worse comes first, then the surest differences."""
    is_tested = is_known(judged.p) and is_known(judged.change)
    return (
        judged.verdict != "worse",
        number(judged.p) if is_tested else 2.0,
        -abs(number(judged.change)) if is_tested else 0.0,
    )


def _under(summary: CompareSummary, protocol: str) -> str:
    return f", {protocol.replace('_', ' ')}" if len(summary.by_protocol) > 1 else ""


def _of_all(summary: CompareSummary, joint: Joint) -> str:
    """On how many of the benchmarks, where the others are in other units or untested."""
    all_rows = len(summary.by_protocol[joint.protocol])
    part = f", on {joint.of} of {count(all_rows, 'benchmark')}" if joint.of is not None and joint.of < all_rows else ""
    return f"{_under(summary, joint.protocol)}{part}"


def _to_decide(judged: Judged) -> str:
    items_words = to_decide(judged)
    return f"; {items_words} would decide" if items_words else ""


def report_comparison(
    scores: Path, output: Path, *, first: str, second: str, items: Path | None, mix_versions: bool
) -> None:
    """The page of the two models of a site, whose scores, sheets and settings lie together."""
    request = Comparing(mix_versions=mix_versions, for_report=True, for_page=True)
    compared = compare(first, second, scores, request, items)
    write_page(compared, output, [_site_answer(compared.summary)])


def _site_answer(summary: CompareSummary) -> Answer:
    """Whether the second model is better, on all benchmarks together, for the first page of a site."""
    first, second = short_names(summary.first, summary.second)
    joint = summary.joint[0]
    own_rows = [
        verdict
        for verdict in summary.verdicts
        if verdict.protocol == joint.protocol and verdict.share == joint.share and is_known(verdict.change)
    ]
    rows = [
        (verdict.benchmark, number(verdict.change), verdict.interval if isinstance(verdict.interval, tuple) else None)
        for verdict in sorted(own_rows, key=lambda verdict: -abs(number(verdict.change)))[:7]
    ]
    question, link = f"Is {second} better than {first}?", "Every benchmark"
    if isinstance(joint.change, Missing) or not isinstance(joint.interval, tuple):
        where = f"on each of {count(len(own_rows), 'benchmark')}"
        words = {"better": f"Yes, {where}.", "worse": f"No, it is worse {where}."}.get(joint.verdict, "Not known.")
        reason = joint.change.reason if isinstance(joint.change, Missing) else ""
        return Answer(question, f"{words} {reason}".strip(), Markup(""), link=link)

    def written(value: float) -> str:
        return svg.points(value, 1, signed=True) if joint.share else decimal(value, 3, signed=True)

    change = f"{written(joint.change)}{' points' if joint.share else ''} on average"
    words = {"better": f"Yes: {change}", "worse": f"No, it is worse: {change}"}.get(
        joint.verdict, f"Not known: {change}"
    )
    ends = [0.0, *(end for _, change, interval in rows for end in (change, *(interval or ())))]
    ticks = svg.round_values(min(ends), max(ends), 4)
    labels = svg.written_points(ticks) if joint.share else [f"{tick:g}" for tick in ticks]
    description = "; ".join(f"{name} {written(value)}" for name, value, _ in rows)
    return Answer(
        question,
        f"{words}.",
        svg.named_rows(f"{second} less {first}: {description}.", rows, ticks, labels, dashed=0.0),
        interval=f"95%: {' to '.join(map(written, joint.interval))}",
        basis="Mean over "
        f"{count(len(own_rows), 'benchmark')}{_under(summary, joint.protocol)}, for these benchmarks only.",
        link=link,
    )


def write_page(compared: Compared, output: Path, answers: Sequence[Answer] = ()) -> None:
    """The page of the comparison, with the verdicts and the items that changed; `answers`: for a site."""
    summary = compared.summary
    page = replace(comparison_page(summary), answers=answers)
    verdict_rows = pd.DataFrame(
        [
            {
                "benchmark": judged.benchmark if isinstance(judged, Judged) else "all together",
                "protocol": judged.protocol,
                "verdict": judged.verdict,
                "in words": verdict_words(judged),
                "would decide": to_decide(judged).rstrip(",") if isinstance(judged, Judged) else "",
            }
            for judged in [*summary.joint, *summary.verdicts]
        ]
    )
    sections = [
        Section(
            f"Is {summary.second} worse?",
            explanation="Better, worse: after Holm over the benchmarks, 5%. Not worse: the 95% interval's lower end is "
            "above minus the margin, after Holm over the benchmarks that have a margin. All together: the mean "
            "difference, for these benchmarks only.",
            tables=[Table("verdicts", "Verdicts", verdict_rows)],
        )
    ]
    if len(compared.flips):
        is_cut = len(compared.flips) > MOST_FLIPS
        caption = f"The first {MOST_FLIPS} of {len(compared.flips)}." if is_cut else ""
        labels = {"first_answer": summary.first, "second_answer": summary.second, "right": "right with"}
        table = Table("flipped_items", "Items", compared.flips.head(MOST_FLIPS), labels=labels, caption=caption)
        sections.append(Section("Items that one of the two alone gets right", tables=[table]))
    page = _with(page, sections, compared.said)
    write_report(page, summary, output)
    if len(compared.flips) > MOST_FLIPS:
        compared.flips.to_csv(output / "tables" / "flipped_items.csv", index=False)


def _with(page: Page, sections: list[Section], notes: Sequence[str]) -> Page:
    return replace(page, sections=[*sections, *page.sections], notes=[*notes, *page.notes])


def write_markdown(compared: Compared, path: Path) -> None:
    """A comment for a pull request: the verdict, what differs, and a table."""
    summary = compared.summary
    lines = [f"### {summary.second} against {summary.first}: {compared.decision}", ""]
    lines += [
        f"All together{_of_all(summary, verdict_row)}: **{verdict_words(verdict_row)}**."
        for verdict_row in summary.joint
    ]
    lines += ["", *(f"- {line}" for line in compared.said)] if compared.said else []
    lines += ["", "| benchmark | verdict | would decide |", "|---|---|---|"]
    for verdict_row in summary.verdicts:
        name = verdict_row.benchmark.replace("|", "\\|") + _under(summary, verdict_row.protocol)
        lines.append(f"| {name} | {verdict_words(verdict_row)} | {to_decide(verdict_row).rstrip(',')} |")
    if len(compared.flips):
        won = int((compared.flips["right"] == summary.second).sum())
        lines += [
            "",
            f"Items right with {summary.second} alone: {won}; with {summary.first} alone: {len(compared.flips) - won}.",
        ]
    write_text(path, "\n".join([f"<!-- {MARK} -->", *lines, ""]))


def write_junit(compared: Compared, path: Path) -> None:
    """A test case for each benchmark and one for all together: worse is a failure, not known is skipped."""
    summary = compared.summary
    cases = [
        (verdict_row.benchmark if isinstance(verdict_row, Judged) else "all together", verdict_row)
        for verdict_row in [*summary.joint, *summary.verdicts]
    ]
    counts = {
        kind: str(sum(verdict_row.verdict == kind for _, verdict_row in cases)) for kind in ("worse", "not known")
    }
    suite = ElementTree.Element(
        "testsuite",
        name=f"{summary.second} against {summary.first}",
        tests=str(len(cases)),
        failures=counts["worse"],
        skipped=counts["not known"],
    )
    for name, verdict_row in cases:
        case = ElementTree.SubElement(suite, "testcase", classname=verdict_row.protocol, name=name)
        if verdict_row.verdict == "worse":
            ElementTree.SubElement(case, "failure", message=verdict_words(verdict_row))
        elif verdict_row.verdict == "not known":
            ElementTree.SubElement(case, "skipped", message=verdict_words(verdict_row))
    suite.insert(0, ElementTree.Comment(f" {MARK} "))
    ElementTree.indent(suite)
    write_text(path, ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n")
