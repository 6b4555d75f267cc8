"""Filters that look at how items' scores move along training. They must be judged on models that they did not
see."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from lm_validity.errors import InputError
from lm_validity.studies.signal.filters.base import Candidates, model_scores
from lm_validity.studies.signal.filters.lengths import answer_lengths, length_strata


def slopes(scores: np.ndarray) -> np.ndarray:
    """Ordinary-least-squares slope per checkpoint of each item: (items,) for `scores` (checkpoints,
    items)."""
    steps = np.arange(scores.shape[0]) - (scores.shape[0] - 1) / 2.0
    return steps @ scores / (steps @ steps)


@dataclass(frozen=True)
class PositiveSlope:
    """Keeps items whose score rises along training (team Noor: the confidence margin).

    `pooling`: `mean` asks for a positive slope of the mean over models, `each` for one in every model; the
        source does not say which it used.
    """

    score: str = "confidence_margin"
    pooling: Literal["mean", "each"] = "mean"
    name: str = field(default="positive_slope", init=False)
    fitted: bool = field(default=True, init=False)

    def keep(self, candidates: Candidates) -> np.ndarray:
        """True where the least-squares slope over checkpoints is above 0 in every model (`each`), or where the mean
        over models of slope × (checkpoints - 1) is (`mean`). An item with a NaN score is dropped.

        Raises InputError for a model with fewer than two checkpoints, and for another pooling.
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
            return np.min(by_model, axis=0) > 0
        if self.pooling != "mean":
            raise InputError(f"filter {self.name!r}: pooling {self.pooling!r}.", "write mean or each.")
        # By the length of each model's training, so that many checkpoints do not mean many steps
        rises = [slope * (len(model.checkpoints) - 1) for slope, model in zip(by_model, answers.models, strict=True)]
        return np.mean(rises, axis=0) > 0


@dataclass(frozen=True)
class TopShare:
    """Keeps the share of items whose score gained most from the first to the last checkpoint (team Morai).

        gain(item) = mean over models of (score at the last - score at the first checkpoint)

    Morai's score is the probability of the gold answer; whether raw or normalised over the choices is not
    said, raw is the default. Of items that tie at the border the earlier stay. `length_matched` takes the
    share within each of `strata` groups of gold answers of similar length, so that the filter cannot simply
    prefer short answers.
    """

    share: float = 0.5
    score: str = "probability"
    length_matched: bool = False
    strata: int = 5
    name: str = field(default="top_share", init=False)
    fitted: bool = field(default=True, init=False)

    def keep(self, candidates: Candidates) -> np.ndarray:
        """True for the `share` of items with the highest gain: of all items, or with `length_matched` of each length
        group. NaN gains come last.

        Raises InputError for a share outside (0, 1], and where answers or what the score needs are missing.
        """
        if not 0 < self.share <= 1:
            raise InputError(f"filter {self.name!r}: share {self.share}.", "write a fraction above 0, at most 1.")
        answers = candidates.need_answers(self.name)
        gains = []
        for model in answers.models:
            scores = model_scores(answers, model, self.score)
            gains.append(scores[-1] - scores[0])
        gain = np.mean(gains, axis=0)
        groups = np.zeros(len(gain), dtype=int)
        if self.length_matched:
            groups = length_strata(answer_lengths(answers), self.strata)
        return top_of_groups(gain, groups, self.share)


def top_of_groups(score: np.ndarray, groups: np.ndarray, share: float) -> np.ndarray:
    """The `share` of highest scores within each group, boolean (items,), sizes rounded half up, ties to the
    earlier."""
    kept = np.zeros(len(score), dtype=bool)
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        count = int(np.floor(share * members.size + 0.5))
        kept[members[np.argsort(-score[members], kind="stable")[:count]]] = True
    return kept


@dataclass(frozen=True)
class SciScore:
    """Keeps the items that a specialised model finds more likely than a general one (team Shaikespear).

        SciScore(q, a) = CLL_science - CLL_general = (ll_science - ll_general) / |a|

    of the gold answer at each model's last checkpoint, in tokens of the science model (the source's two
    models share one tokenizer). `keep_count` highest stay, or the `share`. The two models are never among those
    that the choice is judged on (`filters.held_out`).
    """

    science_model: str
    general_model: str
    share: float | None = None
    keep_count: int | None = None
    name: str = field(default="sci_score", init=False)
    fitted: bool = field(default=True, init=False)

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
        loglikelihoods = []
        for wanted in (self.science_model, self.general_model):
            model = next((model for model in answers.models if model.model == wanted), None)
            if model is None:
                raise InputError(
                    f"filter {self.name!r}: no items of model {wanted!r} on benchmark {answers.benchmark!r}.",
                    f"models with items: {', '.join(model.model for model in answers.models)}.",
                )
            loglikelihoods.append(model_scores(answers, model, "log_likelihood")[-1])
        tokens = next(model for model in answers.models if model.model == self.science_model).tokens
        if tokens is None:
            raise InputError(
                f"filter {self.name!r}: lengths of choices in tokens are unknown for {self.science_model!r}.",
                "evaluate with choice_tokens kept.",
            )
        score = (loglikelihoods[0] - loglikelihoods[1]) / tokens[np.arange(len(tokens)), answers.gold]
        share = self.share
        if share is None:
            assert self.keep_count is not None, "one of both is given"
            share = min(1.0, self.keep_count / len(score))
        return top_of_groups(score, np.zeros(len(score), dtype=int), share)
