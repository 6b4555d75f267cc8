"""Train before test: the same LoRA fine-tuning for every model, selection on validation, one look at test.

REQUIRED INPUTS: prefetch records; results/<run>/splits/<benchmark>/{train,validation}.json (test only at the end)
OUTPUTS: results/<run>/cells/{finetune_adapter,select_adapter,evaluate_adapter}/<model>/<batch>.json
"""


rule finetune_adapter:
    """LoRA on a benchmark's training set, validation each epoch, the best epoch kept; never sees the test split."""
    input:
        inputs_of("finetune_adapter"),
    output:
        f"{RESULTS}/cells/finetune_adapter/{{model}}/{{batch}}.json",
    log:
        f"{LOGS}/finetune_adapter/{{model}}/{{batch}}.log",
    conda:
        "../../envs/gpu.yaml"
    threads: resource_of("finetune_adapter", "cpus")
    resources:
        gpu=resource_of("finetune_adapter", "gpus"),
        nodes=1,
        mem_mb=resource_of("finetune_adapter", "mem_mb"),
        runtime=resource_of("finetune_adapter", "minutes"),
    params:
        configfile=CONFIGFILE,
        recipe_version=RULES["finetune_adapter"].recipe_version,
        settings=settings_of("finetune_adapter"),
    message:
        "fine-tune {wildcards.model}: {wildcards.batch}"
    shell:
        "lm-validity finetune-adapter --configfile {params.configfile:q}"
        " --model {wildcards.model:q} --batch {wildcards.batch:q} > {log:q} 2>&1"


rule select_adapter:
    """The best learning rate, prompt and epoch; its inputs are validation results only."""
    input:
        inputs_of("select_adapter"),
    output:
        f"{RESULTS}/cells/select_adapter/{{model}}/{{batch}}.json",
    log:
        f"{LOGS}/select_adapter/{{model}}/{{batch}}.log",
    localrule: True
    conda:
        "../../envs/report.yaml"
    params:
        configfile=CONFIGFILE,
        settings=settings_of("select_adapter"),
    message:
        "select adapter {wildcards.model}: {wildcards.batch}"
    shell:
        "lm-validity select-adapter --configfile {params.configfile:q}"
        " --model {wildcards.model:q} --batch {wildcards.batch:q} > {log:q} 2>&1"


rule evaluate_adapter:
    """Score the selected adapter on the test split, once."""
    input:
        inputs_of("evaluate_adapter"),
    output:
        f"{RESULTS}/cells/evaluate_adapter/{{model}}/{{batch}}.json",
    log:
        f"{LOGS}/evaluate_adapter/{{model}}/{{batch}}.log",
    conda:
        "../../envs/gpu.yaml"
    threads: resource_of("evaluate_adapter", "cpus")
    resources:
        gpu=resource_of("evaluate_adapter", "gpus"),
        nodes=1,
        mem_mb=resource_of("evaluate_adapter", "mem_mb"),
        runtime=resource_of("evaluate_adapter", "minutes"),
    params:
        configfile=CONFIGFILE,
        recipe_version=RULES["evaluate_adapter"].recipe_version,
        settings=settings_of("evaluate_adapter"),
    message:
        "evaluate adapter {wildcards.model}: {wildcards.batch}"
    shell:
        "lm-validity evaluate-adapter --configfile {params.configfile:q}"
        " --model {wildcards.model:q} --batch {wildcards.batch:q} > {log:q} 2>&1"
