"""The keys of each report's summary.json and the row of each: one table, `KEYS`.

`KEYS` has a line for each number of each report's summary.json:

    path                                           quantity         unit n of    intervals over
    kendall_tau.{protocol}.mean                    tau_mean         tau  models  models,interval_clustered:families
    kendall_tau.{protocol}.by_benchmark.{subject}  tau_with_others  tau  models  models

A line that is indented goes on from the last one that is not.

A path names keys, joined by points. `{name}` stands for any text, a whole key or part of one, and that text is where
the number belongs: `subject`, `other` and `protocol` are columns of their own, other names go into `conditions`.
`[a,b=subject]` is a list of records, told apart by their fields `a` and `b`, of which `b` is the subject; `[#place]` is
a list by place, from 1. `n of`: the key of the number of models, tasks or items that the number rests on, in the same
record or in one around it.

`intervals over` says what the number's intervals are over. The key of an interval stands in the place of the last key
of the path that is a name: `interval` for a `mean` or `value`, else `name_interval`. Another key is written before a
colon; a level other than 0.95 after an @. `=` before it: the path is that of an interval itself, of the quantity with
the same subject, other, protocol and conditions or, if there is none, of no value. `name=text` after that sets a
condition.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

INTERVALS = {
    "models": "models",
    "families": "families of models, each as a whole",
    "benchmarks": "benchmarks, as a sample of a population of benchmarks",
    "categories": "categories of benchmarks, as a sample of a population of categories",
    "items": "test items, or scores by their standard errors",
    "missing_cells": "the scores that are missing",
    "checkpoints": "checkpoints, or other trainings where there are any",
    "differences": "the differences between models, within their noise",
    "coin_flips": "the order of the models, as though coins decided it",
    "pairs": "benchmarks, each model compared with every other one",
    "convention": "nothing: it is a setting",
    "tasks": "tasks",
    "subsamples": "subsamples",
    "middle_subsamples": "subsamples: the middle half of them",
    "posterior": "the posterior",
}
LEVEL = 0.95


KEYS: Mapping[str, str] = {
    "agreement": """
incomplete.{protocol}
  .cells                                      cells                             cells        -            -
  .missing                                    cells_missing                     cells        -            -
  .unplanned                                  cells_unplanned                   cells        -            -
  .by_scores                                  cells_by_scores                   cells        -            -
  .kendall_tau.comparisons                    comparisons                       comparisons  -            -
  .kendall_tau.mean                           tau_pooled                        tau          comparisons  models
  .kendall_tau.by_benchmark.{subject}         tau_with_others_pooled            tau          -            -
  .kendall_tau.assisted                       tau_assisted                      tau          comparisons  models
  .kendall_tau.assisted_by_benchmark.{subject} tau_with_others_assisted          tau          -            -
  .kendall_tau.differ                         tau_pooled_and_assisted_differ    yes_or_no    -            -
  .ranks.{subject}.rank  rank_predicted  rank  -  interval:missing_cells
  .trust.source                               predictions_checked_by            text         -            -
  .trust.cells                                predictions_checked               cells        -            -
  .trust.coverage                             predictions_coverage              share        cells        -
  .trust.widening                             predictions_widening              factor       cells        -
  .trust.hardly_measured[#place]              family_hardly_measured            text         -            -
""",
}


class Line(NamedTuple):
    """A key with its row; `over` is empty where it is a value's. `conditions`: those that the path
    does not say."""

    path: str
    quantity: str
    unit: str
    counted: str
    over: str
    level: float
    conditions: Mapping[str, str]


def lines_of(study: str) -> list[Line]:
    """The keys of a study, in the order of `KEYS`, each value's followed by those of its intervals."""
    lines, begin = [], ""
    for text in filter(str.strip, KEYS[study].split("\n")):
        path, *columns = text.split()
        if text.startswith(" "):
            path = begin + path
        else:
            begin = path
        if not columns:
            continue
        quantity, unit, counted, intervals, *words = ("" if word == "-" else word for word in columns)
        given_places, without_value = dict(word.split("=") for word in words), intervals.startswith("=")
        if not without_value:
            lines.append(Line(path, quantity, unit, counted, "", LEVEL, given_places))
        for interval in filter(None, intervals.removeprefix("=").split(",")):
            key, _, over = interval.rpartition(":")
            over, _, level = over.partition("@")
            own_path = path if without_value else _beside(path, key)
            lines.append(Line(own_path, quantity, unit, "", over, float(level or LEVEL), given_places))
    return lines


def _beside(path: str, key: str) -> str:
    """The path with another last key: `key`, or without one the usual one of an interval."""
    return re.sub(
        r"(\w+)((\.\{\w+\}|\[[^\]]*\]|\.\d)*)$",
        lambda last: (key or ("interval" if last[1] in ("mean", "value") else f"{last[1]}_interval")) + last[2],
        path,
    )
