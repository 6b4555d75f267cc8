"""`lm-validity report`: all that it was given, every report that the data allow, one site. And the site of a run."""

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import NamedTuple

import pandas as pd
import pyarrow.parquet as pq

from lm_validity.config.load import Run, read_cells
from lm_validity.config.rows import parse_group
from lm_validity.config.sections import CARDS, REPORTS, Agreement, Cards, Reports
from lm_validity.errors import InputError, nearest
from lm_validity.files import commit_of, made_from, read_json, replaced_folder, write_text
from lm_validity.pages.page import write_html, write_page
from lm_validity.site.cards.card import FOLDER as CARDS_FOLDER
from lm_validity.site.cards.values import CardSources
from lm_validity.site.data import Beside, add_beside, beside_page, data_page
from lm_validity.site.first_page import ORDER, build_site
from lm_validity.site.gather import BENCHMARKS, MODELS, Gathered, Sheets, gather
from lm_validity.site.guess import guess_benchmarks, guess_lines, guess_models, leave_sparse_out, shared_categories
from lm_validity.site.since import FILE as SNAPSHOT
from lm_validity.site.since import WITHOUT, Earlier, leave_items_out, read_earlier
from lm_validity.studies.agreement.score_matrix import STUDY
from lm_validity.tables import schema
from lm_validity.tables.counted import Sources, check_metrics, count_scores
from lm_validity.tables.formats.score_files import ImportOptions
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


@dataclass(frozen=True)
class Given:
    """What a reader may give beside the results. `options`: how files are imported; `splits` and `source`: as cards
    take them; `plan`: the sheet of what was to be fine-tuned, other cells are not missing. `single_file`: as
    `build_site` takes it; `mix_versions`: unlike versions of a task, and unlike parts of its items, are compared.
    `since`: an earlier report; `without`: a file of items to leave out."""

    models: Path | None = None
    benchmarks: Path | None = None
    beside: Path | None = None
    options: ImportOptions = field(default_factory=ImportOptions)
    section: Reports = REPORTS
    cards: Cards = CARDS
    splits: Path | None = None
    source: str = ""
    plan: Path | None = None
    agreement: Agreement = field(default_factory=Agreement)
    single_file: bool = False
    mix_versions: bool = False
    since: Path | None = None
    without: Path | None = None


@dataclass(frozen=True)
class ReportJob:
    """A report to write: its function's name and what that takes."""

    name: str
    output: Path
    sources: Sources | Path
    options: Mapping[str, object]

    @classmethod
    def of(cls, folder: Path, name: str, sources: Sources | Path, **options: object) -> "ReportJob":
        """The job that writes report `name` from its sources (bias: the trials) into `folder`/`name`."""
        return cls(name, folder / name, sources, options)


class Chosen(NamedTuple):
    """The reports to write, and why the others cannot be written, by name."""

    jobs: list[ReportJob]
    absent: dict[str, str]


def choose_reports(gathered: Gathered, sheets: Sheets | None, folder: Path, inputs: Given) -> Chosen:
    """The reports to write under `folder`.

    Agreement and factors need 3 models and 2 benchmarks in common use; two models are compared, more on one benchmark
    put in order. Signal needs 3 checkpoints of a model, items their table, bias trials; readiness groups that `inputs`
    names.
    """
    jobs: list[ReportJob] = []
    absent: dict[str, str] = {}
    items = gathered.items
    sources = Sources(folder / "scores.parquet", folder / MODELS, folder / BENCHMARKS, items, inputs.plan)
    if gathered.scores is None or sheets is None:
        absent |= dict.fromkeys(("agreement", "factors", "signal"), "there are no scores of models.")
    else:
        compared, benchmark_count = _compared(pd.read_parquet(sources.scores), sheets)
        if len(compared) < LEAST_MODELS or benchmark_count < LEAST_BENCHMARKS:
            reason = _too_few(compared, benchmark_count, gathered.scores, sheets)
            absent |= dict.fromkeys(("agreement", "factors"), reason)
            jobs += _of_few(compared, sources, folder, inputs)
        else:
            jobs += agreement_jobs(folder, sources, inputs, gathered.selections)
        direct = gathered.scores[gathered.scores["protocol"] == schema.DIRECT]
        if (direct.groupby(["model", "benchmark"])["checkpoint"].nunique() >= LEAST_CHECKPOINTS).any():
            own_models = () if inputs.beside is None else tuple(sorted(gathered.scores["model"].unique()))
            jobs.append(ReportJob.of(folder, "signal", sources, section=inputs.section, own_models=own_models))
        else:
            absent["signal"] = f"no model has scores at {LEAST_CHECKPOINTS} points of its training."
        if items is not None:
            jobs.append(ReportJob.of(folder, "items", sources))
    if items is None:
        absent["items"] = "there is no table of answers item by item (items.parquet, samples_*.jsonl)."
    if gathered.trials is not None:
        jobs.append(ReportJob.of(folder, "bias", gathered.trials))
    else:
        absent["bias"] = "there is no table of trials (trials.parquet)."
    return Chosen(jobs, absent)


