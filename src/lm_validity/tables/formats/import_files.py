"""Files and folders of others' results -> scores.parquet, items.parquet and import.json.

The one loop of all imports: find the files, open and parse each once, ask the harnesses whose it is, read it, read all
others together as tables, and settle what several files have.
"""

import gzip
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from lm_validity.errors import InputError, first_line
from lm_validity.files import absent, as_written, replace_file
from lm_validity.tables.formats import every_eval_ever, import_inspect, lm_eval, specs
from lm_validity.tables.formats.engine import Spec, read_json_file
from lm_validity.tables.formats.joining import check_identities, score_table, with_runs, write_items
from lm_validity.tables.formats.readings import TABLE, read_tables
from lm_validity.tables.formats.score_files import (
    PARAMETERS,
    Found,
    ImportLog,
    ImportOptions,
    Opened,
    ScoreFile,
    check_file,
    find_files,
    model_place,
    with_progress,
)
from lm_validity.tables.frame import READABLE
from lm_validity.tables.schema import DEFAULTS, Claim, Facts
from lm_validity.words import count, listing

# In the order in which they are asked: the first that recognises a file reads it
FORMATS: tuple[Spec, ...] = (
    specs.HELM, specs.MTEB, specs.PROMPTFOO, specs.DEEPEVAL, specs.OPENCOMPASS, specs.SIMPLE_EVALS, specs.OLMES,
    every_eval_ever.EVERY_EVAL_EVER, specs.LIGHTEVAL, import_inspect.INSPECT, lm_eval.LM_EVAL, specs.LM_HARMONY,
    specs.E2LM,
)  # fmt: skip
_TEXTS = (".md", ".markdown", ".txt", ".html", ".htm", ".yaml", ".yml")  # beside files of a harness no scores
_ARCHIVES = (".zip", ".tar", ".tgz", ".gz")
_READ_PACKED = (".csv.gz", ".tsv.gz")  # where they are given themselves
_HINT = f"files of {', '.join(dict.fromkeys(each.name for each in FORMATS))} are known, and tables of scores."
_HEAD = 2**16  # bytes by which a file that is not JSON is recognised


class Import(NamedTuple):
    """The scores of files, and what became of each."""

    scores: pd.DataFrame
    log: ImportLog


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
            return _import(_unpacked(places, stack, log), places, Path(output), options, log)
        except InputError as error:
            raise error.reworded(log.origins) from error


def _check_there(paths: Sequence[Path]) -> None:
    """Raises InputError for a path where nothing is; it may be that of what is to be written."""
    for path in (path for path in paths if not path.exists()):
        is_last = path is paths[-1] and len(paths) > 1
        way = f"check the path{'; what is to be written is named with --output' if is_last else ''}."
        raise absent(path, "file or folder", way)


_BROKEN = (TypeError, shutil.ReadError, OSError, ValueError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error)


def _unpacked(paths: Iterable[Path], stack: ExitStack, log: ImportLog) -> list[Path]:
    """The paths, with a folder of what it holds for each zip, tar or gzipped file, also of those in folders, until the
    stack ends."""
    places, root = list[Path](), Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lm-validity.")))
    for path in paths:
        is_archive = path.is_file() and path.name.endswith(_ARCHIVES) and not path.name.endswith(_READ_PACKED)
        places += [] if is_archive else [path]
        below = (found.path for found in find_files([path], _ARCHIVES).files) if path.is_dir() else ()
        for archive in [path] if is_archive else [each for each in below if each.name.endswith(_ARCHIVES)]:
            # as the user's folders are called, since these may name models
            above = root / str(len(log.origins))
            folder = above.joinpath(*(part for part in archive.parts if part not in (archive.anchor, "..")))
            try:
                unpacked = _unpack(archive, folder)
            except _BROKEN as error:
                shutil.rmtree(above, ignore_errors=True)  # half of it may be there
                problem = f"{archive}: cannot be unpacked ({first_line(error)})."
                log.named |= {archive} if is_archive else set()
                log.skip(archive, problem, "unpack it, and give the folder.")
                continue
            log.origins[str(unpacked)] = str(archive)
            places.append(unpacked if is_archive else above)
    return places


def _unpack(archive: Path, folder: Path) -> Path:
    """Where what an archive holds lies now: a folder, or for one gzipped file the file. Raises one of `_BROKEN`."""
    if archive.suffix == ".gz" and not archive.name.endswith(".tar.gz"):
        path = folder.with_suffix("")
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(archive) as packed, open(path, "wb") as handle:
            shutil.copyfileobj(packed, handle)
        return path
    folder.mkdir(parents=True, exist_ok=True)
    if archive.suffix == ".zip":
        shutil.unpack_archive(archive, folder)
    else:
        shutil.unpack_archive(archive, folder, filter="data")
    return folder


