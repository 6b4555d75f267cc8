"""How scores were made, and whether they are alike: settings.parquet, which lies beside a table of scores.

Scores of unlike versions of a task, or of unlike parts of its items, are scores of different tests: they are not
compared. Unlike chat templates, harnesses or precisions make scores differ too, but there is no agreement without them
in most collections: they are compared, and it is said.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from lm_validity.errors import InputError
from lm_validity.tables.schema import SETTINGS, SETTINGS_KEY, read_table
from lm_validity.words import count, listing

FILE = "settings.parquet"
Unlike = Literal["out", "refused", "kept"]  # what becomes of scores of unlike versions or parts
NEARLY_ALL = 0.95  # of a task's items: fewer are a part of it, since some answers fail in many evaluations
MOST_RANGES = 3  # of numbers of items, in a note
_MUST_EQUAL = {"version": "task versions", "part": "parts of the items"}
# settings under which scores are compared although they differ, with what they are called
_SAID = {
    "chat_template": "chat template",
    "system_instruction": "system prompt",
    "task_hash": "hash of the task",
    "harness": "harness",
    "harness_version": "version of the harness",
    "temperature": "temperature",
    "top_p": "top_p",
    "max_gen_toks": "longest answer",
    "backend": "backend",
    "dtype": "precision",
    "quantization": "quantization",
    "adapter": "adapter",
}
_OF_KIND = ("task_version", "limit", "n_items_scored", "n_items_total")  # what versions and parts are told by
_PREFIX = "setting_"  # of their columns beside scores, some of which have the same names
_WHERE = ("model", "benchmark")
_DEFAULTS = {"checkpoint": "final", "prompt": "plain"}  # what null stands for in scores


class Difference(NamedTuple):
    """Scores of some benchmarks that were made under unlike values of one setting, and compared all the same."""

    setting: str
    words: str
    benchmarks: tuple[str, ...]


def joined_settings(tables: Sequence[str | Path]) -> pd.DataFrame | None:
    """The settings that lie beside several tables of scores, each once; None where none do."""
    frames = [frame for path in dict.fromkeys(map(Path, tables)) if (frame := settings_beside(path)) is not None]
    if not frames:
        return None
    joined = pd.concat([frame.astype(object) for frame in frames], ignore_index=True)
    return joined.drop_duplicates(list(SETTINGS_KEY), ignore_index=True)


def without_kinds(settings: pd.DataFrame) -> pd.DataFrame:
    """The settings without versions and parts, so that scores of unlike ones are compared."""
    return settings.assign(**dict.fromkeys(_OF_KIND))


def settings_beside(scores: str | Path) -> pd.DataFrame | None:
    """The settings of a table of scores; None where there are none."""
    path = Path(scores).with_name(FILE)
    return read_table(path, SETTINGS, _WHERE) if path.is_file() else None


def with_settings(rows: pd.DataFrame, settings: pd.DataFrame | None) -> pd.DataFrame:
    """The scores with the settings of each in columns of their own (`setting_...`), `setting_version` and
    `setting_part`; null where unknown. Without settings they are as they were.

    A null in a key column of settings stands for any value.
    """
    if settings is None:
        return rows
    setting_names = [name for name in SETTINGS.names if name not in SETTINGS_KEY]
    settings_known = pd.DataFrame(index=rows.index, columns=setting_names, dtype=object)
    keys = [name for name in SETTINGS_KEY if name in rows]
    cells = rows[keys].fillna(_DEFAULTS).astype(object).assign(row=rows.index)
    settings = settings.astype(object)
    is_filled = settings[keys].notna()
    for pattern in is_filled.drop_duplicates().sort_values(keys).itertuples(index=False):  # the most general first
        keys_filled = [name for name, is_given in zip(keys, pattern, strict=True) if is_given]
        part = settings[(is_filled == list(pattern)).all(axis=1)].drop_duplicates(keys_filled)
        rows_found = cells.merge(part[[*keys_filled, *setting_names]], on=keys_filled, how="inner").set_index("row")
        settings_known.loc[rows_found.index] = rows_found[setting_names]
    numbers = (
        settings_known[["n_items_scored", "n_items_total", "limit"]].astype("Float64").to_numpy(float, na_value=np.nan)
    )
    by_benchmark = pd.Series(numbers[:, 0], settings_known.index).groupby(rows["benchmark"])
    scored_most = by_benchmark.transform("max").to_numpy()  # items of a task that does not say how many it has
    numbers[:, 1] = np.where(np.isnan(numbers[:, 1]), scored_most, numbers[:, 1])
    parts = pd.Series([_part(*of_row) for of_row in numbers.tolist()], settings_known.index, dtype=object)
    settings_known = settings_known.assign(
        version=settings_known["task_version"].map(_version, na_action="ignore"), part=parts
    )
    return rows.join(settings_known.add_prefix(_PREFIX))


def without_settings(rows: pd.DataFrame) -> pd.DataFrame:
    """The scores without what `with_settings` added."""
    return rows[[name for name in rows if not name.startswith(_PREFIX)]]


def _version(text: str) -> str:
    """`1` and `1.0` are one version."""
    return text.removesuffix(".0")


def _part(scored: float, total: float, limit: float) -> str | None:
    """Which part of a task's items was scored, in words; None where nothing says it (NaN: unknown)."""
    if scored >= NEARLY_ALL * total:
        return "all items"
    if not math.isnan(limit):
        return f"at most {limit:g} items"
    return f"{scored:.0f} of {total:.0f} items" if scored < total else None


