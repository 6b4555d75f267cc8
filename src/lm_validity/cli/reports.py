"""What is made from results that are there: `lm-validity report …`, `compare`, `import …`, `export …` and `simulate …`.

Reports read tables only, so they also run on published or imported scores."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from shlex import join, quote
from typing import TYPE_CHECKING, Literal, NamedTuple

import typer

from lm_validity.cli import app as root
from lm_validity.cli import options
from lm_validity.cli.options import command, takes_section
from lm_validity.config.load import load_run
from lm_validity.config.sections import REPORTS, Agreement, Cards, Reports, Screening, SignalConventions
from lm_validity.errors import InputError
from lm_validity.files import as_written, check_file, made_from, read_page, replaced_folder
from lm_validity.words import say

if TYPE_CHECKING:
    from lm_validity.tables.formats.score_files import ImportOptions

app = options.make_group(
    "Write one report from tables, or all that the data allow from result files. "
    "If a folder has a subcommand's name, write ./signal.",
    options.PathsOrCommand,
)
imports = options.make_group(
    "Turn result files from elsewhere into tables. Harnesses are recognised; of other tables it asks what is not sure.",
    options.PathsOrCommand,
)
exports = options.make_group("Write tables in the formats of other programs.")
simulations = options.make_group("Run a simulation and write its page.")
for _name, _group in (("report", app), ("import", imports), ("export", exports), ("simulate", simulations)):
    root.add_typer(_group, name=_name)

# what a report writes into its folder
PAGE = ("index.html", "page.json", "results.parquet", "results.csv", "results.json", "tables", "figures", "assets")
CONVENTIONS = (f"signal.{key}" for key in SignalConventions.model_fields)


@contextmanager
def _folder_of(output: Path, command: str, *inputs: Path | None) -> Iterator[Path]:
    """A folder for a report, whose page then says in its foot what it was made from."""
    from lm_validity.pages.page import write_html

    with replaced_folder(output, command, inputs=inputs, names=PAGE) as folder:
        yield folder
        write_html(read_page(folder / "page.json"), folder, source=made_from(inputs))


def _report(
    name: str, output: Path, scores: Path, tables: Sequence[Path | None], *inputs: Path | None, **options: object
) -> None:
    """Write a report of tables: `scores`, and those that follow in `Sources`. `inputs`: what else it is made from;
    `options`: what its function takes further."""
    from lm_validity.site.report import FUNCTIONS
    from lm_validity.tables.counted import Sources

    with _folder_of(output, f"report {name}", scores, *inputs) as folder:
        resolve_name(f"lm_validity.{FUNCTIONS[name]}")(Sources(scores, *tables), folder, **options)


@command(app, "DIR_OR_FILES...", options.PathsCommand)
def report_site(
    results: list[Path], output: Path = Path("report"), single_file: bool = False, models: Path | None = None,
    benchmarks: Path | None = None, group: list[str] | None = None, beside: Path | None = None,
    plan: Path | None = None, mix_versions: bool = False, resamples: int = REPORTS.resamples,
    columns: str | None = None, reading: Path | None = None, model: list[str] | None = None,
    protocol: str | None = None, prepared_on: str | None = None, strict: bool = False,
    since: Path | None = None, without: Path | None = None,
) -> None:  # fmt: skip
    """Import results, guess the sheets, and write every report that the data allow as one site.

    For example `lm-validity report results/`, then open report/index.html; of both protocols, in a file that can be
    mailed, `lm-validity report direct=base/ train_before_test=tuned/ -o site --single-file`.
    """
    from lm_validity.site import gather, report

    files = _files(results, model, protocol, prepared_on, columns, reading, strict=strict)
    agreement, section = Agreement(groups=tuple(dict.fromkeys(group or ()))), Reports(resamples=resamples)
    inputs = gather.Given(models, benchmarks, beside, files.options, section, plan=plan, agreement=agreement)
    inputs = replace(inputs, single_file=single_file, mix_versions=mix_versions, since=since, without=without)
    report.report_site(files.paths, output, inputs, say)
    options.say_findings(output, options.site_reports(output), quote(str(output)))


@command(app)
@takes_section("reports", "resamples")
def agreement(
    scores: Path, models: Path, benchmarks: Path, output: Path, section: Reports, cards: Cards,
    items: Path | None = None, selections: Path | None = None, plan: Path | None = None,
) -> None:  # fmt: skip
    """Do the benchmarks agree on which model is better, under direct evaluation and train before test?"""
    tables = [models, benchmarks, items, plan]
    further = {"section": section, "selections": selections, "cards": cards}
    _report("agreement", output, scores, tables, items, selections, **further)


@command(app)
@takes_section("reports", "resamples")
def factors(
    scores: Path, models: Path, benchmarks: Path, output: Path, section: Reports, plan: Path | None = None
) -> None:
    """How many factors does the score matrix have, and what is the first?"""
    _report("factors", output, scores, [models, benchmarks, None, plan], section=section)


@command(app, "models")
def models_in_order(
    scores: Path, models: Path, benchmarks: Path, output: Path, items: Path | None = None, plan: Path | None = None
) -> None:
    """Which model is best, which are not told apart, and which beats which?"""
    _report("models", output, scores, [models, benchmarks, items, plan], items)


@command(app)
@takes_section("agreement", "knots")
def readiness(
    scores: Path, models: Path, benchmarks: Path, output: Path, section: Agreement, group: list[str] | None = None,
    plan: Path | None = None,
) -> None:  # fmt: skip
    """Does a group of models lead at equal compute, and is it ahead once all are prepared for the test?"""
    named = section.model_copy(update={"groups": tuple(dict.fromkeys(group))}) if group else section
    _report("readiness", output, scores, [models, benchmarks, None, plan], section=named)


@command(app)
@takes_section("screening", *Screening.model_fields)
def screening(
    scores: Path, models: Path, benchmarks: Path, output: Path, section: Screening, results: Path | None = None,
    plan: Path | None = None,
) -> None:  # fmt: skip
    """Which candidate benchmarks are usable, and why the others are not."""
    _report("screening", output, scores, [models, benchmarks, None, plan], results, section=section, results=results)


@command(app)
@takes_section("reports", "resamples", "checkpoints", *CONVENTIONS, checkpoints="selection")
def signal(
    scores: Path, models: Path, output: Path, section: Reports, benchmarks: Path | None = None,
    items: Path | None = None,
) -> None:  # fmt: skip
    """Does a benchmark tell you anything early in training?"""
    _report("signal", output, scores, [models, benchmarks, items], items, section=section)


@command(app)
def bias(
    trials: Path, output: Path, sampler: Literal["laplace", "nuts"] = "laplace",
    formula: Literal["all", "equations", "notebooks", "overdispersed"] = "all", configfile: Path | None = None,
) -> None:  # fmt: skip
    """Does pretraining on unlabelled test text inflate a score?"""
    from lm_validity.studies.bias.page import report_bias

    plan = None if configfile is None else load_run(configfile).bias_plan
    with _folder_of(output, "report bias", trials) as folder:
        report_bias(trials, folder, sampler=sampler, formula=formula, plan=plan)


@command(app, "items")
def report_items(
    scores: Path, items: Path, output: Path, documents: list[Path] | None = None, benchmarks: Path | None = None,
    models: Path | None = None,
) -> None:  # fmt: skip
    """How finely do the benchmarks tell models apart, and which items work against them?"""
    texts = tuple(documents or ())
    _report("items", output, scores, [models, benchmarks, items], items, *texts, documents=texts)


@command(root)
def compare(
    model_a: str, model_b: str, folder: Path | None = None, at: str | None = None, margin: str | None = None,
    gate: bool = False, unknown: Literal["pass", "fail"] | None = None, self_check: bool = False,
    mix_versions: bool = False, scores: Path | None = None, items: Path | None = None, benchmarks: Path | None = None,
    columns: str | None = None, output: Path | None = None, markdown: Path | None = None, junit: Path | None = None,
) -> None:  # fmt: skip
    """Is B better than A, worse, or not worse by more than a margin?"""
    from lm_validity.site import compare as verdicts

    for written_file in filter(None, (markdown, junit)):
        check_file(written_file, [verdicts.MARK])
    files = _files([], columns=columns)
    request = verdicts.Comparing(at, margin, mix_versions, self_check, benchmarks, for_page=output is not None)
    compared = verdicts.compare(model_a, model_b, scores or folder, replace(request, options=files.options), items)
    if output is not None:
        inputs = [scores, folder, items, benchmarks, *filter(Path.exists, map(Path, (model_a, model_b)))]
        with _folder_of(output, "compare", *inputs) as written:
            verdicts.write_page(compared, written)
    for template, file in (("compare.md.j2", markdown), ("junit.xml.j2", junit)):
        if file is not None:
            verdicts.write_for_pipeline(compared, template, file)
    say(*verdicts.terminal_lines(compared), *([] if output is None else [f"Page: {output / 'index.html'}"]))
    if gate:
        is_open = compared.decision == "not known" and unknown is not None
        code = int(unknown == "fail") if is_open else verdicts.EXIT_CODES[compared.decision]
        say(f"Gate: {compared.decision} (exit {code}).")
        raise typer.Exit(code)


# ----------------------------------------------------------------------------------------------------------------------
# `lm-validity import …`: result files of other programs into our tables.


@command(imports, "FILES...", options.PathsCommand)
def of_any_format(
    results: list[Path], output: Path, columns: str | None = None, reading: Path | None = None,
    model: list[str] | None = None, protocol: str | None = None, prepared_on: str | None = None, strict: bool = False,
) -> None:  # fmt: skip
    """Turn result files of any known format into scores.parquet and, where there are answers, items.parquet."""
    from lm_validity.tables.formats.import_files import import_files

    files = _files(results, model, protocol, prepared_on, columns, reading, strict=strict)
    with replaced_folder(output, "import", inputs=files.paths) as folder:
        scores, log = import_files(files.paths, folder, files.options)
    say(*log.lines(scores))
    _say_where(output / "scores.parquet")


_FILES_OF = {
    "lm-eval": "lm-eval",
    "csv": "a table",
    "every-eval-ever": "every_eval_ever",
    "lm-harmony": "the train-before-test authors, all_results.json",
    "e2lm": "the early-training competition, a column per benchmark",
}
for _name, _files_of in _FILES_OF.items():
    command(imports, _name, text=f"The same, of files of {_files_of}.")(of_any_format)


@command(imports, "pretrain-on-test")
def pretrain_on_test(source: Path, output: Path) -> None:
    """Turn the author's folder accuracies_..., or a CSV with a row per task and subsample, into trials.parquet."""
    from lm_validity.studies.bias.trials import read_pretrain_on_test
    from lm_validity.tables.schema import TRIALS, write_table

    with replaced_folder(output, "import", inputs=[source]) as folder:
        trials = read_pretrain_on_test(source)
        write_table(trials, TRIALS, folder / "trials.parquet")
    say(f"{len(trials)} rows from {source}.")
    _say_where(output / "trials.parquet")


