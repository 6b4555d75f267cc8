"""HELM's folder of a run (stats.json beside run_spec.json) -> scores, and items of per_instance_stats.json.

The values are means over the run's trials, which have no standard error of items. Of the splits, `test` counts, else
`valid`; values under perturbations and of parts of a split are left out, and so are tokens, seconds and such.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from lm_validity.config.sheets import metric_key
from lm_validity.errors import InputError
from lm_validity.files import Document
from lm_validity.tables.cell_text import is_no_score
from lm_validity.tables.claims import Claim, Item, Settings
from lm_validity.tables.decisions import EVERY, LEFT_OUT, Decision
from lm_validity.tables.formats import checked
from lm_validity.tables.formats.import_csv import read_text_table
from lm_validity.tables.formats.score_files import Format, ImportOptions, Opened, ScoreFile
from lm_validity.tables.formats.text_tables import text_table

_STATS, _SPEC, _ITEMS = "stats.json", "run_spec.json", "per_instance_stats.json"
# Files of a run that have no scores of their own
_OTHERS = (_ITEMS, "scenario.json", "scenario_state.json", "instances.json", "display_requests.json",
           "display_predictions.json")  # fmt: skip
_HINT = "HELM writes stats.json and run_spec.json into the folder of a run."
_OF_MODEL = frozenset(("model", "model_deployment", "data_augmentation"))  # arguments of a run that name no benchmark
_NO_SCORE = re.compile(r"(num|max|min|inference|training|estimated|finish_reason|prompt|batch|predicted|logprob)(_.*)?")


def _recognises(opened: Opened) -> bool:
    return opened.path.name in (_STATS, _SPEC, *_OTHERS) and opened.path.with_name(_SPEC).is_file()


def _read(opened: Opened, options: ImportOptions) -> list[ScoreFile]:
    """The scores of a run; [] for a file beside them. Raises InputError for files that are not as HELM writes them."""
    path, stats = opened.path, opened.document
    if path.name != _STATS:
        return []
    beside = path.with_name(_SPEC)
    spec = checked.read_json_file(beside, _HINT)
    adapter = checked.part(spec, "adapter_spec")
    if not adapter or not isinstance(stats, list):
        raise InputError(f"{beside if isinstance(stats, list) else path}: not of a run of HELM.", _HINT)
    model = checked.required_text(opened.model or adapter.get("model"), f"{beside}, adapter_spec, model", _HINT)
    name = checked.required_text(spec.get("name"), f"{beside}, name", _HINT)
    shots = checked.whole(adapter.get("max_train_instances"), f"{beside}, max_train_instances", 0)
    task_fields: Claim = {"benchmark": _benchmark(name), "num_fewshot": shots}
    split, values = _of_split(stats, str(path))
    rows = [row | task_fields for row in _rows(values, str(path))]
    answers = path.with_name(_ITEMS)
    items = (
        partial(_items, answers, split, {"benchmark": _benchmark(name), "num_fewshot": shots})
        if answers.is_file() and rows
        else None
    )
    settings = ",".join(f"{key}={adapter.get(key)}" for key in ("temperature", "num_outputs", "max_tokens"))
    sampling = {EVERY: str(adapter.get("random") or "")} if checked.is_sampled(adapter) else {}
    common: Claim = {"model": model, "unit": "own"}
    return [ScoreFile(path, rows, common, settings=settings, sampling=sampling, made=_made(adapter), items=items)]


def _benchmark(name: str) -> str:
    """`mmlu:subject=anatomy,model=x` is the benchmark `mmlu:subject=anatomy`."""
    scenario, _, arguments = name.partition(":")
    arguments_kept = [
        argument for argument in arguments.split(",") if argument and argument.partition("=")[0] not in _OF_MODEL
    ]
    return ":".join(filter(None, (scenario, ",".join(arguments_kept))))


class _Split(NamedTuple):
    """A split's means by the names of metrics."""

    name: str
    means: dict[str, float]


