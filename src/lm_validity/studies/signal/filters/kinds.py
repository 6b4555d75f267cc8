"""Filters of items: what a filter is, and all kinds of them but the judge."""

import hashlib
import re
import string
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import pandas as pd

from lm_validity.errors import InputError, did_you_mean
from lm_validity.studies.signal.statistics.items import METRICS, Rows, item_scores
from lm_validity.tables.items import BenchmarkItems, ModelItems, questions

# ----------------------------------------------------------------------------------------------------------------------
# What a filter is: it sees items (answers, texts, or both) and says which of them stay.
#
# Filters compose: `keep_items` runs them one after the other, each seeing only what the ones before it kept.


class Candidates(NamedTuple):
    """Items that a filter may keep: their answers, their texts, or both, in the same order.

    `documents` has the columns of `tables.items` and one row per item. `references` are the last answers
    of models by which a filter chooses (`sci_score`); unlike `answers` they stay whole where a split takes
    some models and checkpoints only.
    """

    doc_ids: np.ndarray
    answers: BenchmarkItems | None = None
    documents: pd.DataFrame | None = None
    references: BenchmarkItems | None = None

    def take(self, is_kept: np.ndarray) -> "Candidates":
        """The candidates that a mask (items,) keeps."""
        return Candidates(
            doc_ids=self.doc_ids[is_kept],
            answers=None if self.answers is None else self.answers.take(is_kept),
            documents=None if self.documents is None else self.documents[is_kept].reset_index(drop=True),
            references=None if self.references is None else self.references.take(is_kept),
        )

    def rows(self, rows: Rows) -> "Candidates":
        """The same items with the answers of some models and checkpoints only."""
        return self if self.answers is None else self._replace(answers=self.answers.rows(rows))

    def need_answers(self, who: str) -> BenchmarkItems:
        """The answers. Raises InputError where there are none, for the filter named `who`."""
        if self.answers is None:
            raise InputError(f"filter {who!r} needs the models' answers.", "give --items items.parquet.")
        return self.answers

    def need_documents(self, who: str) -> pd.DataFrame:
        """The texts. Raises InputError where there are none, for the filter named `who`."""
        if self.documents is None:
            raise InputError(
                f"filter {who!r} needs the documents' texts.",
                "give --documents: JSON lines or parquet, with columns benchmark, doc_id, context, choices and gold.",
            )
        return self.documents


class ItemFilter(ABC):
    """A choice of items; `name` is what recipes and records call it."""

    name: ClassVar[str]

    @property
    def fitted(self) -> bool:
        """Whether the choice depends on the models' answers: then it is judged on answers it did not see."""
        return False

    @abstractmethod
    def keep(self, candidates: Candidates) -> np.ndarray:
        """Boolean (items,): True where an item stays. Raises InputError where the candidates lack what it reads."""


class Selection(NamedTuple):
    """The items that are left, in the order of the candidates, and how it came to that."""

    is_kept: np.ndarray  # boolean over the candidates
    doc_ids: tuple[str, ...]
    steps: list[dict[str, object]]  # of each filter: its name, and the items before and after it


def keep_items(filters: Sequence[ItemFilter], candidates: Candidates) -> Selection:
    """Run `filters` in order, each on what is left."""
    is_kept = np.ones(len(candidates.doc_ids), dtype=bool)
    steps = []
    for item_filter in filters:
        # Copying all the answers costs more than most filters
        remaining = item_filter.keep(candidates if is_kept.all() else candidates.take(is_kept))
        number_before = int(is_kept.sum())
        is_kept[np.flatnonzero(is_kept)[~remaining]] = False
        steps.append({"filter": item_filter.name, "before": number_before, "after": int(is_kept.sum())})
    return Selection(is_kept, tuple(str(name) for name in candidates.doc_ids[is_kept]), steps)


Filters = Sequence[ItemFilter]


@dataclass(frozen=True)
class AnyOf(ItemFilter):
    """Keeps an item that any of several chains of filters keeps, each chain run on all candidates.

    Team Noor's rule is such a union: hard-science subjects as they are, other sciences if the judge accepts
    them.
    """

    chains: tuple[tuple[ItemFilter, ...], ...]
    name = "any_of"

    @property
    def fitted(self) -> bool:
        """Whether any filter of any chain is fitted."""
        return any(item_filter.fitted for chain in self.chains for item_filter in chain)

    def keep(self, candidates: Candidates) -> np.ndarray:
        """True where at least one chain keeps the item. Chains do not see each other's choices."""
        return np.asarray(np.any([keep_items(chain, candidates).is_kept for chain in self.chains], axis=0))


