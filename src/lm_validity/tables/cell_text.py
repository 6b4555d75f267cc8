"""What people write into a cell of a table of scores, and which words of a name say what: one grammar for all formats.

A name's parts are its words: `suite_average`, `Mean score` and `suiteAverage` have the part average, `averages` and
`timedial` have not.
"""

import functools
import math
import re
from typing import NamedTuple

from lm_validity.tables.schema import LARGEST_SCORE

MISSING = frozenset(
    ("", "-", "–", "—", "--", "---", "−", "?", "na", "n/a", "n.a.", "#n/a", "nan", "none", "null", "nil", "missing",
     "tbd", "n/r", "nr", "/", "…", "...", "not reported", "unknown", "pending")
)  # fmt: skip
_NUMBER = r"[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?"
_VALUE = re.compile(rf"(?P<value>{_NUMBER})\s*(?P<percent>%)?", re.I)
_ROUNDED = 0.006  # of a share that is written with its counts
_PM = r"(?:±|\+/-|\+-|\\pm|&plusmn;|&#177;)"
_SPREAD = re.compile(rf"\(?\s*{_PM}\s*(?P<error>{_NUMBER})\s*(?P<sign>%)?\s*\)?", re.I)
_IN_PARENTHESES = re.compile(rf"\(\s*(?P<error>{_NUMBER})\s*(?P<sign>%)?\s*\)", re.I)
_ENDS = re.compile(rf"[\[(]\s*(?P<low>{_NUMBER})\s*%?\s*(?:,|;|–|to|-)\s*(?P<high>{_NUMBER})\s*%?\s*[\])]", re.I)
_PAIR = re.compile(r"\[\s*(?P<value>[\d.]+)\s*[,;]\s*(?P<error>[\d.]+)\s*\]")  # of a list in a cell
_CHANGE = re.compile(rf"\(\s*[-+↑↓▲▼]\s*{_NUMBER}\s*%?\s*\)|[↑↓▲▼]\s*(?:{_NUMBER})?%?", re.I)
_REMARK = re.compile(r"\(\s*[^()]*(?:shot|cot|maj|pass|@)[^()]*\)", re.I)
_OF = re.compile(r"(\d+)\s*(?:/|of|out of)\s*(\d+)", re.I)
_COUNTED = re.compile(rf"(?P<value>{_NUMBER})\s*%?\s*\(\s*(?P<right>\d+)\s*/\s*(?P<number>\d+)\s*\)", re.I)
_FOOTNOTE = re.compile(r"<sup>[^<>]*</sup>|\^\{?\d+\}?", re.I)
_BREAK = re.compile(r"<br\s*/?>", re.I)
_TAG = re.compile(r"<[^<>]*>")
_TAG_IN_NUMBER = re.compile(r"(?<=\d)(?:<[^<>]*>)+(?=\d)")  # what it parts is no number: `71.3<sub>2</sub>`
_LINK = re.compile(r"\[([^\[\]]+)\]\([^()]*\)")
_WITHOUT_MARKUP = re.compile(r"[A-Za-z0-9_.,:+() -]+")
_BOLD = re.compile(r"\*\*(?=[^\s*])([^*]*)\*\*")  # a pair: of `Ant 4**` the stars are a footnote's
_LATEX = re.compile(r"\\(?:textbf|underline|textit|mathbf|bf|emph)\s*\{([^{}]*)\}")
_MARKS = re.compile(r"(\*\*|__|`|\*+|[†‡§¶#^]|[⁰¹²³⁴⁵⁶⁷⁸⁹]+|🥇|🥈|🥉|✅|[⬆⬇]\ufe0f?|\[\d+\])")


class CellValue(NamedTuple):
    """What a cell says. `percent`: it has the sign. `error`: behind ±, in parentheses or half of two ends; `kind` of it
    is `ci95` for ends, else unknown (None). `items`: the n of `45/60`. `marked`: stars, bold or the like were left out.
    """

    value: float
    error: float | None = None
    percent: bool = False
    kind: str | None = None
    items: int | None = None
    marked: bool = False


def plain_text(text: str) -> str:
    """A cell's or a name's text without markup: links, HTML tags, footnotes, bold and LaTeX."""
    if _WITHOUT_MARKUP.fullmatch(text):
        return " ".join(text.split())
    text = _LINK.sub(r"\1", _TAG.sub("", _TAG_IN_NUMBER.sub(" ", _BREAK.sub(" ", _FOOTNOTE.sub("", text)))))
    text = re.sub(r"\\([%_#&])", r"\1", _LATEX.sub(r"\1", _BOLD.sub(r"\1", text))).replace("$", "")
    return re.sub(r"\s+", " ", text.replace("\u00a0", " ").replace("\u202f", " ")).strip(" \t`")