def _of_split(stats: object, where: str) -> _Split:
    """The split that counts. Raises InputError for what is no list of values with names."""
    values: dict[str, dict[str, float]] = {}
    for stat in stats if isinstance(stats, list) else [None]:
        stat_name, mean = checked.part(stat, "name"), checked.finite(checked.part(stat).get("mean"))
        if not isinstance(stat_name.get("name"), str):
            raise InputError(f"{where}: a value without a name.", _HINT)
        if not (stat_name.get("perturbation") or stat_name.get("sub_split")) and mean is not None:
            values.setdefault(str(stat_name.get("split")), {})[stat_name["name"]] = mean
    split = "test" if values.get("test") else "valid"
    return _Split(split, values.get(split, {}))


def _is_score(name: str) -> bool:
    return not (_NO_SCORE.fullmatch(name) or is_no_score(name))


def _rows(values: dict[str, float], where: str) -> list[Claim]:
    items = checked.finite(values.get("num_instances"))
    return [
        {
            "metric": metric_key(name),
            "value": checked.score(value, f"{where}, {name}", _HINT),
            "n_items": int(items) if items and items >= 1 else None,
        }
        for name, value in values.items()
        if _is_score(name)
    ]


def _items(path: Path, split: str, task_fields: Item) -> Iterator[Item]:
    """A row for each instance, with the means over the trials by metric; the first one is `correct`."""
    trials: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for instance in checked.read_json_file(path, _HINT):
        if not isinstance(instance, dict) or "instance_id" not in instance:
            raise InputError(f"{path}: an instance without an instance_id.", _HINT)
        own_values, values = _of_split(instance.get("stats"), f"{path}, {instance['instance_id']}")
        if not instance.get("perturbation") and own_values == split:
            for name in filter(_is_score, values):
                trials[str(instance["instance_id"])][metric_key(name)].append(values[name])
    for document, metrics in trials.items():
        means = [(name, sum(values) / len(values)) for name, values in metrics.items()]
        yield {**task_fields, "doc_id": document, "correct": means[0][1], "metric_values": means}


def _made(adapter: Document) -> Settings:
    """How the scores of a run were made."""
    return {
        "harness": "helm",
        "limit": checked.finite(adapter.get("max_eval_instances")),
        "temperature": checked.finite(adapter.get("temperature")),
        "max_gen_toks": adapter.get("max_tokens") if type(adapter.get("max_tokens")) is int else None,
    }


# ---- the tables of a release's groups (core_scenarios.json) ----------------------------------------------------------


def _tables(document: list[Document] | Document) -> list[Document]:
    tables = document if isinstance(document, list) else [document]
    return tables if tables and all(isinstance(table, dict) and _is_table(table) for table in tables) else []


def _is_table(table: Document) -> bool:
    rows = [table.get("header"), *(table["rows"] if isinstance(table.get("rows"), list) else [None])]
    cells = [cell for row in rows for cell in (row if isinstance(row, list) else [None])]
    return len(rows) > 1 and all(isinstance(cell, dict) and "value" in cell for cell in cells)


def _read_tables(opened: Opened, options: ImportOptions) -> list[ScoreFile]:
    """The table of accuracies of a group, else its first; the others are of calibration, seconds and such."""
    tables = _tables(opened.document)
    table = next((candidate for candidate in tables if str(candidate.get("title")).casefold() == "accuracy"), tables[0])
    names, *rows = [[cell["value"] for cell in row] for row in (table["header"], *table["rows"])]
    if any(len(row) != len(names) for row in rows):
        raise InputError(
            f"{opened.path}: a row of {table.get('title')!r} has more or fewer cells than the header.", _HINT
        )
    (file,) = read_text_table(text_table(opened.path, names, rows), options, opened.model)
    text = f"{opened.path.name}: the table {table.get('title')!r} counts, not its {len(tables) - 1} others"
    decisions = [
        Decision("cell", f"{opened.path.name}, other tables", "left out", "name", LEFT_OUT, len(tables) - 1, "", text)
    ]
    return [replace(file, decisions=(*file.decisions, *(decisions if len(tables) > 1 else ())))]


FORMAT = Format("helm", (".json",), _recognises, _read)
TABLES = Format("helm-tables", (".json",), lambda opened: bool(_tables(opened.document)), _read_tables)
