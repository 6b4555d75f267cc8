"""Login node: find a benchmark's task, fetch its data set, check the sheet, and record what the jobs will read."""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from lm_validity.cells.tasks.corpora import write_corpus_task
from lm_validity.cells.tasks.groups import Document
from lm_validity.cells.tasks.tasks import fewshot_digest, find_task, load_task, rows
from lm_validity.config.sheets import Benchmark
from lm_validity.errors import InputError, nearest
from lm_validity.run.task_files import document_order

log = logging.getLogger(__name__)


def prefetch_benchmark(row: Benchmark) -> dict[str, Any]:
    """Find the benchmark's lm-eval task (a corpus's: write it), load its data into the local cache, check the sheet."""
    if row.corpus:
        write_corpus_task(row)
    record = find_task(row.task, row.include_path)
    where = f"benchmark {row.benchmark!r} (task {row.task})"
    directions = {**record.higher_is_better, **({"acc_mutual_info,none": True} if row.mutual_information else {})}
    if row.metric not in directions:
        close = nearest(row.metric, directions)
        raise InputError(
            f"{where}: lm-eval has no metric {row.metric!r} for it.",
            f"did you mean {close!r}?" if close else f"it has {', '.join(directions)}.",
        )
    if row.output_type != record.output_type:
        raise InputError(
            f"{where}: output_type {row.output_type!r} in the sheet, {record.output_type!r} in the task.",
            "correct the benchmarks sheet.",
        )
    _check_direction(where, row, stated=directions[row.metric])
    task = load_task(record, row.num_fewshot, mutual_information=row.mutual_information)
    documents = {kind: found for kind in ("train", "validation", "test") if (found := rows(task, kind)) is not None}
    return {
        "record": record.to_json(),
        "digest": record.config_digest,
        "output_type": record.output_type,
        "documents": {kind: len(found) for kind, found in documents.items()},
        "data": _documents_digest(documents),
        "fewshot": fewshot_digest(task),
        "document_order": document_order({"record": record.to_json()}),
    }


def _check_direction(where: str, row: Benchmark, *, stated: bool | None) -> None:
    """`stated`: what the task or lm-eval says of the metric. Where neither says anything, the sheet decides."""
    if stated is None:
        log.info(
            "%s: the task does not say whether a higher %s is better; higher_is_better of the benchmarks sheet is "
            "taken, %d (1 where it is empty)",
            *(where, row.metric, row.higher_is_better),
        )
    elif row.higher_is_better != stated:
        raise InputError(
            f"{where}: higher_is_better is {int(row.higher_is_better)} in the sheet, and the task says otherwise.",
            "correct the benchmarks sheet.",
        )


def _documents_digest(documents: Mapping[str, Sequence[Document]]) -> str:
    """sha256 over all documents: the splits are made anew when the data change."""
    digest = hashlib.sha256()
    for kind, found in documents.items():
        digest.update(f"{kind} {len(found)}\n".encode())
        for document in found:
            digest.update(json.dumps(document, sort_keys=True, default=str).encode())
    return digest.hexdigest()
