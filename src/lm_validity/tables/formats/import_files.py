"""Files and folders of others' results, of any known format -> scores.parquet, items.parquet and import.json.

The one loop of all imports: find the files, open and parse each once, ask the formats whose it is, read it, put names
from paths in, and settle what several files have.
"""

import gzip
import re
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from lm_validity.config.sheets import metric_key
from lm_validity.errors import InputError, did_you_mean, first_line, nearest
from lm_validity.files import absent, as_written, made_folder, replace_file
from lm_validity.tables.aggregates import decimals
from lm_validity.tables.cell_text import is_missing, plain, read_cell
from lm_validity.tables.claims import DEFAULTS, Claim, Facts
from lm_validity.tables.columns import SCORE_COLUMNS, check_column, names_metric, names_no_benchmark
from lm_validity.tables.decisions import CONVERTED, EVERY, Decision, Given, Reading
from lm_validity.tables.formats import (
    checked,
    import_csv,
    import_every_eval_ever,
    import_inspect,
    import_json,
    import_nested,
    import_texts,
    lm_eval,
    published,
    specs,
)
from lm_validity.tables.formats.engine import Spec, forget_files
from lm_validity.tables.formats.import_samples import (
    SampleFile,
    SamplesPart,
    is_samples,
    match_all_samples,
    read_all_samples,
    write_items,
)
from lm_validity.tables.formats.model_names import PARAMETERS, PathPattern, PlacesRead, pattern_of
from lm_validity.tables.formats.score_files import (
    Format,
    Found,
    ImportLog,
    ImportOptions,
    Opened,
    ScoreFile,
    check_file,
    check_identities,
    date_in,
    find_files,
    score_table,
    with_item_errors,
    with_progress,
    with_runs,
    with_tokens,
)
from lm_validity.tables.formats.text_tables import html_way, stem
from lm_validity.tables.reading import KEY
from lm_validity.words import count, listing

# In the order in which they are asked: the first that recognises a file reads it
FORMATS: tuple[Format | Spec, ...] = (
    specs.HELM,
    import_texts.FORMAT,
    specs.HELM_TABLES,
    published.TERMINAL,
    specs.MTEB,
    published.LISTS,
    specs.PROMPTFOO,
    specs.DEEPEVAL,
    specs.EVALPLUS,
    specs.EVALS,
    specs.VLM,
    specs.NEMO,
    specs.OPENCOMPASS,
    specs.SIMPLE_EVALS,
    specs.OLMES,
    import_every_eval_ever.EVERY_EVAL_EVER,
    import_every_eval_ever.LINES,
    specs.LIGHTEVAL,
    import_inspect.INSPECT,
    lm_eval.LM_EVAL,
    published.LM_HARMONY,
    published.TRIALS,
    published.E2LM,
    import_json.ANSWERS,
    import_json.SCORED,
    import_json.RECORDS,
    import_csv.CSV,
    import_json.JSON,
    import_nested.FORMAT,
)
_ARCHIVES = (".zip", ".tar", ".tgz", ".gz")
_READ_PACKED = (".csv.gz", ".tsv.gz")  # where they are given themselves
_MOST_UNPACKED = 2**34  # bytes of what an archive holds
_PLAIN_LAYOUT = "write it as CSV: model, benchmark, value in each row, or a row a model and a column a benchmark"
# How tables of other kinds of files become one that is read, by the ending
_OTHER_KINDS = {
    ".html": html_way(Path("{path}")),
    ".tex": r"grep '&' '{path}' | sed 's/\\\\.*//; s/\\cite{{[^}}]*}}//g; s/\\pm/±/g; s/\\[a-z]*//g; s/[{{}}$\\]//g; "
    r"s/_ *±/ ±/g; s/&/\t/g' > scores.tsv, and give scores.tsv, whose first row is the header.",
    ".ipynb": "in the notebook write the table as a file (frame.to_csv('scores.csv', index=False)), and give that.",
    ".xlsx": "save the sheet as CSV, and give that.",
}
_OTHER_KINDS |= {".htm": _OTHER_KINDS[".html"], ".xls": _OTHER_KINDS[".xlsx"], ".ods": _OTHER_KINDS[".xlsx"]}
_HINT = f"known formats are {', '.join(file_format.name for file_format in FORMATS)}; --format names one."
_SPLIT = re.compile(r"^(eval|test|val|validation)_")  # before the name of a metric
_PART = 2**20  # bytes that are unpacked at a time
_HEAD = 2**16  # bytes by which a file that is not JSON is recognised


