"""Files and folders of others' results -> scores.parquet, items.parquet and import.json.

The one loop of all imports: find the files, open and parse each once, ask the harnesses whose it is, read it, read all
others together as tables, and settle what several files have.
"""

import json
import os
import re
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
import yaml

from lm_validity.config.sheets import metric_key
from lm_validity.errors import InputError, did_you_mean, first_line
from lm_validity.files import absent, as_written, replace_file
from lm_validity.tables.asking import Reader, meaning, size
from lm_validity.tables.formats import engine, evaluations, lm_eval, score_files, specs
from lm_validity.tables.formats.engine import Spec
from lm_validity.tables.formats.joining import check_identities, number_runs, score_table, write_items
from lm_validity.tables.formats.score_files import ImportLog, ImportOptions, Opened, ScoreFile
from lm_validity.tables.frame import READABLE, Source, frame
from lm_validity.tables.roles import SETTINGS
from lm_validity.tables.schema import DEFAULTS, Claim, Facts, Item
from lm_validity.tables.told import Long, Scaled, needed, show
from lm_validity.words import count, listing

# In the order in which they are asked: the first that recognises a file reads it
FORMATS: tuple[Spec, ...] = (
    specs.HELM, specs.MTEB, specs.PROMPTFOO, specs.DEEPEVAL, specs.OPENCOMPASS, specs.SIMPLE_EVALS, specs.OLMES,
    evaluations.EVERY_EVAL_EVER, specs.LIGHTEVAL, evaluations.INSPECT, lm_eval.LM_EVAL, specs.LM_HARMONY,
    specs.E2LM,
)  # fmt: skip
_TEXTS = (".md", ".markdown", ".txt", ".html", ".htm", ".yaml", ".yml")  # beside files of a harness no scores
_HINT = f"files of {', '.join(dict.fromkeys(each.name for each in FORMATS))} are known, and tables of scores."
_HEAD, _LONGEST_LINE = 2**16, 2**26  # bytes by which files that are no JSON, and lines of JSON, are recognised


class Import(NamedTuple):
    """The scores of files, and what became of each."""

    scores: pd.DataFrame
    log: ImportLog


def import_files(paths: Iterable[str | Path], output: str | Path, options: ImportOptions | None = None) -> Import:
    """Write scores.parquet, import.json and, where there are items, items.parquet under `output`.

    In folders, what no format recognises is listed in the log. `options.strict`, a bad file that was named itself,
    scores in conflict and nothing left raise InputError, and nothing is written.
    """
    options, places, output = options or ImportOptions(), [*map(Path, paths)], Path(output)
    for path in (path for path in places if not path.exists()):
        named_last = "; what is to be written is named with --output" * (path is places[-1] and len(places) > 1)
        raise absent(path, "file or folder", f"check the path{named_last}.")
    log = ImportLog(strict=options.strict)
    with ExitStack() as stack:
        try:
            results = _read_all(_unpacked(places, stack, log), places, options, log)
            check_identities(results)
            scores = score_table(results, log)
            _check_preparation(scores, options, log)
            if any(file.items is not None for file in results):
                # replaced when everything is written: the tables belong together
                log.items = write_items(results, stack.enter_context(replace_file(output / "items.parquet")), log)
            log.write(scores, output)
        except InputError as error:
            raise error.reworded(log.origins) from error
    return Import(scores, log)


_BROKEN = (TypeError, shutil.ReadError, OSError, ValueError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error)


def _unpacked(paths: Iterable[Path], stack: ExitStack, log: ImportLog) -> list[Path]:
    """The paths, with a folder of what it holds for each zip or tar file, also of those in folders, until the stack
    ends."""
    places, root = list[Path](), Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lm-validity.")))
    for path in paths:
        is_archive = path.is_file() and path.name.endswith(score_files.ARCHIVES)
        places += [] if is_archive else [path]
        below = [] if path.is_file() else score_files.find_files([path], score_files.ARCHIVES, ImportLog())
        for archive in [path] if is_archive else below:
            # as the user's folders are called, since these may name models
            above = root / str(len(log.origins))
            folder = above.joinpath(*(part for part in archive.parts if part not in (archive.anchor, "..")))
            try:
                folder.mkdir(parents=True)
                shutil.unpack_archive(archive, folder, filter=None if archive.suffix == ".zip" else "data")
            except _BROKEN as error:
                shutil.rmtree(above, ignore_errors=True)  # half of it may be there
                log.named |= {archive} if is_archive else set()
                log.skip(archive, f"{archive}: cannot be unpacked ({first_line(error)}).", "unpack it yourself.")
                continue
            log.origins[str(folder)] = str(archive)
            places.append(folder if is_archive else above)
    return places


