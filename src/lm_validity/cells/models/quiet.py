"""Third-party libraries that talk too much."""

import contextlib
import logging
from collections.abc import Iterator


@contextlib.contextmanager
def errors_only(name: str) -> Iterator[None]:
    """Silence a logger's warnings inside the block."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
