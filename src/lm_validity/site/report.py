"""`lm-validity report`: all that it was given, every report that the data allow, one site. And the site of a run."""

import json
import posixpath
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import NamedTuple

import pandas as pd
import pyarrow.parquet as pq

from lm_validity.config.load import Run, read_cells
from lm_validity.errors import InputError
from lm_validity.files import commit_of, made_from, read_json, replaced_folder, write_text
from lm_validity.pages.page import asset, deflated, write_html, write_page
from lm_validity.site import pages
from lm_validity.site.cards.card import FOLDER as CARDS_FOLDER
from lm_validity.site.cards.values import CardSources
from lm_validity.site.first_page import ORDER, build_site
from lm_validity.site.gather import BENCHMARKS, MODELS, Gathered, Given, Sheets, gather, write_sheets
from lm_validity.studies.agreement.score_matrix import STUDY
from lm_validity.tables import schema
from lm_validity.tables.counted import Sources, count_scores
from lm_validity.tables.merge import Merger
from lm_validity.tables.metrics import PERPLEXITY
from lm_validity.tables.settings import FILE, difference_notes, without_kinds
from lm_validity.words import count, listing

# ----------------------------------------------------------------------------------------------------------------------
# Which reports the data allow, and their writing.

Tell = Callable[..., None]  # gets lines for a terminal
LEAST_MODELS = 3  # of two models' order there are only two
LEAST_BENCHMARKS = 2
COMPARED = 2  # models that `compare` takes
LEAST_CHECKPOINTS = 3  # of one model on one benchmark


class ReportJob(NamedTuple):
    """A report to write: its name, what it is made from (bias: the trials), and what its function takes further."""

    name: str
    sources: Sources | Path
    options: Mapping[str, object] = {}


class Chosen(NamedTuple):
    """The reports to write, and why the others cannot be written, by name."""

    jobs: list[ReportJob]
    absent: dict[str, str]


def choose_reports(gathered: Gathered, sheets: Sheets | None, folder: Path, inputs: Given) -> Chosen:
    """The reports to write of the tables in `folder`.

    Agreement and factors need 3 models and 2 benchmarks in common use; two models are compared, more on one benchmark
    put in order. Signal needs 3 checkpoints of a model, items their table, bias trials; readiness groups that `inputs`
    names.
    """
    items, scores = gathered.items, gathered.scores
    sources = Sources(folder / "scores.parquet", folder / MODELS, folder / BENCHMARKS, items, inputs.plan)
    if scores is None or sheets is None:
        jobs = list[ReportJob]()
        absent = dict.fromkeys(("agreement", "factors", "signal"), "there are no scores of models.")
    else:
        jobs, absent = _comparisons(sources, sheets, inputs, gathered.selections)
        direct = scores[scores["protocol"] == schema.DIRECT]
        if (direct.groupby(["model", "benchmark"])["checkpoint"].nunique() >= LEAST_CHECKPOINTS).any():
            own_models = () if inputs.beside is None else gathered.own_models
            jobs.append(ReportJob("signal", sources, {"section": inputs.section, "own_models": own_models}))
        else:
            absent["signal"] = f"no model has scores at {LEAST_CHECKPOINTS} points of its training."
        jobs += [ReportJob("items", sources)] if items is not None else []
    if items is None:
        absent["items"] = "there is no table of answers item by item (items.parquet, samples_*.jsonl)."
    if gathered.trials is not None:
        jobs.append(ReportJob("bias", gathered.trials))
    else:
        absent["bias"] = "there is no table of trials (trials.parquet)."
    return Chosen(jobs, absent)


def agreement_jobs(sources: Sources, inputs: Given, selections: Path | None) -> list[ReportJob]:
    """The agreement report, what its scores have in common and, of groups that were named, their readiness."""
    section = {"section": inputs.section}
    jobs = [ReportJob("agreement", sources, {**section, "selections": selections, "cards": inputs.cards})]
    jobs += [ReportJob("factors", sources, section), ReportJob("models", sources)]
    if inputs.agreement.groups:
        jobs.append(ReportJob("readiness", sources, {"section": inputs.agreement}))
    return jobs


FUNCTIONS = {
    "agreement": "studies.agreement.report:report_agreement",
    "factors": "studies.agreement.factors:report_factors",
    "readiness": "studies.agreement.readiness:report_readiness",
    "screening": "studies.agreement.benchmarks:report_screening",
    "signal": "studies.signal.report:report_signal",
    "items": "studies.items.report:report_items",
    "models": "studies.models.report:report_models",
    "compare": "site.compare:report_comparison",
    "bias": "studies.bias.page:report_bias",
}


