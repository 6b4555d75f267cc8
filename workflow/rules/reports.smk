"""From tables to pages. CPU only; the same commands run on imported scores.

REQUIRED INPUTS: results/<run>/tables/*.parquet and the sheets of the configuration
OUTPUTS: results/<run>/reports/<report>/{summary.json,results.parquet}, results/<run>/report/index.html
"""


rule report_agreement:
    """Do the benchmarks agree on which model is better, under direct evaluation and train before test?"""
    input:
        scores=f"{RESULTS}/tables/scores.parquet",
        documents=f"{RESULTS}/tables/items.parquet",
        selections=f"{RESULTS}/tables/selections.parquet",
        models=from_user(RUN.configuration.models),
        benchmarks=from_user(RUN.configuration.benchmarks),
        plan=from_user(RUN.configuration.plan),
    output:
        f"{RESULTS}/reports/agreement/summary.json",
        f"{RESULTS}/reports/agreement/results.parquet",
        figures=report(
            directory(f"{RESULTS}/reports/agreement/figures"),
            patterns=["{figure}.svg"],
            caption="../report/agreement.rst",
            category="Agreement",
            labels={"figure": "{figure}"},
        ),
    log:
        f"{LOGS}/report_agreement.log",
    conda:
        "../../envs/report.yaml"
    resources:
        mem_mb=4000,
        runtime=60,
    params:
        resamples=RUN.configuration.reports.resamples,
        configfile=CONFIGFILE,
        plan=PLAN_OPTION,
        folder=subpath(output[0], parent=True),
    message:
        "report agreement"
    shell:
        "lm-validity report agreement --scores {input.scores:q} --items {input.documents:q}"
        " --selections {input.selections:q} --models {input.models:q} --benchmarks {input.benchmarks:q} --configfile {params.configfile:q} {params.plan} --output {params.folder:q} > {log:q} 2>&1"


rule report_factors:
    """How many factors does the score matrix have, and what is the first?"""
    input:
        scores=f"{RESULTS}/tables/scores.parquet",
        models=from_user(RUN.configuration.models),
        benchmarks=from_user(RUN.configuration.benchmarks),
        plan=from_user(RUN.configuration.plan),
    output:
        f"{RESULTS}/reports/factors/summary.json",
        f"{RESULTS}/reports/factors/results.parquet",
        figures=report(
            directory(f"{RESULTS}/reports/factors/figures"),
            patterns=["{figure}.svg"],
            caption="../report/factors.rst",
            category="Factors and potential",
            labels={"figure": "{figure}"},
        ),
    log:
        f"{LOGS}/report_factors.log",
    conda:
        "../../envs/report.yaml"
    resources:
        mem_mb=4000,
        runtime=60,
    params:
        resamples=RUN.configuration.reports.resamples,
        configfile=CONFIGFILE,
        plan=PLAN_OPTION,
        folder=subpath(output[0], parent=True),
    message:
        "report factors"
    shell:
        "lm-validity report factors --scores {input.scores:q} --models {input.models:q}"
        " --benchmarks {input.benchmarks:q} --configfile {params.configfile:q} {params.plan} --output {params.folder:q} > {log:q} 2>&1"


rule report_readiness:
    """Do the groups of models that the configuration names lead at equal compute, and what does preparation change?"""
    input:
        scores=f"{RESULTS}/tables/scores.parquet",
        models=from_user(RUN.configuration.models),
        benchmarks=from_user(RUN.configuration.benchmarks),
        plan=from_user(RUN.configuration.plan),
    output:
        f"{RESULTS}/reports/readiness/summary.json",
        f"{RESULTS}/reports/readiness/results.parquet",
    log:
        f"{LOGS}/report_readiness.log",
    conda:
        "../../envs/report.yaml"
    resources:
        mem_mb=4000,
        runtime=60,
    params:
        agreement=RUN.configuration.agreement.model_dump(),
        configfile=CONFIGFILE,
        plan=PLAN_OPTION,
        folder=subpath(output[0], parent=True),
    message:
        "report readiness"
    shell:
        "lm-validity report readiness --scores {input.scores:q} --models {input.models:q}"
        " --benchmarks {input.benchmarks:q} --configfile {params.configfile:q} {params.plan} --output {params.folder:q} > {log:q} 2>&1"


rule report_signal:
    """Does a benchmark say something early in training?"""
    input:
        scores=f"{RESULTS}/tables/scores.parquet",
        documents=f"{RESULTS}/tables/items.parquet",
        models=from_user(RUN.configuration.models),
        benchmarks=from_user(RUN.configuration.benchmarks),
    output:
        f"{RESULTS}/reports/signal/summary.json",
        f"{RESULTS}/reports/signal/results.parquet",
        figures=report(
            directory(f"{RESULTS}/reports/signal/figures"),
            patterns=["{figure}.svg"],
            caption="../report/signal.rst",
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
        resamples=RUN.configuration.reports.resamples,
        selection=RUN.configuration.reports.checkpoints,
        configfile=CONFIGFILE,
        folder=subpath(output[0], parent=True),
    message:
        "report signal"
    shell:
        "lm-validity report signal --scores {input.scores:q} --items {input.documents:q} --models {input.models:q}"
        " --benchmarks {input.benchmarks:q} --configfile {params.configfile:q}"
        " --output {params.folder:q} > {log:q} 2>&1"


rule build_site:
    """One folder with index.html: the benchmarks with their cards, the findings, the figures, the tables."""
    input:
        study_reports(*RUN.configuration.studies),
    output:
        report(
            f"{RESULTS}/report/index.html",
            caption="../report/site.rst",
            category="Site",
            labels={"page": "all reports"},
        ),
    log:
        f"{LOGS}/build_site.log",
    localrule: True
    conda:
        "../../envs/report.yaml"
    params:
        configfile=CONFIGFILE,
        # thresholds of the verdicts on the benchmark cards
        cards=RUN.configuration.cards.model_dump(),
    message:
        "build site"
    shell:
        "lm-validity build-site --configfile {params.configfile:q} > {log:q} 2>&1"


rule agreement:
    """The agreement study: its cells, tables and reports."""
    input:
        checked_cells,
        required_reports("agreement"),
        f"{RESULTS}/report/index.html",
    localrule: True
    message:
        f"done: {PLACE}/report/index.html"


rule signal:
    """The signal study: its cells, tables and report."""
    input:
        checked_cells,
        required_reports("signal"),
        f"{RESULTS}/report/index.html",
    localrule: True
    message:
        f"done: {PLACE}/report/index.html"


rule reports:
    """Everything the configuration's studies ask for."""
    input:
        checked_cells,
        REPORTS,
    localrule: True
    message:
        f"done: {PLACE}/report/index.html"


rule partial_reports:
    """Tables and pages of the cells that exist, under results/<run>/partial/; what is missing is listed and marked."""
    log:
        f"{LOGS}/partial_reports.log",
    localrule: True
    conda:
        "../../envs/report.yaml"
    params:
        configfile=CONFIGFILE,
    message:
        "partial reports"
    shell:
        "lm-validity partial-reports --configfile {params.configfile:q} 2>&1 | tee {log:q}"