class Import(NamedTuple):
    """The scores of files, and what became of each."""

    scores: pd.DataFrame
    log: ImportLog


class FilesRead(NamedTuple):
    """The scores of every file, and lm-eval's files of samples with what their result files say."""

    results: list[ScoreFile]
    samples: list[SampleFile]


def import_files(paths: Iterable[str | Path], output: str | Path, options: ImportOptions | None = None) -> Import:
    """Write scores.parquet, import.json and, where there are items, items.parquet under `output`.

    In folders, what no format recognises is listed in the log. `options.strict`, a bad file that was named itself,
    scores in conflict and nothing left raise InputError, and nothing is written.
    """
    options, places = options or ImportOptions(), [*map(Path, paths)]
    _check_there(places)
    log = ImportLog(strict=options.strict)
    with ExitStack() as stack:
        try:
            return _import(_unpacked(places, stack, log), Path(output), options, log)
        except InputError as error:
            raise InputError(log.as_given(error.problem), log.as_given(error.hint)) from error


def _check_there(paths: Sequence[Path]) -> None:
    """Raises InputError for a path where nothing is; it may be the name of a format, or of what is to be written."""
    for path in paths:
        if path.exists():
            continue
        formats = (file_format.name for file_format in FORMATS)
        if path.parent == Path() and (close := nearest(path.name, formats)):
            way = f"formats are recognised: leave the name out, or write --format {close!r}."
            raise InputError(f"{path}: no such file or folder.", way)
        is_last = path is paths[-1] and len(paths) > 1
        raise absent(
            path,
            "file or folder",
            f"check the path{'; what is to be written is named with --output' if is_last else ''}.",
        )


def _unpacked(paths: Iterable[str | Path], stack: ExitStack, log: ImportLog) -> list[Path]:
    """The paths, with a folder of what it holds for each zip, tar or gzipped file, also of those in folders, until the
    stack ends."""
    places, root = [], Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lm-validity.")))
    for path in map(Path, paths):
        is_archive = path.is_file() and path.name.endswith(_ARCHIVES) and not path.name.endswith(_READ_PACKED)
        archives = [path] if is_archive else []
        if path.is_dir():
            archives = [
                found_file.path
                for found_file in find_files([path], _ARCHIVES).files
                if found_file.path.name.endswith(_ARCHIVES)
            ]
        places += [] if is_archive else [path]
        for archive in archives:
            # as the user's folders are called, since these may name models
            above = root / str(len(log.origins))
            folder = above.joinpath(*(part for part in archive.parts if part not in (archive.anchor, "..")))
            try:
                unpacked = _unpack(archive, folder)
                log.origins[str(unpacked)] = str(archive)
                places.append(unpacked if is_archive else above)
            except (
                shutil.ReadError,
                OSError,
                ValueError,
                EOFError,
                tarfile.TarError,
                zipfile.BadZipFile,
                zlib.error,
            ) as error:
                shutil.rmtree(above, ignore_errors=True)  # half of it may be there
                problem = f"{archive}: cannot be unpacked ({first_line(error)})."
                log.skip(archive, problem, "unpack it, and give the folder.", named=is_archive)
    return places


def _unpack(archive: Path, folder: Path) -> Path:
    """Where what an archive holds lies now: a folder, or for one gzipped file the file."""
    if archive.suffix == ".gz" and not archive.name.endswith(".tar.gz"):
        path = folder.with_suffix("")
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(archive) as packed, open(path, "wb") as handle:
            while part := packed.read(_PART):
                handle.write(part)
                if handle.tell() > _MOST_UNPACKED:
                    raise ValueError(f"more than {_MOST_UNPACKED // 2**30} GiB")
        return path
    if _size(archive) > _MOST_UNPACKED:
        raise ValueError(f"more than {_MOST_UNPACKED // 2**30} GiB")
    folder.mkdir(parents=True, exist_ok=True)
    if archive.suffix == ".zip":
        shutil.unpack_archive(archive, folder)
        return folder
    if not hasattr(tarfile, "data_filter"):
        raise ValueError("Python 3.11 before 3.11.4 has no safe way for tar archives")
    shutil.unpack_archive(archive, folder, filter="data")
    return folder


