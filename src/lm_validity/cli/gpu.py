"""The subcommand that tries a cluster's GPU before anything is computed on it."""

from typing import Annotated, Literal

import typer


def register(app: typer.Typer) -> None:
    """Add this module's subcommand."""
    app.command()(gpu_check)


def gpu_check(
    device: Annotated[
        Literal["cuda", "cpu"], typer.Option(help="cpu: the same checks with the CPU in the GPU's place.")
    ] = "cuda",
) -> int:
    """Try this machine's GPU: a table and a verdict. Exit code 0: ready, 1: a check failed, 2: no GPU."""
    from lm_validity.cells.gpu_check import check_gpu, verdict

    found = check_gpu(device)
    width = max(len(one.check) for one in found)
    for one in found:
        print(f"{one.check:<{width}}  {one.outcome:<7}  {one.detail}")
    print(verdict(found))
    return 1 if any(one.outcome == "failed" for one in found) else 0
