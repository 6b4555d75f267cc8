"""The subcommand that tries a cluster's GPU before anything is computed on it."""

from typing import Annotated, Literal

import typer


def register(app: typer.Typer) -> None:
    """Add this module's subcommand."""
    app.command()(gpu_check)


def gpu_check(
    device: Annotated[
        Literal["cuda", "cpu"], typer.Option(help="cpu: run the same checks on the CPU instead of the GPU.")
    ] = "cuda",
) -> int:
    """Test this machine's GPU, and print a table and a verdict. Exit code 0: ready, 1: a check failed, 2: no GPU."""
    from lm_validity.cells.gpu_check import check_gpu, verdict

    found = check_gpu(device)
    width = max(len(one.check) for one in found)
    for one in found:
        print(f"{one.check:<{width}}  {one.outcome:<7}  {one.detail}")
    print(verdict(found))
    return 1 if any(one.outcome == "failed" for one in found) else 0
