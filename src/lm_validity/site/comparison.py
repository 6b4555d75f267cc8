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

from lm_validity.errors import InputError, did_you_mean
from lm_validity.files import write_text
from lm_validity.missing import Missing, is_known, number
from lm_validity.pages import svg
from lm_validity.pages.page import Answer, Page, Section, Table
from lm_validity.results import write_report
from lm_validity.site.gather import BENCHMARKS, MODELS, gather
from lm_validity.site.guess import guess_benchmarks
from lm_validity.studies.items.compare import (
    CompareSummary,
    Joint,
    Judged,
    Margin,
    along_training,
    compare_counted,
    compare_models,
    comparison_page,
    gate,
    judged,
    short_names,
    to_decide,
    verdict_words,
)
from lm_validity.studies.items.item_report import model_answers
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
    refused, and models without a common point of training are compared at their ends."""

    at: str | None = None
    margin: str | None = None
    mix_versions: bool = False
    self_check: bool = False
    benchmarks: Path | None = None
    for_report: bool = False

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


def compare(first: str, second: str, source: Path | None, asked: Comparing, items: Path | None = None) -> Compared:
    """Compare two models: names of `source` (scores.parquet, or a folder that holds it), or without one two files or
    folders of result files. Raises InputError as `gather` and `compare_models`, and for a bad margin or point."""
    with _sources(first, second, source, items) as found:
        found = replace(found, benchmarks=asked.benchmarks or found.benchmarks)
        margins, everywhere = _margins(asked.margin)
        models = (found.first, found.second)
        counted = count_scores(found.scores, None, found.benchmarks, only=models, unlike=asked.unlike)
        here, at = counted.at_common_point(asked.at, or_last=asked.for_report)
        said = [*found.lines, *counted.kept_out, *difference_notes(here.differing, len(here.benchmarks)), *at]
        summary = compare_counted(*models, here, found.items)
        known = {row.benchmark for row in summary.comparisons}
        for row, name in enumerate(margins):
            if name not in known:
                raise InputError(
                    f"{asked.margin}, row {row}, column 'benchmark': {name!r} is not compared.",
                    did_you_mean(name, known, f"compared are {listing(sorted(known))}."),
                )
        curve = along_training(*models, counted, found.items)
        summary = replace(judged(summary, margins, everywhere), along_training=curve)
        check = _self_check(found, margins, everywhere) if asked.self_check else ""
        return Compared(summary, tuple(said), _flips(found, here, summary), check)


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
            here = str(source or f"{first} and {second}")
            places = {str(folder / "1"): first, str(folder / "2"): second, str(folder / "scores.parquet"): here}
            problem, hint = error.problem, error.hint
            for place, words in places.items():
                problem, hint = problem.replace(place, words), hint.replace(place, words)
            raise InputError(problem, hint) from error


def _of_table(first: str, second: str, source: Path, items: Path | None, folder: Path) -> _Sources:
    """The models by id or label, unique ends of ids included."""
    places = [source] if source.is_file() else [source / "scores.parquet", source / "tables" / "scores.parquet"]
    scores = next((place for place in places if place.is_file()), None)
    if scores is None:
        raise InputError(
            f"{source}: no scores.parquet here.", "name the folder of a page, or leave it out and name two folders."
        )
    beside = scores.with_name("items.parquet")
    sheet, own = scores.with_name(MODELS), scores.with_name(BENCHMARKS)
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
        own if own.is_file() else None,
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
    for place, name in enumerate((first, second)):
        if not Path(name).exists():
            raise InputError(
                f"{name}: no file or folder.", "for two models of a page, name its folder: compare A B FOLDER."
            )
        own = folder / str(place + 1)
        own.mkdir()
        found = gather([name], own, ImportOptions())
        if found.scores is None:
            raise InputError(f"{name}: no scores.", "name result files, or a folder that holds them.")
        of_models = sorted(found.scores["model"].unique())
        if len(of_models) > 1:
            raise InputError(
                f"{name}: {count(len(of_models), 'model')} ({listing(of_models, 3)}), where one is compared.",
                f"name two of them: lm-validity compare {of_models[0]} {of_models[1]} {name}",
            )
        gathered.append(found)
        models += of_models
    if models[0] == models[1]:
        models = [f"{Path(name).name or name}" for name in (first, second)]
        models = [first, second] if models[0] == models[1] else models
    frames = [found.scores.assign(model=model) for found, model in zip(gathered, models, strict=True)]  # type: ignore[union-attr]
    scores = pd.concat([frame.dropna(axis=1, how="all") for frame in frames], ignore_index=True)
    write_table(scores.reindex(columns=SCORES.names), SCORES, folder / "scores.parquet")
    sheet = guess_benchmarks(read_scores(folder / "scores.parquet"), {**gathered[0].groups, **gathered[1].groups})
    sheet.to_csv(folder / BENCHMARKS, sep="\t", index=False)
    items = [found.items for found in gathered]
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
        found.settings.assign(model=model)
        for found, model in zip(gathered, models, strict=True)
        if found.settings is not None
    ]
    if settings:
        write_table(pd.concat(settings, ignore_index=True), SETTINGS, folder / FILE)
    lines = [line for found in gathered for line in found.lines if line.startswith(("No finite", "Left out"))]
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
        return _margin_sheet(Path(text)), Margin()
    return {}, Margin(_checked_margin(value, f"--margin {text}"))


def _margin_sheet(path: Path) -> dict[str, Margin]:
    sheet = pd.read_csv(path, sep=None, engine="python", dtype=str, keep_default_na=False)
    if lacking := {"benchmark", "margin"} - set(sheet):
        raise InputError(f"{path}: no column {sorted(lacking)[0]!r}.", "its columns are benchmark, margin and must.")
    margins = {}
    for row, name in enumerate(sheet["benchmark"]):
        where = f"{path}, row {row}, column 'margin'"
        text = sheet["margin"][row].strip()
        try:
            loss = _checked_margin(float(text), where) if text else None
        except ValueError:
            raise InputError(f"{where}: {text!r} is no number.", "a share such as 0.01, or empty.") from None
        must = "must" in sheet and sheet["must"][row].strip().lower() in ("1", "true", "yes")
        margins[name] = Margin(loss, must)
    return margins


def _checked_margin(value: float, where: str) -> float:
    if not 0 <= value < np.inf:
        raise InputError(f"{where}: {value:g} is no margin.", "a margin is a loss that is accepted, from 0 up.")
    return value


# ----------------------------------------------------------------------------------------------------------------------
# Items that changed, and the gate tried on a model against itself.


def _flips(found: _Sources, counted: Counted, summary: CompareSummary) -> pd.DataFrame:
    """Items that one of the two alone gets right: `benchmark, protocol, doc_id, subject, right, first_answer,
    second_answer`; answers where they are known: the text written, or the number of the likeliest choice."""
    columns = ["benchmark", "protocol", "doc_id", "subject", "right", "first_answer", "second_answer"]
    paired = {(row.benchmark, row.protocol) for row in summary.comparisons if row.first_only is not None}
    if found.items is None or not paired:
        return pd.DataFrame(columns=columns)
    frame = model_answers(found.items, counted.rows, ["response", "choice_loglikelihoods"])
    frame = frame[[pair in paired for pair in zip(frame["benchmark"], frame["protocol"], strict=True)]]
    frame["answer"] = [
        text if isinstance(text, str) else _likeliest(values)
        for text, values in zip(frame["response"], frame["choice_loglikelihoods"], strict=True)
    ]
    key = ["benchmark", "protocol", "doc_id", "subject"]
    one, other = (
        frame[frame["model"] == model]
        .drop_duplicates(key, keep="last")
        .set_index(key)[["correct", "answer"]]
        .add_suffix(end)
        for model, end in ((found.first, "_first"), (found.second, "_second"))
    )
    both = one.join(other, how="inner").reset_index()
    both = both[both["correct_first"] != both["correct_second"]]
    both["right"] = np.where(both["correct_first"] > both["correct_second"], found.first, found.second)
    both = both.rename(columns={"answer_first": "first_answer", "answer_second": "second_answer"})
    return both[columns].reset_index(drop=True)


def _likeliest(values: np.ndarray | None) -> str | None:
    """The choice of the greatest log-likelihood, by its number from 0."""
    return f"choice {int(np.argmax(values))}" if isinstance(values, np.ndarray) and len(values) else None


def _self_check(found: _Sources, margins: dict[str, Margin], everywhere: Margin) -> str:
    """How often this gate calls a model worse than itself, over the ordered pairs of its runs."""
    scores = read_scores(found.scores)
    lines = []
    for model in (found.first, found.second):
        own = scores[(scores["model"] == model) & scores["run"].notna()]
        runs = sorted(own["run"].unique())
        if len(runs) < 2:
            lines.append(f"{model} has one run, so that the gate cannot be tried on it.")
            continue
        worse, pairs = 0, 0
        with tempfile.TemporaryDirectory() as name:
            for one in runs:
                for other in (run for run in runs if run != one):
                    path = Path(name) / "scores.parquet"
                    parts = [own[own["run"] == run].assign(model=f"run {run}", run=None) for run in (one, other)]
                    write_table(pd.concat(parts), SCORES, path)
                    of_runs = compare_models(f"run {one}", f"run {other}", path, None, found.benchmarks)
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
    lines += [f"All together{_of_all(summary, one)}: {verdict_words(one)}." for one in summary.joint]
    worse = [one.benchmark for one in summary.verdicts if one.verdict == "worse"]
    if worse:
        lines.append(f"Worse on at least one, after Holm: {listing(worse, 4)}.")
    if compared.self_check:
        lines.append(compared.self_check)
    room = MOST_LINES - len(lines) - 2
    ordered = sorted(summary.verdicts, key=_interest)
    shown = ordered if len(ordered) <= room else ordered[: room - 1]
    lines += [
        f"  {one.benchmark}{_under(summary, one.protocol)}: {verdict_words(one)}{_to_decide(one)}" for one in shown
    ]
    if len(shown) < len(ordered):
        lines.append(f"  {len(ordered) - len(shown)} more are on the page (--output).")
    return lines


def _interest(one: Judged) -> tuple[bool, float, float]:
    """What is worse comes first, then the surest differences."""
    known = is_known(one.p) and is_known(one.change)
    return one.verdict != "worse", number(one.p) if known else 2.0, -abs(number(one.change)) if known else 0.0


def _under(summary: CompareSummary, protocol: str) -> str:
    return f", {protocol.replace('_', ' ')}" if len(summary.by_protocol) > 1 else ""


def _of_all(summary: CompareSummary, one: Joint) -> str:
    """On how many of the benchmarks, where the others are in other units or untested."""
    every = len(summary.by_protocol[one.protocol])
    part = f", on {one.of} of {count(every, 'benchmark')}" if one.of is not None and one.of < every else ""
    return f"{_under(summary, one.protocol)}{part}"


def _to_decide(one: Judged) -> str:
    needed = to_decide(one)
    return f"; {needed} would decide" if needed else ""


def report_comparison(
    scores: Path, output: Path, *, first: str, second: str, items: Path | None, mix_versions: bool
) -> None:
    """The page of the two models of a site, whose scores, sheets and settings lie together."""
    asked = Comparing(mix_versions=mix_versions, for_report=True)
    compared = compare(first, second, scores, asked, items)
    write_page(compared, output, [_site_answer(compared.summary)])


def _site_answer(summary: CompareSummary) -> Answer:
    """Whether the second model is better, on all benchmarks together, for the first page of a site."""
    first, second = short_names(summary.first, summary.second)
    joint = summary.joint[0]
    own = [
        one
        for one in summary.verdicts
        if one.protocol == joint.protocol and one.share == joint.share and is_known(one.change)
    ]
    rows = [
        (one.benchmark, number(one.change), one.interval if isinstance(one.interval, tuple) else None)
        for one in sorted(own, key=lambda one: -abs(number(one.change)))[:7]
    ]
    question, link = f"Is {second} better than {first}?", "Every benchmark"
    if isinstance(joint.change, Missing) or not isinstance(joint.interval, tuple):
        where = f"on each of {count(len(own), 'benchmark')}"
        words = {"better": f"Yes, {where}.", "worse": f"No, it is worse {where}."}.get(joint.verdict, "Not known.")
        reason = joint.change.reason if isinstance(joint.change, Missing) else ""
        return Answer(question, f"{words} {reason}".strip(), Markup(""), link=link)

    def written(value: float) -> str:
        return svg.points(value, 1, signed=True) if joint.share else decimal(value, 3, signed=True)

    change = f"{written(joint.change)}{' points' if joint.share else ''} on average"
    words = {"better": f"Yes: {change}", "worse": f"No, it is worse: {change}"}.get(
        joint.verdict, f"Not known: {change}"
    )
    ends = [0.0, *(end for _, change, of in rows for end in (change, *(of or ())))]
    ticks = svg.round_values(min(ends), max(ends), 4)
    labels = svg.written_points(ticks) if joint.share else [f"{tick:g}" for tick in ticks]
    said = "; ".join(f"{name} {written(value)}" for name, value, _ in rows)
    return Answer(
        question,
        f"{words}.",
        svg.named_rows(f"{second} less {first}: {said}.", rows, ticks, labels, dashed=0.0),
        interval=f"95%: {' to '.join(map(written, joint.interval))}",
        basis=f"Mean over {count(len(own), 'benchmark')}{_under(summary, joint.protocol)}, these benchmarks fixed.",
        link=link,
    )


def write_page(compared: Compared, output: Path, answers: Sequence[Answer] = ()) -> None:
    """The page of the comparison, with the verdicts and the items that changed; `answers`: for a site."""
    summary = compared.summary
    page = replace(comparison_page(summary), answers=answers)
    verdict_rows = pd.DataFrame(
        [
            {
                "benchmark": one.benchmark if isinstance(one, Judged) else "all together",
                "protocol": one.protocol,
                "verdict": one.verdict,
                "in words": verdict_words(one),
                "would decide": to_decide(one).rstrip(",") if isinstance(one, Judged) else "",
            }
            for one in [*summary.joint, *summary.verdicts]
        ]
    )
    sections = [
        Section(
            f"Is {summary.second} worse?",
            explanation="Better, worse: after Holm over the benchmarks, 5%. Not worse: the 95% interval's lower end is "
            "above minus the margin, after Holm over the benchmarks with one. All together: the mean difference, these "
            "benchmarks fixed.",
            tables=[Table("verdicts", "Verdicts", verdict_rows)],
        )
    ]
    if len(compared.flips):
        whole = len(compared.flips) > MOST_FLIPS
        caption = f"The first {MOST_FLIPS} of {len(compared.flips)}." if whole else ""
        labels = {"first_answer": summary.first, "second_answer": summary.second, "right": "right with"}
        table = Table("flipped_items", "Items", compared.flips.head(MOST_FLIPS), labels=labels, caption=caption)
        sections.append(Section("Items that one of the two alone gets right", tables=[table]))
    page = _with(page, sections, compared.said)
    write_report(page, summary, output)
    if len(compared.flips) > MOST_FLIPS:
        compared.flips.to_csv(output / "tables" / "flipped_items.csv", index=False)


def _with(page: Page, sections: list[Section], said: Sequence[str]) -> Page:
    return replace(page, sections=[*sections, *page.sections], notes=[*said, *page.notes])


def write_markdown(compared: Compared, path: Path) -> None:
    """A comment for a pull request: the verdict, what differs, and a table."""
    summary = compared.summary
    lines = [f"### {summary.second} against {summary.first}: {compared.decision}", ""]
    lines += [f"All together{_of_all(summary, one)}: **{verdict_words(one)}**." for one in summary.joint]
    lines += ["", *(f"- {line}" for line in compared.said)] if compared.said else []
    lines += ["", "| benchmark | verdict | would decide |", "|---|---|---|"]
    for one in summary.verdicts:
        name = one.benchmark.replace("|", "\\|") + _under(summary, one.protocol)
        lines.append(f"| {name} | {verdict_words(one)} | {to_decide(one).rstrip(',')} |")
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
        (one.benchmark if isinstance(one, Judged) else "all together", one)
        for one in [*summary.joint, *summary.verdicts]
    ]
    counts = {kind: str(sum(one.verdict == kind for _, one in cases)) for kind in ("worse", "not known")}
    suite = ElementTree.Element(
        "testsuite",
        name=f"{summary.second} against {summary.first}",
        tests=str(len(cases)),
        failures=counts["worse"],
        skipped=counts["not known"],
    )
    for name, one in cases:
        case = ElementTree.SubElement(suite, "testcase", classname=one.protocol, name=name)
        if one.verdict == "worse":
            ElementTree.SubElement(case, "failure", message=verdict_words(one))
        elif one.verdict == "not known":
            ElementTree.SubElement(case, "skipped", message=verdict_words(one))
    suite.insert(0, ElementTree.Comment(f" {MARK} "))
    ElementTree.indent(suite)
    write_text(path, ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n")