def _size(archive: Path) -> int:
    """Bytes of all that an archive holds."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as members:
            return sum(member.file_size for member in members.infolist())
    with tarfile.open(archive) as packed:
        return sum(member.size for member in packed)


def _import(paths: Iterable[str | Path], output: Path, options: ImportOptions, log: ImportLog) -> Import:
    """`import_files` of what is unpacked."""
    asked, options = options.corrections, options.with_reading()
    log.reading = Reading(options.corrections)
    try:
        results, samples = _read_all(paths, options, log)
    except InputError as error:
        raise _with_idle_rows(error, log) from error
    _check_columns(asked, results)
    check_identities(
        [*results, *(ScoreFile(sample.found.path, [], sample.common, identity=sample.identity) for sample in samples)]
    )
    with ExitStack() as stack:
        parts: list[SamplesPart] = []
        if samples:
            stack.enter_context(made_folder(output))
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=".import.", dir=output))
            parts, of_samples = read_all_samples(samples, Path(folder), log)
            results += [_completed(file, options, "lm-eval") for file in of_samples]
        try:
            scores = _settled(results, options, log)
        except InputError as error:
            if len(log.formats) < 2 or options.format:
                raise _with_idle_rows(error, log) from error
            name, number = log.formats.most_common(1)[0]
            hint = f"{error.hint.rstrip('.')}; or read one format only: --format {name} ({count(number, 'file')})."
            raise InputError(error.problem, hint) from error
        log.notes += log.reading.check_given()
        with_items = [file for file in results if file.items is not None]
        if parts or with_items:
            # Replaced when everything is written: the tables belong together
            path = stack.enter_context(replace_file(output / "items.parquet"))
            log.items = write_items(parts, with_items, path, log.reading.renamed)
        elif (output / "items.parquet").exists():
            log.notes.append(f"{output / 'items.parquet'} is of another import: these files have no items.")
        log.name_as_given()
        log.write(scores, output)
    return Import(scores, log)


def _with_idle_rows(error: InputError, log: ImportLog) -> InputError:
    """The error, with the first row of the reading whose column no file has: perhaps its name is misspelt."""
    if (row := log.reading.given.of_no_column()) is None:
        return error
    idle_row = f"; {log.reading.given.path}, {row} changes nothing ({log.reading.given.hint(row).rstrip('.')})."
    return InputError(error.problem, error.hint.rstrip(".") + idle_row)


def _read_all(paths: Iterable[str | Path], options: ImportOptions, log: ImportLog) -> FilesRead:
    names = [file_format.name for file_format in FORMATS]
    if options.format not in (None, *names):
        hint = did_you_mean(options.format, names, f"one of {', '.join(names)}.")
        raise InputError(f"--format {options.format}: not known.", hint)
    formats = [file_format for file_format in FORMATS if options.format in (None, file_format.name)]
    files, other_files, own_tables = find_files(
        paths, tuple({suffix for file_format in formats for suffix in file_format.suffixes})
    )
    files = [file for file in files if file.named or not file.path.name.endswith(_ARCHIVES)]  # the others are unpacked
    log.notes += [f"Not read, since lm-validity wrote them: {listing(own_tables, 3)}."] if own_tables else []
    log.other_files = Counter({suffix: n for suffix, n in other_files.items() if suffix not in _ARCHIVES})
    _check_places(options, files)
    pattern = None if options.path is None else PathPattern(options.path)
    levels_said = not options.format and any(
        kind == "column" and import_nested.LEVEL.fullmatch(where) for kind, where in options.corrections
    )
    results: list[ScoreFile] = []
    samples: list[Found] = []
    places = PlacesRead()
    forget_files()
    for found_file in with_progress(files, "files"):
        if is_samples(found_file.path) and any(file_format.name == "lm-eval" for file_format in formats):
            samples.append(found_file)
            continue
        try:
            opened = _opened(found_file, options, pattern)
            if (
                not found_file.named
                and found_file.path.suffix in import_texts.SUFFIXES
                and not import_texts.recognises(opened)
            ):
                log.other_files[found_file.path.suffix] += 1  # a text such as any folder has
                continue
            yaml = not found_file.named and found_file.path.suffix in (".yaml", ".yml")
            if yaml and not any(file_format.recognises(opened) for file_format in formats):
                log.other_files[found_file.path.suffix] += 1  # settings
                continue
            of_levels = levels_said and opened.path.suffix in import_nested.FORMAT.suffixes
            chosen: Format | Spec = import_nested.FORMAT if of_levels else _whose(opened, formats)
            placed = [_placed(file, opened, pattern, places) for file in chosen.read(opened, options)]
            completed = [_completed(file, options, chosen.name) for file in placed]
            for file in completed:
                check_file(file)
            results += completed
            log.formats[chosen.name] += 1
        except InputError as error:
            log.skip(found_file.path, error.problem, error.hint, named=found_file.named)
    results = published.with_totals(with_runs(_called_as_files(_under_headings(results))))
    names_given = {
        found_file.path: name for found_file in samples if (name := _given_name(found_file.path, options, pattern))
    }
    matched = [_under_protocol(file, options) for file in match_all_samples(samples, results, names_given, log)]
    log.formats += Counter({"lm-eval": len(matched)})
    log.files = log.formats.total()
    if not results and not matched:
        raise _nothing_read(paths, log, formats[0].name if options.format else "any known format")
    if pattern is not None and not pattern.used:
        example = results[0].path if results else matched[0].found.path
        raise InputError(f"--path '{pattern.text}': no path of a file or model ends so.", f"a file is {example}.")
    log.notes += places.lines()
    log.paths = places.paths
    log.groups = {group: task for file in results for task, group in file.members.items()}
    log.facts = _facts(results, places)
    return FilesRead(results, matched)


def _nothing_read(paths: Iterable[str | Path], log: ImportLog, format_name: str) -> InputError:
    """That paths have no results, with the first reason and a way out."""
    kinds = ", ".join(f"{count(number, 'file')} {suffix}" for suffix, number in sorted(log.other_files.items()))
    first = ": ".join(log.skipped[0]).rstrip(".") if log.skipped else kinds or "no file"
    way = _HINT if log.skipped or kinds else "name result files, or a folder that holds them."
    if not log.skipped and set(log.other_files) & {*import_texts.SUFFIXES}:
        way = "a text's tables are read where the file itself is named (FOLDER/README.md)."
    return InputError(f"{listing(list(map(str, paths)), 2)}: no results of {format_name} ({first}).", log.hint or way)


def _opened(file: Found, options: ImportOptions, pattern: PathPattern | None) -> Opened:
    """The file, parsed where it is JSON, with the name that the reader gives its model."""
    if (way := _OTHER_KINDS.get(file.path.suffix.lower())) is not None:
        raise InputError(f"{file.path}: {file.path.suffix} is of no known format.", way.format(path=file.path))
    model = _given_name(file.path, options, pattern)
    if file.path.suffix in (".json", ""):
        return Opened(file.path, file.named, checked.read_json_file(file.path, _HINT), model=model)
    if file.path.suffix in (".yml", ".yaml"):
        return Opened(file.path, file.named, checked.read_yaml_file(file.path, _HINT), model=model)
    try:
        with open(file.path, "rb") as handle:
            return Opened(file.path, file.named, head=handle.read(_HEAD), model=model)
    except OSError as error:
        raise InputError(f"{file.path}: cannot be read ({error.strerror}).", _HINT) from error


def _said_by(pattern: PathPattern, path: Path) -> Claim:
    """What a file's path says, or that of the file from which it was unpacked."""
    return pattern.of(path) or pattern.of(f"{path}.gz") or pattern.of(str(path).removesuffix(".gz"))


