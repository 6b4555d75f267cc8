"""Shared by the bias study's rules: small functions from wildcards to jobs, files and resources."""

from lm_validity.config.bias_sheets import SOURCE_COLUMNS


def trial_job(wildcards):
    """The job of a language model's batch of trials."""
    try:
        return GRID.job("pretrain_on_test", wildcards.language_model, wildcards.batch)
    except KeyError:
        raise WorkflowError(
            f"pretrain_on_test: no batch {wildcards.batch!r} of {wildcards.language_model!r} in this run."
        )


def trial_size_class(wildcards):
    row = RUN.language_models[wildcards.language_model]
    return RUN.configuration.size_classes[row.size_class]


def trial_minutes(wildcards, attempt):
    """Minutes of a batch of trials: loading, and each trial."""
    return job_minutes(RUN, trial_job(wildcards), attempt)
