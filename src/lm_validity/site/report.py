"""lm-validity report: everything that it was given, every report that the data allow, one site."""

import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from lm_validity.config.load import read_cells
from lm_validity.config.rows import parse_group
from lm_validity.config.sections import REPORTS, Agreement, Cards, Reports
from lm_validity.errors import InputError, nearest
from lm_validity.files import made_from, replaced_folder, write_text
from lm_validity.pages.page import write_page
from lm_validity.site.cards.card import FOLDER as CARDS
from lm_validity.site.cards.values import CardSources
from lm_validity.site.data import Beside, add_beside, beside_page, data_page
from lm_validity.site.first_page import ORDER, build_site
from lm_validity.site.gather import BENCHMARKS, MODELS, Gathered, gather
from lm_validity.site.guess import guess_benchmarks, guess_lines, guess_models, leave_sparse_out, shared_categories
from lm_validity.studies.agreement.score_matrix import STUDY
from lm_validity.tables.counted import Sources, check_metrics, count_scores
from lm_validity.tables.formats.score_files import ImportOptions
from lm_validity.tables.metrics import PERPLEXITY
from lm_validity.tables.schema import (
    DIRECT,
    SCORES,
    SETTINGS,
    as_in_scores,
    group_members,
    of_study,
    read_benchmark_facts,
    read_model_facts,
    reruns_of,
    sheets_in,
    write_table,
)
from lm_validity.tables.settings import FILE, difference_notes, without_kinds
from lm_validity.words import listing

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
    `build_site` takes it; `mix_versions`: unlike versions of a task, and unlike parts of its items, are compared."""

    models: Path | None = None
    benchmarks: Path | None = None
    beside: Path | None = None
    options: ImportOptions = field(default_factory=ImportOptions)
    section: Reports = REPORTS
    cards: Cards = field(default_factory=Cards)
    splits: Path | None = None
    source: str = ""
    plan: Path | None = None
    agreement: Agreement = field(default_factory=Agreement)
    single_file: bool = False
    mix_versions: bool = False


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


class Sheets(NamedTuple):
    """The models sheet and the benchmarks sheet of a site."""

    models: pd.DataFrame
    benchmarks: pd.DataFrame


class Chosen(NamedTuple):
    """The reports to write, and why the others cannot be written, by name."""

    jobs: list[ReportJob]
    absent: dict[str, str]


def choose_reports(gathered: Gathered, sheets: Sheets | None, folder: Path, inputs: Given) -> Chosen:
    """The reports to write under `folder`.

    Agreement and factors need 3 models and 2 benchmarks in common use; two models are compared, more on one benchmark
    ranked. Signal needs 3 checkpoints of a model, items their table, bias trials; readiness groups that `inputs` names.
    """
    jobs: list[ReportJob] = []
    absent: dict[str, str] = {}
    items = gathered.items
    sources = Sources(folder / "scores.parquet", folder / MODELS, folder / BENCHMARKS, items, inputs.plan)
    own_models = (
        () if inputs.beside is None or gathered.scores is None else tuple(sorted(gathered.scores["model"].unique()))
    )
    if gathered.scores is None or sheets is None:
        absent |= dict.fromkeys(("agreement", "factors", "signal"), "there are no scores of models.")
    else:
        compared, benchmark_count = _compared(pd.read_parquet(sources.scores), sheets)
        if len(compared) < LEAST_MODELS or benchmark_count < LEAST_BENCHMARKS:
            absent |= dict.fromkeys(
                ("agreement", "factors"), _too_few(compared, benchmark_count, gathered.scores, sheets)
            )
            jobs += _of_few(compared, sources, folder, inputs)
        else:
            jobs += agreement_jobs(folder, sources, inputs, gathered.selections)
        direct = gathered.scores[gathered.scores["protocol"] == DIRECT]
        if (direct.groupby(["model", "benchmark"])["checkpoint"].nunique() >= LEAST_CHECKPOINTS).any():
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
    jobs = [ReportJob.of(folder, "agreement", sources, section=inputs.section, selections=selections)]
    jobs.append(ReportJob.of(folder, "factors", sources, section=inputs.section))
    if inputs.agreement.groups:
        jobs.append(ReportJob.of(folder, "readiness", sources, section=inputs.agreement))
    return jobs


class Written(NamedTuple):
    """The names of the reports that were written, and why the others were not, by name."""

    names: set[str]
    failed: dict[str, str]


def run_reports(jobs: list[ReportJob], tell: Tell = lambda *lines: None) -> Written:
    """Write the reports. `tell` gets a line for each; what is wrong with the data of one keeps no other from being
    written."""
    from lm_validity.site.compare import report_comparison
    from lm_validity.studies.agreement.factors import report_factors
    from lm_validity.studies.agreement.readiness import report_readiness
    from lm_validity.studies.agreement.report import report_agreement
    from lm_validity.studies.bias.page import report_bias
    from lm_validity.studies.items.ranking import report_ranking
    from lm_validity.studies.items.report import report_items
    from lm_validity.studies.signal.report import report_signal

    functions: dict[str, Callable[..., None]] = {
        "agreement": report_agreement,
        "factors": report_factors,
        "readiness": report_readiness,
        "signal": report_signal,
        "items": report_items,
        "ranking": report_ranking,
        "compare": report_comparison,
        "bias": report_bias,
    }
    failed = dict[str, str]()
    for job in jobs:
        start = time.monotonic()
        try:
            functions[job.name](job.sources, job.output, **job.options)
        except InputError as error:
            failed[job.name] = f"{error.problem} {error.hint[:1].upper()}{error.hint[1:]}"
        else:
            tell(f"Written: {job.name}, {time.monotonic() - start:.0f} s")
    return Written({job.name for job in jobs} - set(failed), failed)


class _InCommonUse(NamedTuple):
    """The models that are compared, in the order of their sheet, and the number of benchmarks."""

    models: list[str]
    benchmarks: int


def _compared(scores: pd.DataFrame, sheets: Sheets) -> _InCommonUse:
    """What is compared: without reruns and corpora, or with these where there is nothing else."""
    models, benchmarks = sheets
    of_this = benchmarks[of_study(benchmarks, STUDY)]
    usable = of_this[of_this["output_type"] != PERPLEXITY]
    out = {*models.loc[~of_study(models, STUDY), "model"], *(reruns_of(models) if "rerun_of" in models else ())}
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
    open_ones = set(benchmarks.loc[benchmarks["metric"].isna() & ~of_study(benchmarks, STUDY), "benchmark"])
    metrics = scores[scores["benchmark"].isin(open_ones)].groupby("benchmark")["metric"].nunique()
    undecided = sorted(metrics[metrics > 1].index)
    if undecided:
        reason += f" Which metric counts is not known of {listing(undecided, 3)} (column 'metric' of benchmarks.tsv)."
    return reason


def _of_few(models: list[str], sources: Sources, folder: Path, inputs: Given) -> list[ReportJob]:
    """What too few models or benchmarks for an agreement report allow: the comparison of two models, or the ranking of
    more on one benchmark."""
    if len(models) == COMPARED:
        names = {"first": models[0], "second": models[1]}
        return [ReportJob.of(folder, "compare", sources, **names, mix_versions=inputs.mix_versions)]
    if len(models) > COMPARED:
        return [ReportJob.of(folder, "ranking", sources, only=tuple(models), study=STUDY)]
    return []


# ----------------------------------------------------------------------------------------------------------------------
# One command from result files to a site: import, guess the two sheets, write every report that the data allow.


NAMES = (*ORDER, CARDS, "assets", "index.html", "scores.parquet", FILE, "items.parquet", "import.json", "reading.yaml")


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
        given, sheets = given_inputs, sheets_in(folder)
        models, benchmarks = given.models or sheets.get("models"), given.benchmarks or sheets.get("benchmarks")
        given_inputs = replace(given, models=models, benchmarks=benchmarks)
    sheets_given = {MODELS: given_inputs.models, BENCHMARKS: given_inputs.benchmarks}
    sheets_kept = [name for name, path in sheets_given.items() if path is not None and _is_same(path, output / name)]
    inputs = (*paths, given_inputs.beside, given_inputs.splits)
    failure: InputError | None = None
    notes_told = list[str]()

    def keep(*lines: str) -> None:
        notes_told.extend(lines)
        tell(*lines)

    with replaced_folder(output, "report", inputs=inputs, names=NAMES, entries_to_keep=sheets_kept) as folder:
        gathered = gather(paths, folder, given_inputs.options)
        keep(*gathered.lines, *(f"Sheet: {path}" for path in sheets_given.values() if path is not None))
        tables = _tables(gathered, given_inputs, folder)
        keep(*tables.lines)
        try:
            source = made_from(paths)
            keep(*_write_reports(gathered, tables, given_inputs, folder, source, tell))
        except InputError as error:
            if tables.sheets is None or (output / "index.html").exists():
                raise
            failure = error.reworded({str(folder): str(output)})
            for held_path in folder.iterdir():
                if held_path.is_dir():
                    shutil.rmtree(held_path)
    if failure is not None:
        reading = ", and reading.yaml with --reading" if (output / "reading.yaml").is_file() else ""
        advice = f" Scores and sheets are in {output}: correct the sheets, and pass them with --models and --benchmarks"
        raise InputError(failure.problem, f"{failure.hint}{advice}{reading}.")
    return notes_told


class _Tables(NamedTuple):
    """What was written before the reports: the models beside and the sheets, where there are scores, and what to print
    of them."""

    beside: Beside | None
    sheets: Sheets | None
    lines: list[str]


def _tables(gathered: Gathered, inputs: Given, folder: Path) -> _Tables:
    """Write the scores and the two sheets, where there are scores."""
    if gathered.scores is None:
        return _Tables(None, None, [])
    scores, beside = add_beside(gathered.scores, inputs.beside)
    sheets, notes = _sheets(scores, gathered, inputs, folder)
    lines = [*guess_lines(*sheets, scores), *notes]
    write_table(with_tokens(scores, sheets[0]), SCORES, folder / "scores.parquet")
    lines += _settings_lines(gathered.settings, folder, inputs)
    return _Tables(beside, sheets, lines)


def _settings_lines(settings: pd.DataFrame | None, folder: Path, inputs: Given) -> list[str]:
    """Writes the settings beside the scores in `folder`, and says where they differ between models."""
    if settings is None:
        return []
    path = folder / FILE
    write_table(settings, SETTINGS, path)
    try:
        sources = Sources(folder / "scores.parquet", folder / MODELS, folder / BENCHMARKS)
        counted = count_scores(sources, unlike="kept" if inputs.mix_versions else "out")
        notes = (*counted.kept_out, *difference_notes(counted.last().differing, len(counted.benchmarks)))
    except InputError:
        notes = ()  # each report says by itself why it cannot be written
    if inputs.mix_versions:
        write_table(without_kinds(settings), SETTINGS, path)
    return list(notes)


def _is_same(path: Path, second: Path) -> bool:
    return path.resolve() == second.resolve()


def _write_reports(
    gathered: Gathered, tables: _Tables, inputs: Given, folder: Path, source: str, tell: Tell
) -> list[str]:
    """Every report that the data allow and the site of them; a line for each that they do not allow."""
    beside, sheets = tables.beside, tables.sheets
    jobs, absent = choose_reports(gathered, sheets, folder, inputs)
    written, failed = run_reports(jobs, tell)
    # the folder is a draft, whose name nobody finds
    absent = {name: reason.replace(f"{folder}/", "") for name, reason in (absent | failed).items()}
    if not written:
        reasons = " ".join(f"{names.capitalize()}: {reason}" for names, reason in _by_reason(absent))
        advice = "add results of more models" + ("." if inputs.beside else ", or published scores with --beside.")
        hint = "correct the data or the sheets." if jobs else advice
        raise InputError(f"no report can be written from these data. {reasons}", hint)
    pages = [job.output for job in jobs if job.name in written]
    if beside is not None:
        page = beside_page(beside, Sources(folder / "scores.parquet", folder / MODELS, folder / BENCHMARKS))
        write_page(page, folder / "beside")
        pages.append(folder / "beside")
    cards = None
    if gathered.scores is not None:
        sources = (folder / "scores.parquet", folder / BENCHMARKS, [*pages], folder / MODELS, gathered.items)
        cards = CardSources(*sources, inputs.splits, inputs.cards, inputs.source)
    if sheets is not None and cards is not None:
        scores = pd.read_parquet(folder / "scores.parquet")
        write_page(data_page(scores, *sheets, gathered.lines, cards, source), folder / "data")
        pages.append(folder / "data")
    build_site(pages, folder, cards=cards, about=gathered.line, source=source, single_file=inputs.single_file)
    return [f"No {names} report: {reason}" for names, reason in _by_reason(absent)]


def _by_reason(absent: Mapping[str, str]) -> list[tuple[str, str]]:
    """The names of the reports that are absent for one reason, and the reason."""
    names: dict[str, list[str]] = {}
    for name, reason in absent.items():
        names.setdefault(reason, []).append(name)
    return [(" or ".join(of_reason), reason) for reason, of_reason in names.items()]


class _Filled(NamedTuple):
    """The two sheets as they are used, and what to print of them."""

    sheets: Sheets
    notes: list[str]


def _sheets(scores: pd.DataFrame, gathered: Gathered, inputs: Given, folder: Path) -> _Filled:
    """The sheets given, guesses where none is; written into `folder`. Models that a given sheet lacks are guessed."""
    models, benchmarks = guess_models(scores, gathered.facts), guess_benchmarks(scores, gathered.groups)
    groups = [parse_group(text) for text in inputs.agreement.groups]
    decided, notes = list[str](), list[str]()
    if inputs.models is not None:
        facts_given = as_in_scores(read_model_facts(inputs.models, groups), set(scores["model"]))
        notes += _check_names(facts_given["model"], scores["model"], inputs.models, "models")
        models = pd.concat([facts_given, models[~models["model"].isin(facts_given["model"])]], ignore_index=True)
        decided += facts_given["model"].tolist()
    if inputs.benchmarks is not None:
        benchmarks = read_benchmark_facts(inputs.benchmarks).assign(guessed=None)
        check_metrics(scores, benchmarks, inputs.benchmarks)
        notes += _check_names(benchmarks["benchmark"], scores["benchmark"], inputs.benchmarks, "benchmarks")
        decided += benchmarks["benchmark"].tolist()
    notes += leave_sparse_out(models, benchmarks, scores, decided)
    if inputs.benchmarks is None:
        benchmarks = shared_categories(benchmarks)
    for group in groups:
        group_members(models[models["model"].isin(scores["model"].unique())], group, inputs.models or MODELS)
    for sheet, name in ((models, MODELS), (benchmarks, BENCHMARKS)):
        write_text(folder / name, _as_tsv(sheet))
    return _Filled(Sheets(models, benchmarks), notes)


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
