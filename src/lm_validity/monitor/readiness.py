"""Before a run is submitted: what would make its jobs fail after hours in a queue. Each problem is one line."""

import importlib.metadata
import importlib.util
import os
import tempfile
from pathlib import Path

from lm_validity.config.load import Run
from lm_validity.config.sheets import Model
from lm_validity.errors import INSTALL_CUDA, INSTALL_NF4, Problem
from lm_validity.files import read_json_or
from lm_validity.monitor.scheduler import controller_since
from lm_validity.monitor.workload import Workload
from lm_validity.run.architectures import why_not_causal
from lm_validity.run.grid import Grid
from lm_validity.run.participants import kind_and_id, kind_label, size_class
from lm_validity.run.rehearsals import config_of, memory_problem, read_rehearsal, rehearsed_models
from lm_validity.run.rules import rule_of

SMALL_FILE = 2**20  # bytes; a disk that is full may still take an empty file


def readiness_problems(run: Run) -> list[Problem]:
    """Locks, a full disk, models that are not causal, chat templates, GPU memory, a torch without CUDA, no vLLM or
    bitsandbytes. Asks no network."""
    problems = [*lock_problems(run), *disk_problems(run)]
    if run.configuration.replay:
        return problems
    packages = [*torch_problems(run), *vllm_problems(run), *quantization_problems(run)]
    models = [*architecture_problems(run), *template_problems(run), *gpu_memory_problems(run)]
    return [*problems, *models, *packages]


def lock_problems(run: Run) -> list[Problem]:
    """A lock of Snakemake whose Snakemake is gone."""
    locks = list(Path(".snakemake/locks").glob("*"))
    if not locks or controller_since(run.results) is not None:
        return []
    return [
        Problem(
            ".snakemake/locks",
            "locked by a Snakemake that no longer runs",
            "look for jobs it left (below), then `snakemake --unlock` with the same --configfile",
        )
    ]


def disk_problems(run: Run) -> list[Problem]:
    """A folder of results in which nothing can be written: a full disk, a spent quota, no permission."""
    folder = next(one for one in (run.results, *run.results.parents) if one.is_dir())
    try:
        with tempfile.TemporaryFile(dir=folder) as handle:
            handle.write(bytes(SMALL_FILE))
            handle.flush()
            os.fsync(handle.fileno())
    except OSError as error:
        action = "make room there, or name another folder under `results` in the configuration"
        return [Problem(str(folder), f"no file can be written ({error.strerror})", action)]
    return []


def architecture_problems(run: Run) -> list[Problem]:
    """Models of the agreement and signal studies whose config.json is here and is not that of a causal one."""
    found = []
    for row in rehearsed_models(run):
        config = config_of(run, row)
        wrong = why_not_causal(config[0]) if config is not None else None
        if wrong is not None:
            found.append(Problem(f"model {row.model}", *wrong))
    return found


def template_problems(run: Run) -> list[Problem]:
    """Instruction-tuned models that are to be asked in chat and have no template."""
    found = []
    for model in Grid(run).used_models:
        row = run.models[model]
        if not row.instruction_tuned or "chat" not in run.configuration.evaluation.instruction_tuned_prompts:
            continue
        record = read_json_or(run.results / "prefetch" / "models" / f"{model}.json", None)
        if record is not None and not record.get("chat_template"):
            what = "its tokenizer has no chat template"
            action = "add chat_template.jinja to its folder, or set instruction_tuned to 0 in the models sheet"
            found.append(Problem(f"model {model}", what, action))
    return found


def gpu_memory_problems(run: Run) -> list[Problem]:
    """Models that do not fit the GPUs of their size class, as rehearsed or else by a formula; of the bias study, which
    uses one, a single GPU."""
    if run.configuration.evaluation.device == "cpu":
        return []
    workload, found = Workload(run), []
    several = "choose a larger size_class, finetuning.gradient_checkpointing, or more size_classes.gpu"
    single = "choose a size_class with larger GPUs: the bias study uses one of them"
    for row in Grid(run).used_rows:
        if isinstance(row, Model) and (rehearsed := read_rehearsal(run, row)):
            found += memory_problem(run, row, rehearsed)
            continue
        one, needed, (kind, name) = size_class(run, row), workload.gpu_gb(row), kind_and_id(row)
        gpus, action = (one.gpu, several) if kind == "models" else (min(one.gpu, 1), single)
        if needed > gpus * one.gpu_memory_gb:
            what = f"needs about {needed:.0f} GB of GPU memory, size class {row.size_class!r} has {one.gpu} x "
            found.append(Problem(f"{kind_label(kind)} {name}", f"{what}{one.gpu_memory_gb:g} GB", action))
    return found


def torch_problems(run: Run) -> list[Problem]:
    """Jobs that need a GPU and a torch that cannot use one: they would end as soon as they start."""
    device = run.configuration.evaluation.device
    if device == "cpu" or (device == "auto" and not any(size_class(run, row).gpu for row in Grid(run).used_rows)):
        return []
    version = importlib.metadata.version("torch")
    if not version.endswith("+cpu"):
        return []
    return [Problem("torch", f"{version} is the build without CUDA, and jobs need GPUs", INSTALL_CUDA)]


def vllm_problems(run: Run) -> list[Problem]:
    """Answers that vLLM is to write, where it is not installed."""
    if importlib.util.find_spec("vllm") is not None:
        return []
    if not any(rule_of(cell).writes_with_vllm(run, cell) for cell in Grid(run).cells()):
        return []
    action = "pip install 'lm-validity[cells,vllm]', or set evaluation.generation_backend to transformers"
    return [Problem("vllm", "is not installed, and is to write answers", action)]


def quantization_problems(run: Run) -> list[Problem]:
    """4-bit weights that the bias study asks for, where bitsandbytes is not installed."""
    bias = run.configuration.bias
    if bias is None or not run.language_models:
        return []
    prompted = any(one.method == "zero_shot" for one in bias.experiments.values())
    if not prompted or bias.zero_shot.quantization != "nf4" or importlib.util.find_spec("bitsandbytes") is not None:
        return []
    return [Problem("bitsandbytes", "is not installed, and bias.zero_shot.quantization is nf4", INSTALL_NF4)]
