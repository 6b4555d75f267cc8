"""Which reports the data allow, and their writing: two at a time, each in a process of its own."""

from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

import pandas as pd

from lm_validity.errors import InputError
from lm_validity.site.gather import Gathered
from lm_validity.studies.agreement.score_matrix import PERPLEXITY, STUDY
from lm_validity.tables.sheets import of_study

LEAST_MODELS = 3  # of two models' order there are only two
LEAST_BENCHMARKS = 2
LEAST_CHECKPOINTS = 3  # of one model on one benchmark


@dataclass(frozen=True)
class Job:
    """A report to write: its function's name and arguments."""

    name: str
    output: Path
    arguments: tuple[Path, ...]
    options: Mapping[str, object] = field(default_factory=dict)


def choose_reports(
    found: Gathered,
    sheets: tuple[pd.DataFrame, pd.DataFrame] | None,
    folder: Path,
    resamples: int,
    plan: Path | None = None,
) -> tuple[list[Job], dict[str, str]]:
    """The reports to write under `folder`, and why the others cannot be written, by name.

    Agreement and factors need 3 models and 2 benchmarks in common use, signal 3 checkpoints of a model, items
    their table, bias trials. `plan`: the sheet of what was to be fine-tuned.
    """
    jobs: list[Job] = []
    absent: dict[str, str] = {}
    scores, models, benchmarks = (folder / name for name in ("scores.parquet", "models.tsv", "benchmarks.tsv"))
    if found.scores is None or sheets is None:
        absent |= dict.fromkeys(("agreement", "factors", "signal"), "there are no scores of models.")
    else:
        reason = _too_few(pd.read_parquet(scores), *sheets)
        options = {"resamples": resamples}
        if reason:
            absent |= {"agreement": reason, "factors": reason}
        else:
            planned = options | {"plan": plan}
            more = planned | {"items": found.items, "selections": found.selections}
            jobs.append(Job("agreement", folder / "agreement", (scores, models, benchmarks), more))
            jobs.append(Job("factors", folder / "factors", (scores, models, benchmarks), planned))
        if _most_checkpoints(found.scores) >= LEAST_CHECKPOINTS:
            more = options | {"benchmarks": benchmarks, "items": found.items}
            jobs.append(Job("signal", folder / "signal", (scores, models), more))
        else:
            absent["signal"] = f"no model has scores at {LEAST_CHECKPOINTS} points of its training."
        if found.items is not None:
            more = {"benchmarks": benchmarks, "models": models}
            jobs.append(Job("items", folder / "items", (scores, found.items), more))
    if found.items is None:
        absent["items"] = "there is no table of answers item by item (items.parquet, samples_*.jsonl)."
    if found.trials is not None:
        jobs.append(Job("bias", folder / "bias", (found.trials,)))
    else:
        absent["bias"] = "there is no table of trials (trials.parquet)."
    return jobs, absent


def run_reports(jobs: list[Job], processes: int) -> tuple[set[str], dict[str, str]]:
    """Write the reports; the names of those written, and why others were not, by name."""
    if processes > 1 and len(jobs) > 1:
        with ProcessPoolExecutor(min(processes, len(jobs)), mp_context=get_context("spawn")) as pool:
            problems = list(pool.map(_write, jobs))
    else:
        problems = [_write(job) for job in jobs]
    failed = {job.name: problem for job, problem in zip(jobs, problems, strict=True) if problem is not None}
    return {job.name for job in jobs} - set(failed), failed


def _write(job: Job) -> str | None:
    """None, or what is wrong with the data."""
    try:
        _function(job.name)(*job.arguments, job.output, **job.options)
    except InputError as error:
        return error.problem
    return None


def _function(name: str) -> Callable[..., None]:
    from lm_validity.studies.agreement.factors.report import report_factors
    from lm_validity.studies.agreement.report import report_agreement
    from lm_validity.studies.bias.report import report_bias
    from lm_validity.studies.items.item_page import report_items
    from lm_validity.studies.signal.report import report_signal

    functions: dict[str, Callable[..., None]] = {
        "agreement": report_agreement,
        "factors": report_factors,
        "signal": report_signal,
        "items": report_items,
        "bias": report_bias,
    }
    return functions[name]


def _too_few(scores: pd.DataFrame, models: pd.DataFrame, benchmarks: pd.DataFrame) -> str | None:
    """Why models cannot be compared, if they cannot."""
    usable = benchmarks[of_study(benchmarks, STUDY) & (benchmarks["output_type"] != PERPLEXITY)]
    out = models.loc[~of_study(models, STUDY), "model"]
    known = scores[scores["benchmark"].isin(usable["benchmark"]) & ~scores["model"].isin(out)]
    number_of_models, number = known["model"].nunique(), known["benchmark"].nunique()
    if number_of_models < LEAST_MODELS or number < LEAST_BENCHMARKS:
        return (
            f"a comparison needs {LEAST_MODELS} models and {LEAST_BENCHMARKS} benchmarks, "
            f"there are {number_of_models} and {number}."
        )
    return None


def _most_checkpoints(scores: pd.DataFrame) -> int:
    direct = scores[scores["protocol"] == "direct"]
    return int(direct.groupby(["model", "benchmark"])["checkpoint"].nunique().max()) if len(direct) else 0