def run_reports(jobs: Sequence[ReportJob], folder: Path, tell: Tell = lambda *lines: None) -> dict[str, str]:
    """Write the reports, each into a folder of its name below `folder`; why some were not, by name. `tell` gets a line
    for each; what is wrong with the data of one keeps no other from being written."""
    failed = dict[str, str]()
    for name, sources, options in jobs:
        start = time.monotonic()
        write: Callable[..., None] = resolve_name(f"lm_validity.{FUNCTIONS[name]}")
        try:
            write(sources, folder / name, **options)
        except InputError as error:
            failed[name] = f"{error.problem} {error.hint[:1].upper()}{error.hint[1:]}"
        else:
            tell(f"Written: {name}, {time.monotonic() - start:.0f} s")
    return failed


def _comparisons(sources: Sources, sheets: Sheets, inputs: Given, selections: Path | None) -> Chosen:
    """The reports that compare models. What is compared: no reruns and corpora, or corpora where there is nothing else.
    Two models, or more on one benchmark, are compared where there are too few for agreement; the reason is then said,
    which may be that the metric of benchmarks is not known."""
    (models, benchmarks), scores = sheets, pd.read_parquet(sources.scores)
    of_this = benchmarks[schema.of_study(benchmarks, STUDY)]
    usable = of_this[of_this["output_type"] != PERPLEXITY]
    out = {*models.loc[~schema.of_study(models, STUDY), "model"]}
    out |= {*schema.reruns_of(models)} if "rerun_of" in models else set()
    scored = scores[~scores["model"].isin(out) & scores["value"].notna()]
    scored = scored[scored["benchmark"].isin((usable if len(usable) else of_this)["benchmark"])]
    names = {*scored["model"]}
    compared = [model for model in models["model"] if model in names]
    compared += sorted(names.difference(compared))
    number = scored["benchmark"].nunique() if len(usable) else 0
    if len(compared) >= LEAST_MODELS and number >= LEAST_BENCHMARKS:
        return Chosen(agreement_jobs(sources, inputs, selections), {})
    jobs = [ReportJob("models", sources)] if len(compared) > COMPARED else []
    reason = (
        f"a comparison needs {LEAST_MODELS} models and {LEAST_BENCHMARKS} benchmarks, "
        f"there are {len(compared)} and {number}."
    )
    if len(compared) == 1:
        reason = f"there is nothing to compare {compared[0]} with, the only model."
    elif len(compared) == COMPARED:
        options = {"first": compared[0], "second": compared[1], "mix_versions": inputs.mix_versions}
        jobs = [ReportJob("compare", sources, options)]
    no_metric = benchmarks.loc[benchmarks["metric"].isna() & ~schema.of_study(benchmarks, STUDY), "benchmark"]
    metrics = scores[scores["benchmark"].isin(no_metric)].groupby("benchmark")["metric"].nunique()
    undecided = sorted(metrics[metrics > 1].index)
    if undecided and len(compared) != 1:
        reason += f" Which metric counts is not known of {listing(undecided, 3)} (column 'metric' of benchmarks.tsv)."
    return Chosen(jobs, dict.fromkeys(("agreement", "factors"), reason))


# ----------------------------------------------------------------------------------------------------------------------
# One command from result files to a site: import, guess the two sheets, write every report that the data allow.


NAMES = (*ORDER, CARDS_FOLDER, "assets", "index.html", "scores.parquet", FILE, "items.parquet", "import.json",
         "reading.yaml", pages.SNAPSHOT, "findings.md")  # fmt: skip


