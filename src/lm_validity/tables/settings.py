"""How scores were made, and whether they are alike: settings.parquet, which lies beside a table of scores.

Scores of unlike versions of a task, or of unlike parts of its items, are scores of different tests: they are not
compared. Unlike chat templates, harnesses or precisions make scores differ too, but there is no agreement without them
in most collections: they are compared, and it is said.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

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
    "chat_template": "chat template", "system_instruction": "system prompt", "task_hash": "hash of the task",
    "harness": "harness", "harness_version": "version of the harness", "temperature": "temperature", "top_p": "top_p",
    "max_gen_toks": "longest answer", "backend": "backend", "dtype": "precision", "quantization": "quantization",
    "adapter": "adapter",
}  # fmt: skip
_OF_KIND = ("task_version", "limit", "n_items_scored", "n_items_total")  # what versions and parts are told by
_PREFIX = "setting_"  # of their columns beside scores, some of which have the same names
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
    return read_table(path, SETTINGS, ("model", "benchmark")) if path.is_file() else None


def with_settings(rows: pd.DataFrame, settings: pd.DataFrame | None) -> pd.DataFrame:
    """The scores with the settings of each in columns of their own (`setting_...`), `setting_version` and
    `setting_part`; null where unknown. Without settings they are as they were.

    A null in a key column of settings stands for any value.
    """
    if settings is None:
        return rows
    names = [name for name in SETTINGS.names if name not in SETTINGS_KEY]
    of_rows = pd.DataFrame(index=rows.index, columns=names, dtype=object)
    keys = [name for name in SETTINGS_KEY if name in rows]
    cells = rows[keys].fillna(_DEFAULTS).astype(object).assign(row=rows.index)
    settings = settings.astype(object)
    is_filled = settings[keys].notna()
    for pattern in is_filled.drop_duplicates().sort_values(keys).itertuples(index=False):  # the most general first
        filled = [name for name, is_given in zip(keys, pattern, strict=True) if is_given]
        part = settings[(is_filled == list(pattern)).all(axis=1)].drop_duplicates(filled)
        matches = cells.merge(part[[*filled, *names]], on=filled, how="inner").set_index("row")
        of_rows.loc[matches.index] = matches[names]
    numbers = of_rows[["n_items_scored", "n_items_total", "limit"]].astype("Float64").astype("float64")
    scored_most = numbers["n_items_scored"].groupby(rows["benchmark"]).transform("max")
    # a task that does not say how many items it has, has as many as were scored
    numbers["n_items_total"] = numbers["n_items_total"].fillna(scored_most)
    parts = pd.Series([_part(*numbers_of_row) for numbers_of_row in numbers.to_numpy()], rows.index, dtype=object)
    version = of_rows["task_version"].str.removesuffix(".0")  # `1` and `1.0` are one version
    return rows.join(of_rows.assign(version=version, part=parts).add_prefix(_PREFIX))


def without_settings(rows: pd.DataFrame) -> pd.DataFrame:
    """The scores without what `with_settings` added."""
    return rows[[name for name in rows if not name.startswith(_PREFIX)]]


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
        chosen = {key: _commonest(group, rows["model"]) for key, group in values.groupby(by) if group.notna().any()}
        out = values.notna() & (values != by.map(chosen))
        if not out.any():
            continue
        lines = [_told(part, values, chosen[by[part.index[0]]]) for _, part in rows[out].groupby(by[out])]
        if unlike == "refused":
            raise InputError(f"{path}: different {words}: {'; '.join(lines)}.", "--mix-versions compares them.")
        if unlike == "kept":
            notes.append(f"Different {words} are compared, as you asked: {'; '.join(lines)}.")
            continue
        notes.append(f"Scores of different {words} stay out ({out.sum()}): {'; '.join(lines)}.")
        rows = rows[~out]
    return rows


def _commonest(values: pd.Series, models: pd.Series) -> str:
    """The value that most models have; of as many the highest version, or the whole before a part."""
    times = models[values.index].groupby(values).nunique()

    def rank(value: str) -> tuple[int, bool, list[int], str]:
        return times[value], value == "all items", [*map(int, filter(str.isdigit, value.split(".")))], value

    return max(map(str, times.index), key=rank)


def _told(out: pd.DataFrame, values: pd.Series, value_used: str) -> str:
    """`quiz 3 (ant-1b, bee-1b; used: 1)`."""
    models = out["model"].groupby(values[out.index]).unique().map(sorted)
    parts = [f"{value} ({listing(names, 6)})" for value, names in models.items()]
    return f"{out['benchmark'].iloc[0]} {', '.join(parts)}, where {value_used} is used"


def differences(rows: pd.DataFrame) -> tuple[Difference, ...]:
    """The settings that differ between the models of a benchmark, by setting and wording; the number of items is one.

    rows: as `with_settings` gives them.
    """
    names: dict[tuple[str, str], list[str]] = {}
    items = rows["n_items"].astype("Float64").groupby([rows["benchmark"], rows["protocol"]]).agg(["min", "max"])
    items = items[(items["min"] < NEARLY_ALL * items["max"]).fillna(value=False)]
    ranges = {benchmark: f": {low:.0f} to {high:.0f}" for (benchmark, _), low, high in items.itertuples()}
    for benchmark, from_to in ranges.items():
        words = "number of items" + ("" if len(set(ranges.values())) > MOST_RANGES else from_to)
        names.setdefault(("n_items", words), []).append(benchmark)
    varying = [name for name in _SAID if f"{_PREFIX}{name}" in rows and rows[f"{_PREFIX}{name}"].nunique() > 1]
    for benchmark, group in rows.groupby("benchmark") if varying else ():
        for setting in varying:
            values = group[f"{_PREFIX}{setting}"].dropna()
            if setting == "task_hash":  # with a chat template, the hash is of each model's own prompt
                values = values[~group[f"{_PREFIX}chat_template"][values.index].isin([True])]
            if values.nunique() > 1:
                names.setdefault((setting, _counted(setting, values, group["model"])), []).append(benchmark)
    return tuple(Difference(*difference, tuple(benchmarks)) for difference, benchmarks in names.items())


def _counted(setting: str, values: pd.Series, of_models: pd.Series) -> str:
    """`chat template: no (3), yes (3)`; of two models `backend: hf (ant), vllm (bee)`; of long texts how many."""
    if setting == "chat_template":
        values = values.map({True: "yes", False: "no"})
    models, total = of_models[values.index].groupby(values).unique(), of_models.nunique()
    if setting in ("task_hash", "system_instruction"):
        return f"{_SAID[setting]}: {len(models)} different ones among {count(total, 'model')}"
    counted = sorted(models.items(), key=lambda item: (-len(item[1]), str(item[0])))
    parts = [f"{value} ({names[0] if len(names) == 1 and total == 2 else len(names)})" for value, names in counted]
    return f"{_SAID[setting]}: {listing(parts, 4)}"


UNLIKE_SETTINGS = "Compared although their settings differ: "


def difference_notes(differing: Sequence[Difference], benchmarks: int | None = None) -> list[str]:
    """One note on all settings that differ; of so many `benchmarks` it names those concerned, unless all are."""
    parts = []
    for difference in differing:
        everywhere = benchmarks in (None, len(difference.benchmarks))
        parts.append(difference.words + ("" if everywhere else f" on {listing(difference.benchmarks)}"))
    return [f"{UNLIKE_SETTINGS}{'; '.join(parts)}."] if parts else []