def _read_all(paths: Sequence[Path], given: Sequence[Path], options: ImportOptions, log: ImportLog) -> list[ScoreFile]:
    """Every file by the harness that wrote it; all others, tables, are one input of their own."""
    suffixes = (".eval", *READABLE, *(f"{suffix}.gz" for suffix in READABLE))
    files = score_files.find_files(paths, suffixes, log)
    _check_places(options, files)
    results, samples, tables = list[ScoreFile](), list[Path](), list[Path]()
    told = options.columns is not None or options.reading is not None
    for path in files:
        if lm_eval.task_of(path) is not None and not told:
            samples.append(path)
            continue
        with log.skipping(path):
            opened = None if told else _opened(path, options, named=path in log.named)
            chosen = opened and next((each for each in FORMATS if each.recognises(opened)), None)
            if opened is None or chosen is None:
                tables.append(path)
                continue
            results += [_completed(file, options) for file in chosen.read(opened)]
            log.formats[chosen.name] += 1
    is_beside = bool(results or samples)  # of a harness: then texts are no scores
    texts = [path for path in tables if is_beside and path not in log.named and path.suffix in _TEXTS]
    log.other_files += Counter(path.suffix for path in texts)
    if len(tables) > len(texts):
        read = read_tables([path for path in tables if path not in texts], options, given, log, beside=is_beside)
        results += [_completed(file, options) for file in read]
    _add_samples(samples, results, options, log)
    log.files = log.formats.total()
    if not any(file.rows for file in results):
        raise _nothing_read(paths, log)
    log.members = {task: group for file in results for task, group in file.members.items()}
    log.facts = _facts(results, log)
    return results


def _add_samples(samples: list[Path], results: list[ScoreFile], options: ImportOptions, log: ImportLog) -> None:
    """Number the runs in the files, and add those of lm-eval's samples: without a result file in their folder that has
    scores of their task they give scores, else items only."""
    places = defaultdict[tuple[Path, str | None], list[ScoreFile]](list)
    for result in results:
        for task in {row["benchmark"] for row in result.rows} | set(result.members):
            places[result.path.parent, task].append(result)
    alone = defaultdict[tuple[Path, str | None], list[object]](list)
    beside = dict[Path, list[ScoreFile]]()
    for path in samples:
        place = path.parent, lm_eval.task_of(path)
        if place in places:
            beside[path] = places[place]
            continue
        with log.skipping(path):
            file = lm_eval.samples_alone(path, _of_place(path, options.names), log)
            items = [*file.items()] if file.items is not None else []
            if items in alone[place]:
                log.repeat(f"{path}: a copy of another file of its folder")
                continue
            alone[place].append(items)
            results.append(_completed(file, options))
            log.formats["lm-eval"] += 1
    number_runs(results)
    for path, files in beside.items():
        with log.skipping(path):
            results.append(lm_eval.samples_beside(path, _of_place(path, options.names), files, log))
            log.formats["lm-eval"] += 1


def _nothing_read(paths: Iterable[str | Path], log: ImportLog) -> InputError:
    """That paths have no results, with the first reason and a way out."""
    kinds = ", ".join(f"{count(number, 'file')} {suffix}" for suffix, number in sorted(log.other_files.items()))
    first = ": ".join(log.skipped[0]).rstrip(".") if log.skipped else kinds or "no file"
    way = _HINT if log.skipped or kinds else "name result files, or a folder that holds them."
    return InputError(f"{listing(list(map(str, paths)), 2)}: no results ({first}).", log.hint or way)