def leaves(filters: Iterable[ItemFilter]) -> list[ItemFilter]:
    """The filters as a flat list: in place of each `any_of` those of its chains."""
    flat = []
    for item_filter in filters:
        chains = item_filter.chains if isinstance(item_filter, AnyOf) else ()
        flat += leaves(part for chain in chains for part in chain) if chains else [item_filter]
    return flat


def reference_models(filters: Iterable[ItemFilter]) -> set[str]:
    """Models by whose last answers some of the filters choose: they cannot be scored with what they chose."""
    return {model for item_filter in leaves(filters) for model in getattr(item_filter, "reference_models", ())}


def with_references(candidates: Candidates, filters: Iterable[ItemFilter]) -> Candidates:
    """The same items with the reference models' last answers set aside; without those the filter says what it lacks."""
    models_needed = reference_models(filters)
    if candidates.answers is None or not models_needed:
        return candidates
    models = candidates.answers.models
    last = [(index, [len(model.checkpoints) - 1]) for index, model in enumerate(models) if model.model in models_needed]
    return candidates._replace(references=candidates.answers.rows(last) if len(last) == len(models_needed) else None)


def model_scores(answers: BenchmarkItems, model: ModelItems, metric: str) -> np.ndarray:
    """Oriented scores (checkpoints, items) of one model: higher is better. `correct` is the benchmark's own
    metric.

    Raises InputError where the table lacks what the metric needs.
    """
    if metric == "correct":
        return model.correct
    if metric in model.scores:
        return model.scores[metric]
    if metric not in METRICS:
        raise InputError(f"{metric!r} is not an item metric.", f"one of correct, {', '.join(METRICS)}.")
    if missing := missing_for(answers, model, metric):
        raise InputError(
            f"benchmark {answers.benchmark!r}, model {model.model!r}: {metric} needs {missing}.",
            "choose another metric, or evaluate with choices' log-likelihoods and lengths kept.",
        )
    assert model.loglikelihoods is not None and answers.gold is not None, "`missing_for` has seen to it"
    return item_scores(metric, model.loglikelihoods, answers.gold, _lengths(answers, model, METRICS[metric].per))


def _lengths(answers: BenchmarkItems, model: ModelItems, per: str | None) -> np.ndarray | None:
    return {None: None, "token": model.tokens, "character": answers.characters}[per]


def missing_for(answers: BenchmarkItems, model: ModelItems, metric: str) -> str | None:
    """What the items table lacks for a metric, in words; None where nothing is missing."""
    if model.loglikelihoods is None or answers.gold is None:
        return "log-likelihoods of choices and gold answers"
    per = METRICS[metric].per
    if per is not None and _lengths(answers, model, per) is None:
        return f"the choices' lengths in {per}s"
    return None


# ----------------------------------------------------------------------------------------------------------------------
# Length of the gold answer.


STRATA = 5  # groups of gold answers of similar length


def answer_lengths(answers: BenchmarkItems) -> np.ndarray | None:
    """Length (items,) of each gold answer: in tokens of the first model, else in characters; None where unknown."""
    lengths = answers.models[0].tokens if answers.models[0].tokens is not None else answers.characters
    return None if lengths is None or answers.gold is None else lengths[np.arange(len(lengths)), answers.gold]


# ----------------------------------------------------------------------------------------------------------------------
# Random choices, as controls and to keep a benchmark within the competition's size rule.

MINIMUM_ITEMS = 100  # size rule of the early-training competition
MAXIMUM_ITEMS = 15_000


@dataclass(frozen=True)
class RandomSubset(ItemFilter):
    """Keeps a random choice: the control of the same size that every other filter has to beat."""

    count: int
    seed: int = 0
    name = "random_subset"

    def keep(self, candidates: Candidates) -> np.ndarray:
        """True for `count` items, drawn by hashes of seed and id, so that the order of the items does not matter.
        Raises InputError unless `count` is from 1 to the number of items."""
        size = len(candidates.doc_ids)
        if not 0 < self.count <= size:
            raise InputError(f"filter {self.name!r}: {self.count} of {size} items.", f"write 1 to {size}.")
        is_kept = np.zeros(size, dtype=bool)
        keys = [hashlib.sha256(f"{self.seed}\0{doc_id}".encode()).digest() for doc_id in candidates.doc_ids]
        is_kept[sorted(range(size), key=keys.__getitem__)[: self.count]] = True
        return is_kept


