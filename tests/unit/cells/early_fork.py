"""A process with all that the test process has imported, and nothing that its tests did.

It is forked when the tests have been collected, and calls each function that it is asked for in a fork of itself: what
needs a process of its own (autograd refuses to train in a fork of one that has trained; a hub's clients are imported
anew) need not import torch, transformers and lm-eval a second time.
"""

import gc
import multiprocessing.connection
import os
import traceback


class EarlyFork:
    """The process; it ends when it is closed, or with the one that made it."""

    def __init__(self) -> None:
        self._asked, theirs = multiprocessing.Pipe()
        self._process = os.fork()
        if self._process == 0:
            self._asked.close()
            try:
                _serve(theirs)
            finally:
                os._exit(0)
        theirs.close()

    def call(self, function, *arguments):
        """What the function returns in a process of its own. Functions of modules and arguments are pickled."""
        self._asked.send((function, arguments))
        returned, error = self._asked.recv()
        assert error is None, error
        return returned

    def close(self) -> None:
        self._asked.close()
        os.waitpid(self._process, 0)


def _serve(asked: multiprocessing.connection.Connection) -> None:
    gc.freeze()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    while True:
        try:
            function, arguments = asked.recv()
        except EOFError:
            return
        if (child := os.fork()) == 0:
            try:
                asked.send((function(*arguments), None))
            except BaseException:
                asked.send((None, traceback.format_exc()))
            finally:
                os._exit(0)
        if status := os.waitpid(child, 0)[1]:  # it was killed, and sent nothing
            asked.send((None, f"the process of {function.__name__} ended with {os.waitstatus_to_exitcode(status)}"))
