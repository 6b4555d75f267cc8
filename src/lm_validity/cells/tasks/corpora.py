"""Perplexity corpora from a user's own text files: read and checked once, then a task of lm-eval like any other.

A JSON lines file, a parquet file or a folder of .txt becomes one file of documents and one YAML file. lm-eval's rolling
windows score it, `splits` cuts it 8:1:1 by document, and it is fine-tuned and selected like every benchmark.
"""

import json
import logging
from collections.abc import Collection, Iterator
from pathlib import Path

from lm_validity.config.sheets import Benchmark
from lm_validity.errors import InputError, nearest
from lm_validity.files import check_encodable, replace_file, write_text

log = logging.getLogger(__name__)

FEWEST = 10  # documents: one each for validation and test at 8:1:1
# All are sums over documents divided by sums of bytes or words, as lm-eval takes them
METRICS: tuple[tuple[str, str], ...] = (("bits_per_byte", "bits_per_byte"), ("byte_perplexity", "weighted_perplexity"))
METRICS += (("word_perplexity", "weighted_perplexity"),)


def write_corpus_task(row: Benchmark) -> None:
    """Write the documents and the lm-eval task of a corpus row into its `include_path`.

    Blank documents are left out and counted. Raises InputError naming file, row, column and value of a document that
    is no text, a column or file that is not there, fewer than 10 documents.
    """
    assert row.include_path is not None and row.corpus is not None, "a corpus has them"
    folder = Path(row.include_path)
    written = blank = 0
    with replace_file(folder / "documents.jsonl") as temporary:
        with open(temporary, "w", encoding="utf-8") as out:
            for name, text in read_documents(Path(row.corpus), row.text_column):
                if not text.strip():
                    blank += 1
                    continue
                out.write(json.dumps({"source": name, "text": text}, ensure_ascii=False) + "\n")
                written += 1
        if written < FEWEST:
            raise InputError(
                f"{row.corpus}: {written} documents with text ({blank} blank), fewer than {FEWEST}.",
                "train, validation and test are 8:1:1 by document; one text per line, row or file is one document.",
            )
    if blank:
        log.info("%s: %d blank documents left out", row.corpus, blank)
    write_text(folder / f"{row.task}.yaml", _task_yaml(row.task, folder / "documents.jsonl"))


def read_documents(path: Path, column: str) -> Iterator[tuple[str, str]]:
    """(where it comes from, text) of each document, in the file's order; files of a folder by name."""
    if path.is_dir():
        return _text_files(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file or folder.", "correct `corpus` in the benchmarks sheet.")
    if path.suffix == ".parquet":
        return _parquet_rows(path, column)
    if path.suffix in (".jsonl", ".json", ".ndjson"):
        return _json_lines(path, column)
    raise InputError(f"{path}: not a kind of corpus that is read.", "use .jsonl, .parquet, or a folder of .txt files.")


def _text_files(folder: Path) -> Iterator[tuple[str, str]]:
    files = sorted(folder.rglob("*.txt"))
    if not files:
        raise InputError(f"{folder}: no .txt file in it.", "one file is one document.")
    for file in files:
        try:
            yield file.relative_to(folder).as_posix(), file.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise InputError(f"{file}: not UTF-8 (byte {error.start}).", "save it as UTF-8.") from None


def _json_lines(path: Path, column: str) -> Iterator[tuple[str, str]]:
    with open(path, encoding="utf-8-sig") as lines:
        number = 0
        try:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield str(number), _text(path, number, column, json.loads(line))
        except UnicodeDecodeError as error:
            raise InputError(f"{path}, row {number + 1}: not UTF-8 ({error.reason}).", "save it as UTF-8.") from None
        except json.JSONDecodeError as error:
            raise InputError(f"{path}, row {number}: not JSON ({error.msg}).", "write one object per line.") from None


def _parquet_rows(path: Path, column: str) -> Iterator[tuple[str, str]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{path}: not a parquet file ({error}).", "write it with pandas or pyarrow.") from None
    _check_column(path, column, file.schema_arrow.names)
    number = 0
    for batch in file.iter_batches(columns=[column]):
        for value in batch.column(0).to_pylist():
            number += 1
            yield str(number), _text(path, number, column, {column: value})


def _text(path: Path, number: int, column: str, document: object) -> str:
    if not isinstance(document, dict):
        raise InputError(f"{path}, row {number}: not an object.", f'write lines like {{"{column}": "..."}}.')
    _check_column(f"{path}, row {number}", column, document)
    if not isinstance(document[column], str):
        raise InputError(
            f"{path}, row {number}, column {column!r}, value {str(document[column])[:60]!r}: not a text.",
            "every document needs one.",
        )
    check_encodable(document[column], f"{path}, row {number}, column {column!r}")
    return document[column]


def _check_column(where: object, column: str, names: Collection[str]) -> None:
    if column not in names:
        close = nearest(column, names)
        raise InputError(
            f"{where}: no column {column!r}; it has {', '.join(map(str, names))}.",
            f"did you mean {close!r}? " * bool(close) + "`text_column` in the benchmarks sheet names the column.",
        )


def _task_yaml(task: str, documents: Path) -> str:
    import yaml

    config = {
        "task": task,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"documents": documents.as_posix()}},
        "output_type": "loglikelihood_rolling",
        "test_split": "documents",  # the one split; ours are cut from it
        "doc_to_text": "",
        "doc_to_target": "text",
        "metric_list": [
            {"metric": name, "aggregation": aggregation, "higher_is_better": False} for name, aggregation in METRICS
        ],
        "metadata": {"version": 1.0},
    }
    return yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