def read_cell(text: str) -> CellValue | None:
    """The number in a cell, with what stands around it; None for what is no number.

    Read are `57.1`, `57.1%`, `57.1 ± .8`, `57.1 (0.8)`, `57.1 [55.2, 59.0]`, `**64.1**`, `42.0*`, `1,234.5`, `1e-3`,
    `45/60`, `75% (45/60)`, `57.1 (+2.3)` (the change is left out) and `81.0 (5-shot)`. `<1`, `57.1/60.2` and `1.234,5`
    are not: which number they mean is not known.
    """
    try:  # nearly all cells
        plain_number = float(text)
    except ValueError:
        pass
    else:
        return CellValue(plain_number) if abs(plain_number) <= LARGEST_SCORE and "_" not in text else None
    if text.lstrip()[:1].isalpha():  # no mark stands before a number as a letter
        return None
    bare = plain_text(text.replace("−", "-").replace("–", "–"))
    clean = _MARKS.sub("", _CHANGE.sub("", _REMARK.sub("", bare))).strip()
    marked = clean != text.strip() and not (set("±%") & set(text))
    if (pair := _PAIR.fullmatch(clean)) and float(pair["error"]) < float(pair["value"]) <= LARGEST_SCORE:
        return CellValue(float(pair["value"]), float(pair["error"]))
    if share := _OF.fullmatch(clean):
        right, number = map(int, share.groups())
        return CellValue(right / number, items=number) if number > 0 and right <= number else None
    if counted := _COUNTED.fullmatch(clean):
        return _of_counts(float(counted["value"].replace(",", "")), int(counted["right"]), int(counted["number"]))
    match = _VALUE.match(clean)
    if match is None:
        return None
    value, percent = float(match["value"].replace(",", "")), bool(match["percent"])
    spread = _spread_in(clean[match.end() :].strip(), value)
    if spread is None or not all(abs(number) <= LARGEST_SCORE for number in (value, spread.error or 0.0)):
        return None
    return spread._replace(percent=percent or spread.percent, marked=marked)


def _of_counts(value: float, right: int, number: int) -> CellValue | None:
    """The share of right answers behind which a cell's value stands too; None where the two contradict each other."""
    share = right / number if 0 < number >= right else math.nan
    is_same = any(abs(value / scale - share) <= _ROUNDED for scale in (1, 100))
    return CellValue(share, items=number) if is_same else None


def _spread_in(remainder: str, value: float) -> CellValue | None:
    """A value with the error that stands behind it, its kind, and whether it has a percent sign; None for what is no
    error."""
    if remainder in ("", "%"):
        return CellValue(value)
    if spread := _SPREAD.fullmatch(remainder) or _IN_PARENTHESES.fullmatch(remainder):
        return CellValue(value, float(spread["error"].replace(",", "")), bool(spread["sign"]))
    if ends := _ENDS.fullmatch(remainder):
        low, high = (float(ends[name].replace(",", "")) for name in ("low", "high"))
        return CellValue(value, (high - low) / 2, kind="ci95") if low <= value <= high else None
    return None


# ----------------------------------------------------------------------------------------------------------------------
# Words as parts of names.

_SPREADS = {
    "sd": ("std", "stdev", "sd", "standard_deviation", "std_dev"),
    "ci95": ("ci95", "ci", "ci_95", "95_ci", "95ci", "conf", "margin", "moe"),
    "variance": ("var", "variance"),
    "low": ("lower", "low", "ci_low", "ci_lower", "lo", "lb", "lower_bound", "ci95_low", "ci95_lower", "q025"),
    "high": ("upper", "high", "ci_high", "ci_upper", "hi", "ub", "upper_bound", "ci95_high", "ci95_upper", "q975"),
    "stderr": ("stderr", "std_err", "err", "se", "standard_error", "std_error", "error_bar", "sem"),
    "n": ("n", "count", "num_samples", "n_items", "total", "num_total", "samples", "n_samples", "support"),
    "other": ("rank", "time", "seconds", "cost", "min", "max"),
}
SPREAD_ENDS = {end: kind for kind, ends in _SPREADS.items() for end in ends}
_LONGEST_SPREAD_ENDS = sorted(SPREAD_ENDS, key=len, reverse=True)
_LOWER = frozenset(
    ("loss", "nll", "bpb", "wer", "cer", "ter", "mer", "ece", "brier", "mae", "mse", "rmse", "error", "errors",
     "err", "toxic", "toxicity", "hallucination", "hallucinations", "perplexity", "ppl", "regret", "violation",
     "violations", "crossentropy", "fail", "failure", "failures")
)  # fmt: skip
_UNBOUNDED = frozenset(["loss", "nll", "bpb", "perplexity", "ppl", "elo", "rating"])
_RATES = frozenset(
    ["rate", "rates", "fraction", "ratio", "share", "pct", "percent", "percentage", "score", "bin", "mean", "avg"]
)
_NO_SCORE = frozenset(
    ("length", "len", "time", "num", "count", "total", "tokens", "bypass", "latency", "seconds", "invalid",
     "repeat", "n")
)  # fmt: skip
# Words of other languages in names, as English ones
_TRANSLATED = {
    "average": ("平均", "평균", r"\bdurchschnitt\b", r"\bmittelwert\b", r"\bmoyenne\b", r"\bpromedio\b"),
    "total": ("总分", "總分", "综合得分"),
    "rank": ("排名", "名次", "順位", "순위", r"\brang\b"),
    "cost": ("花费", "费用", "价格", "成本"),
    "time": ("耗时", "时长"),
    "model": ("模型", "モデル", "모델", r"\bmodell\b", r"\bmodèle\b", r"\bmodelo\b"),
    "accuracy": ("准确率", "正解率", "정확도"),
}
_BESIDE_THEM = re.compile(r"大|名[称稱]?|명|得分|分[数數]?|점수|千次|元|秒")
_LETTERS_OF_OTHERS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")  # kana, Chinese, hangul
_WORDS_OF_OTHERS = {word: re.compile("|".join(names)) for word, names in _TRANSLATED.items()}
_ANY_OF_OTHERS = re.compile("|".join(name for names in _TRANSLATED.values() for name in names))
_BITS = re.compile(r"(^|_)bits_per_\w+$")