def _say_where(table: Path) -> None:
    say(f"Written: {table}", f"Pages of it: lm-validity report {quote(str(table.parent))} --output report")


class _Files(NamedTuple):
    """The paths without PROTOCOL=, and what was said of the files."""

    paths: list[Path]
    options: "ImportOptions"


def _files(
    results: list[Path], models: list[str] | None = None, protocol: str | None = None, prepared_on: str | None = None,
    columns: str | None = None, reading: Path | None = None, *, strict: bool = False,
) -> _Files:  # fmt: skip
    """What is to be imported, and how. Raises InputError for values that are not known."""
    from lm_validity.tables.formats.score_files import ImportOptions
    from lm_validity.tables.schema import PROTOCOLS

    if protocol not in (*PROTOCOLS, None):
        raise InputError(f"--protocol {protocol}: not known.", f"choose one of {', '.join(PROTOCOLS)}.")
    paths, protocols, names = list[Path](), dict[Path, str](), dict[Path, str]()
    for result in results:
        word, _, path = str(result).partition("=")
        if word not in PROTOCOLS or result.exists():
            paths.append(result)
            continue
        if protocols.setdefault(as_written(path), word) != word:
            raise InputError(f"{path}: under two protocols.", "give each folder once.")
        paths.append(Path(path))
    for pair in models or ():
        path, _, name = pair.rpartition("=")
        if not path or not name:
            raise InputError(f"--model {pair}: not PATH=NAME.", "write a file or folder, '=' and the model's name.")
        names[as_written(path)] = name
    return _Files(paths, ImportOptions(names, protocols, protocol, prepared_on, strict, reading, columns, _typed()))


