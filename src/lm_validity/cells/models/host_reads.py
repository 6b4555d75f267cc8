"""Reads of the GPU by the host, each of which waits for all work that was launched before."""

import contextlib
from collections.abc import Iterator

from transformers import masking_utils

_LOOK = "find_packed_sequence_indices"


@contextlib.contextmanager
def never_packed() -> Iterator[None]:
    """Inside the block no row without a mask holds several texts, which transformers otherwise looks up on the GPU in
    every forward pass."""
    before = getattr(masking_utils, _LOOK, None)
    if before is None:  # a version that does not look
        yield
        return
    setattr(masking_utils, _LOOK, lambda position_ids: None)
    try:
        yield
    finally:
        setattr(masking_utils, _LOOK, before)