def _opened(path: Path, options: ImportOptions, *, named: bool) -> Opened | None:
    """The file, parsed where it is JSON, of JSON lines the first, with the name that the reader gives its model; None
    for what is no JSON, as a table's file may be."""
    file = Opened(path, named, model=_of_place(path, options.names))
    try:
        if file.suffix in (".json", ""):
            return file._replace(document=engine.read_json_file(path))
        with engine.opened(path) as handle:
            head = handle.readline(_LONGEST_LINE) if file.suffix == ".jsonl" else handle.read(_HEAD)
        return file._replace(document=json.loads(head) if file.suffix == ".jsonl" else None, head=head)
    except (*engine.BROKEN_GZIP, InputError, ValueError, RecursionError):
        return None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}).", _HINT) from error


def _completed(file: ScoreFile, options: ImportOptions) -> ScoreFile:
    """The file with what the reader says of it: protocol, and what models were prepared on."""
    protocol = _of_place(file.path, options.protocols) or options.protocol
    said = {stated for row in [file.common, *file.rows] if (stated := row.get("protocol")) is not None}
    if protocol is not None and said - {protocol}:
        problem = f"{file.path}: its scores are {', '.join(sorted(said))}, not {protocol}."
        raise InputError(problem, "leave the protocol out: the file has it.")
    common = file.common | (Claim() if protocol is None else Claim(protocol=protocol))
    if options.prepared_on is not None and common.get("protocol", DEFAULTS["protocol"]) != DEFAULTS["protocol"]:
        common["prepared_on"] = options.prepared_on
    return replace(file, common=common)


def _check_preparation(scores: pd.DataFrame, options: ImportOptions, log: ImportLog) -> None:
    """Say where nothing tells what models were prepared on. Raises InputError where that is told of no score."""
    trained = scores["protocol"] != DEFAULTS["protocol"]
    protocols_given = {options.protocol, *options.protocols.values()} - {None}
    if protocols_given and scores.loc[trained, "prepared_on"].isna().any():
        assumed = "the scores count as if each benchmark's own training set had been used"
        log.notes.append(f"What the models were prepared on is not given (--prepared-on): {assumed}.")
    if options.prepared_on is not None and scores["prepared_on"].isna().all():
        problem = f"--prepared-on '{options.prepared_on}': none of the scores is train before test."
        raise InputError(problem, "say which are: --protocol train_before_test, or train_before_test=FOLDER.")


def _of_place(path: Path, values: Mapping[Path, str]) -> str | None:
    """What is given for the file, else for the nearest folder above it."""
    written = as_written(path)
    return next((values[place] for place in (written, *written.parents) if place in values), None) if values else None


def _check_places(options: ImportOptions, files: list[Path]) -> None:
    """Raises InputError for a name given to a path that no file lies under."""
    paths = [as_written(path) for path in files] if options.names else []
    places = {place for path in paths for place in (path, *path.parents)}
    for path in (path for path in options.names if path not in places):
        raise InputError(f"--model {path}=...: none of the files lies there.", "check the path before '='.")


def _facts(files: list[ScoreFile], log: ImportLog) -> dict[str, Facts]:
    """What files say for the models sheet, by model."""
    facts, paths = dict[str, Facts](), defaultdict[str, set[str]](set)
    for file in files:
        for model, columns in file.facts.items():
            facts[model] = {**columns, **facts.get(model, {})}
            paths[model] |= {str(columns["path"])} if "path" in columns else set()
    for model in sorted(model for model, of_model in paths.items() if len(of_model) > 1):
        log.notes.append(f"{model}: taken as one model, of the paths {listing(sorted(paths[model]), 2)}.")
    return facts


# ----------------------------------------------------------------------------------------------------------------------
# Tables, which no harness wrote: one frame, a reading that is sure, told or asked for, and the scores that it gives.

READING = "reading.yaml"
TABLE = "table"  # the `source` of scores that no harness wrote
_KEYS = ("columns", "units", "directions")  # that --reading takes back; an import writes two more
_ABOUT = {"family": "family", **dict.fromkeys(("parameters_b", "params_b", "size_b"), "parameters_b")}
_WHOLE = ("num_fewshot", "iteration", "seed")