def of_one_kind(rows: pd.DataFrame, notes: list[str], path: str | Path, unlike: Unlike) -> pd.DataFrame:
    """The scores of the commonest version of each benchmark's task, and of the commonest part of its items.

    rows: as `with_settings` gives them. Ties go to the higher version and to the whole. Scores of which nothing is
    known stay, and so does the version of another harness, which counts in its own way. `notes` gets what stays out.
    With `unlike` "refused" InputError is raised instead, with "kept" nothing stays out.
    """
    for name, words in _MUST_EQUAL.items():
        if f"{_PREFIX}{name}" not in rows:
            return rows
        values, by = rows[f"{_PREFIX}{name}"], rows["benchmark"]
        if name == "version":
            by = by + "\n" + rows[f"{_PREFIX}harness"].fillna("")
        value_used = {
            key: _commonest(values_of_kind, rows["model"])
            for key, values_of_kind in values.dropna().groupby(by[values.notna()])
        }
        out = values.notna() & (values != by.map(value_used))
        if not out.any():
            continue
        lines = [
            _told(rows_out, values, value_used[by[rows_out.index[0]]]) for _, rows_out in rows[out].groupby(by[out])
        ]
        if unlike == "refused":
            raise InputError(
                f"{path}: different {words}: {'; '.join(lines)}.", "to compare them anyway: --mix-versions."
            )
        if unlike == "kept":
            notes.append(f"Different {words} are compared, as you asked: {'; '.join(lines)}.")
            continue
        notes.append(f"Scores of different {words} stay out ({out.sum()}): {'; '.join(lines)}.")
        rows = rows[~out]
    return rows


def _commonest(values: pd.Series, models: pd.Series) -> str:
    """The value that most models have; of as many the highest version, or the whole before a part."""
    times = models[values.index].groupby(values).nunique()
    result: str = max(
        times.index[times == times.max()], key=lambda value: (value == "all items", *_numbers(value), value)
    )
    return result


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(".") if part.isdigit())


def _told(out: pd.DataFrame, values: pd.Series, value_used: str) -> str:
    """`quiz 3 (ant-1b, bee-1b; used: 1)`."""
    parts = [
        f"{value} ({listing(sorted(rows_of_value['model'].unique()), 6)})"
        for value, rows_of_value in out.groupby(values[out.index])
    ]
    return f"{out['benchmark'].iloc[0]} {', '.join(parts)}, where {value_used} is used"


def differences(rows: pd.DataFrame) -> tuple[Difference, ...]:
    """The settings that differ between the models of a benchmark, by setting and wording; the number of items is one.

    rows: as `with_settings` gives them.
    """
    names_by_difference: dict[tuple[str, str], list[str]] = {}
    items = rows["n_items"].astype("Float64").groupby([rows["benchmark"], rows["protocol"]]).agg(["min", "max"])
    items = items[(items["min"] < NEARLY_ALL * items["max"]).fillna(value=False)]
    ranges = {benchmark: f": {low:.0f} to {high:.0f}" for (benchmark, _), low, high in items.itertuples()}
    for benchmark, from_to in ranges.items():
        words = "number of items" + ("" if len(set(ranges.values())) > MOST_RANGES else from_to)
        names_by_difference.setdefault(("n_items", words), []).append(benchmark)
    settings = _SAID if f"{_PREFIX}chat_template" in rows else ()
    varying = [setting for setting in settings if rows[f"{_PREFIX}{setting}"].nunique() > 1]
    for benchmark, rows_of_benchmark in rows.groupby("benchmark") if varying else ():
        for setting in varying:
            values = rows_of_benchmark[f"{_PREFIX}{setting}"].dropna()
            if setting == "task_hash":  # with a chat template, the hash is of each model's own prompt
                values = values[~rows_of_benchmark[f"{_PREFIX}chat_template"][values.index].isin([True])]
            if values.nunique() > 1:
                words = _counted(setting, values, rows_of_benchmark["model"])
                names_by_difference.setdefault((setting, words), []).append(benchmark)
    return tuple(Difference(setting, words, tuple(names)) for (setting, words), names in names_by_difference.items())


def _counted(setting: str, values: pd.Series, of_models: pd.Series) -> str:
    """`chat template: 3 of 6 models`; `backend: hf (4), vllm (2)`; of two models `backend: hf (ant), vllm (bee)`."""
    named, total = values.groupby(of_models[values.index]).agg(set), of_models.nunique()
    models = of_models[values.index].groupby(values).nunique().to_dict()
    if setting in ("task_hash", "system_instruction"):
        return f"{_SAID[setting]}: {len(models)} different ones among {count(total, 'model')}"
    if total == 2 and len(named) == 2 and all(len(values_of_model) == 1 for values_of_model in named):
        counts_shown = [(next(iter(values_of_model)), model) for model, values_of_model in named.items()]
        if setting == "chat_template":
            counts_shown = [("yes" if value else "no", model) for value, model in counts_shown]
        return f"{_SAID[setting]}: {listing([f'{value} ({model})' for value, model in counts_shown])}"
    if setting == "chat_template":
        return f"{_SAID[setting]}: {models.get(True, 0)} of {count(total, 'model')}"
    by_number = sorted(models.items(), key=lambda item: (-item[1], str(item[0])))
    return f"{_SAID[setting]}: {listing([f'{value} ({number})' for value, number in by_number], 4)}"


UNLIKE_SETTINGS = "Compared although their settings differ: "


def difference_notes(differing: Sequence[Difference], benchmarks: int | None = None) -> list[str]:
    """One note on all settings that differ; of so many `benchmarks` it names those concerned, unless all are."""
    parts = [
        difference.words
        + ("" if benchmarks in (None, len(difference.benchmarks)) else f" on {listing(difference.benchmarks)}")
        for difference in differing
    ]
    return [f"{UNLIKE_SETTINGS}{'; '.join(parts)}."] if parts else []
