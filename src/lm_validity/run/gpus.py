"""GPUs of one machine: two jobs of a user never compute on the same one.

Snakemake counts GPUs, but does not say which one a job may use. A job that sees more GPUs than it needs therefore
locks as many as it needs and sees these alone. The system gives a lock back when its process ends, however it ends.
"""

import fcntl
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

POLL = 2.0
_held: list[TextIO] = []  # until the process ends


def hold_gpus(needed: int, *, poll: float = POLL, say: Callable[[str], None] = print) -> None:
    """Leave this process as many of the GPUs that it sees as it needs; waits while other jobs hold them.

    To be called before torch looks at the GPUs. Changes nothing where the process sees no more than it needs: a
    scheduler gave it its own, or there are too few for a choice.
    """
    visible = _visible_gpus()
    if not 0 < needed < len(visible):
        return
    # a Slurm job may number its GPUs from 0, as the next job on the node does
    owner = "-".join([str(os.getuid()), *filter(None, [os.environ.get("SLURM_JOB_ID")])])
    folder = Path(tempfile.gettempdir(), f"lm-validity-gpus-{owner}")
    folder.mkdir(mode=0o700, exist_ok=True)
    told = False
    while not (found := _lock(folder, visible, needed)):
        if not told:
            say(f"waiting for {needed} of the GPUs {','.join(visible)}: other jobs on this machine hold them")
            told = True
        time.sleep(poll * random.uniform(0.5, 1.5))
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(found)


def _visible_gpus() -> list[str]:
    """As CUDA_VISIBLE_DEVICES names them, or their numbers."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name.strip() for name in named.split(",")]
    if shutil.which("nvidia-smi") is None:
        return []
    listed = subprocess.run(("nvidia-smi", "--list-gpus"), capture_output=True, text=True).stdout
    return [str(number) for number in range(sum(line.startswith("GPU ") for line in listed.splitlines()))]


def _lock(folder: Path, visible: list[str], needed: int) -> list[str]:
    """The first GPUs that nobody holds, locked; none where they are too few."""
    with ExitStack() as files:
        found = []
        for name in visible:
            file = files.enter_context(open(folder / name.replace("/", "_"), "w"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            found.append((name, file))
            if len(found) == needed:
                _held.extend(file for _, file in found)
                files.pop_all()
                return [name for name, _ in found]
    return []
