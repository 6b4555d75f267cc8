"""What the configuration and the sheets say that can change a benchmark's score, whatever rule computes it.

Batch sizes and devices are not in it. Standard library and pydantic only: the Snakefile asks at parse time.
"""

from typing import Any

from lm_validity.config.load import Run
from lm_validity.config.sections import DocumentBos

CORRELATIONS = ("pearson", "spearman", "kendall")


def has_item_values(metric: str) -> bool:
    """Whether a document alone can have a value of the metric (lm-eval's key): not where it is a correlation."""
    return not any(name in metric.lower() for name in CORRELATIONS)


def scoring_settings(run: Run, model: str, benchmark: str, prompt: str) -> dict[str, Any]:
    """Settings that enter the recipe of every cell that scores documents of a benchmark."""
    evaluation, row = run.configuration.evaluation, run.benchmarks[benchmark]
    settings = {
        "metric": row.metric,  # each item's own value is that of this metric
        "prompt": prompt,
        "dtype": run.models[model].dtype,
        "evaluation_max_length": evaluation.max_length,
    }
    if not has_item_values(row.metric):
        settings["item_values"] = "none"  # before, 0 for every document or a crash
    if evaluation.max_length:
        settings["limited_to"] = "the model's own length"  # before, past it: other cells
    if prompt == "chat":
        settings["system_instruction"] = evaluation.system_instruction
        settings["chat_answer_start"] = evaluation.chat_answer_start
    settings |= prompt_settings(run, benchmark)
    if row.output_type == "generate_until":
        settings["max_generated_tokens"] = evaluation.max_generated_tokens
        settings["answers_end"] = "each by itself"  # before, with the last of their batch: other cells
    if row.output_type == "loglikelihood_rolling":
        settings["document_bos"] = document_bos(run, model)
    return settings


def prompt_settings(run: Run, benchmark: str) -> dict[str, Any]:
    """What the sheet says about a benchmark's requests, where it is not the default."""
    row = run.benchmarks[benchmark]
    settings = {"num_fewshot": row.num_fewshot, "mutual_information": row.mutual_information}
    return {key: value for key, value in settings.items() if value}


def document_bos(run: Run, model: str) -> DocumentBos:
    """How a model's rolling windows begin: the models sheet's word, else the configuration's."""
    return run.models[model].document_bos or run.configuration.evaluation.document_bos