def _given_name(path: Path, options: ImportOptions, pattern: PathPattern | None) -> str | None:
    """The model's name by --model, else by --path."""
    name_given = _of_place(path, options.names)
    return name_given or (None if pattern is None else _said_by(pattern, path).get("model"))


def _whose(opened: Opened, formats: Sequence[Format | Spec]) -> Format | Spec:
    """The first format that recognises the file; one that was named is not asked."""
    if len(formats) == 1:
        return formats[0]
    for file_format in formats:
        if file_format.recognises(opened):
            return file_format
    if opened.model is None and any(file_format.recognises(opened._replace(model="?")) for file_format in formats):
        way = f"--model '{opened.path}=NAME'"
        of_folder = "" if opened.named else f"--path '{pattern_of(opened.path)}'"
        of_folder += f" (or '{{model}}_{{task}}{opened.path.suffix}'), or " if of_folder else ""
        raise InputError(f"{opened.path}: names no model ({way}).", f"name it: {of_folder}{way}, a file or a folder.")
    raise InputError(f"{opened.path}: of no known format.", _way_out(opened))


def _way_out(opened: Opened) -> str:
    """What reads a file that no format recognises: by what it holds."""
    document = opened.document
    values = [*document.values()] if isinstance(document, dict) else []
    numbers = [value for value in values if checked.finite(value) is not None]
    nested = None
    if opened.path.suffix in (*import_nested.FORMAT.suffixes, ""):
        if opened.path.suffix == ".jsonl":
            document = import_json.lines_of_json(opened.path)
        nested = import_nested.way(document, opened.path, named=opened.named, has_model=opened.model is not None)
    if opened.path.name.endswith((".csv", ".tsv")) and (answers := import_csv.way_of_answers(opened)):
        return f"{answers}; else {_PLAIN_LAYOUT}."
    if numbers and import_nested.is_one_nameless(document, opened.path):
        task = pattern_of(opened.path).replace("{model}", "{task}")
        way = f"--path '{{model}}/{task}' --format json (or '{{task}}_{{model}}.json')"
        return f"an object of numbers that names no model: {way}."
    if _are_numbers_by_name(document):
        of_model = f"where they are benchmarks, --path '{pattern_of(opened.path)}' --format nested"
        return f"an object of objects whose names are models: --format records; {of_model}; else {_PLAIN_LAYOUT}."
    return f"{_PLAIN_LAYOUT}." if nested is None else f"{nested}; else {_PLAIN_LAYOUT}."