def agreement_jobs(folder: Path, sources: Sources, inputs: Given, selections: Path | None) -> list[ReportJob]:
    """The agreement report, what its scores have in common and, of groups that were named, their readiness."""
    options = {"section": inputs.section, "selections": selections, "cards": inputs.cards}
    jobs = [ReportJob.of(folder, "agreement", sources, **options)]
    jobs += [ReportJob.of(folder, "factors", sources, section=inputs.section), ReportJob.of(folder, "models", sources)]
    if inputs.agreement.groups:
        jobs.append(ReportJob.of(folder, "readiness", sources, section=inputs.agreement))
    return jobs


_FUNCTIONS = {
    "agreement": "studies.agreement.report:report_agreement",
    "factors": "studies.agreement.factors:report_factors",
    "readiness": "studies.agreement.readiness:report_readiness",
    "signal": "studies.signal.report:report_signal",
    "items": "studies.items.report:report_items",
    "models": "studies.models.report:report_models",
    "compare": "site.compare:report_comparison",
    "bias": "studies.bias.page:report_bias",
}


def run_reports(jobs: list[ReportJob], tell: Tell = lambda *lines: None) -> dict[str, str]:
    """Write the reports; why some were not, by name. `tell` gets a line for each; what is wrong with the data of one
    keeps no other from being written."""
    failed = dict[str, str]()
    for job in jobs:
        start = time.monotonic()
        write: Callable[..., None] = resolve_name(f"lm_validity.{_FUNCTIONS[job.name]}")
        try:
            write(job.sources, job.output, **job.options)
        except InputError as error:
            failed[job.name] = f"{error.problem} {error.hint[:1].upper()}{error.hint[1:]}"
        else:
            tell(f"Written: {job.name}, {time.monotonic() - start:.0f} s")
    return failed


class _InCommonUse(NamedTuple):
    """The models that are compared, in the order of their sheet, and the number of benchmarks."""

    models: list[str]
    benchmarks: int


def _compared(scores: pd.DataFrame, sheets: Sheets) -> _InCommonUse:
    """What is compared: without reruns and corpora, or with these where there is nothing else."""
    models, benchmarks = sheets
    of_this = benchmarks[schema.of_study(benchmarks, STUDY)]
    usable = of_this[of_this["output_type"] != PERPLEXITY]
    out = {
        *models.loc[~schema.of_study(models, STUDY), "model"],
        *(schema.reruns_of(models) if "rerun_of" in models else ()),
    }
    scores_used = scores[~scores["model"].isin(out) & scores["value"].notna()]
    scored = scores_used[scores_used["benchmark"].isin((usable if len(usable) else of_this)["benchmark"])]
    names = set(scored["model"])
    listed = [model for model in models["model"] if model in names]
    number = scored["benchmark"].nunique() if len(usable) else 0
    return _InCommonUse([*listed, *sorted(names.difference(listed))], number)


def _too_few(compared: list[str], benchmark_count: int, scores: pd.DataFrame, sheets: Sheets) -> str:
    """Why there is no comparison of these models: of benchmarks whose metric is not known, the reason is that."""
    if len(compared) == 1:
        return f"there is nothing to compare {compared[0]} with, the only model."
    reason = (
        f"a comparison needs {LEAST_MODELS} models and {LEAST_BENCHMARKS} benchmarks, "
        f"there are {len(compared)} and {benchmark_count}."
    )
    _, benchmarks = sheets
    open_ones = set(benchmarks.loc[benchmarks["metric"].isna() & ~schema.of_study(benchmarks, STUDY), "benchmark"])
    metrics = scores[scores["benchmark"].isin(open_ones)].groupby("benchmark")["metric"].nunique()
    undecided = sorted(metrics[metrics > 1].index)
    if undecided:
        reason += f" Which metric counts is not known of {listing(undecided, 3)} (column 'metric' of benchmarks.tsv)."
    return reason


