"""From tables to pages. CPU only; the same commands run on imported scores.

REQUIRED INPUTS: results/<run>/tables/*.parquet and the sheets of the configuration
OUTPUTS: results/<run>/reports/<report>/results.parquet
"""


rule report_agreement:
    """Do the benchmarks agree on which model is better, under direct evaluation and train before test?"""
    input:
        scores=f"{RESULTS}/tables/scores.parquet",
        documents=f"{RESULTS}/tables/items.parquet",
        selections=f"{RESULTS}/tables/selections.parquet",
    output:
        f"{RESULTS}/reports/agreement/results.parquet",
    log:
        f"{LOGS}/report_agreement.log",
    conda:
        "../../envs/report.yaml"
    resources:
        mem_mb=4000,
        runtime=60,
    params:
        models=RUN.configuration.models,
        benchmarks=RUN.configuration.benchmarks,
        sheets=digests_of("models", "benchmarks", "plan"),
        resamples=RUN.configuration.reports.resamples,
        # thresholds of the sentence on benchmarks that tell models apart
        cards=RUN.configuration.cards.model_dump(),
        configfile=CONFIGFILE,
        plan=PLAN_OPTION,
        folder=subpath(output[0], parent=True),
    message:
        "report agreement"
    shell:
        "lm-validity report agreement --scores {input.scores:q} --items {input.documents:q}"
        " --selections {input.selections:q} --models {params.models:q} --benchmarks {params.benchmarks:q} --configfile {params.configfile:q} {params.plan} --output {params.folder:q} > {log:q} 2>&1"


rule report_factors:
    """How many factors does the score matrix have, and what is the first?"""
    input:
        scores=f"{RESULTS}/tables/scores.parquet",
    output:
        f"{RESULTS}/reports/factors/results.parquet",
    log:
        f"{LOGS}/report_factors.log",
    conda:
        "../../envs/report.yaml"
    resources:
        mem_mb=4000,
        runtime=60,
    params:
        models=RUN.configuration.models,
        benchmarks=RUN.configuration.benchmarks,
        sheets=digests_of("models", "benchmarks", "plan"),
        resamples=RUN.configuration.reports.resamples,
        configfile=CONFIGFILE,
        plan=PLAN_OPTION,
        folder=subpath(output[0], parent=True),
    message:
        "report factors"
    shell:
        "lm-validity report factors --scores {input.scores:q} --models {params.models:q}"
        " --benchmarks {params.benchmarks:q} --configfile {params.configfile:q} {params.plan} --output {params.folder:q} > {log:q} 2>&1"


rule report_models:
    """Which model is best, which are not told apart, and which beats which?"""
    input:
        scores=f"{RESULTS}/tables/scores.parquet",
    output:
        f"{RESULTS}/reports/models/results.parquet",
    log:
        f"{LOGS}/report_models.log",
    conda:
        "../../envs/report.yaml"
    resources:
        mem_mb=4000,
        runtime=60,
    params:
        models=RUN.configuration.models,
        benchmarks=RUN.configuration.benchmarks,
        sheets=digests_of("models", "benchmarks", "plan"),
        plan=PLAN_OPTION,
        folder=subpath(output[0], parent=True),
    message:
        "report models"
    shell:
        "lm-validity report models --scores {input.scores:q} --models {params.models:q}"
        " --benchmarks {params.benchmarks:q} {params.plan} --output {params.folder:q} > {log:q} 2>&1"


rule report_readiness:
    """Do the groups of models that the configuration names lead at equal compute, and what does preparation change?"""
    input:
        scores=f"{RESULTS}/tables/scores.parquet",
    output:
        f"{RESULTS}/reports/readiness/results.parquet",
    log:
        f"{LOGS}/report_readiness.log",
    conda:
        "../../envs/report.yaml"
    resources:
        mem_mb=4000,
        runtime=60,
    params:
        models=RUN.configuration.models,
        benchmarks=RUN.configuration.benchmarks,
        sheets=digests_of("models", "benchmarks", "plan"),
        agreement=RUN.configuration.agreement.model_dump(),
        configfile=CONFIGFILE,
        plan=PLAN_OPTION,
        folder=subpath(output[0], parent=True),
    message:
        "report readiness"
    shell:
        "lm-validity report readiness --scores {input.scores:q} --models {params.models:q}"
        " --benchmarks {params.benchmarks:q} --configfile {params.configfile:q} {params.plan} --output {params.folder:q} > {log:q} 2>&1"


rule report_signal:
    """Does a benchmark say something early in training?"""
    input:
        scores=f"{RESULTS}/tables/scores.parquet",
        documents=f"{RESULTS}/tables/items.parquet",
    output:
        f"{RESULTS}/reports/signal/results.parquet",
        figures=report(
            directory(f"{RESULTS}/reports/signal/figures"),
            patterns=["{figure}.svg"],
            caption="../report/figure.rst",
            category="Signal",
            labels={"figure": "{figure}"},
        ),
    log:
        f"{LOGS}/report_signal.log",
    conda:
        "../../envs/report.yaml"
    resources:
        mem_mb=8000,
        runtime=60,
    params:
        models=RUN.configuration.models,
        benchmarks=RUN.configuration.benchmarks,
        sheets=digests_of("models", "benchmarks"),
        resamples=RUN.configuration.reports.resamples,
        selection=RUN.configuration.reports.checkpoints,
        configfile=CONFIGFILE,
        folder=subpath(output[0], parent=True),
    message:
        "report signal"
    shell:
        "lm-validity report signal --scores {input.scores:q} --items {input.documents:q} --models {params.models:q}"
        " --benchmarks {params.benchmarks:q} --configfile {params.configfile:q}"
        " --output {params.folder:q} > {log:q} 2>&1"
