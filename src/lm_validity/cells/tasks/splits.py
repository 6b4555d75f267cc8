"""Train, validation and test of a benchmark, disjoint by construction; texts of documents."""

import hashlib
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import yaml
from pydantic import TypeAdapter

from lm_validity.cells.tasks import answers, tasks
from lm_validity.cells.tasks.finding import TaskRecord, find_task
from lm_validity.cells.tasks.tasks import KINDS, AnyTask, Doc, Documents, TaskGroup, rows, task_of
from lm_validity.config.sheets import Benchmark
from lm_validity.errors import CellError, InputError, again, did_you_mean
from lm_validity.files import read_json, write_json, write_text
from lm_validity.run.scoring import prompt_settings
from lm_validity.run.workspace import Workspace
from lm_validity.tables.schema import DOCUMENTS, write_table

log = logging.getLogger(__name__)

# ----------------------------------------------------------------------------------------------------------------------
# The texts of a benchmark's test documents, for filters that read them and for scoring what a filter keeps.


def write_documents(benchmark: str, task: AnyTask, documents: Documents, path: Path) -> None:
    """Write documents.parquet, one row per document with the columns of DOCUMENTS; a perplexity corpus has none."""
    rows = []
    for member in tasks.tasks_in(task).values():
        member.set_fewshot_seed(tasks.FEWSHOT_SEED)  # the examples that scoring shows, where they are drawn
    corpus = task.OUTPUT_TYPE == "loglikelihood_rolling"
    for address, doc in () if corpus else zip(documents.addresses, documents.docs, strict=True):
        member = task_of(task, doc)
        prefix, choice = member.doc_to_prefix(doc), member.OUTPUT_TYPE == "multiple_choice"
        prompt = member.fewshot_context(doc, num_fewshot=member.config.num_fewshot or 0, gen_prefix=prefix)
        # where the choices stand in the prompt, each has its own, and what follows is the same for all
        varies = choice and member.multiple_input
        row: dict[str, object] = {"benchmark": benchmark, "doc_id": address, "subject": tasks.subject_of(task, doc)}
        row["context"] = str(member.doc_to_target(doc) if varies else member.doc_to_text(doc))
        if choice:
            choices = [str(text) for text in member.doc_to_choice(doc)]
            row |= {"choices": choices, "gold": answers.gold_choice(member, doc)}
        row |= {"prompt": None if varies else prompt, "target_delimiter": member.config.target_delimiter}
        rows.append(row)
    write_table(pd.DataFrame(rows, columns=DOCUMENTS.names), DOCUMENTS, path)


# ----------------------------------------------------------------------------------------------------------------------
# Train, validation and test documents of a task: disjoint by construction, written down, checked when read.
#
# The rule is train-before-test's: a task with both a validation and a test split keeps all three; otherwise the
# test documents are those that lm-eval scores and 20% of the training documents become validation. Exceptions
# are stated where they are made (`_sources`). Selection never sees a test document, and a document that cannot
# be told apart from a test document never serves training or validation.

CAPS = (50_000, 1_000, 10_000)
VALIDATION_SHARE = 0.2
ONE_SPLIT_SHARES = (0.8, 0.1, 0.1)
LARGEST_OVERLAP = 0.05


@dataclass(frozen=True)
class Split:
    """One split of a task. `to_json` is what is written to disk, a file for each split.

    addresses: `<kind>:<row>` as lm-eval numbers its documents (of a group: `<task>/<kind>:<row>`), in row order.
    hashes: sha256 (first 32 hex digits) of each document as rendered: all that scoring and training read.
    digest: sha256 over addresses and hashes; a cell's recipe holds it.
    examined, removed_by_text, removed_by_id: rows looked at to fill the split, and those left out because a
        split of higher rank (test, then validation) has the same text or the same id.
    """

    task: str
    split: str
    rule: str
    seed: int
    addresses: tuple[str, ...]
    hashes: tuple[str, ...]
    examined: int
    removed_by_text: int
    removed_by_id: int

    @property
    def digest(self) -> str:
        """SHA-256 over address and hash of each document, in order: equal where the split is the same."""
        pairs = zip(self.addresses, self.hashes, strict=True)
        lines = "".join(f"{address} {doc_hash}\n" for address, doc_hash in pairs)
        return hashlib.sha256(lines.encode()).hexdigest()

    def to_json(self) -> dict[str, object]:
        """The split as JSON stores it, with its digest and the number of its documents."""
        return asdict(self) | {"digest": self.digest, "documents": len(self.addresses)}

    @classmethod
    def from_json(cls, record: Mapping[str, object]) -> "Split":
        """Raises CellError where the stored digest is not that of the stored documents."""
        split = TypeAdapter(cls).validate_python(record)
        if len(split.addresses) != len(split.hashes) or split.digest != record["digest"]:
            problem = f"{split.task}: the file of the {split.split} split was changed after it was written."
            raise CellError(problem, f"split the benchmark again: {again('split-benchmark')}.")
        return split


