"""lm-validity: how far can a language-model benchmark be trusted?

    snakemake --profile profiles/local                                 the demo: a miniature world on this machine
    snakemake --profile slurm --configfile config/paper/train_before_test.yaml
    snakemake scores -n --configfile my.yaml                           what would run

Targets people type: prefetch, scores, agreement, signal, bias, reports, partial_reports, screening. Nothing named:
everything the configuration's `studies` ask for.
"""

from snakemake.utils import min_version

min_version("9.20")

# Snakemake merges configfiles; the demo's keys must never reach another configuration.
if not workflow.configfiles:

    configfile: "config/config.yaml"


report: "workflow/report/workflow.rst"


include: "workflow/rules/common.smk"


if RUN.configuration.container:

    container: RUN.configuration.container


include: "workflow/rules/common_sources.smk"


if RUN.configuration.miniature:

    include: "workflow/rules/miniature.smk"


include: "workflow/rules/prefetch.smk"
include: "workflow/rules/benchmarks.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/finetune.smk"
include: "workflow/rules/pretrain_on_test.smk"
include: "workflow/rules/tables.smk"
include: "workflow/rules/reports.smk"
include: "workflow/rules/screening.smk"


rule all:
    default_target: True
    input:
        checked_cells,
        REPORTS,
    message:
        f"done: {RESULTS}/report/index.html"