def _typed() -> str:
    """The command as it was typed, without what it said of columns: what is printed is to be pasted."""
    words, skip = ["lm-validity"], False
    for word in sys.argv[1:]:
        if not skip and not word.startswith(("--columns=", "--reading=")) and word not in ("--columns", "--reading"):
            words.append(word)
        skip = word in ("--columns", "--reading")
    return join(words)


# ----------------------------------------------------------------------------------------------------------------------
# `lm-validity export …`, and `lm-validity simulate …`: simulations that explain a study's statistics.


@command(exports, "every-eval-ever")
def export_every_eval_ever(
    scores: Path, output: Path, organization: str, benchmarks: Path | None = None, collection: str = "lm-validity",
    relationship: Literal["first_party", "third_party", "collaborative", "other"] = "other",
) -> None:  # fmt: skip
    """Turn scores.parquet into files of every_eval_ever, one per evaluation of a model."""
    from lm_validity.tables.counted import completed
    from lm_validity.tables.formats.evaluations import with_directions, write_every_eval_ever
    from lm_validity.tables.schema import read_benchmark_facts, read_scores

    table = read_scores(scores)
    if benchmarks is not None:
        table = completed(table, read_benchmark_facts(benchmarks))
    scores_with_directions, unknown = with_directions(table)
    with replaced_folder(output, "export every-eval-ever", inputs=[scores]) as folder:
        written = write_every_eval_ever(scores_with_directions, folder, organization, relationship, collection)
    if unknown:
        say(f"Left out, since it is not known whether higher is better: {', '.join(unknown)}.")
    say(f"{output}: {len(written)} files.")


@command(simulations)
def pca(output: Path, splits: int = 100) -> None:
    """Simulate principal components fitted on test rows: a case in which unlabelled test data inflate a score."""
    from lm_validity.studies.bias.page import write_pca_simulation

    with _folder_of(output, "simulate pca") as folder:
        write_pca_simulation(folder, splits)


@command(simulations)
def prior(trials: Path, output: Path, formula: str = "overdispersed", draws: int = 300) -> None:
    """Show what the priors of the bias study's model imply before any data."""
    from lm_validity.studies.bias.page import write_prior_simulation

    with _folder_of(output, "simulate prior", trials) as folder:
        write_prior_simulation(trials, folder, formula, draws)