class TaskSplits(NamedTuple):
    """The three splits of a task; `train` and `validation` are None where the task is for testing only."""

    train: Split | None
    validation: Split | None
    test: Split


def make_splits(
    task: AnyTask, *, caps: Sequence[int] = CAPS, seed: int = 0, allow_overlap: bool = False, test_only: bool = False
) -> TaskSplits:
    """Choose the documents of each split.

    caps: largest train, validation and test split; what is above is left out by a seeded permutation.
    allow_overlap: go on where more than 5% of a split's rows occur in one of higher rank (they leave anyhow).
    test_only: the benchmark is only ever scored, so that a task without training documents is fine.
    Raises InputError naming task, split, row: empty split, row that cannot be rendered, too much overlap.
    """
    name = task.config.task
    rule, candidates = _sources(task, seed, test_only=test_only)
    texts: set[str] = set()  # of the splits made so far
    ids: set[str | None] = set()
    splits: dict[str, Split] = {}
    for split in ("test",) if test_only else ("test", "validation", "train"):
        tried = _try(task, candidates[split], caps[KINDS.index(split)], texts, ids)
        chosen, examined = sorted(row for row in tried if not row.shares), len(tried)
        by_text, by_id = (sum(row.shares == part for row in tried) for part in ("text", "id"))
        removed = by_text + by_id
        if removed > LARGEST_OVERLAP * examined and not allow_overlap:
            higher = "test" if split == "validation" else "test or validation"
            raise InputError(
                f"{name}: {removed} of {examined} rows of the {split} split occur in {higher} "
                f"({by_text} by text, {by_id} by id), more than {LARGEST_OVERLAP:.0%}.",
                "look at the data; to go on without those rows, set allow_overlap for this benchmark."
                + " Ids that begin anew in each split are none: remove the column `id` in process_docs."
                * (by_id > by_text),
            )
        if not chosen:
            raise InputError(f"{name}: the {split} split is empty.", "check the task's data and *_split keys.")
        texts |= {row.text for row in chosen}
        ids |= {row.id for row in chosen} - {None}
        addresses = tuple(row.address for row in chosen)
        answers.check_answers(task, tasks.fetch_documents(task, split, addresses))
        hashes = tuple(row.digest for row in chosen)
        splits[split] = Split(name, split, rule, seed, addresses, hashes, examined, by_text, by_id)
    return TaskSplits(splits.get("train"), splits.get("validation"), splits["test"])


def documents(task: AnyTask, split: Split) -> Documents:
    """The documents of a split, read from the data set anew; other splits are not touched.

    Raises CellError naming the first row that is not what it was when the split was made.
    """
    fetched = tasks.fetch_documents(task, split.split, split.addresses)
    for address, doc, expected in zip(fetched.addresses, fetched.docs, split.hashes, strict=True):
        if _rendered_digest(task, doc) != expected:
            hint = "split it again; if its data are the same, its code gives other texts each time: seed its draws."
            raise CellError(f"{split.task}: document {address} changed after the {split.split} split was made.", hint)
    return fetched


def write_splits(workspace: Workspace, benchmark: str) -> None:
    """Divide a benchmark's documents and write one file per split, so that training never opens test; and the texts of
    the test documents, for filters.

    Raises InputError where another wording of a benchmark does not ask its questions, which are split first.
    """
    settings, task = workspace.run.configuration.splits, recorded_task(workspace, benchmark)
    splits = make_splits(
        task,
        caps=(settings.train, settings.validation, settings.test),
        seed=settings.seed,
        allow_overlap=benchmark in settings.allow_overlap,
        test_only=workspace.grid.is_test_only(benchmark),
    )
    if splits.train is not None:
        row = workspace.run.benchmarks[benchmark]
        taught = tasks.fetch_documents(task, "train", splits.train.addresses[: answers.MOST_LOOKED_AT])
        answers.check_training_answers(task, taught, row.metric, higher_is_better=row.higher_is_better)
    test, variant_of = documents(task, splits.test), workspace.run.benchmarks[benchmark].variant_of
    if variant_of is not None:
        _check_wording(workspace, benchmark, test, variant_of)
    for name, split in zip(splits._fields, splits, strict=True):
        # a benchmark that is only scored has no train and validation; the rule's files say so
        written = split.to_json() if split is not None else {"split": name, "documents": 0, "digest": None}
        write_json(workspace.split_path(benchmark, name), written)
        log.info("%s %s: %d documents", benchmark, name, written["documents"])
    write_documents(benchmark, task, test, workspace.split_path(benchmark, "test").with_name("documents.parquet"))