def _are_numbers_by_name(document: object) -> bool:
    """Whether an object holds objects of nothing but numbers, or signs that there is none."""
    entries = [*document.values()] if isinstance(document, dict) else []
    cells = [str(value) for entry in entries if isinstance(entry, dict) for value in entry.values()]
    all_objects = all(isinstance(entry, dict) for entry in entries)
    return bool(cells) and all_objects and all(is_missing(cell) or read_cell(cell) is not None for cell in cells)


def _placed(file: ScoreFile, opened: Opened, pattern: PathPattern | None, places: PlacesRead) -> ScoreFile:
    """The file with what paths say: its own by the pattern, and that of its model."""
    fields = _said_by(pattern, opened.path) or pattern.of(str(file.common.get("model"))) if pattern else Claim()
    task = fields.pop("benchmark", None)
    common, rows, identity = file.common.copy(), file.rows, file.identity
    keys = {row["benchmark"]: _SPLIT.sub("", plain(row["benchmark"])) for row in rows}
    if task is not None and len(keys) == 1:
        rows = [row | {"benchmark": task} for row in rows]
    elif task is not None and any(map(names_metric, keys.values())) and not any(row.get("metric") for row in rows):
        rows = [row | {"benchmark": task, "metric": metric_key(keys[row["benchmark"]])} for row in rows]
    if opened.model or "model" in fields:
        common["model"], identity = opened.model or fields["model"], {}
    elif "model" in common:
        model_path = places.read(str(common["model"]))
        common["model"] = model_path.name
        if common.get("checkpoint", "final") == "final" and model_path.point.iteration is not None:
            common |= model_path.point.claim()
    fields.pop("model", None)
    common |= fields
    return replace(file, rows=rows, common=common, identity=identity, stamp=date_in(opened.path.stem))


_WITHOUT_BENCHMARK = [name for name in KEY if name != "benchmark"]


def _scored(row: Claim, names: Sequence[str]) -> tuple[object, ...]:
    return tuple(row.get(name) for name in names)


