"""From cells to tables. The complete tables depend on check_cells, so none is ever built around a failed cell.

REQUIRED INPUTS: every manifest of the run
OUTPUTS: results/<run>/tables/{scores,selections,items}.parquet; losses.parquet beside them, which no rule reads
"""


rule check_cells:
    """Name the failed cells, set aside the manifests that hold them, and fail the run; or say that all is well."""
    input:
        all_cells,
    output:
        f"{RESULTS}/cells/check.json",
    log:
        f"{LOGS}/check_cells.log",
    localrule: True
    conda:
        "../../envs/report.yaml"
    params:
        configfile=CONFIGFILE,
    message:
        "check cells"
    shell:
        # the failed cells belong on the screen, not only in a log
        "lm-validity check-cells --configfile {params.configfile:q} --output {output:q} 2>&1 | tee {log:q}"


rule merge_scores:
    """Scores and selections of all cells."""
    input:
        f"{RESULTS}/cells/check.json",
    output:
        scores=f"{RESULTS}/tables/scores.parquet",
        selections=f"{RESULTS}/tables/selections.parquet",
    log:
        f"{LOGS}/merge_scores.log",
    localrule: True
    conda:
        "../../envs/report.yaml"
    params:
        configfile=CONFIGFILE,
        points=GRID.describe_points(),
    message:
        "merge scores"
    shell:
        "lm-validity merge --configfile {params.configfile:q} --only scores > {log:q} 2>&1"


rule merge_items:
    """Per-document results of all cells."""
    input:
        f"{RESULTS}/cells/check.json",
    output:
        f"{RESULTS}/tables/items.parquet",
    log:
        f"{LOGS}/merge_items.log",
    conda:
        "../../envs/report.yaml"
    resources:
        mem_mb=16000,
        runtime=120,
    params:
        configfile=CONFIGFILE,
    message:
        "merge items"
    shell:
        "lm-validity merge --configfile {params.configfile:q} --only items > {log:q} 2>&1"


rule scores:
    """Every cell and the merged tables."""
    input:
        checked_cells,
        f"{RESULTS}/tables/scores.parquet",
        f"{RESULTS}/tables/items.parquet",
    localrule: True
    message:
        f"done: {PLACE}/tables"
