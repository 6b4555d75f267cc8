"""GPU memory that runs out where nothing can be made smaller: an error of the cell, so that other cells continue."""

import contextlib
from collections.abc import Iterator

from lm_validity.errors import CellError

MORE_MEMORY = "give its size class a GPU with more memory, or more of them (`gpu`)"


@contextlib.contextmanager
def must_fit(name: str, doing: str, hint: str) -> Iterator[None]:
    """Inside the block torch's out-of-memory error becomes a CellError: retries of the same size would fail as well.

    name: the model's. doing: what did not fit, as in "one text of 2048 tokens to score". hint: what to change.
    """
    import torch  # the bias study's worker reads this module before it knows whether a trial is left to compute

    failed = None
    try:
        yield
    except torch.OutOfMemoryError as error:
        reason = (str(error).strip().splitlines() or ["no reason given"])[0]
        failed = CellError(f"{name}: out of memory with {doing} ({reason[:160]}).", hint)
    if failed is not None:  # outside `except`, whose traceback holds the tensors that did not fit
        torch.cuda.empty_cache()
        raise failed