def report_site(
    paths: Iterable[str | Path], output: str | Path, inputs: Given, tell: Tell = lambda *lines: None
) -> list[str]:
    """Write a site with index.html, the sheets, scores.parquet and a folder a report under `output`.

    `tell` gets lines as they are known, and they are returned: what was read and guessed, then each report with its
    seconds. Raises InputError for bad input, for data that allow no report, and for a sheet that names none of the
    models or benchmarks; nothing is
    written then, but for scores, sheets and reading where only the reports are missing and no report was there.
    """
    if inputs.since is not None and inputs.without is not None:
        raise InputError("--since and --without: each names what to compare with.", "give one of the two.")
    if inputs.plan is not None:
        read_cells(inputs.plan)  # a bad plan is the reader's to mend, not a report that cannot be written
    output, paths, lines = Path(output), list(paths), list[str]()
    for folder in map(Path, paths):  # of several folders the first with a sheet
        sheets = schema.sheets_in(folder)
        models, benchmarks = inputs.models or sheets.get("models"), inputs.benchmarks or sheets.get("benchmarks")
        inputs = replace(inputs, models=models, benchmarks=benchmarks)
    sheets = {name: path for name, path in ((MODELS, inputs.models), (BENCHMARKS, inputs.benchmarks)) if path}
    sheets_to_keep = [name for name, path in sheets.items() if path.resolve() == (output / name).resolve()]
    failure: InputError | None = None

    def keep(*texts: str) -> None:
        lines.extend(texts)
        tell(*texts)

    with replaced_folder(output, "report", inputs=(*paths, inputs.beside, inputs.splits), names=NAMES,
                         entries_to_keep=sheets_to_keep) as folder:  # fmt: skip
        earlier = None if inputs.since is None else pages.read_earlier(inputs.since)
        gathered = gather(paths, folder, inputs.options)
        if inputs.without is not None:
            gathered = pages.leave_items_out(gathered, inputs.without, folder)
            earlier = _with_all_items(paths, inputs, gathered.lines[-1].removeprefix(pages.WITHOUT).rstrip("."))
        keep(*gathered.lines, *(f"Sheet: {path}" for path in sheets.values()))
        site_sheets = _write_tables(gathered, inputs, folder, keep)
        try:
            keep(*_write_reports(gathered, site_sheets, inputs, folder, made_from(paths), tell, earlier))
        except InputError as error:
            if site_sheets is None or (output / "index.html").exists():
                raise
            failure = error.reworded({str(folder): str(output)})
            for held_path in filter(Path.is_dir, list(folder.iterdir())):
                shutil.rmtree(held_path)
    if failure is not None:
        reading = ", and reading.yaml with --reading" if (output / "reading.yaml").is_file() else ""
        advice = f" Scores and sheets are in {output}: correct the sheets, and pass them with --models and --benchmarks"
        raise InputError(failure.problem, f"{failure.hint}{advice}{reading}.")
    return lines


def _with_all_items(paths: list[str | Path], inputs: Given, left_out: str) -> pages.Earlier:
    """The report of all items, to compare with: what hangs on those that are left out shows beside it."""
    with tempfile.TemporaryDirectory() as name:
        try:
            report_site(paths, Path(name) / "report", replace(inputs, without=None, single_file=False))
        except InputError as error:
            raise InputError(error.problem, "leave out --without: there is no report of all items.") from error
        return pages.read_earlier(Path(name) / "report")._replace(without=left_out)


def _write_tables(gathered: Gathered, inputs: Given, folder: Path, tell: Tell) -> Sheets | None:
    """Write the scores, the two sheets and the settings, where there are scores; say where settings differ."""
    if gathered.scores is None:
        return None
    scores = pages.add_beside(gathered.scores, inputs.beside)
    sheets = write_sheets(scores, gathered, inputs, folder, tell)
    # billions of training tokens from iterations, where the sheet says the tokens in a step
    step = scores["model"].map(sheets.models.set_index("model")["tokens_per_step"].astype("float64"))
    tokens = scores["tokens_b"].astype("float64").fillna(scores["iteration"].astype("float64") * step / 1e9)
    schema.write_table(scores.assign(tokens_b=tokens), schema.SCORES, folder / "scores.parquet")
    if (settings := gathered.settings) is None:
        return sheets
    schema.write_table(settings, schema.SETTINGS, folder / FILE)
    with suppress(InputError):  # each report says by itself why it cannot be written
        sources = Sources(folder / "scores.parquet", folder / MODELS, folder / BENCHMARKS)
        counted = count_scores(sources, unlike="kept" if inputs.mix_versions else "out")
        tell(*counted.kept_out, *difference_notes(counted.last().differing, len(counted.benchmarks)))
    if inputs.mix_versions:
        schema.write_table(without_kinds(settings), schema.SETTINGS, folder / FILE)
    return sheets