def _of_few(models: list[str], sources: Sources, folder: Path, inputs: Given) -> list[ReportJob]:
    """What too few models or benchmarks for an agreement report allow: the comparison of two models, or the order of
    more on one benchmark."""
    if len(models) == COMPARED:
        names = {"first": models[0], "second": models[1]}
        return [ReportJob.of(folder, "compare", sources, **names, mix_versions=inputs.mix_versions)]
    if len(models) > COMPARED:
        return [ReportJob.of(folder, "models", sources)]
    return []


# ----------------------------------------------------------------------------------------------------------------------
# One command from result files to a site: import, guess the two sheets, write every report that the data allow.


NAMES = (*ORDER, CARDS_FOLDER, "assets", "index.html", "scores.parquet", FILE, "items.parquet", "import.json",
         "reading.yaml", SNAPSHOT, "findings.md")  # fmt: skip


def report_site(
    paths: Iterable[str | Path], output: str | Path, given_inputs: Given, tell: Tell = lambda *lines: None
) -> list[str]:
    """Write a site with index.html, the sheets, scores.parquet and a folder a report under `output`.

    `tell` gets lines as they are known, and they are returned: what was read and guessed, then each report with its
    seconds. Raises InputError for bad input, for data that allow no report, and for a sheet that names none of the
    models or benchmarks; nothing is
    written then, but for scores, sheets and reading where only the reports are missing and no report was there.
    """
    if given_inputs.plan is not None:
        read_cells(given_inputs.plan)  # a bad plan is the reader's to mend, not a report that cannot be written
    output, paths = Path(output), list(paths)
    for folder in map(Path, paths):  # of several folders the first with a sheet
        given, sheets = given_inputs, schema.sheets_in(folder)
        models, benchmarks = given.models or sheets.get("models"), given.benchmarks or sheets.get("benchmarks")
        given_inputs = replace(given, models=models, benchmarks=benchmarks)
    sheets_given = {MODELS: given_inputs.models, BENCHMARKS: given_inputs.benchmarks}
    kept_sheets = [name for name, path in sheets_given.items() if path and path.resolve() == (output / name).resolve()]
    inputs = (*paths, given_inputs.beside, given_inputs.splits)
    failure: InputError | None = None
    notes_told = list[str]()

    def keep(*lines: str) -> None:
        notes_told.extend(lines)
        tell(*lines)

    with replaced_folder(output, "report", inputs=inputs, names=NAMES, entries_to_keep=kept_sheets) as folder:
        gathered, earlier = _gathered(paths, given_inputs, folder)
        keep(*gathered.lines, *(f"Sheet: {path}" for path in sheets_given.values() if path is not None))
        tables = _write_tables(gathered, given_inputs, folder, keep)
        try:
            keep(*_write_reports(gathered, tables, given_inputs, folder, made_from(paths), tell, earlier))
        except InputError as error:
            if tables.sheets is None or (output / "index.html").exists():
                raise
            failure = error.reworded({str(folder): str(output)})
            for held_path in filter(Path.is_dir, list(folder.iterdir())):
                shutil.rmtree(held_path)
    if failure is not None:
        reading = ", and reading.yaml with --reading" if (output / "reading.yaml").is_file() else ""
        advice = f" Scores and sheets are in {output}: correct the sheets, and pass them with --models and --benchmarks"
        raise InputError(failure.problem, f"{failure.hint}{advice}{reading}.")
    return notes_told


class _Compared(NamedTuple):
    """What was read, and the report that it is compared with."""

    gathered: Gathered
    earlier: Earlier | None


def _gathered(paths: list[str | Path], inputs: Given, folder: Path) -> _Compared:
    """What the paths hold, without the items that are to be left out: what hangs on them shows beside the same report
    with all items."""
    if inputs.since is not None and inputs.without is not None:
        raise InputError("--since and --without: each names what to compare with.", "give one of the two.")
    earlier = None if inputs.since is None else read_earlier(inputs.since)
    gathered = gather(paths, folder, inputs.options)
    if inputs.without is None:
        return _Compared(gathered, earlier)
    gathered = leave_items_out(gathered, inputs.without, folder)
    with tempfile.TemporaryDirectory() as name:
        try:
            report_site(paths, Path(name) / "report", replace(inputs, without=None, single_file=False))
        except InputError as error:
            raise InputError(error.problem, "leave out --without: there is no report of all items.") from error
        earlier = read_earlier(Path(name) / "report")
    return _Compared(gathered, earlier._replace(without=gathered.lines[-1].removeprefix(WITHOUT).rstrip(".")))


