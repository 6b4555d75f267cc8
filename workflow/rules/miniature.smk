"""The miniature world: facts, benchmarks and corpora, and tiny models trained from scratch, one job per model.

REQUIRED INPUTS: the pool sheet of the configuration's section `miniature`
OUTPUTS: results/<run>/miniature/{world.json,tasks/,models/<model>/}, in the formats of the hub and of lm-eval
"""

MINIATURE = f"{RESULTS}/miniature"


rule make_world:
    """Facts, benchmarks as lm-eval tasks over JSON lines, perplexity corpora, tokenizers."""
    output:
        f"{MINIATURE}/world.json",
        [
            f"{row.include_path}/{row.task}.yaml"
            for row in RUN.benchmarks.values()
            if row.include_path and row.include_path.startswith(MINIATURE)
        ],
        [row.path for row in RUN.tasks.values() if row.path.startswith(MINIATURE)],
    log:
        f"{LOGS}/make_world.log",
    localrule: True
    conda:
        "../../envs/gpu.yaml"
    params:
        configfile=CONFIGFILE,
        settings=RUN.configuration.miniature.model_dump_json(exclude={"pool"}),
        folder=subpath(output[0], parent=True),
    message:
        "make the miniature world"
    shell:
        "lm-validity miniature world --configfile {params.configfile:q} --output {params.folder:q} > {log:q} 2>&1"


rule pretrain_miniature:
    """Train one tiny model from scratch, or a tuned one from its parent; budgets are steps, not seconds."""
    input:
        f"{MINIATURE}/world.json",
        tuned_from,
    output:
        f"{MINIATURE}/models/{{model}}/config.json",
        # its bytes tell Snakemake that a model is another one
        f"{MINIATURE}/models/{{model}}/model.safetensors",
    log:
        f"{LOGS}/pretrain_miniature/{{model}}.log",
    conda:
        "../../envs/gpu.yaml"
    resources:
        mem_mb=2000,
        runtime=15,
    params:
        configfile=CONFIGFILE,
        recipe_version=PRETRAINING_VERSION,
        settings=RUN.configuration.miniature.model_dump_json(exclude={"pool"}),
        row=lambda wildcards: POOL[wildcards.model].model_dump_json(exclude={"studies"}),
        world=subpath(input[0], parent=True),
        folder=subpath(output[0], parent=True),
    message:
        "pretrain {wildcards.model}"
    shell:
        "lm-validity miniature pretrain {wildcards.model:q} --configfile {params.configfile:q}"
        " --world {params.world:q} --output {params.folder:q} > {log:q} 2>&1"