@dataclass(frozen=True)
class SizeRule(ItemFilter):
    """The competition's rule: at least 100 items (else an error), at most 15,000 (else a deterministic
    choice)."""

    minimum: int = MINIMUM_ITEMS
    maximum: int = MAXIMUM_ITEMS
    seed: int = 0
    name = "size_rule"

    def keep(self, candidates: Candidates) -> np.ndarray:
        """True for all items, or for `maximum` random ones where there are more (`RandomSubset`). Raises InputError for
        fewer than `minimum`."""
        size = len(candidates.doc_ids)
        if size < self.minimum:
            raise InputError(
                f"filter {self.name!r}: {size} items are left, at least {self.minimum} are asked for.",
                "filter less, or set the rule's minimum.",
            )
        if size <= self.maximum:
            return np.ones(size, dtype=bool)
        return RandomSubset(self.maximum, self.seed).keep(candidates)


# ----------------------------------------------------------------------------------------------------------------------
# Filters by what the benchmark's authors say of an item: its subject or category.


@dataclass(frozen=True)
class Subjects(ItemFilter):
    """Keeps items of the listed subjects, or with `complement` all others (STEM against non-STEM).

    `column` names another column of the documents table, e.g. an author-given category.
    """

    values: tuple[str, ...]
    complement: bool = False
    column: str = "subject"
    name = "subjects"

    def keep(self, candidates: Candidates) -> np.ndarray:
        """True where the label is one of `values`, or with `complement` where it is none of them. Subjects are read
        from the answers where there are any, other columns from the documents; an empty value is "".

        Raises InputError for a column that the documents lack, and for a value that no item has.
        """
        if self.column == "subject" and candidates.answers is not None:
            labels = candidates.answers.subjects
        else:
            documents = candidates.need_documents(self.name)
            if self.column not in documents.columns:
                raise InputError(
                    f"filter {self.name!r}: the documents have no column {self.column!r}.",
                    f"columns: {', '.join(documents.columns)}.",
                )
            labels = documents[self.column].fillna("").astype(str).to_numpy()
        labels_known = sorted(set(labels))
        for value in self.values:
            if value not in labels_known:
                hint = did_you_mean(value, labels_known, f"one of {', '.join(labels_known[:20])}.")
                raise InputError(f"filter {self.name!r}: no item has {self.column} {value!r}.", hint)
        return np.asarray(np.isin(labels, self.values) != self.complement)


# ----------------------------------------------------------------------------------------------------------------------
# Filters that look at how items' scores move along training. They must be judged on models that they did not
# see.


def slopes(scores: np.ndarray) -> np.ndarray:
    """Ordinary-least-squares slope per checkpoint of each item: (items,) for `scores` (checkpoints,
    items)."""
    steps = np.arange(scores.shape[0]) - (scores.shape[0] - 1) / 2.0
    return np.asarray(steps @ scores / (steps @ steps))


@dataclass(frozen=True)
class PositiveSlope(ItemFilter):
    """Keeps items whose score rises along training (team Noor: the confidence margin).

    `pooling`: `mean` asks for a positive slope of the mean over models, `each` for one in every model; the
        source does not say which it used.
    """

    score: str = "confidence_margin"
    pooling: Literal["mean", "each"] = "mean"
    name = "positive_slope"
    fitted = True

    def keep(self, candidates: Candidates) -> np.ndarray:
        """True where the least-squares slope over checkpoints is above 0 in every model (`each`), or where the mean
        over models of slope × (checkpoints - 1) is (`mean`). An item with a NaN score is dropped.

        Raises InputError for a model with fewer than two checkpoints.
        """
        answers = candidates.need_answers(self.name)
        by_model = []
        for model in answers.models:
            if len(model.checkpoints) < 2:
                raise InputError(
                    f"filter {self.name!r}: model {model.model!r} has {len(model.checkpoints)} checkpoint.",
                    "a slope needs two; leave the model out.",
                )
            by_model.append(slopes(model_scores(answers, model, self.score)))
        if self.pooling == "each":
            return np.asarray(np.min(by_model, axis=0) > 0)
        # By the length of each model's training, so that many checkpoints do not mean many steps
        rises = [slope * (len(model.checkpoints) - 1) for slope, model in zip(by_model, answers.models, strict=True)]
        return np.asarray(np.mean(rises, axis=0) > 0)


