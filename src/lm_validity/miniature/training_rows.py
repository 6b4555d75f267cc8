"""What a model of the pool reads in pretraining: batches of token ids, and how many tokens they hold."""

from collections.abc import Iterator
from itertools import islice
from random import Random

from lm_validity.config.miniature import MiniatureSettings
from lm_validity.config.pool import MiniatureModel
from lm_validity.miniature.documents import dialogues, pretraining_documents
from lm_validity.miniature.tokenizer import BEGIN_ID, vocabulary
from lm_validity.miniature.world import World, generator

SORTED_BATCHES = 8  # documents of this many batches are sorted by length together, so that little is padding
DOUBLE_BEGIN_SHARE = 0.25
DIALOGUE_SHARE = 0.5  # of a tuned model's documents


def training_batches(settings: MiniatureSettings, world: World, row: MiniatureModel) -> Iterator[list[list[int]]]:
    """Batches of token ids, endless: each row one document, begun and ended with token 0.

    One document a row: packing several into a window costs these models several times the steps. A quarter of the
    rows begin with two tokens 0. Lm-eval's own rolling log-likelihood feeds that to a tokenizer that begins texts
    itself (its prefix token, then a text already begun), and a model that never saw it would be scored on its surprise.
    """
    draw = generator(settings.seed, "pretraining", row.model)
    documents = pretraining_documents(settings, world, row.family, row.training_data, draw)
    if row.tuned_from:
        documents = _mixed(draw, documents, dialogues(world, row.training_data, draw))
    words = vocabulary(world)
    size = settings.batch_documents
    while True:
        rows = [_tokens(next(documents), words, draw) for _ in range(SORTED_BATCHES * size)]
        rows.sort(key=len)
        batches = [rows[start : start + size] for start in range(0, len(rows), size)]
        draw.shuffle(batches)
        yield from batches


def _mixed(draw: Random, documents: Iterator[str], others: Iterator[str]) -> Iterator[str]:
    """`others` and, so that what pretraining taught is not lost, as many of pretraining's documents."""
    while True:
        yield next(others) if draw.random() < DIALOGUE_SHARE else next(documents)


def tokens_at(settings: MiniatureSettings, world: World, row: MiniatureModel) -> dict[int, int]:
    """Tokens seen (without padding) at each checkpoint's iteration and at the last step of the row's own training."""
    marks = {*row.checkpoints, row.steps}
    seen, counts = 0, {}
    for step, batch in enumerate(islice(training_batches(settings, world, row), row.steps), start=1):
        seen += sum(map(len, batch))
        if step in marks:
            counts[step] = seen
    return counts


def _tokens(text: str, words: dict[str, int], draw: Random) -> list[int]:
    begin = [BEGIN_ID] * (1 + (draw.random() < DOUBLE_BEGIN_SHARE))
    return [*begin, *(words[word] for word in text.split()), BEGIN_ID]