def read_tables(
    files: Sequence[Path], options: ImportOptions, places: Sequence[Path], log: ImportLog, *, beside: bool
) -> list[ScoreFile]:
    """The scores of tables. `places`: as they were given, for the command that is printed. Of files `beside` those of a
    harness what is not sure is left out. Raises Question where headers do not say what columns mean, and InputError for
    what is told and not there."""
    columns, units, directions = _said(options)
    named = " ".join(quote(str(path)) for path in places)
    parts = _parts(files, places, options, log)
    sources = [Source(path, names, path in log.named) for path, names in zip(files, parts, strict=True)]
    reader = Reader(frame(sources), named, options.command or f"lm-validity import {named}", units, directions)
    only_sure = beside and columns is None and log.named.isdisjoint(files)
    longs = reader.certain() if only_sure else reader.read(columns)
    finals = [reader.scale(long) for long in longs]
    read = [file for final in finals for file in _score_files(reader, final)]
    unread = reader.left_out(longs) if longs else {
        **{path: "nothing says for sure what its columns are" for path in files}, **reader.frame.skipped
    }  # fmt: skip
    if longs:
        taken = f"{len(sources) - len(unread)} of {count(len(sources), 'file')}"
        log.line = f"{taken}: {size(finals)}, {meaning(finals)}.{reader.skipped(longs)}"
        notes = [note for final in finals for note in (*final.long.notes, *final.notes)]
        read[:1] = [replace(file, notes=(*file.notes, *notes)) for file in read[:1]]
        log.reading = _record(finals, log.line, notes)
    log.named -= set(unread)  # the line says it
    for path, reason in unread.items():
        log.skip(path, f"{path}: {reason}", "give it by itself, and say what its columns are with --columns.")
    log.formats += Counter({TABLE: len(files) - len(unread)})
    return read


def _said(options: ImportOptions) -> tuple[str | None, dict[str, str], dict[str, str]]:
    """What --columns or --reading says: columns, units and directions. Raises InputError for a file that is no
    reading."""
    if options.reading is None:
        return options.columns, {}, {}
    hint = f"a {READING} as an import writes it, with columns, units and directions."
    try:
        document = yaml.safe_load(options.reading.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"{options.reading}: cannot be read.", hint) from error
    columns, *parts = [document.get(name) for name in _KEYS] if isinstance(document, dict) else [None, {}, {}]
    if not isinstance(columns, str) or not all(isinstance(part or {}, dict) for part in parts):
        raise InputError(f"{options.reading}: no columns as text, or units and directions not by benchmark.", hint)
    if unknown := [str(key) for key in document if key not in (*_KEYS, "read", "left out")]:
        problem = f"{options.reading}: {unknown[0]!r} is no part of a reading."
        raise InputError(problem, did_you_mean(unknown[0], _KEYS, hint))
    units, directions = ({str(name): str(value) for name, value in (part or {}).items()} for part in parts)
    return options.columns or columns, units, directions


def _record(finals: Sequence[Scaled], line: str, notes: Iterable[str]) -> str:
    """The reading as text, which --reading takes."""
    text = "; ".join(dict.fromkeys(show(final.long.told) for final in finals))
    units = {name: unit for final in finals for name, unit in final.units.items()}
    directions = {name: direction for final in finals for name, direction in final.directions.items()}
    record = {"columns": text, "units": units, "directions": directions, "read": line, "left out": [*notes]}
    return yaml.safe_dump(record, sort_keys=False, allow_unicode=True, width=1000)


def _parts(
    files: Sequence[Path], places: Sequence[Path], options: ImportOptions, log: ImportLog
) -> list[tuple[str, ...]]:
    """The parts of each file's path below what was given, with the names that the reader gives to them."""
    originals = [as_written(log.as_given(str(path))) for path in files]
    given = [as_written(path) for path in places]
    folders = {path if path.is_dir() or path not in originals else path.parent for path in given}
    root = Path(os.path.commonpath([*folders, *(path.parent for path in originals)]))
    found = []
    for path in originals:
        parts = list(path.relative_to(root).parts)
        for named, name in options.names.items():
            if named == path or named in path.parents:
                inside = named != root and named.is_relative_to(root)
                depth = len(named.relative_to(root).parts) if inside else len(parts)
                parts[depth - 1] = name + (path.suffix if named == path else "")
        last = parts[-1].removesuffix(".gz")
        parts[-1] = last.removesuffix(Path(last).suffix) or last
        found.append(tuple(parts))
    return found