def recorded_task(workspace: Workspace, benchmark: str) -> AnyTask:
    """The task that the login node recorded, with the run's settings of its prompt. Raises InputError where its files
    or its few-shot examples are others now."""
    record = workspace.task_record(benchmark)
    task = tasks.load_task(TaskRecord.from_json(record["record"]), **prompt_settings(workspace.run, benchmark))
    if tasks.fewshot_digest(task) != record.get("fewshot"):
        problem = f"benchmark {benchmark!r}: its few-shot examples changed after they were recorded."
        raise InputError(problem, f"run {again(f'prefetch-benchmark --benchmark {benchmark}')}, then the workflow.")
    return task


def _check_wording(workspace: Workspace, benchmark: str, test: Documents, variant_of: str) -> None:
    """Raise InputError where the test documents of another wording are not those of its benchmark in the same order:
    equal in every column that both have."""
    split = Split.from_json(read_json(workspace.split_path(variant_of, "test")))
    theirs = documents(recorded_task(workspace, variant_of), split).docs
    equal_documents = len(test) == len(theirs) and all(
        doc.keys() & document.keys() and all(doc[name] == document[name] for name in doc.keys() & document.keys())
        for doc, document in zip(test.docs, theirs, strict=True)
    )
    if not equal_documents:
        hint = "another wording reads the same data and splits, changes no column, and differs in its templates."
        raise InputError(f"benchmark {benchmark!r}: its test documents are not those of {variant_of!r}.", hint)


# Rows that may become part of a split: lm-eval's kind, its documents, and the order in which they are tried.
Candidates = tuple[str, Sequence[Doc], np.ndarray]


class _Sources(NamedTuple):
    """The rule in words, and which rows may become which split."""

    rule: str
    candidates: dict[str, Candidates]


def _sources(task: AnyTask, seed: int, *, test_only: bool) -> _Sources:
    """(the rule in words, which rows may become which split, each in a seeded order).

    - test: the documents that lm-eval scores (test, else validation);
    - validation: lm-eval's, if it has both and they are not the same split (medmcqa names one split twice);
    - otherwise 20% of train, as for the tasks of GLUE, whose test labels are not public;
    - a corpus of one split is cut 8:1:1 by document; one without train gives up its validation split.
    """
    # tasks written in Python name no splits of their data set
    names = {kind: getattr(task.config, f"{tasks.WORDS[kind]}_split", None) or kind for kind in KINDS}
    names = {kind: name for kind, name in names.items() if tasks.has_documents(task, kind)}
    scored = "test" if "test" in names else "validation"
    has_train = names.get("train") not in (None, names[scored])
    has_validation = scored == "test" and names.get("validation") not in (None, names["test"], names.get("train"))
    test_documents = rows(task, scored)
    test = (scored, test_documents, _permutation(seed, "test", test_documents))
    if test_only:
        return _Sources("test only", {"test": test})
    if isinstance(task, TaskGroup):
        for kind in ("train", "validation"):
            task.check_alike(kind)
    if not has_train and task.OUTPUT_TYPE != "loglikelihood_rolling":
        hint = "fine-tuning needs a training_split; use the task in studies that only evaluate."
        raise InputError(f"{task.config.task}: it has no training documents apart from those that are scored.", hint)
    if has_train and has_validation:
        parts = {kind: rows(task, kind) for kind in ("train", "validation")}
        sources = {kind: (kind, docs, _permutation(seed, kind, docs)) for kind, docs in parts.items()}
        return _Sources("the task's own splits", sources | {"test": test})
    if has_train or has_validation:
        kind = "train" if has_train else "validation"
        docs = rows(task, kind)
        order = _permutation(seed, "train", docs)
        border = len(docs) - round(VALIDATION_SHARE * len(docs))
        carved = {"train": (kind, docs, order[:border]), "validation": (kind, docs, order[border:])}
        return _Sources(f"20% of {kind} becomes validation", carved | {"test": test})
    bounds = np.cumsum([round(share * len(test_documents)) for share in ONE_SPLIT_SHARES[:2]])
    thirds = np.split(_permutation(seed, "train", test_documents), bounds)
    cut = {split: (scored, test_documents, part) for split, part in zip(KINDS, thirds, strict=True)}
    return _Sources("8:1:1 of the one split", cut)