@dataclass(frozen=True)
class TopShare(ItemFilter):
    """Keeps the share of items whose score gained most from the first to the last checkpoint (team Morai).

        gain(item) = mean over models of (score at the last - score at the first checkpoint)

    Morai's score is the probability of the gold answer; whether raw or normalised over the choices is not
    said, raw is the default. Of items that tie at the border the earlier stay. `length_matched` takes the
    share within each of five groups of gold answers of similar length, so that the filter cannot simply
    prefer short answers.
    """

    share: float = 0.5
    score: str = "probability"
    length_matched: bool = False
    name = "top_share"
    fitted = True

    def keep(self, candidates: Candidates) -> np.ndarray:
        """True for the `share` of items with the highest gain: of all items, or with `length_matched` of each length
        group. NaN gains come last.

        Raises InputError for a share outside (0, 1], and where answers or what the score needs are missing.
        """
        if not 0 < self.share <= 1:
            raise InputError(f"filter {self.name!r}: share {self.share}.", "write a fraction above 0, at most 1.")
        answers = candidates.need_answers(self.name)
        scores = [model_scores(answers, model, self.score) for model in answers.models]
        gain = np.mean([of_model[-1] - of_model[0] for of_model in scores], axis=0)
        groups = np.zeros(len(gain), dtype=int)
        if self.length_matched:
            lengths = answer_lengths(answers)
            if lengths is None:
                raise InputError(
                    f"benchmark {answers.benchmark!r}: lengths of the choices are unknown.",
                    "evaluate with choice_tokens or choice_characters kept.",
                )
            # by quantiles: equal lengths share a group, and few distinct lengths make fewer groups
            groups = np.searchsorted(np.quantile(lengths, np.linspace(0, 1, STRATA + 1)[1:-1]), lengths)
        return top_of_groups(gain, groups, self.share)


def top_of_groups(score: np.ndarray, groups: np.ndarray, share: float) -> np.ndarray:
    """The `share` of highest scores within each group, boolean (items,), sizes rounded half up, ties to the
    earlier."""
    is_kept = np.zeros(len(score), dtype=bool)
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        count = int(np.floor(share * members.size + 0.5))
        is_kept[members[np.argsort(-score[members], kind="stable")[:count]]] = True
    return is_kept


@dataclass(frozen=True)
class SciScore(ItemFilter):
    """Keeps the items that a specialised model finds more likely than a general one (team Shaikespear).

        SciScore(q, a) = CLL_science - CLL_general = (ll_science - ll_general) / |a|

    of the gold answer at each model's last checkpoint, in tokens of the science model (the source's two
    models share one tokenizer). `keep_count` highest stay, or the `share`. The two models are never among those
    that the choice is judged on (`filters.recipe`).
    """

    science_model: str
    general_model: str
    share: float | None = None
    keep_count: int | None = None
    name = "sci_score"
    fitted = True

    @property
    def reference_models(self) -> tuple[str, str]:
        """(science model, general model): their answers choose, so they must not be scored on the choice."""
        return self.science_model, self.general_model

    def keep(self, candidates: Candidates) -> np.ndarray:
        """True for the items of the highest SciScore: the `share`, or `keep_count` of them, all where there are fewer.

        Raises InputError unless exactly one of the two is given, and where a model's answers or the lengths of its
        choices in tokens are missing.
        """
        answers = candidates.references or candidates.need_answers(self.name)
        if (self.share is None) == (self.keep_count is None):
            raise InputError(f"filter {self.name!r}: give either share or keep_count.", "write one of the two.")
        by_name = {model.model: model for model in answers.models}
        for model in self.reference_models:
            if model not in by_name:
                raise InputError(
                    f"filter {self.name!r}: no items of model {model!r} on benchmark {answers.benchmark!r}.",
                    f"models with items: {', '.join(by_name)}.",
                )
        models = [by_name[name] for name in self.reference_models]
        science, general = (model_scores(answers, model, "log_likelihood")[-1] for model in models)
        if (tokens := models[0].tokens) is None:
            raise InputError(
                f"filter {self.name!r}: lengths of choices in tokens are unknown for {self.science_model!r}.",
                "evaluate with choice_tokens kept.",
            )
        score = (science - general) / tokens[np.arange(len(tokens)), answers.gold]
        share = min(1.0, (self.keep_count or 0) / len(score)) if self.share is None else self.share
        return top_of_groups(score, np.zeros(len(score), dtype=int), share)


