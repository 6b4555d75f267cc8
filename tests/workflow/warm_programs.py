"""What the tests start warm beside the package's own commands (`lm_validity.cli.warm`)."""

import sys

PROGRAM, BARE_PROGRAM = "python-warm", "python-bare"  # with everything imported, or only OTHERS
COMMANDS = {
    "lm-validity": "lm_validity.cli:main",
    "snakemake": "snakemake.cli:main",
    PROGRAM: "tests.workflow.warm_programs:run",
}
OTHERS = (  # nothing of this project, and not lm-eval
    "snakemake.cli",
    "torch",
    "peft",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
    "tests.workflow.warm_programs",
)
MORE = ("snakemake.cli", "lm_validity.cli.study", "tests.workflow.warm_programs")


def run() -> None:
    """The program that is the first argument, as `python -c` runs it."""
    program, *sys.argv[1:] = sys.argv[1:]
    sys.argv[0] = "-c"
    exec(program, {"__name__": "__main__"})