def _permutation(seed: int, split: str, docs: Sequence[Doc]) -> np.ndarray:
    return np.random.default_rng([seed, KINDS.index(split)]).permutation(len(docs))


class _Row(NamedTuple):
    number: int
    address: str
    digest: str
    text: str  # what identifies the document to a reader: its question and choices, normalised
    id: str | None
    shares: str  # what it has in common with a split taken before: "text", "id" or nothing


def _try(task: AnyTask, candidates: Candidates, cap: int, texts: set[str], ids: set[str | None]) -> list[_Row]:
    """The candidates in their order, until `cap` of them share no text and no id with splits taken before."""
    kind, docs, order = candidates
    tried: list[_Row] = []
    hint = "check the columns of that row against the task's YAML file."
    for number in order.tolist():
        if not cap:
            break
        doc = docs[number]
        with tasks.faults_of(f"{task.config.task}: {kind} row {number}", "rendered", hint):
            digest, text = _rendered_digest(task, doc), answers.asked_text(task, doc)
        if not text and task.OUTPUT_TYPE == "loglikelihood_rolling":
            continue  # a blank document
        # numbers do not count: data sets number the rows of each split from zero
        identity = str(doc.get("id") if isinstance(doc.get("id"), str) else "").strip()
        own_id = None if not identity or identity.isdigit() else str(doc["id"])
        shares = "text" if text in texts else "id" if own_id in ids else ""
        tried.append(_Row(number, tasks.address_of(doc, kind, number), digest, text, own_id, shares))
        cap -= not shares
    return tried