def _score_files(reader: Reader, final: Scaled) -> list[ScoreFile]:
    """The scores by file, and where they are means of answers to items, these."""
    long, files, facts = final.long, final.long.columns.table.files, _about(final.long)
    scores = final.scores.assign(file=files[final.scores["row"].to_numpy()])
    values = long.rows["value"] * final.factors.to_numpy()
    rows = long.rows.assign(correct=values, file=files[long.rows["row"].to_numpy()])
    runs = _runs(scores["run"]) if "run" in scores else {}
    answers = rows[rows["correct"].notna()] if "item" in rows else rows[:0]
    found = []
    for number in sorted({*scores["file"], *answers["file"]}):
        claims = [_claim(row, runs) for row in scores[scores["file"] == number].to_dict("records")]
        own = answers[answers["file"] == number]
        items = partial(_items, own, runs) if len(own) else None
        path = reader.frame.sources[int(number)].path
        found.append(ScoreFile(path, claims, Claim(source=TABLE), facts=facts, items=items))
    return found


def _items(rows: pd.DataFrame, runs: Mapping[str, int]) -> Iterator[Item]:
    """Answers to items as the records of a table."""
    for row in rows.to_dict("records"):
        item: Any = {**_place(row, runs), "doc_id": row["item"], "correct": float(row["correct"])}
        yield item | {"subject": row["subject"]} if row.get("subject") else item


def _claim(row: Mapping[Any, Any], runs: Mapping[str, int]) -> Claim:
    """A score with what is told of it."""
    said = {
        "value": float(row["value"]), "stderr": float(row["error"]),
        "n_items": int(row["n"]) if np.isfinite(row["n"]) and row["n"] >= 1 else None,
        "higher_is_better": bool(row["higher_is_better"]) if pd.notna(row["higher_is_better"]) else None,
        "metric": metric_key(row["metric"]) if row.get("metric") else None,
        "prepared_on": row.get("prepared_on") or None,
    }  # fmt: skip
    columns = {name: value for name, value in said.items() if value is not None and value == value}
    return cast(Claim, _place(row, runs) | columns)


def _place(row: Mapping[Any, Any], runs: Mapping[str, int]) -> dict[str, Any]:
    """What a score or an answer is of: model, checkpoint, benchmark, run and settings."""
    place: dict[str, Any] = {"model": row["model"], "benchmark": row["benchmark"]}
    texts = {name: row.get(name) for name in SETTINGS if name not in ("prepared_on", "higher_is_better")}
    for name, text in ((name, text) for name, text in texts.items() if text):
        place[name] = int(float(text)) if name in _WHOLE else float(text) if name == "tokens_b" else text
    point = row.get("checkpoint") or str(place.get("iteration", ""))
    if point or "tokens_b" in place:
        point = f"step{int(float(point))}" if re.fullmatch(r"\d+(\.0+)?", point) else point  # 1000 is step1000
        found = score_files.training_point({"revision": point or f"tokens{place['tokens_b']:g}B"})
        place |= {name: value for name, value in found.items() if value is not None}
    return place | ({"run": runs[row["run"]]} if row.get("run") else {})


def _runs(names: pd.Series) -> dict[str, int]:
    """The number of each run: itself where all are whole numbers, else its place in the order of names."""
    texts = sorted({text for text in names if text})
    are_numbers = all(text.isdigit() for text in texts)
    return {text: int(text) if are_numbers else place for place, text in enumerate(texts)}


def _about(long: Long) -> dict[str, Facts]:
    """Columns of the models sheet that the table has, by model."""
    facts, names = defaultdict[str, Facts](dict), needed({"model": long.told["model"]})
    firsts = long.rows.drop_duplicates("model")
    for column in long.columns.values():
        sheet = _ABOUT.get(column.head)
        if sheet is not None and long.columns.determines(names, column.name):
            for model, row in zip(firsts["model"], firsts["row"], strict=True):
                value = column.clean[row] if sheet == "family" else float(column.numbers[row])
                if value and value == value:
                    facts[model][sheet] = value
    return facts
