"""Candidate benchmarks: which can serve in the agreement study, and why the others cannot. Only when asked for.

REQUIRED INPUTS: results/<run>/tables/scores.parquet, the prefetch records of the benchmarks
OUTPUTS: results/<run>/reports/screening/{results.parquet,index.html,tables/screening.csv}
"""


rule report_screening:
    """Training examples, models that do not improve, negative agreement: each candidate's figures and the reason."""
    input:
        scores=f"{RESULTS}/tables/scores.parquet",
    output:
        f"{RESULTS}/reports/screening/results.parquet",
    log:
        f"{LOGS}/report_screening.log",
    conda:
        "../../envs/report.yaml"
    resources:
        mem_mb=4000,
        runtime=30,
    params:
        models=RUN.configuration.models,
        benchmarks=RUN.configuration.benchmarks,
        sheets=digests_of("models", "benchmarks", "plan"),
        results=subpath(input.scores, ancestor=2),
        thresholds=RUN.configuration.screening.model_dump(),
        configfile=CONFIGFILE,
        plan=PLAN_OPTION,
        folder=subpath(output[0], parent=True),
    message:
        "report screening"
    shell:
        "lm-validity report screening --scores {input.scores:q} --models {params.models:q}"
        " --benchmarks {params.benchmarks:q} --results {params.results:q}"
        " --configfile {params.configfile:q} {params.plan} --output {params.folder:q} > {log:q} 2>&1"


rule screening:
    """Every candidate of the benchmarks sheet with the reason why it stays or leaves."""
    input:
        f"{RESULTS}/reports/screening/results.parquet",
    localrule: True
    message:
        f"done: {PLACE}/reports/screening/index.html"