def _import(
    paths: Sequence[Path], given: Sequence[Path], output: Path, options: ImportOptions, log: ImportLog
) -> Import:
    """`import_files` of what is unpacked."""
    results = _read_all(paths, given, options, log)
    check_identities(results)
    with ExitStack() as stack:
        scores = _settled(results, options, log)
        if any(file.items is not None for file in results):
            # Replaced when everything is written: the tables belong together
            path = stack.enter_context(replace_file(output / "items.parquet"))
            log.items = write_items(results, path, log)
        elif (output / "items.parquet").exists():
            log.notes.append(f"{output / 'items.parquet'} is of another import: these files have no items.")
        log.name_as_given()
        log.write(scores, output)
    return Import(scores, log)


def _read_all(paths: Sequence[Path], given: Sequence[Path], options: ImportOptions, log: ImportLog) -> list[ScoreFile]:
    """Every file by the harness that wrote it; all others, tables, are one input of their own."""
    suffixes = {*READABLE, *(suffix for file_format in FORMATS for suffix in file_format.suffixes)}
    files, other_files, own_tables = find_files(paths, tuple(suffixes))
    files = [file for file in files if file.named or not file.path.name.endswith(_ARCHIVES)]  # the others are unpacked
    log.notes += [f"Not read, since lm-validity wrote them: {listing(own_tables, 3)}."] if own_tables else []
    log.other_files = Counter({suffix: n for suffix, n in other_files.items() if suffix not in _ARCHIVES})
    _check_places(options, files)
    log.named |= {found_file.path for found_file in files if found_file.named}
    results: list[ScoreFile] = []
    samples: list[Path] = []
    tables: list[Found] = []
    model_paths = defaultdict[str, set[str]](set)
    told = options.columns is not None or options.reading is not None
    for found_file in with_progress(files, "files"):
        if lm_eval.task_of(found_file.path) is not None and not told:
            samples.append(found_file.path)
            continue
        try:
            opened = None if told else _opened(found_file, options)
            chosen = opened and next((each for each in FORMATS if each.recognises(opened)), None)
            if opened is None or chosen is None:
                tables.append(found_file)
                continue
            placed = [_placed(file, opened, model_paths) for file in chosen.read(opened)]
            completed = [_completed(file, options, chosen.name) for file in placed]
            for file in completed:
                check_file(file)
            results += completed
            log.formats[chosen.name] += 1
        except InputError as error:
            log.skip(found_file.path, error.problem, error.hint)
    results += _of_tables(tables, given, options, log, beside=bool(results or samples))
    results = _with_samples(samples, results, options, log)
    log.files = log.formats.total()
    if not results:
        raise _nothing_read(paths, log)
    several = {name: sorted(paths) for name, paths in sorted(model_paths.items()) if len(paths) > 1}
    log.notes += [f"{name}: taken as one model, of the paths {listing(paths, 2)}." for name, paths in several.items()]
    log.members = {task: group for file in results for task, group in file.members.items()}
    log.facts = _facts(results, model_paths)
    return results


def _with_samples(
    samples: Sequence[Path], results: list[ScoreFile], options: ImportOptions, log: ImportLog
) -> list[ScoreFile]:
    """The files with the numbers of runs, and with those of lm-eval's samples: without a result file in their folder
    that has scores of their task they give scores, else items only."""
    places = defaultdict[tuple[Path, str | None], list[int]](list)
    for number, result in enumerate(results):
        for task in {row["benchmark"] for row in result.rows} | set(result.members):
            places[result.path.parent, task].append(number)
    alone = defaultdict[tuple[Path, str | None], list[object]](list)
    beside = dict[Path, list[int]]()
    for path in with_progress(samples, "files of samples"):
        place = path.parent, lm_eval.task_of(path)
        if place in places:
            beside[path] = places[place]
            continue
        try:
            file = lm_eval.samples_alone(path, _of_place(path, options.names), log)
        except InputError as error:
            log.skip(path, error.problem, error.hint)
            continue
        items = [*file.items()] if file.items is not None else []
        if items in alone[place]:
            log.repeat(f"{path}: a copy of another file of its folder")
            continue
        alone[place].append(items)
        results.append(_completed(file, options, "lm-eval"))
        log.formats["lm-eval"] += 1
    results = with_runs(results)
    for path, numbers in beside.items():
        try:
            name = _of_place(path, options.names)
            results.append(lm_eval.samples_beside(path, name, [results[number] for number in numbers], log))
            log.formats["lm-eval"] += 1
        except InputError as error:
            log.skip(path, error.problem, error.hint)
    return results


