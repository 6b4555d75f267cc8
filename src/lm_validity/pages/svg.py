"""Static pictures: SVG made of a few marks, coloured by the page's style sheet, readable without script.

A picture is `svg(width, height, label, *marks)`; the label says its numbers, with their interval, to who cannot see it.
Classes: `d` direct, `t` train before test, `k` ink, `s` grey; `g` grid line, `ax` axis. Lengths are in pixels of the
picture; a page scales it to the width that there is.
"""

import base64
import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from markupsafe import Markup

from lm_validity.words import decimal

KINDS: Final = {"direct": "d", "train_before_test": "t"}  # class of a protocol's marks
NAMES: Final = {"direct": "direct", "train_before_test": "train before test"}  # of a protocol, in a picture
RAMP: Final = (
    "#0b2a4a",
    "#14507d",
    "#2c7fa8",
    "#5fa9bd",
    "#9ccbc6",
    "#cfe0cf",
    "#ece9d6",
)  # first to last of a ranking


def points(value: float, digits: int = 0, *, signed: bool = False) -> str:
    """An accuracy, or a difference of two, in points (hundredths), for a sentence or a picture."""
    return decimal(100 * value, digits, signed=signed)


def points_apart(ends: tuple[float, float]) -> tuple[str, str]:
    """Both ends of an interval in signed hundredths, with as many digits (at most 3) as show which are not zero."""
    digits = next(d for d in range(4) if d == 3 or all(not end or round(100 * end, d) for end in ends))
    low, high = (points(end, digits, signed=True) for end in ends)
    return low, high


# ----------------------------------------------------------------------------------------------------------------------
# Marks.


@dataclass(frozen=True)
class Axis:
    """From values to pixels. Values outside are drawn at the end."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        part = (min(max(value, self.low), self.high) - self.low) / ((self.high - self.low) or 1.0)
        return round(self.start + part * (self.end - self.start), 1)


@dataclass(frozen=True)
class LogAxis(Axis):
    """The same for amounts of which each step is a multiple of the one before. 0 lies at the start."""

    def __call__(self, value: float) -> float:
        part = np.log(min(max(value, self.low), self.high) / self.low) / (np.log(self.high / self.low) or 1.0)
        return round(float(self.start + part * (self.end - self.start)), 1)


def element(tag: str, content: str = "", /, **attributes: str | float) -> Markup:
    """An element; its text and attributes are escaped, `class_` and `aria_label` are `class` and `aria-label`, and an
    empty one is left out."""
    pairs = [(name.rstrip("_").replace("_", "-"), value) for name, value in attributes.items() if value != ""]
    values = ((name, f"{value:g}" if isinstance(value, float) else value) for name, value in pairs)
    written = Markup("").join(Markup(' {}="{}"').format(name, value) for name, value in values)
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(tag), written, content)


def svg(width: float, height: float, label: str, *marks: Markup, kind: str = "", **attributes: str | float) -> Markup:
    """The picture; `label` is what a screen reader says, which passes over one without. `kind`: n640 is for narrow
    screens, w640 for others."""
    place: dict[str, str | float] = {
        "class_": kind,
        "viewBox": f"0 0 {width:g} {height:g}",
        "width": width,
        "height": height,
        "role": "img" if label else "",
        "aria_hidden": "" if label else "true",
    }
    return element("svg", Markup("").join(marks), **place, **attributes, aria_label=label)


def carpet_svg(width: float, height: float, label: str, *marks: Markup, ranks: Mapping[str, object]) -> Markup:
    """A picture around one `carpet` whose ranks are read out under the pointer and by the arrow keys.

    `ranks`: rows and columns (names), ranks (a list of ranks a row, None where not known) and label (of the protocol).
    """
    read_out = json.dumps(ranks, ensure_ascii=False)
    return svg(width, height, label, *marks, kind="carpet", tabindex=0, data_ranks=read_out)


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    """A straight line between two points, in units of the picture; kind: its class in the style sheet."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind)


def lines_svg(
    width: float, height: float, label: str, *marks: Markup, x_axis: Axis, up: Axis, unit: str, kind: str = ""
) -> Markup:
    """A picture of named curves (`curve` with a name): the one under the pointer, or that the arrow keys reach, is read
    out, with its value and where it is in `unit`."""
    axes = {"x": list(vars(x_axis).values()), "y": list(vars(up).values()), "log": isinstance(x_axis, LogAxis)}
    read_out = json.dumps(axes | {"unit": unit}, ensure_ascii=False)
    return svg(width, height, label, *marks, kind=f"lines {kind}".strip(), tabindex=0, data_axes=read_out)


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> Markup:
    """`anchor`: start, middle or end."""
    return element("text", words, x=x, y=y, class_=kind, text_anchor=anchor)


def dot(x: float, y: float, kind: str, radius: float = 4.2) -> Markup:
    """A value: hollow for direct (`d`), filled otherwise."""
    return element("circle", cx=x, cy=y, r=radius, class_=kind)


def box(x: float, y: float, width: float, height: float, kind: str) -> Markup:
    """A rectangle from its upper left corner, in units of the picture; kind: its class in the style sheet."""
    return element("rect", x=x, y=y, width=width, height=height, class_=kind)


def curve(xs: Sequence[float], ys: Sequence[float], kind: str, name: str = "") -> Markup:
    """A line through points, in pixels; those that are not finite are left out. `name`: as `lines_svg` reads it out."""
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True) if np.isfinite(x) and np.isfinite(y))
    return element("polyline", points=places, class_=kind, data_n=name)