class _Tables(NamedTuple):
    """What was written before the reports, where there are scores: the models beside and the sheets."""

    beside: Beside | None
    sheets: Sheets | None


def _write_tables(gathered: Gathered, inputs: Given, folder: Path, tell: Tell) -> _Tables:
    """Write the scores, the two sheets and the settings, where there are scores; say where settings differ."""
    if gathered.scores is None:
        return _Tables(None, None)
    scores, beside = add_beside(gathered.scores, inputs.beside)
    sheets = _sheets(scores, gathered, inputs, folder, tell)
    schema.write_table(with_tokens(scores, sheets.models), schema.SCORES, folder / "scores.parquet")
    if (settings := gathered.settings) is None:
        return _Tables(beside, sheets)
    schema.write_table(settings, schema.SETTINGS, folder / FILE)
    with suppress(InputError):  # each report says by itself why it cannot be written
        sources = Sources(folder / "scores.parquet", folder / MODELS, folder / BENCHMARKS)
        counted = count_scores(sources, unlike="kept" if inputs.mix_versions else "out")
        tell(*counted.kept_out, *difference_notes(counted.last().differing, len(counted.benchmarks)))
    if inputs.mix_versions:
        schema.write_table(without_kinds(settings), schema.SETTINGS, folder / FILE)
    return _Tables(beside, sheets)


def _write_reports(
    gathered: Gathered, tables: _Tables, inputs: Given, folder: Path, source: str, tell: Tell, earlier: Earlier | None
) -> list[str]:
    """Every report that the data allow and the site of them; a line for each that they do not allow."""
    jobs, absent = choose_reports(gathered, tables.sheets, folder, inputs)
    failed = run_reports(jobs, tell)
    pages = [job.output for job in jobs if job.name not in failed]
    names = dict[str, list[str]]()  # by reason; the folder is a draft, whose name nobody finds
    for name, reason in (absent | failed).items():
        names.setdefault(reason.replace(f"{folder}/", ""), []).append(name)
    absent_by_reason = [(" or ".join(names_of_reason), reason) for reason, names_of_reason in names.items()]
    if not pages:
        reasons = " ".join(f"{absent_names.capitalize()}: {reason}" for absent_names, reason in absent_by_reason)
        advice = "add results of more models" + ("." if inputs.beside else ", or published scores with --beside.")
        hint = "correct the data or the sheets." if jobs else advice
        raise InputError(f"no report can be written from these data. {reasons}", hint)
    cards = None
    sources = Sources(folder / "scores.parquet", folder / MODELS, folder / BENCHMARKS)
    if tables.beside is not None:
        pages.append(folder / "beside")
        write_page(beside_page(tables.beside, sources), pages[-1])
    if tables.sheets is not None:
        files = (Path(sources.scores), folder / BENCHMARKS, [*pages], folder / MODELS, gathered.items)
        cards = CardSources(*files, inputs.splits, inputs.cards, inputs.source)
        pages.append(folder / "data")
        scores = pd.read_parquet(sources.scores)
        write_page(data_page(scores, tables.sheets, gathered.lines, cards, source), pages[-1])
    build_site(pages, folder, cards=cards, about=gathered.line, source=source, single_file=inputs.single_file,
               earlier=earlier)  # fmt: skip
    return [f"No {absent_names} report: {reason}" for absent_names, reason in absent_by_reason]


