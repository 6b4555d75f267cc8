"""Train, validation and test documents of each benchmark, disjoint by construction.

REQUIRED INPUTS: results/<run>/prefetch/benchmarks/<benchmark>.json
OUTPUTS: results/<run>/splits/<benchmark>/{train,validation,test}.json, so that a fine-tune never opens test;
    documents.parquet: the texts of the test documents, for filters
"""


rule split_benchmark:
    """Divide a benchmark's documents; rows that occur in test leave train and validation."""
    input:
        f"{RESULTS}/prefetch/benchmarks/{{benchmark}}.json",
        own_documents,
    output:
        train=f"{RESULTS}/splits/{{benchmark}}/train.json",
        validation=f"{RESULTS}/splits/{{benchmark}}/validation.json",
        test=f"{RESULTS}/splits/{{benchmark}}/test.json",
        documents=f"{RESULTS}/splits/{{benchmark}}/documents.parquet",
    log:
        f"{LOGS}/split_benchmark/{{benchmark}}.log",
    conda:
        "../../envs/gpu.yaml"
    resources:
        mem_mb=8000,
        runtime=60,
    params:
        configfile=CONFIGFILE,
        caps=f"{RUN.configuration.splits.train}/{RUN.configuration.splits.validation}/{RUN.configuration.splits.test}",
        seed=RUN.configuration.splits.seed,
        prompt=lambda wildcards: prompt_settings(RUN, wildcards.benchmark),
        test_only=lambda wildcards: GRID.is_test_only(wildcards.benchmark),
        allow_overlap=lambda wildcards: wildcards.benchmark
        in RUN.configuration.splits.allow_overlap,
    message:
        "split benchmark {wildcards.benchmark}"
    shell:
        "lm-validity split-benchmark --configfile {params.configfile:q}"
        " --benchmark {wildcards.benchmark:q} > {log:q} 2>&1"