def estimate(axis: Axis, value: float | None, ends: Sequence[float] | None, y: float, kind: str) -> Markup:
    """A dot on its interval, where it has one; nothing where the value is not known."""
    if value is None or not np.isfinite(value):
        return Markup("")
    low, high = ends or (np.nan, np.nan)
    interval = line(axis(low), y, axis(high), y, f"{kind} w") if np.isfinite(low + high) else Markup("")
    return interval + dot(axis(value), y, kind)


def ticks(axis: Axis, values: Sequence[float], top: float, bottom: float, written: Sequence[str] = ()) -> Markup:
    """Vertical grid lines, an axis at 0 where the axis crosses it, and what is `written` under each line."""
    marks = [
        line(axis(value), top, axis(value), bottom, "ax" if value == 0 and axis.low < 0 else "g") for value in values
    ]
    if written:
        marks += [
            text(axis(value), bottom + 14, words, "", "middle") for value, words in zip(values, written, strict=True)
        ]
    return Markup("").join(marks)


def round_values(low: float, high: float, limit: int = 10) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten from `low` to `high`, at most `limit`."""
    least = (high - low) / max(limit - 1, 1) or 1.0
    power = 10.0 ** np.floor(np.log10(least))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * (1 - 1e-9))
    first, last = np.ceil(low / step - 1e-9), np.floor(high / step + 1e-9)
    return [float(round(index * step, 12)) + 0.0 for index in np.arange(first, last + 1)]


def written_points(values: Sequence[float]) -> list[str]:
    """What stands at an axis of accuracies: hundredths, all with as many digits as the finest needs, and with their
    sign where one is negative."""
    digits = next((n for n in range(3) if all(abs(100 * value - round(100 * value, n)) < 1e-6 for value in values)), 3)
    signed = any(value < 0 for value in values)
    return [points(value, digits if value else 0, signed=signed and value != 0) for value in values]


def key(*entries: tuple[str, str]) -> Markup:
    """A line that explains marks: each a kind (of `estimate`; `zone` and `bar`: bands) and its words."""
    drawn = {kind: line(0, 6, 22, 6, f"{kind} w") + dot(11, 6, kind) for kind, _ in entries}
    drawn |= {"zone": box(0, 1, 22, 10, "zone"), "bar": line(0, 6, 22, 6, "ax thick")}
    entry = Markup('<span><svg viewBox="0 0 22 12" style="width:22px;height:12px" aria-hidden="true">{}</svg>{}</span>')
    spans = Markup("").join(entry.format(drawn[kind], words) for kind, words in entries)
    return Markup('<div class="key">{}</div>').format(spans)


MOST_TICKS = 100


def rug(axis: Axis, values: Sequence[float], top: float, bottom: float, kind: str) -> Markup:
    """A tick for each value; above `MOST_TICKS` values their density, as a strip of 60 shades."""
    finite = np.asarray([value for value in values if np.isfinite(value)], dtype=float)
    if len(finite) <= MOST_TICKS:
        ticks_drawn = (element("path", d=f"M{axis(value):g} {top:g}v{bottom - top:g}") for value in finite)
        return element("g", Markup("").join(ticks_drawn), class_=f"{kind} rug")
    edges = np.linspace(axis.low, axis.high, 61)
    counts = np.histogram(np.clip(finite, axis.low, axis.high), edges)[0]
    width, shades = (axis.end - axis.start) / 60, 0.15 + 0.85 * counts / max(counts.max(), 1)
    place: dict[str, str | float] = {"y": top, "width": width, "height": bottom - top, "class_": kind}
    drawn = [(axis(edge), f"opacity:{shade:.2f};stroke:none") for edge, shade in zip(edges[:-1], shades, strict=True)]
    return Markup("").join(
        element("rect", x=x, style=style, **place) for (x, style), n in zip(drawn, counts, strict=True) if n
    )


def carpet(ranks: np.ndarray, x: float, y: float, width: float, height: float, last: float | None = None) -> Markup:
    """Ranks (models, benchmarks) as shades, 1 = dark to `last` = light; where there is none, a faint ground shows.

    A cell is a pixel of an image that is stretched.
    """
    last = last or max(np.nanmax(ranks) if np.isfinite(ranks).any() else 1, 2)
    stops = np.array([[int(shade[index : index + 2], 16) for index in (1, 3, 5)] for shade in RAMP], dtype=float)
    index = (np.nan_to_num(ranks, nan=1.0) - 1) / (last - 1) * (len(RAMP) - 1)
    shades = [np.interp(index, np.arange(len(RAMP)), stops[:, part]) for part in range(3)]
    colours = np.stack([*shades, 255 * np.isfinite(ranks)], axis=-1)
    picture = f"data:image/png;base64,{_png(colours.round().astype(np.uint8))}"
    return box(x, y, width, height, "zone") + element(
        "image", x=x, y=y, width=width, height=height, preserveAspectRatio="none", style="image-rendering:pixelated",
        href=picture,
    )  # fmt: skip


def _png(colours: np.ndarray) -> str:
    """An image (rows, columns, 4: red, green, blue, opacity) as a PNG in base64."""
    rows, columns, _ = colours.shape
    raw = b"".join(b"\0" + row.tobytes() for row in colours)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", columns, rows, 8, 6, 0, 0, 0)
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(raw, 9)), chunk(b"IEND", b""))
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(parts)).decode("ascii")


def shortened(words: str, limit: int) -> str:
    """At most `limit` characters of a name, the rest as an ellipsis; the folders that it lies in go first."""
    if len(words) > limit:
        words = words.rstrip("/").rpartition("/")[2]
    return words if len(words) <= limit else words[: limit - 1] + "…"