def _sheets(scores: pd.DataFrame, gathered: Gathered, inputs: Given, folder: Path, tell: Tell) -> Sheets:
    """The sheets given, guesses where none is; written into `folder`. Models that a given sheet lacks are guessed."""
    models, benchmarks = guess_models(scores, gathered.facts), guess_benchmarks(scores, gathered.groups)
    groups = [parse_group(text) for text in inputs.agreement.groups]
    decided, notes = list[str](), list[str]()
    if inputs.models is not None:
        facts_given = schema.as_in_scores(schema.read_model_facts(inputs.models, groups), set(scores["model"]))
        notes += _check_names(facts_given["model"], scores["model"], inputs.models, "models")
        models = pd.concat([facts_given, models[~models["model"].isin(facts_given["model"])]], ignore_index=True)
        decided += facts_given["model"].tolist()
    if inputs.benchmarks is not None:
        benchmarks = schema.read_benchmark_facts(inputs.benchmarks).assign(guessed=None)
        check_metrics(scores, benchmarks, inputs.benchmarks)
        notes += _check_names(benchmarks["benchmark"], scores["benchmark"], inputs.benchmarks, "benchmarks")
        decided += benchmarks["benchmark"].tolist()
    notes += leave_sparse_out(models, benchmarks, scores, decided)
    if inputs.benchmarks is None:
        benchmarks = shared_categories(benchmarks)
    for group in groups:
        schema.group_members(models[models["model"].isin(scores["model"].unique())], group, inputs.models or MODELS)
    for sheet, name in ((models, MODELS), (benchmarks, BENCHMARKS)):
        write_text(folder / name, _as_tsv(sheet))
    tell(*guess_lines(models, benchmarks, scores), *notes)
    return Sheets(models, benchmarks)


def _check_names(names: pd.Series, known_names: pd.Series, path: Path, noun: str) -> list[str]:
    """A line for each name without scores that is nearly one with scores. Raises InputError if no name has scores."""
    if not names.isin(known_names.unique()).any():
        raise InputError(
            f"{path}: names none of the {noun} that have scores ({', '.join(sorted(known_names.unique())[:3])}, ...).",
            "write their names as in the results, or leave the sheet out to have one guessed.",
        )
    scored = set(known_names.unique())
    unlisted = sorted(scored - set(names))
    near = {name: nearest(name, unlisted) for name in names if name not in scored}
    return [f"{path}: {name} has no scores. Did you mean {close}?" for name, close in near.items() if close]


def _as_tsv(sheet: pd.DataFrame) -> str:
    """The sheet as text: booleans as 0 and 1, empty where unknown."""
    plain = sheet.astype(object).map(lambda value: int(value) if isinstance(value, bool) else value)
    result: str = plain.to_csv(sep="\t", index=False, lineterminator="\n", float_format="%.12g")
    return result


def with_tokens(scores: pd.DataFrame, models: pd.DataFrame) -> pd.DataFrame:
    """The scores with billions of training tokens from iterations, where the sheet says the tokens in a step."""
    step = scores["model"].map(models.set_index("model")["tokens_per_step"].astype("float64"))
    tokens = scores["iteration"].astype("float64") * step / 1e9
    return scores.assign(tokens_b=scores["tokens_b"].astype("float64").fillna(tokens))


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
    jobs = _run_jobs(run, folder) if any(pq.read_metadata(path).num_rows for path in files) else []
    failed = run_reports(jobs)
    for name, problem in failed.items():
        print(f"report {name}: {problem}", file=sys.stderr)
    written = [job.output for job in jobs if job.name not in failed]
    for report in written if missing else ():
        mark_unfinished(report, missing)
    if not written:
        return [*lines, "No report is possible yet."]
    return [*lines, f"partial report: {write_run_site(run, written, folder, missing)}"]


def mark_unfinished(folder: Path, missing: list[str]) -> None:
    """Say on a report's own page which cells it does without."""
    write_html(read_json(folder / "page.json"), folder, missing=missing)


def _run_jobs(run: Run, folder: Path) -> list[ReportJob]:
    """The reports of the configuration's studies, from the tables of the folder and into its `reports`."""
    tables, reports, configured, jobs = folder / "tables", folder / "reports", run.configuration, list[ReportJob]()
    items, studies = tables / "items.parquet", configured.studies
    answers = items if items.is_file() else None
    sources = Sources(tables / "scores.parquet", configured.models, configured.benchmarks, answers, configured.plan)
    if "agreement" in studies:
        inputs = Given(section=configured.reports, agreement=configured.agreement, cards=configured.cards)
        jobs += agreement_jobs(reports, sources, inputs, tables / "selections.parquet")
    if "signal" in studies:
        jobs.append(ReportJob.of(reports, "signal", sources, section=configured.reports))
    if "bias" in studies:
        jobs.append(ReportJob.of(reports, "bias", tables / "trials.parquet", plan=run.bias_plan))
    return jobs
