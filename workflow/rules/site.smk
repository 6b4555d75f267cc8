"""From reports to the site, and the targets that people type.

REQUIRED INPUTS: results/<run>/reports/<report>/results.parquet
OUTPUTS: results/<run>/report/index.html
"""

# the tables too: Snakemake does not restore one that is gone where the reports made of it exist
REPORTS = [
    *(
        f"{RESULTS}/tables/{name}.parquet"
        for name in tables_of(RUN.configuration.studies)
    ),
    *study_reports(*RUN.configuration.studies),
    f"{RESULTS}/report/index.html",
]


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