def _called_as_files(results: list[ScoreFile]) -> list[ScoreFile]:
    """The files; tables whose columns of scores are called as metrics or say nothing (`accuracy`) are benchmarks that
    are called as their files, and the columns are their metrics, where each has a model in common with another and
    two scores of one model are unlike. Files of unlike models are parts of one table."""
    bare = {
        index: frozenset(row["benchmark"] for row in file.rows)
        for index, file in enumerate(results)
        if file.columns and file.rows
        if all(row.get("metric") is None and names_no_benchmark(row["benchmark"]) for row in file.rows)
    }
    stems = {index: stem(results[index].path) for index in bare}
    values, sharing = defaultdict[tuple[object, ...], set[float]](set), Counter[tuple[object, ...]]()
    models = {index: {_scored(row, _WITHOUT_BENCHMARK) for row in results[index].rows} for index in bare}
    for index in bare:
        sharing.update(models[index])
        for row in results[index].rows:
            values[_scored(row, KEY)].add(row["value"])
    apart = not all(any(sharing[key] > 1 for key in keys) for keys in models.values())
    if apart or max(map(len, values.values()), default=0) < 2 or len(set(stems.values())) < len(stems):
        return results
    renamed = [*results]
    for index in bare:
        file, name = results[index], stems[index]
        rows = [row | {"benchmark": name, "metric": metric_key(plain(row["benchmark"]))} for row in file.rows]
        metrics = listing(sorted(bare[index]), 3)
        text = f"{file.path.name} names no benchmark: it is called {name}, measured by {metrics}"
        decision = Decision("column", file.path.name, name, "structure", CONVERTED, len(rows), "", text)
        renamed[index] = replace(file, rows=rows, decisions=(*file.decisions, decision))
    return renamed


def _under_headings(results: list[ScoreFile]) -> list[ScoreFile]:
    """The files; where tables of one text under different headings have different scores of one model on a benchmark,
    the heading is a part of the benchmark's name, or where that says nothing (`Score`) the name itself. Scores that
    differ by their rounding alone are one."""
    values: dict[tuple[object, ...], dict[str, float]] = defaultdict(dict)
    for file in results:
        for row in file.rows if file.title else ():
            values[file.path, *_scored(row, KEY)].setdefault(file.title, row["value"])
    unlike = {key: by_title for key, by_title in values.items() if len(set(by_title.values())) > 1}
    digits = _digits_below(results)
    headed, finest = set[tuple[object, object]](), dict[tuple[object, ...], float]()
    for key, by_title in unlike.items():
        path, benchmark = key[0], key[1 + KEY.index("benchmark")]
        places = {title: digits[path, title, benchmark] for title in by_title}
        finest[key] = by_title[max(places, key=lambda title: places[title])]
        if max(abs(value - finest[key]) for value in by_title.values()) > 0.51 * 10.0 ** -min(places.values()):
            headed.add((path, benchmark))
    results_kept = [
        replace(file, rows=[_with_finest(file.path, row, finest, headed) for row in file.rows]) if file.title else file
        for file in results
    ]
    return [_under_heading(file, {name for path, name in headed if path == file.path}) for file in results_kept]


def _digits_below(results: list[ScoreFile]) -> dict[tuple[object, ...], int]:
    """To how many decimals the scores of a benchmark are rounded, by the text, the heading and the benchmark."""
    written = defaultdict[tuple[object, ...], list[float]](list)
    for file in results:
        for row in file.rows if file.title else ():
            written[file.path, file.title, row["benchmark"]].append(row["value"])
    return {key: decimals(np.array(texts, dtype=float)) for key, texts in written.items()}


def _with_finest(
    path: Path, row: Claim, finest: Mapping[tuple[object, ...], float], headed: Collection[tuple[object, object]]
) -> Claim:
    value = finest.get((path, *_scored(row, KEY)))
    return row if value is None or (path, row["benchmark"]) in headed else row | {"value": value}


def _under_heading(file: ScoreFile, names: Collection[object]) -> ScoreFile:
    rows, called = list[Claim](), dict[str, str]()
    other_bare = any(names_no_benchmark(str(name)) for name in names)
    for row in file.rows:
        name = row["benchmark"]
        bare = row.get("metric") is None and names_no_benchmark(name)
        if not file.title or not (name in names or (bare and other_bare)):
            rows.append(row)
            continue
        called[name] = file.title if bare else f"{file.title}/{name}"
        rows.append(row | {"benchmark": called[name]} | ({"metric": metric_key(plain(name))} if bare else {}))
    if not called:
        return file
    text = f"{file.path.name}: {listing([*called], 3)} below {file.title!r} is not that of other headings"
    decision = Decision(
        "column", f"{file.path.name}, {file.title}", "heading", "structure", CONVERTED, len(called), "", text
    )
    return replace(file, rows=rows, decisions=(*file.decisions, decision))


