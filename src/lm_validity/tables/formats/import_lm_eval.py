"""Files and folders of lm-eval's results (`results_*.json`) and answers (`samples_*.jsonl`) -> scores and items."""

import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import pandas as pd

from lm_validity.errors import InputError
from lm_validity.files import replace_file
from lm_validity.tables.formats.found_files import Found, date_text, find_files
from lm_validity.tables.formats.import_log import ImportLog, with_progress
from lm_validity.tables.formats.import_samples import (
    Part,
    SameDocuments,
    SampleFile,
    benchmark_of,
    is_samples,
    match_samples,
    read_part,
    score_file,
    write_items,
)
from lm_validity.tables.formats.lm_eval_results import HINT, PARAMETERS, read_result_file
from lm_validity.tables.formats.score_files import ScoreFile, check_identities, score_table, with_tokens

SOURCE = "lm-eval"


def import_lm_eval(
    paths: Iterable[str | Path],
    output: str | Path,
    *,
    strict: bool = False,
    names: dict[Path, str] | None = None,
    tokens_per_step: float | None = None,
) -> tuple[pd.DataFrame, ImportLog]:
    """Write scores.parquet, import.json and, where there are samples, items.parquet under `output`; scores and log.

    names: models' names by file or folder, which count before what the files say. In folders, what is no result file
    of lm-eval is listed in the log; `strict`, a bad file that was named itself, two different models under one name and
    nothing left raise InputError, and nothing is written. tokens_per_step: training tokens of an optimizer step, for
    checkpoints whose iteration is known and whose tokens are not.
    """
    output = Path(output)
    log = ImportLog(strict=strict)
    results, samples = _read_all(paths, names or {}, log, tokens_per_step)
    check_identities([*results, *(one.identified for one in samples)])
    log.parameters = {
        one.common["model"]: float(one.identity[PARAMETERS]) for one in results if PARAMETERS in one.identity
    }
    with ExitStack() as stack:
        parts: list[Part] = []
        if samples:
            output.mkdir(parents=True, exist_ok=True)
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=".import.", dir=output))
            parts, of_samples = _read_samples(samples, Path(folder), log)
            results += of_samples
        scores = score_table(results, SOURCE, log)
        if parts:
            # Replaced when everything is written: the tables belong together
            log.items = write_items(parts, stack.enter_context(replace_file(output / "items.parquet")))
        elif (output / "items.parquet").exists():
            log.notes.append(f"{output / 'items.parquet'} is of another import: these files have no items.")
        log.write(scores, output)
    return scores, log


def read_lm_eval(paths: Iterable[str | Path], *, strict: bool = True) -> pd.DataFrame:
    """The scores of result files with the columns of `SCORES`, without writing anything; samples are left aside.

    Raises InputError as `import_lm_eval` does; by default also for a score that two files have.
    """
    log = ImportLog(strict=strict)
    results, _ = _read_all(paths, {}, log)
    check_identities(results)
    return score_table(results, SOURCE, log)


def _read_all(
    paths: Iterable[str | Path], names: dict[Path, str], log: ImportLog, tokens_per_step: float | None = None
) -> tuple[list[ScoreFile], list[SampleFile]]:
    """Every result file, and every samples file with what its result file says."""
    found, log.others = find_files(paths, (".json", ".jsonl", ""))
    _check_names(names, found)
    results: list[ScoreFile] = []
    samples: list[Found] = []
    for each in with_progress(found, "files"):
        if is_samples(each.path):
            samples.append(each)
            continue
        try:
            found_scores = read_result_file(each, _given_name(each.path, names))
            results.append(found_scores if tokens_per_step is None else with_tokens(found_scores, tokens_per_step))
        except InputError as error:
            log.skip(each.path, error.problem, error.hint, named=each.named)
    places: dict[tuple[Path, str], list[ScoreFile]] = {}
    for one in results:
        for benchmark in {row["benchmark"] for row in one.rows}:
            places.setdefault((one.path.parent, benchmark), []).append(one)
    matched: list[SampleFile] = []
    for each in samples:
        here = places.get((each.path.parent, benchmark_of(each.path)), [])
        try:
            matched.append(match_samples(each, here, _given_name(each.path, names)))
        except InputError as error:
            log.skip(each.path, error.problem, error.hint, named=each.named)
    log.files = len(results) + len(matched)
    if not results and not matched:
        first = ": ".join(log.skipped[0]).rstrip(".") if log.skipped else "no file whose name ends in .json or .jsonl"
        raise InputError(f"no result file of lm-eval in the given paths ({first}).", HINT)
    return results, matched


def _read_samples(samples: list[SampleFile], folder: Path, log: ImportLog) -> tuple[list[Part], list[ScoreFile]]:
    """The newest samples file of each evaluation whose items count, and the scores of those without a result file."""
    parts: list[Part] = []
    scores: list[ScoreFile] = []
    documents = SameDocuments()
    for number, one in enumerate(with_progress(_newest(samples, log), "files of samples")):
        try:
            part, hashes = read_part(one, folder / f"{number}.parquet")
        except InputError as error:
            log.skip(one.found.path, error.problem, error.hint, named=one.found.named)
            log.files -= 1
            continue
        if not one.scores:
            scores.append(score_file(part))
        difference = documents.difference(part, hashes)
        if difference is None:
            parts.append(part)
        else:
            log.skip(one.found.path, difference, "import it into another folder.")
    log.notes += [note for part in parts for note in part.notes]
    unknown = sorted({part.file.benchmark for part in parts if not part.gold_known})
    if unknown:
        log.notes.append(f"Right choices unknown, so no chance level and no margins: {', '.join(unknown)}.")
    return parts, scores


def _newest(samples: list[SampleFile], log: ImportLog) -> list[SampleFile]:
    best: dict[tuple[object, ...], SampleFile] = {}
    for one in sorted(samples, key=lambda each: each.rank, reverse=True):
        known = best.setdefault(one.key, one)
        if known is not one:
            log.repeat(
                f"{one.found.path} ({date_text(one.date)}): the same documents are answered in {known.found.path} "
                f"({date_text(known.date)})"
            )
    return sorted(best.values(), key=lambda one: (one.benchmark, str(one.found.path)))


def _given_name(path: Path, names: dict[Path, str]) -> str | None:
    """The name given to the file, else to the nearest folder above it."""
    place = path.resolve()
    return next((names[each] for each in (place, *place.parents) if each in names), None)


def _check_names(names: dict[Path, str], found: list[Found]) -> None:
    """Raises InputError for a name given to a path that no file lies under."""
    places = {each for one in found for each in (one.path.resolve(), *one.path.resolve().parents)}
    for path, name in names.items():
        if path not in places:
            raise InputError(f"--model {path}={name}: none of the files lies there.", "check the path before '='.")