# ----------------------------------------------------------------------------------------------------------------------
# Quality gates of GneissWeb (arXiv 2502.14907) as team Shaikespear used them on question and gold answer.
#
# Learned annotations (DCLM and Cosmo quality, topics) come as columns of the documents table from the user's
# own annotators; readability and tokens per character are computed here.

_WORD = re.compile(r"\w+(?:['’-]\w+)*")
_SENTENCE_END = re.compile(r"[.!?]+(?=\s|$)")


def readability(text: str) -> float:
    """McAlpine's EFLAW score: (words + words of at most three letters) / sentences; lower is easier.

    The readability annotator of GneissWeb. A text without a closing mark is one sentence; without words it is
    0.
    """
    words = _WORD.findall(text)
    sentences = [part for part in _SENTENCE_END.split(text) if _WORD.search(part)]
    if not words:
        return 0.0
    return (len(words) + sum(len(word) <= 3 for word in words)) / max(1, len(sentences))


def document_text(documents: pd.DataFrame) -> list[str]:
    """Question and gold answer of each item as one text."""
    return [f"{context} {choices[gold]}" for context, choices, gold in questions(documents)]


def tokens_per_character(documents: pd.DataFrame, tokenizer: str | None = None) -> np.ndarray:
    """Tokens over characters (items,) of each document, from the column `tokens` or a tokenizer.json file."""
    texts = document_text(documents)
    if tokenizer is not None:
        from tokenizers import Tokenizer

        try:
            encoder = Tokenizer.from_file(tokenizer)
        except Exception as error:
            raise InputError(f"{tokenizer}: not a tokenizer file ({error}).", "give a tokenizer.json.") from error
        counts = [len(encoding.ids) for encoding in encoder.encode_batch(texts, add_special_tokens=False)]
    elif "tokens" in documents.columns:
        counts = documents["tokens"].to_numpy(dtype=float)
    else:
        raise InputError(
            "the filter 'quality_gates' needs token counts.", "give a column 'tokens' or tokenizer: a tokenizer.json."
        )
    return np.asarray(counts, dtype=float) / np.maximum(1, [len(text) for text in texts])


@dataclass(frozen=True)
class QualityGates(ItemFilter):
    """Keeps a document iff each gate lets it through; a gate without a threshold is open.

        quality:      dclm > t or cosmo > t
        categories:   each of tech, med, edu, sci above its threshold
        readability:  readability < t, or tokens per character within a range

    Defaults are the printed strict setting (tau 3.0); the recipe's own defaults (tau 2.0) are not printed.
    """

    dclm: float | None = 0.9
    cosmo: float | None = 0.9
    tech: float | None = 0.5
    med: float | None = 0.5
    edu: float | None = 0.5
    sci: float | None = 0.95
    readability: float | None = 30.0
    tokens_per_character: tuple[float, float] | None = (0.10, 0.50)
    tokenizer: str | None = None
    name = "quality_gates"

    def keep(self, candidates: Candidates) -> np.ndarray:
        """True where the document passes every gate; either of the two conditions is enough for quality and for
        readability.

        Raises InputError for a column that a gate needs and the documents lack, and for a quality or category value
        that is no number.
        """
        documents = candidates.need_documents(self.name)
        is_kept = np.ones(len(documents), dtype=bool)
        quality = [self._above(documents, name) for name in ("dclm", "cosmo") if getattr(self, name) is not None]
        if quality:
            is_kept &= np.any(quality, axis=0)
        for category in ("tech", "med", "edu", "sci"):
            if getattr(self, category) is not None:
                is_kept &= self._above(documents, category)
        return np.asarray(is_kept & self._readable(documents))

    def _above(self, documents: pd.DataFrame, column: str) -> np.ndarray:
        if column not in documents.columns:
            raise InputError(
                f"filter {self.name!r}: the documents have no column {column!r}.",
                f"annotate the documents, or set {column}: null.",
            )
        values = pd.to_numeric(documents[column], errors="coerce").to_numpy(dtype=float)
        if np.isnan(values).any():
            doc_id = documents["doc_id"].iloc[int(np.argmax(np.isnan(values)))]
            raise InputError(
                f"filter {self.name!r}: document {doc_id!r}, column {column!r}: not a number.", "annotate it."
            )
        return np.asarray(values > getattr(self, column))

    def _readable(self, documents: pd.DataFrame) -> np.ndarray:
        gates = []
        if self.readability is not None:
            if "readability" in documents.columns:
                values = documents["readability"].to_numpy(dtype=float)
            else:
                values = np.array([readability(text) for text in document_text(documents)])
            gates.append(values < self.readability)
        if self.tokens_per_character is not None:
            low, high = self.tokens_per_character
            ratio = tokens_per_character(documents, self.tokenizer)
            gates.append((ratio >= low) & (ratio <= high))
        return np.any(gates, axis=0) if gates else np.ones(len(documents), dtype=bool)


