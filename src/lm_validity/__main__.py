"""The program `lm-validity`. Ctrl-C is heard before the imports, which take a second and hold nothing open."""

import os
import signal
from typing import NoReturn


def main() -> None:
    """Run the command that the command line names; Ctrl-C ends the process at once."""
    hears = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a shell's background jobs ignore it
    if hears:
        signal.signal(signal.SIGINT, _leave)
    from lm_validity.cli import main as run

    if hears:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _leave(number: int, frame: object) -> NoReturn:
    """End the process at once: an exception would pass through others' modules, which may take it for their own."""
    os.write(2, b"Interrupted.\n")
    os._exit(128 + number)


if __name__ == "__main__":
    main()