def _write_reports(
    gathered: Gathered, sheets: Sheets | None, inputs: Given, folder: Path, source: str, tell: Tell,
    earlier: pages.Earlier | None,
) -> list[str]:  # fmt: skip
    """Every report that the data allow and the site of them; a line for each that they do not allow."""
    jobs, absent = choose_reports(gathered, sheets, folder, inputs)
    failed = run_reports(jobs, folder, tell)
    folders = [folder / job.name for job in jobs if job.name not in failed]
    names = dict[str, list[str]]()  # by reason; the folder is a draft, whose name nobody finds
    for name, reason in (absent | failed).items():
        names.setdefault(reason.replace(f"{folder}/", ""), []).append(name)
    reasons = {" or ".join(names_of_reason): reason for reason, names_of_reason in names.items()}
    if not folders:
        text = " ".join(f"{absent_names.capitalize()}: {reason}" for absent_names, reason in reasons.items())
        advice = "add results of more models" + ("." if inputs.beside else ", or published scores with --beside.")
        hint = "correct the data or the sheets." if jobs else advice
        raise InputError(f"no report can be written from these data. {text}", hint)
    cards, sources = None, Sources(folder / "scores.parquet", folder / MODELS, folder / BENCHMARKS)
    if sheets is not None:
        if inputs.beside is not None:
            folders.append(folder / "beside")
            write_page(pages.beside_page(gathered.own_models, inputs.beside, sources), folders[-1])
        files = (folder / "scores.parquet", folder / BENCHMARKS, [*folders], folder / MODELS, gathered.items)
        cards = CardSources(*files, inputs.splits, inputs.cards, inputs.source)
        folders.append(folder / "data")
        scores = pd.read_parquet(sources.scores)
        write_page(pages.data_page(scores, sheets, gathered.lines, cards, source), folders[-1])
    build_site(folders, folder, cards=cards, about=gathered.line, source=source, earlier=earlier)
    if inputs.single_file:
        into_one_file(folder)
    return [f"No {absent_names} report: {reason}" for absent_names, reason in reasons.items()]


# ----------------------------------------------------------------------------------------------------------------------
# A site as one file, which can be mailed: its first page with all others inside.

_DATA = re.compile(r'<div id="data" hidden data-source="([^"]+)"></div>')
_LINK = re.compile(r'<a\b([^>]*?)\shref="(?!#|[a-z]+:)([^"#]+)(?:#[^"]*)?"', re.IGNORECASE)
_LAST = "</body>"
STYLE, SCRIPT, ROUTER = "\x01STYLE\x01", "\x01SCRIPT\x01", "\x01ROUTER\x01"


def into_one_file(site: Path) -> None:
    """Put all pages of a finished site, and what their folds hold, into its `index.html`.

    The folder keeps its other files. In the one file a link to a page shows that page; a link to any other file (a
    table, a figure) is plain text, since that file does not travel. Without script the first page can be read.
    """
    paths = sorted(path.relative_to(site).as_posix() for path in site.rglob("index.html"))
    pages = {}
    for path in paths:
        html = (site / path).read_text(encoding="utf-8")
        if data := _DATA.search(html):
            rows = (site / path).parent / data[1]  # not there where the page has no folds that need it
            held = rows.read_text(encoding="utf-8") if rows.is_file() else ""
            html = html.replace(data[0], f'<div id="data" hidden></div><script>{held}</script>', 1)
        pages[path] = _LINK.sub(partial(_kept, page_of_link=path, pages=set(paths)), html)
    style, script, router = (asset(name) for name in ("page.css", "page.js", "one_file.js"))
    ending = f"<script>{ROUTER}</script>\n{_LAST}"
    site_of = {
        "style": deflated(style),
        "script": deflated(script),
        "router": deflated(router),
        # with marks in place of the style and script that all pages share
        "pages": {
            path: deflated(html.replace(style, STYLE, 1).replace(script, SCRIPT, 1).replace(_LAST, ending, 1))
            for path, html in pages.items()
        },
    }
    held_pages = f'<script type="application/json" id="site">{json.dumps(site_of, separators=(",", ":"))}</script>'
    document = f"{held_pages}\n<script>{router}</script>\n{_LAST}"
    write_text(site / "index.html", pages["index.html"].replace(_LAST, document, 1))


