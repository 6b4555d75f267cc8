"""Direct evaluation: zero-shot scores on validation (for selection) and test, at every checkpoint asked for.

REQUIRED INPUTS: prefetch records; results/<run>/splits/<benchmark>/{validation,test}.json
OUTPUTS: results/<run>/cells/evaluate_model/<model>/<batch>.{validation,test}.json; the cells are in the store
"""


rule evaluate_model:
    """Score an untouched model with lm-eval; direct scores, perplexity and early checkpoints alike."""
    input:
        inputs_of("evaluate_model"),
    output:
        validation=f"{RESULTS}/cells/evaluate_model/{{model}}/{{batch}}.validation.json",
        test=f"{RESULTS}/cells/evaluate_model/{{model}}/{{batch}}.test.json",
    log:
        f"{LOGS}/evaluate_model/{{model}}/{{batch}}.log",
    conda:
        "../../envs/gpu.yaml"
    threads: resource_of("evaluate_model", "cpus")
    resources:
        gpu=resource_of("evaluate_model", "gpus"),
        nodes=1,
        mem_mb=resource_of("evaluate_model", "mem_mb"),
        runtime=resource_of("evaluate_model", "minutes"),
    params:
        configfile=CONFIGFILE,
        recipe_version=RULES["evaluate_model"].recipe_version,
        settings=settings_of("evaluate_model"),
    message:
        "evaluate {wildcards.model}: {wildcards.batch}"
    shell:
        "lm-validity evaluate-model --configfile {params.configfile:q}"
        " --model {wildcards.model:q} --batch {wildcards.batch:q} > {log:q} 2>&1"


rule select_prompt:
    """The direct regime's prompt, plain or chat, on validation."""
    input:
        inputs_of("select_prompt"),
    output:
        f"{RESULTS}/cells/select_prompt/{{model}}/{{batch}}.json",
    log:
        f"{LOGS}/select_prompt/{{model}}/{{batch}}.log",
    localrule: True
    conda:
        "../../envs/report.yaml"
    params:
        configfile=CONFIGFILE,
        settings=settings_of("select_prompt"),
    message:
        "select prompt {wildcards.model}: {wildcards.batch}"
    shell:
        "lm-validity select-prompt --configfile {params.configfile:q}"
        " --model {wildcards.model:q} --batch {wildcards.batch:q} > {log:q} 2>&1"