def _completed(file: ScoreFile, options: ImportOptions, source: str) -> ScoreFile:
    """The file with what the reader says of it: protocol, what models were prepared on, tokens of a step."""
    common = Claim(source=source) | file.common
    protocol = _protocol_of(file.path, options)
    if protocol is not None:
        protocols_said = {stated for row in [common, *file.rows] if (stated := row.get("protocol")) is not None}
        if protocols_said - {protocol}:
            raise InputError(
                f"{file.path}: its scores are {', '.join(sorted(protocols_said))}, not {protocol}.",
                "leave the protocol out: the file has it.",
            )
        common["protocol"] = protocol
    if options.prepared_on is not None and common.get("protocol", DEFAULTS["protocol"]) != DEFAULTS["protocol"]:
        common["prepared_on"] = options.prepared_on
    file = replace(file, common=common)
    return with_tokens(file, options)


def _protocol_of(path: Path, options: ImportOptions) -> str | None:
    return _of_place(path, options.protocols) or options.protocol


def _under_protocol(file: SampleFile, options: ImportOptions) -> SampleFile:
    """A samples file; without a result file under the protocol that the reader says."""
    protocol = None if file.scores else _protocol_of(file.found.path, options)
    return file if protocol is None else replace(file, common=file.common | {"protocol": protocol})


def _settled(results: list[ScoreFile], options: ImportOptions, log: ImportLog) -> pd.DataFrame:
    """One table of all files."""
    scores = score_table(results, log)
    trained = scores["protocol"] != DEFAULTS["protocol"]
    protocols_given = {options.protocol, *options.protocols.values()} - {None}
    if protocols_given and scores.loc[trained, "prepared_on"].isna().any():
        log.notes.append(
            "What the models were prepared on is not given (--prepared-on, or `prepared_on` in the benchmarks sheet). "
            "The scores count as if each benchmark's own training set had been used."
        )
    if options.prepared_on is not None and scores["prepared_on"].isna().all():
        raise InputError(
            f"--prepared-on '{options.prepared_on}': none of the scores is train before test.",
            "say which are: --protocol train_before_test, or train_before_test=FOLDER.",
        )
    scores, number = with_item_errors(scores, scores["n_items"], options)
    if number is not None:
        log.notes.append(f"Standard errors from accuracies and numbers of items: {count(number, 'score')}.")
    return scores


def _of_place(path: Path, values_given: Mapping[Path, str]) -> str | None:
    """What is given for the file, else for the nearest folder above it."""
    if not values_given:
        return None
    written_path = as_written(path)
    return next(
        (
            values_given[parent_path]
            for parent_path in (written_path, *written_path.parents)
            if parent_path in values_given
        ),
        None,
    )


def _check_places(options: ImportOptions, files: list[Found]) -> None:
    """Raises InputError for a name or a protocol given to a path that no file lies under."""
    places = {
        parent_path
        for written_path in map(as_written, (file.path for file in files))
        for parent_path in (written_path, *written_path.parents)
    }
    for path, name in options.names.items():
        if path not in places:
            raise InputError(f"--model {path}={name}: none of the files lies there.", "check the path before '='.")


def _check_columns(corrections: Given, files: list[ScoreFile]) -> None:
    """Raises InputError for a column that is asked for and that no table has."""
    tables = [file for file in files if file.columns]
    columns_decided = {decision.where for file in tables for decision in file.decisions if decision.what == "column"}
    for kind, column in corrections if tables else ():
        if kind == "column" and column not in (*columns_decided, EVERY, SCORE_COLUMNS):
            check_column(column, [name for file in tables for name in file.columns], tables[0].path)


def _facts(files: list[ScoreFile], places: PlacesRead) -> dict[str, Facts]:
    """What files say for the models sheet, by model."""
    facts: dict[str, Facts] = {name: {"path": min(paths)} for name, paths in places.paths.items()}
    for file in files:
        if PARAMETERS in file.identity:
            facts.setdefault(file.common["model"], {})["parameters_b"] = float(file.identity[PARAMETERS]) / 1e9
        for model, columns in file.facts.items():
            facts[model] = {**columns, **facts.get(model, {})}
    return facts
