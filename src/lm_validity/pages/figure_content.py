"""Whether a figure has anything to show, and the room that its names need."""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import altair as alt
import numpy as np
import pandas as pd

Spec: TypeAlias = dict[str, Any]  # a Vega-Lite specification

_LABEL_LIMIT = 220  # pixels, as in CONFIG
_MANY = 24  # names on a horizontal axis that stand upright
_LETTER = 6.5  # pixels of its width
_TITLE_LETTER = 7.0  # the same in the title of an axis, in the widest of the page's fonts
_LEGEND = 220  # pixels of the two protocols' names above a figure
_NUMBER = 30.0  # pixels of a cell that a number is written into
PROTOCOL = "protocol"


def is_empty(spec: Spec) -> bool:
    """Whether a specification, or a layer of it, is of a builder here that had no value to draw."""
    own = spec.get("usermeta", {}).get("empty", False)
    return own or any(is_empty(layer) for layer in spec.get("layer", []) if isinstance(layer, dict))


def label_room(spec: Spec) -> int:
    """Pixels of width that a specification needs so that names on its axes do not overlap, and neither a legend nor the
    title of the horizontal axis is cut; 0: it has none of them."""
    across, down = (_names(spec, channel) for channel in ("x", "y"))
    step = max(_label_step(across), _NUMBER if _has_numbers(spec) else 0.0)
    legend = max(_LEGEND if down else 0.0, _legend(spec))
    plot = max(step * len(across), legend, _TITLE_LETTER * len(_title(spec)))
    if not plot:
        return 0
    beside = min(_LABEL_LIMIT, max((_LETTER * len(name) for name in down), default=60))
    return math.ceil(plot + beside + 20)


def _has_numbers(spec: Spec) -> bool:
    """Whether a layer writes numbers."""
    text = spec.get("encoding", {}).get("text") or {}
    return "format" in text or any(_has_numbers(layer) for layer in spec.get("layer", []) if isinstance(layer, dict))


def _legend(spec: Spec) -> float:
    """Pixels of the widest legend of names above a specification or its layers, in four columns as families have."""
    color = spec.get("encoding", {}).get("color") or {}
    names = (color.get("legend") or {}).get("values") or (color.get("scale") or {}).get("domain") or []
    names = [name for name in names if isinstance(name, str)]
    columns = [max(min(160.0, _LETTER * len(name)) for name in names[at::4]) for at in range(min(4, len(names)))]
    inner = [_legend(layer) for layer in spec.get("layer", []) if isinstance(layer, dict)]
    return max([sum(columns) + 30 * len(columns), *inner])


def _title(spec: Spec) -> str:
    """The longest title of the horizontal axis in a specification or its layers."""
    own = spec.get("encoding", {}).get("x", {}).get("title")
    inner = [_title(layer) for layer in spec.get("layer", []) if isinstance(layer, dict)]
    return max([own if isinstance(own, str) else "", *inner], key=len)


def fits_in_one_line(names: Sequence[str]) -> bool:
    """Whether upright names have room beside each other on the narrowest figure: 460 pixels, 6.5 a letter."""
    return len(names) * max(map(len, names), default=0) <= 70


def names_axis(names: Sequence[str]) -> alt.Axis:
    """A horizontal axis of names, none of which is left out."""
    return alt.Axis(labelAngle=-90 if len(names) > _MANY else -50, labelOverlap=False)


def _label_step(names: Sequence[str]) -> float:
    """Pixels from a name to the next: the height of a letter, more where names lean."""
    return 13.0 if len(names) > _MANY else 16.0


def _names(spec: Spec, channel: str) -> list[str]:
    """The names of a discrete axis, where its scale lists them."""
    for part in (spec, *spec.get("layer", [])):
        scale = part.get("encoding", {}).get(channel, {}).get("scale") or {}
        if isinstance(scale.get("domain"), list) and all(isinstance(name, str) for name in scale["domain"]):
            return scale["domain"]
        if part is not spec and "layer" in part and (found := _names(part, channel)):
            return found
    return []


def marked_if_empty(chart: alt.TopLevelMixin, values: pd.Series) -> alt.TopLevelMixin:
    """The chart, marked for `is_empty` where no value is a finite number."""
    finite = np.isfinite(pd.to_numeric(values, errors="coerce").to_numpy(dtype=float))
    return chart if finite.any() else chart.properties(usermeta={"empty": True})


def with_values(
    frame: pd.DataFrame, value: str, group: str | None, color: alt.Color | dict[str, Any]
) -> tuple[pd.DataFrame, alt.Color | dict[str, Any]]:
    """The rows of groups that have a value at all, and the colours of those; everything where no group has one.

    Without a `group`, it is the protocol where the colours tell protocols apart.
    """
    ink = color.to_dict() if isinstance(color, alt.Color) else {}
    group = group or (PROTOCOL if ink.get("field") == PROTOCOL else None)
    if group is None:
        return frame, color
    known = frame[value].notna().groupby(frame[group]).transform("any").to_numpy(dtype=bool)
    if not known.any():
        return frame, color
    frame, here = frame[known], set(frame.loc[known, group])
    scale = ink.get("scale", {}) if ink.get("field") == group else {}
    if isinstance(color, alt.Color) and "domain" in scale and "range" in scale and not here.issuperset(scale["domain"]):
        pairs = [(name, shade) for name, shade in zip(scale["domain"], scale["range"], strict=False) if name in here]
        color = color.copy()
        color.scale = alt.Scale(domain=[name for name, _ in pairs], range=[shade for _, shade in pairs])
    return frame, color
