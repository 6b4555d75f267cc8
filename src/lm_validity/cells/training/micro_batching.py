"""How the rows of an optimizer step are cut into forward passes: by length, so that little padding is computed.

Which rows make a step is fixed, and a step's gradient is the sum over them, so a cut changes rounding and cost only.
"""

import itertools
from collections.abc import Iterator, Sequence

from lm_validity.cells.models.language_model import LanguageModel
from lm_validity.cells.models.position_encoding import PositionEncoding

# Seconds a layer and pass, and multiplications a second (4 a parameter and token). CPU: measured
# (docs/explanation/lab_record.md). CUDA: not measured, launches of an eager layer and half of an H100's bf16
PASS_COST = {"cpu": (4e-3, 6e10), "cuda": (3e-3, 4e14)}


def micro_batches(lengths: Sequence[int], most: int, pass_cost: float) -> list[tuple[int, int]]:
    """Cut rows, sorted by length, into runs [start, end) of at most `most` rows that cost least: a run costs its rows
    times its longest, in tokens, and `pass_cost` for a forward and backward pass of its own."""
    costs, cuts = [0.0], [0]
    for end in range(1, len(lengths) + 1):
        options = [
            (costs[start] + pass_cost + (end - start) * max(lengths[start:end]), start)
            for start in range(max(0, end - most), end)
        ]
        cost, start = min(options)
        costs.append(cost)
        cuts.append(start)
    runs, end = [], len(lengths)
    while end:
        runs.append((cuts[end], end))
        end = cuts[end]
    return runs[::-1]


def passes(
    lengths: Sequence[int], most: int, pass_cost: float, encoding: PositionEncoding
) -> Iterator[tuple[int, int]]:
    """`micro_batches` of rows that have one position encoding; what the encoding remembers is forgotten before each."""
    first = 0
    for _, alike in itertools.groupby(lengths, key=encoding.of):
        own = list(alike)
        for start, end in micro_batches(own, most, pass_cost):
            encoding.forget()
            yield first + start, first + end
        first += len(own)


def pass_tokens(lm: LanguageModel) -> float:
    """What a forward and backward pass costs beside its tokens, in tokens: the time to start its kernels over the time
    of a token, by the model's layers and parameters and the kind of device alone, so that no run differs from
    another."""
    config = lm.base.config.get_text_config()
    seconds, speed = PASS_COST.get(lm.device.type, PASS_COST["cuda"])
    parameters = sum(parameter.numel() for parameter in lm.base.parameters() if not parameter.requires_grad)
    return seconds * config.num_hidden_layers * speed / (4 * parameters)
