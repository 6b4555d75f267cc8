"""The workflow is workflow/Snakefile. This file is here for `snakemake` in the root of a clone."""


include: "workflow/Snakefile"


# Snakemake forgets the default target of a file that is included.
workflow.default_target = "all"