def _rendered_digest(task: AnyTask, doc: Doc) -> str:
    """sha256 of what scoring and training read of a document: text, choices, target, prefix, description."""
    task = task_of(task, doc)
    rendering = {
        "text": task.doc_to_text(doc),
        "target": task.doc_to_target(doc),
        "prefix": task.doc_to_prefix(doc),
        "description": task.resolve_field(doc, getattr(task.config, "description", None)),
    }
    if task.OUTPUT_TYPE == "multiple_choice":
        rendering["choices"] = task.doc_to_choice(doc)
    if callable(getattr(task.config, "process_results", None)):
        rendering["doc"] = doc  # the task's own scoring function may read any column
    text = json.dumps(rendering, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


# ----------------------------------------------------------------------------------------------------------------------
# Perplexity corpora of a user's own: a task of lm-eval like any other, whose data are the user's files.
#
# lm-eval's rolling windows score it, it is cut 8:1:1 by document, and fine-tuned and selected like every benchmark.

FEWEST = 10  # documents: one each for validation and test at 8:1:1
_BUILDERS = {".jsonl": "json", ".json": "json", ".ndjson": "json", ".parquet": "parquet"}  # of the data library


def write_corpus_task(row: Benchmark) -> None:
    """Write the lm-eval task of a corpus row into its `include_path`: of a JSON lines or parquet file, whose rows are
    documents, or of a folder, whose .txt files are. Raises InputError where it is neither."""
    assert row.include_path is not None and row.corpus is not None, "a corpus has them"
    path, builder, column = Path(row.corpus), "text", "text"
    options: dict[str, object] = {"sample_by": "document", "encoding": "utf-8-sig"}
    if path.is_dir():
        path /= "**/*.txt"
        if not any(Path(row.corpus).rglob("*.txt")):
            raise InputError(f"{row.corpus}: no .txt file in it.", "one file is one document.")
    elif not path.is_file():
        raise InputError(f"{path}: no such file or folder.", "correct `corpus` in the benchmarks sheet.")
    elif path.suffix in _BUILDERS:
        builder, column, options = _BUILDERS[path.suffix], row.text_column, {}
    else:
        hint = "use .jsonl, .parquet, or a folder of .txt files."
        raise InputError(f"{path}: not a kind of corpus that is read.", hint)
    # sums over documents divided by sums of bytes or words, as lm-eval takes them
    metrics = {"bits_per_byte": "bits_per_byte"} | dict.fromkeys(
        ("byte_perplexity", "word_perplexity"), "weighted_perplexity"
    )
    task = {
        "task": row.task,
        "dataset_path": builder,
        "dataset_kwargs": options | {"data_files": {"documents": path.as_posix()}},
        "output_type": "loglikelihood_rolling",
        "test_split": "documents",  # the one split; ours are cut from it
        "doc_to_text": "",
        "doc_to_target": column,
        "metric_list": [
            {"metric": metric, "aggregation": aggregation, "higher_is_better": False}
            for metric, aggregation in metrics.items()
        ],
        "metadata": {"version": 1.0},
    }
    write_text(Path(row.include_path) / f"{row.task}.yaml", yaml.safe_dump(task, sort_keys=False, allow_unicode=True))


def _check_corpus(row: Benchmark, documents: Sequence[Doc]) -> None:
    """Raise InputError naming the row of a document that is no text, or where fewer than 10 have one that is not
    blank."""
    blank, column = 0, "text" if Path(str(row.corpus)).is_dir() else row.text_column
    for number, document in enumerate(documents, start=1):
        text = document.get(column)
        if not isinstance(text, str):
            where = f"{row.corpus}, row {number}, column {column!r}, value {str(text)[:60]!r}"
            raise InputError(f"{where}: not a text.", "every document needs one; `text_column` names the column.")
        blank += not text.strip()
    if len(documents) - blank < FEWEST:
        problem = f"{row.corpus}: {len(documents) - blank} documents with text ({blank} blank), fewer than {FEWEST}."
        hint = "train, validation and test are 8:1:1 by document; one text per line, row or file is one document."
        raise InputError(problem, hint)
    if blank:
        log.info("%s: %d blank documents are left out", row.corpus, blank)


# ----------------------------------------------------------------------------------------------------------------------
# Login node: find a benchmark's task, fetch its data set, check the sheet, and record what the jobs will read.


def prefetch_benchmark(row: Benchmark) -> dict[str, object]:
    """Find the benchmark's lm-eval task (a corpus's: write it), load its data into the local cache, check the sheet."""
    if row.corpus:
        write_corpus_task(row)
    before = set(sys.modules)
    record = find_task(row.task, row.include_path)
    where = f"benchmark {row.benchmark!r} (task {row.task})"
    if row.output_type != record.output_type:
        problem = f"{where}: output_type {row.output_type!r} in the sheet, {record.output_type!r} in the task."
        raise InputError(problem, "correct the benchmarks sheet.")
    task = tasks.load_task(record, row.num_fewshot, mutual_information=row.mutual_information)
    recorded = record.higher_is_better
    by_answer = answers.metrics_of_an_answer(task)
    directions = {name: recorded.get(name, better) for name, better in by_answer.items()} or recorded
    if row.metric not in directions:
        hint = did_you_mean(row.metric, directions, f"it has {', '.join(directions)}.")
        raise InputError(f"{where}: lm-eval has no metric {row.metric!r} for it.", hint)
    stated = directions[row.metric]
    if stated is None:  # neither the task nor lm-eval says anything: the sheet decides
        words = "%s: the task does not say whether a higher %s is better; the sheet decides, %d (1 where it is empty)"
        log.info(words, where, row.metric, row.higher_is_better)
    elif row.higher_is_better != stated:
        problem = f"{where}: higher_is_better is {int(row.higher_is_better)} in the sheet, and the task says otherwise."
        raise InputError(problem, "correct the benchmarks sheet.")
    documents = {kind: rows(task, kind) for kind in KINDS if tasks.has_documents(task, kind)}
    if row.corpus:
        _check_corpus(row, documents["test"])
    data = tasks.documents_digest(documents)
    record = tasks.with_imports(record, before)
    imported = [path for path, _ in record.imported]
    code = "\n".join([record.config_digest, *(f"{Path(path).name} {digest}" for path, digest in record.imported)])
    return {
        "record": record.to_json(),
        "digest": hashlib.sha256(code.encode()).hexdigest() if imported else record.config_digest,
        "files_read": [*map(str, tasks.data_files(record)), *imported],
        "output_type": record.output_type,
        "documents": {kind: len(docs) for kind, docs in documents.items()},
        "data": data,
        "fewshot": tasks.fewshot_digest(task),
    }
