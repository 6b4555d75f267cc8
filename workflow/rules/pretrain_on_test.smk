"""The bias study: does pretraining on a task's unlabelled test texts inflate its score?

REQUIRED INPUTS: the sheets of the configuration's section `bias`
OUTPUTS: results/<run>/prefetch/{language_models,tasks}/<id>.json; cells/pretrain_on_test/<language_model>/<batch>.json;
tables/{trials,probabilities}.parquet; reports/bias/results.parquet
"""


wildcard_constraints:
    language_model="[^/]+",
    task="[^/]+",


rule prefetch_language_model:
    """Fetch a language model at a pinned revision (safetensors only), or take a local folder; record its digest."""
    input:
        lambda wildcards: made_files(
            RUN.language_models[wildcards.language_model].path
        )
        + note_of_change("language_models", wildcards.language_model),
    output:
        f"{RESULTS}/prefetch/language_models/{{language_model}}.json",
    log:
        f"{LOGS}/prefetch_language_model/{{language_model}}.log",
    localrule: True
    conda:
        "../../envs/gpu.yaml"
    params:
        configfile=CONFIGFILE,
        path=lambda wildcards: RUN.language_models[wildcards.language_model].path,
        revision=lambda wildcards: RUN.language_models[
            wildcards.language_model
        ].revision
        or "",
    message:
        "prefetch language model {wildcards.language_model}"
    shell:
        "lm-validity prefetch-language-model --configfile {params.configfile:q}"
        " --language-model {wildcards.language_model:q} > {log:q} 2>&1"


rule prefetch_task:
    """Read a task's texts and labels, check them against the sheet, and keep them where jobs need no network."""
    input:
        task_source,
    output:
        f"{RESULTS}/prefetch/tasks/{{task}}.json",
        f"{RESULTS}/prefetch/tasks/{{task}}.parquet",
    log:
        f"{LOGS}/prefetch_task/{{task}}.log",
    localrule: True
    conda:
        "../../envs/gpu.yaml"
    params:
        configfile=CONFIGFILE,
        row=lambda wildcards: RUN.tasks[wildcards.task].model_dump_json(
            include=SOURCE_COLUMNS
        ),
    message:
        "prefetch task {wildcards.task}"
    shell:
        "lm-validity prefetch-task --configfile {params.configfile:q} --task {wildcards.task:q} > {log:q} 2>&1"


rule pretrain_on_test:
    """Trials of one language model: no pretraining, pretraining on other texts of the task, and on the test texts."""
    input:
        inputs_of("pretrain_on_test"),
    output:
        f"{RESULTS}/cells/pretrain_on_test/{{language_model}}/{{batch}}.json",
    log:
        f"{LOGS}/pretrain_on_test/{{language_model}}/{{batch}}.log",
    conda:
        "../../envs/gpu.yaml"
    threads: resource_of("pretrain_on_test", "cpus")
    resources:
        gpu=resource_of("pretrain_on_test", "gpus"),
        nodes=1,
        mem_mb=resource_of("pretrain_on_test", "mem_mb"),
        runtime=resource_of("pretrain_on_test", "minutes"),
    params:
        configfile=CONFIGFILE,
        recipe_version=RULES["pretrain_on_test"].recipe_version,
        settings=settings_of("pretrain_on_test"),
    message:
        "pretrain on test {wildcards.language_model}: {wildcards.batch}"
    shell:
        "lm-validity pretrain-on-test --configfile {params.configfile:q}"
        " --language-model {wildcards.language_model:q} --batch {wildcards.batch:q} > {log:q} 2>&1"


rule merge_trials:
    """Correct answers of every trial and arm, and the class probabilities behind them."""
    input:
        f"{RESULTS}/cells/check.json",
    output:
        trials=f"{RESULTS}/tables/trials.parquet",
        probabilities=f"{RESULTS}/tables/probabilities.parquet",
    log:
        f"{LOGS}/merge_trials.log",
    localrule: True
    conda:
        "../../envs/report.yaml"
    params:
        configfile=CONFIGFILE,
    message:
        "merge trials"
    shell:
        "lm-validity merge --configfile {params.configfile:q} --only trials > {log:q} 2>&1"


# the sheet of later batches, once there is one
BIAS_PLAN = (
    RUN.configuration.bias.plan if RUN.bias_plan and RUN.bias_plan.rows else None
)


rule report_bias:
    """The answer with its uncertainty, from the trials alone."""
    input:
        trials=f"{RESULTS}/tables/trials.parquet",
    output:
        f"{RESULTS}/reports/bias/results.parquet",
        figures=report(
            directory(f"{RESULTS}/reports/bias/figures"),
            patterns=["{figure}.svg"],
            caption="../report/figure.rst",
            category="Bias",
            labels={"figure": "{figure}"},
        ),
    log:
        f"{LOGS}/report_bias.log",
    conda:
        "../../envs/report.yaml"
    resources:
        mem_mb=4000,
        runtime=60,
    params:
        folder=subpath(output[0], parent=True),
        stop_at=RUN.bias_plan.half_width if RUN.bias_plan else "",
        plan=digest_of(BIAS_PLAN),
        configfile=CONFIGFILE,
    message:
        "report bias"
    shell:
        "lm-validity report bias --trials {input.trials:q} --configfile {params.configfile:q} --output {params.folder:q} > {log:q} 2>&1"


rule bias:
    """The bias study: its cells, tables and report."""
    input:
        checked_cells,
        required_reports("bias"),
        f"{RESULTS}/report/index.html",
    localrule: True
    message:
        f"done: {PLACE}/report/index.html"