def _kept(link: re.Match[str], page_of_link: str, pages: set[str]) -> str:
    """The link where it leads to a page of the site, else the same element without an address."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(page_of_link), link[2]))
    return link[0] if target in pages else f"<a{link[1]}"


# ----------------------------------------------------------------------------------------------------------------------
# The site of a run, and the reports of an unfinished one from the cells that exist.

SYNTHETIC = "The models of this run are synthetic. They live in a miniature world, made for trying out the workflow."


def about_run(run: Run) -> str:
    """What the site of a run says under its title: that its models are synthetic, where all are the miniature's."""
    paths = [*(row.path for row in run.models.values()), *(row.path for row in run.language_models.values())]
    return SYNTHETIC if paths and all(map(run.is_miniature, paths)) else ""


def write_run_site(run: Run, reports: Sequence[Path], folder: Path, missing: Sequence[str] = ()) -> Path:
    """Write the site of a run's reports into `folder`/report, with cards of the tables in `folder`/tables; its first
    page is returned. The bias study alone has no benchmarks with scores, and no cards. `missing`: as `build_site`."""
    tables, splits, configured, cards = folder / "tables", run.results / "splits", run.configuration, None
    scores, items = tables / "scores.parquet", tables / "items.parquet"
    if configured.benchmarks is not None and scores.is_file():
        of_items = run.results / "reports" / "items"  # written only when somebody asks for it
        options = {"scores": scores, "items": items, "benchmarks": configured.benchmarks, "output": of_items}
        written = " ".join(f"--{name} {value}" for name, value in options.items())
        cards = CardSources(
            scores,
            Path(configured.benchmarks),
            [*reports, of_items],
            Path(configured.models) if configured.models else None,
            items if items.is_file() else None,
            splits if splits.is_dir() else None,
            configured.cards,
            f"the run {run.name}",
            f"lm-validity report items {written} && lm-validity build-site",
            missing,
        )
    name = f"{run.name} (replayed scores: no model was run)" if configured.replay else run.name
    source = f"the run {run.name} ({commit_of(Path.cwd())})"
    about = about_run(run)
    return build_site(reports, folder / "report", cards=cards, missing=missing, name=name, about=about, source=source)


def write_partial_reports(run: Run, *, without_items: bool = False) -> list[str]:
    """Write results/<run>/partial/{tables,reports,report}; lines on how much is missing and where the page is.

    Nothing is written into a path that a rule declares. Every page lists what is missing. A report that is not possible
    with the cells at hand is left out and said on standard error. `without_items`: answers item by item, of which there
    are many, are not merged.
    """
    folder, studies = run.results / "partial", set(run.configuration.studies)
    tables, merger = folder / "tables", Merger(run, partial=True)
    if studies & {"agreement", "signal"}:
        merger.write_scores(tables)
        (tables / "items.parquet").unlink(missing_ok=True) if without_items else merger.write_items(tables)
    if "bias" in studies:
        merger.write_trials(tables)
    missing = [cell.describe() for cell in merger.missing]
    lines = [f"{count(len(missing), 'result')} still missing (not counting intermediate steps)."]
    files = [path for name in ("scores", "trials") if (path := tables / f"{name}.parquet").is_file()]
    jobs = _run_jobs(run, tables) if any(pq.read_metadata(path).num_rows for path in files) else []
    failed = run_reports(jobs, folder / "reports")
    for name, problem in failed.items():
        print(f"report {name}: {problem}", file=sys.stderr)
    written = [folder / "reports" / job.name for job in jobs if job.name not in failed]
    for report in written if missing else ():
        write_html(read_json(report / "page.json"), report, missing=missing)
    if not written:
        return [*lines, "No report is possible yet."]
    return [*lines, f"partial report: {write_run_site(run, written, folder, missing)}"]


def _run_jobs(run: Run, tables: Path) -> list[ReportJob]:
    """The reports of the configuration's studies, from the tables of a folder."""
    items, configured, jobs = tables / "items.parquet", run.configuration, list[ReportJob]()
    answers = items if items.is_file() else None
    sources = Sources(tables / "scores.parquet", configured.models, configured.benchmarks, answers, configured.plan)
    if "agreement" in configured.studies:
        inputs = Given(section=configured.reports, agreement=configured.agreement, cards=configured.cards)
        jobs += agreement_jobs(sources, inputs, tables / "selections.parquet")
    if "signal" in configured.studies:
        jobs.append(ReportJob("signal", sources, {"section": configured.reports}))
    if "bias" in configured.studies:
        jobs.append(ReportJob("bias", tables / "trials.parquet", {"plan": run.bias_plan}))
    return jobs