@functools.lru_cache(maxsize=100_000)  # a dozen rules ask it of each name in turn
def plain(name: str) -> str:
    """A name in small letters and digits, its words joined by underscores: `Average ⬆️` is average, `平均` too."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", "_", plain_text(name)).casefold()
    if not has_other_letters(words):  # 成本分析, an analysis of costs, is a benchmark
        words = _translated(words)
    return re.sub(r"[^a-z0-9]+", "_", words).strip("_")


def _translated(words: str) -> str:
    for word, of_others in _WORDS_OF_OTHERS.items() if _ANY_OF_OTHERS.search(words) else ():
        words = of_others.sub(f" {word} ", words)
    return words


def has_other_letters(name: str) -> bool:
    """Whether a name has Chinese, Japanese or Korean words that are not translated: `Few-shot学习` is a benchmark."""
    return (
        not name.isascii() and _LETTERS_OF_OTHERS.search(_BESIDE_THEM.sub("", _translated(name.casefold()))) is not None
    )


def parts(name: str) -> list[str]:
    """The words of a name, without what stands in parentheses."""
    return list(_words(name))


@functools.lru_cache(maxsize=100_000)
def _words(name: str) -> tuple[str, ...]:
    return tuple(word for word in plain(re.sub(r"[(（][^()（）]*[)）]", " ", name)).split("_") if word)


def lower_is_better(name: str) -> bool:
    """Whether a name ends in a word of which less is better: `val_loss`, `Hallucination rate`, `ECE (10-bin)`; not
    `error_detection`."""
    words = parts(name)
    while len(words) > 1 and (words[-1] in _RATES or words[-1].isdigit()):
        words.pop()
    in_full = "_".join(words)
    return bool(words) and (words[-1] in _LOWER or in_full.endswith("cross_entropy") or bool(_BITS.search(in_full)))


def names_loss(name: str) -> bool:
    """Whether a name is that of what is better when it is lower, also where the word comes first (`ppl_c4`); not
    `weight_loss_qa`."""
    first = next(iter(parts(name)), "")
    return lower_is_better(name) or names_perplexity(name) or first in ("loss", "nll", "bpb")


def may_be_negative(name: str) -> bool:
    """Whether a name is that of a correlation, which may be below 0."""
    words = set(plain(name).split("_"))
    return bool({"mcc", "matthews", "kappa", "corr", "correlation", "spearman", "pearson"} & words)


def is_unbounded(name: str) -> bool:
    """Whether a name is that of a measure without bounds: a loss, a perplexity, a rating."""
    words = parts(name)
    return (
        bool(set(words) & _UNBOUNDED)
        or bool(_BITS.search("_".join(words)))
        or "mtbench" in plain(name).replace("_", "")
    )


def names_perplexity(name: str) -> bool:
    """Whether a name has the word perplexity, whose values are never below 1."""
    return bool({"ppl", "perplexity"} & set(parts(name)))


def is_no_score(metric: str) -> bool:
    """Whether a metric's name is that of a length, a number or a time."""
    words = parts(metric.partition(",")[0])
    return bool(words) and bool(set(words) & _NO_SCORE) and not {"win", "success", "pass", "solve"} & set(words)


class Spread(NamedTuple):
    """A kind of spread (`sd`, `low`, `n`), and the column that it is of."""

    owner: str
    kind: str


def spread_of(name: str, owners: dict[str, str]) -> Spread | None:
    """What `x_std`, `x_lower`, `x n` are of `x`; `owners`: columns by plain name."""
    plain_name = plain(name)
    for end in _LONGEST_SPREAD_ENDS:
        owner = owners.get(plain_name.removesuffix(f"_{end}"))
        if plain_name.endswith(f"_{end}") and owner is not None and owner != name:
            return Spread(owner, SPREAD_ENDS[end])
    return None
