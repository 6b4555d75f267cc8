"""Login node only: models and data sets are fetched, pinned and checked before any job waits in a queue.

REQUIRED INPUTS: none for a hub model or a shipped task; the folder another rule makes for the miniature world.
OUTPUTS: results/<run>/prefetch/{models,benchmarks}/<id>.json
"""


rule prefetch_model:
    """Fetch a model at a pinned revision (safetensors only), or take a local folder; record its digest."""
    input:
        model_source,
    output:
        f"{RESULTS}/prefetch/models/{{model}}.json",
    log:
        f"{LOGS}/prefetch_model/{{model}}.log",
    localrule: True
    conda:
        "../../envs/gpu.yaml"
    params:
        configfile=CONFIGFILE,
        path=lambda wildcards: RUN.models[wildcards.model].path,
        revision=lambda wildcards: RUN.models[wildcards.model].revision or "",
        checkpoints=checkpoints_of,
    message:
        "prefetch model {wildcards.model}"
    shell:
        "lm-validity prefetch-model --configfile {params.configfile:q} --model {wildcards.model:q} > {log:q} 2>&1"


rule prefetch_benchmark:
    """Find a benchmark's lm-eval task, fetch its data set, and prove that it loads offline."""
    input:
        benchmark_source,
    output:
        f"{RESULTS}/prefetch/benchmarks/{{benchmark}}.json",
    log:
        f"{LOGS}/prefetch_benchmark/{{benchmark}}.log",
    localrule: True
    conda:
        "../../envs/gpu.yaml"
    params:
        configfile=CONFIGFILE,
        task=lambda wildcards: RUN.benchmarks[wildcards.benchmark].task,
        include_path=lambda wildcards: RUN.benchmarks[wildcards.benchmark].include_path
        or "",
        metric=lambda wildcards: RUN.benchmarks[wildcards.benchmark].metric,
        prompt=lambda wildcards: prompt_settings(RUN, wildcards.benchmark),
        text_column=lambda wildcards: RUN.benchmarks[wildcards.benchmark].text_column,
    message:
        "prefetch benchmark {wildcards.benchmark}"
    shell:
        "lm-validity prefetch-benchmark --configfile {params.configfile:q}"
        " --benchmark {wildcards.benchmark:q} > {log:q} 2>&1"


rule prefetch:
    """Everything that needs the network, so that compute nodes never do."""
    input:
        expand(f"{RESULTS}/prefetch/models/{{model}}.json", model=GRID.used_models),
        expand(
            f"{RESULTS}/prefetch/benchmarks/{{benchmark}}.json",
            benchmark=GRID.used_benchmarks,
        ),
        expand(
            f"{RESULTS}/prefetch/language_models/{{language_model}}.json",
            language_model=RUN.language_models,
        ),
        expand(f"{RESULTS}/prefetch/tasks/{{task}}.json", task=RUN.tasks),
    localrule: True
    message:
        f"done: {PLACE}/prefetch"