# ----------------------------------------------------------------------------------------------------------------------
# Filters that read an item's text: answers that stand in the prompt, and repeated items.


def normalise_text(text: str) -> str:
    """Unicode NFKC, case folded, blanks collapsed, punctuation and blanks stripped at both ends."""
    folded = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return folded.strip(string.punctuation + " ")


def occurs_in(answer: str, context: str) -> bool:
    """Whether the normalised answer appears in the normalised context between word boundaries.

    Answers of a single character never count: they are in many contexts by chance.
    """
    answer, context = normalise_text(answer), normalise_text(context)
    return len(answer) > 1 and re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", context) is not None


def occurrences(documents: pd.DataFrame) -> list[tuple[bool, list[bool]]]:
    """Whether an item's gold answer occurs in its own context, without few-shot examples, and each distractor."""
    return [
        (occurs_in(choices[gold], text), [occurs_in(choice, text) for i, choice in enumerate(choices) if i != gold])
        for text, choices, gold in questions(documents)
    ]


class LeakageRates(NamedTuple):
    """How often an answer appears in its own item's prompt; NaN without items.

    A gold answer that leaks no more than distractors do is no shortcut: a prompt that lists its options holds
    all. `examples`: how often the gold answer appears in what precedes the item's own prompt, its few-shot examples;
    NaN where the documents have no whole prompts.
    """

    gold: float
    distractors: float
    items: int
    examples: float = float("nan")


def leakage_rates(documents: pd.DataFrame) -> LeakageRates:
    """Share of gold answers in their prompt, and of distractors (mean over items) as the base rate."""
    if documents.empty:
        return LeakageRates(float("nan"), float("nan"), 0)
    hits, examples = occurrences(documents), float("nan")
    if "prompt" in documents.columns and documents["prompt"].notna().all():
        pairs = zip(documents["prompt"], documents["context"], strict=True)
        preceding = documents.assign(context=[prompt.removesuffix(context) for prompt, context in pairs])
        examples = float(np.mean([gold for gold, _ in occurrences(preceding)]))
    gold, distractors = np.mean([gold for gold, _ in hits]), np.mean([np.mean(wrong) for _, wrong in hits])
    return LeakageRates(float(gold), float(distractors), len(documents), examples)


@dataclass(frozen=True)
class Leakage(ItemFilter):
    """Drops items whose prompt contains the gold answer but not all distractors (then it lists the options)."""

    name = "leakage"

    def keep(self, candidates: Candidates) -> np.ndarray:
        """True where the gold answer is not in the item's context, or every distractor is in it too."""
        hits = occurrences(candidates.need_documents(self.name))
        return np.array([not gold or all(wrong) for gold, wrong in hits], dtype=bool)


@dataclass(frozen=True)
class Duplicates(ItemFilter):
    """Drops exact repetitions (normalised context and gold answer), keeping the first."""

    name = "duplicates"

    def keep(self, candidates: Candidates) -> np.ndarray:
        """True for the first item of each pair of normalised context and gold answer, in the order given."""
        documents = candidates.need_documents(self.name)
        pairs = [(normalise_text(text), normalise_text(choices[gold])) for text, choices, gold in questions(documents)]
        return np.asarray(~pd.Series(pairs).duplicated().to_numpy())


# Those that a recipe names, but for `any_of` and the judge
KINDS: dict[str, Any] = {kind.name: kind for kind in ItemFilter.__subclasses__() if kind is not AnyOf}