def _of_tables(
    tables: list[Found], given: Sequence[Path], options: ImportOptions, log: ImportLog, *, beside: bool
) -> list[ScoreFile]:
    """The scores of the files that no harness wrote."""
    texts = [file for file in tables if beside and not file.named and file.path.suffix in _TEXTS]
    log.other_files += Counter(file.path.suffix for file in texts)
    tables = [file for file in tables if file not in texts]
    if not tables:
        return []
    read = read_tables(tables, options, given, lambda path: Path(log.as_given(str(path))), beside=beside)
    log.line, log.reading = read.line, read.reading
    log.named -= set(read.skipped)  # their line says it
    for path, reason in read.skipped.items():
        log.skip(path, f"{path}: {reason}", "give it by itself, and say what its columns are with --columns.")
    log.formats += Counter({TABLE: len(tables) - len(read.skipped)})
    completed = [_completed(file, options, TABLE) for file in read.files]
    for file in completed:
        check_file(file)
    return completed


def _nothing_read(paths: Iterable[str | Path], log: ImportLog) -> InputError:
    """That paths have no results, with the first reason and a way out."""
    kinds = ", ".join(f"{count(number, 'file')} {suffix}" for suffix, number in sorted(log.other_files.items()))
    first = ": ".join(log.skipped[0]).rstrip(".") if log.skipped else kinds or "no file"
    way = _HINT if log.skipped or kinds else "name result files, or a folder that holds them."
    return InputError(f"{listing(list(map(str, paths)), 2)}: no results ({first}).", log.hint or way)


def _opened(file: Found, options: ImportOptions) -> Opened | None:
    """The file, parsed where it is JSON, with the name that the reader gives its model; None for what is no JSON, as a
    table's file may be."""
    model = _of_place(file.path, options.names)
    if file.path.suffix in (".json", ""):
        try:
            return Opened(file.path, file.named, read_json_file(file.path, _HINT), model=model)
        except InputError:
            return None
    try:
        with open(file.path, "rb") as handle:
            return Opened(file.path, file.named, head=handle.read(_HEAD), model=model)
    except OSError as error:
        raise InputError(f"{file.path}: cannot be read ({error.strerror}).", _HINT) from error


def _placed(file: ScoreFile, opened: Opened, model_paths: dict[str, set[str]]) -> ScoreFile:
    """The file with what the path of its model says: name and point of training."""
    common, identity = file.common.copy(), file.identity
    if opened.model:
        common["model"], identity = opened.model, {}
    elif "model" in common:
        model_path = model_place(str(common["model"]))
        common["model"] = model_path.name
        if model_path.path != model_path.name:
            model_paths[model_path.name].add(model_path.path)
        if common.get("checkpoint", "final") == "final" and model_path.point.iteration is not None:
            common |= model_path.point.claim()
    return replace(file, common=common, identity=identity)


def _completed(file: ScoreFile, options: ImportOptions, source: str) -> ScoreFile:
    """The file with what the reader says of it: protocol, and what models were prepared on."""
    common = Claim(source=source) | file.common
    protocol = _protocol_of(file.path, options)
    said = {stated for row in [common, *file.rows] if (stated := row.get("protocol")) is not None}
    if protocol is not None and said - {protocol}:
        problem = f"{file.path}: its scores are {', '.join(sorted(said))}, not {protocol}."
        raise InputError(problem, "leave the protocol out: the file has it.")
    common |= Claim(protocol=protocol) if protocol is not None else Claim()
    if options.prepared_on is not None and common.get("protocol", DEFAULTS["protocol"]) != DEFAULTS["protocol"]:
        common["prepared_on"] = options.prepared_on
    return replace(file, common=common)


def _protocol_of(path: Path, options: ImportOptions) -> str | None:
    return _of_place(path, options.protocols) or options.protocol


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
    return scores


def _of_place(path: Path, values: Mapping[Path, str]) -> str | None:
    """What is given for the file, else for the nearest folder above it."""
    written = as_written(path)
    return next((values[place] for place in (written, *written.parents) if place in values), None) if values else None


def _check_places(options: ImportOptions, files: list[Found]) -> None:
    """Raises InputError for a name given to a path that no file lies under."""
    paths = [as_written(file.path) for file in files] if options.names else []
    places = {place for path in paths for place in (path, *path.parents)}
    for path, name in options.names.items():
        if path not in places:
            raise InputError(f"--model {path}={name}: none of the files lies there.", "check the path before '='.")


def _facts(files: list[ScoreFile], model_paths: Mapping[str, set[str]]) -> dict[str, Facts]:
    """What files say for the models sheet, by model."""
    facts: dict[str, Facts] = {name: {"path": min(paths)} for name, paths in model_paths.items()}
    for file in files:
        if PARAMETERS in file.identity:
            facts.setdefault(file.common["model"], {})["parameters_b"] = float(file.identity[PARAMETERS]) / 1e9
        for model, columns in file.facts.items():
            facts[model] = {**columns, **facts.get(model, {})}
    return facts
