"""Answers by vLLM: which cells, with which checkpoint and adapter, from which prompts. vLLM itself needs a GPU and is
not here: a module with the interface of lm-eval's model class for it writes with transformers what vLLM would write."""

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import pytest
import torch
import transformers
from lm_eval.models.huggingface import HFLM
from peft import PeftModel
from toy_run import run_all, sidecars, start_run
from toy_world import toy_rows

from lm_validity.cells import scoring, worker
from lm_validity.cells.models.provenance import errors_only
from lm_validity.config.load import build_run, key_values
from lm_validity.errors import InputError
from lm_validity.monitor.check import vllm_problems

RULES = ("evaluate_model", "finetune_adapter", "select_adapter", "evaluate_adapter")
GENERATION = {
    "benchmark": "toy_generation",
    "columns": {"output_type": "generate_until", "metric": "exact_match,stripped"},
}


def one_answer(split: str) -> list[dict]:
    """Rows whose answer is always the same word, which a few steps teach."""
    return [row | {"aliases": ["blue"]} for row in toy_rows(split)[:10]]


class FakeVLLM:
    """The parts of lm_eval.models.vllm_causallms.VLLM that are used, with its names and defaults."""

    made: ClassVar[list["FakeVLLM"]] = []

    def __init__(
        self,
        pretrained: str,
        dtype: str = "auto",
        tokenizer: str | None = None,
        add_bos_token: bool | None = None,
        tensor_parallel_size: int = 1,
        max_gen_toks: int = 256,
        batch_size: str | int = "auto",
        max_length: int | None = None,
        max_lora_rank: int = 16,
        **model_args,
    ):
        self.pretrained, self.max_gen_toks, self.model_args = pretrained, max_gen_toks, model_args
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer)
        self.lora_request = None
        self.rank = max_lora_rank
        self.written: list[tuple[str | None, int]] = []
        FakeVLLM.made.append(self)

    def tok_encode(self, string, add_special_tokens=None, **_):
        return self.tokenizer(string).input_ids

    def generate_until(self, requests, disable_tqdm: bool = False) -> list[str]:
        model = transformers.AutoModelForCausalLM.from_pretrained(self.pretrained)
        adapter = getattr(self.lora_request, "lora_path", None)
        self.written.append((adapter, len(requests)))
        if adapter:
            assert self.model_args["enable_lora"]
            model = PeftModel.from_pretrained(model, adapter).eval()
        with errors_only("lm_eval.models.huggingface"):
            lm = HFLM(pretrained=model, tokenizer=self.tokenizer, batch_size=1)
        return lm.generate_until(requests, disable_tqdm=True)


@pytest.fixture
def vllm(monkeypatch):
    """A machine with a GPU and vLLM, as far as this program can see."""
    classes, lora = ModuleType(scoring.MODULE), ModuleType("vllm.lora.request")
    classes.VLLM = FakeVLLM
    lora.LoRARequest = lambda name, number, path: SimpleNamespace(lora_name=name, lora_int_id=number, lora_path=path)
    monkeypatch.setitem(sys.modules, scoring.MODULE, classes)
    for name in ("vllm", "vllm.lora"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "vllm.lora.request", lora)
    monkeypatch.setattr(scoring.torch.cuda, "mem_get_info", lambda gpu: (40, 80))
    monkeypatch.setattr(worker, "resolve_device", lambda *_: "cpu")
    monkeypatch.setattr(FakeVLLM, "made", [])
    return FakeVLLM


def cells(workspace) -> dict[str, dict]:
    found = {}
    for folder in workspace.store.folders():
        record = workspace.store.read(folder)
        found[folder.split("/")[-1].partition("--")[0]] = record
    return found


def test_vllm_writes_on_test_and_nowhere_else(tmp_path, monkeypatch, vllm):
    monkeypatch.chdir(tmp_path)
    settings, one_rate = {"device": "auto", "generation_backend": "vllm"}, {"learning_rates": ("2e-2",)}
    workspace = start_run(tmp_path, rows=one_answer, evaluation=settings, finetuning=one_rate, **GENERATION)
    run_all(workspace, *RULES)
    direct, prepared = FakeVLLM.made
    assert direct.written == [(None, 10)] and "enable_lora" not in direct.model_args
    (adapter, count) = prepared.written[0]
    assert len(prepared.written) == 1 and count == 10 and prepared.rank == 8
    assert adapter.endswith("/adapter") and prepared.model_args["gpu_memory_utilization"] == pytest.approx(0.45)
    said = {name: sidecar.get("generation_backend") for name, sidecar in sidecars(workspace.store).items()}
    assert {name for name, backend in said.items() if backend} == {
        "toy_generation.final.plain.test",
        "toy_generation.seed0",
    }
    assert all(sidecars(workspace.store)[name]["counters"]["generated_tokens"] for name in said)
    of_vllm = cells(workspace)
    monkeypatch.chdir(_made(tmp_path / "other"))
    plain = start_run(tmp_path / "other", rows=one_answer, finetuning=one_rate, **GENERATION)
    run_all(plain, *RULES)
    of_transformers = cells(plain)
    for name, record in of_transformers.items():
        assert record["result"] == of_vllm[name]["result"], "the same prompts, checkpoint and adapter"
        backend = of_vllm[name]["recipe"].get("generation_backend")
        assert backend == said[name] and "generation_backend" not in record["recipe"]


def test_other_tokens_than_transformers_are_refused(tmp_path, monkeypatch, vllm):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(vllm, "tok_encode", lambda self, strings, **_: [[5] for _ in strings])
    settings = {"device": "auto", "generation_backend": "vllm"}
    workspace = start_run(tmp_path, rows=one_answer, evaluation=settings, **GENERATION)
    run_all(workspace, "evaluate_model")
    entries = {
        cell.split: workspace.manifests.entry(cell) for job in workspace.grid.jobs.values() for cell in job.cells
    }
    assert entries["validation"].status == "done" and entries["test"].status == "failed"
    assert "tokens of a prompt differ" in entries["test"].error and "transformers" in entries["test"].hint


@pytest.mark.parametrize("fault", ["no vllm", "model"])
def test_what_is_missing_is_a_failed_cell_with_a_hint(tmp_path, monkeypatch, vllm, fault):
    monkeypatch.chdir(tmp_path)
    if fault == "no vllm":
        monkeypatch.setitem(sys.modules, scoring.MODULE, None)
    else:

        def refuse(self, **_):
            raise ValueError("Model architectures are not supported\nfor now")

        monkeypatch.setattr(vllm, "__init__", refuse)
    settings = {"device": "auto", "generation_backend": "vllm"}
    workspace = start_run(tmp_path, rows=one_answer, evaluation=settings, **GENERATION)
    run_all(workspace, "evaluate_model")
    (cell,) = [cell for job in workspace.grid.jobs.values() for cell in job.cells if cell.split == "test"]
    entry = workspace.manifests.entry(cell)
    expected = {"no vllm": "cannot be imported", "model": "not supported)"}[fault]
    assert entry.status == "failed" and expected in entry.error and "transformers" in entry.hint


def test_settings_that_cannot_be_are_named_before_a_job_starts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="vllm needs a GPU, and device is cpu"):
        start_run(tmp_path, evaluation={"device": "cpu", "generation_backend": "vllm"}, **GENERATION)
    with pytest.raises(InputError, match="first GPU, and device is cuda:1"):
        start_run(tmp_path, evaluation={"device": "cuda:1", "generation_backend": "vllm"}, **GENERATION)
    settings = {"device": "auto", "generation_backend": "vllm"}
    workspace = start_run(tmp_path, evaluation=settings, **GENERATION)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (problem,) = vllm_problems(workspace.run)
    assert "not installed" in str(problem) and "pip install 'lm-validity[cells,vllm]'" in str(problem)
    values = key_values(workspace.run.configuration)
    with pytest.raises(InputError, match="no GPU, and vLLM is to write the answers of 'toy_generation'"):
        build_run(values | {"size_classes": {"small": {"gpu": 0}}}, "f.yaml")
    assert vllm_problems(build_run(values | {"evaluation": {}}, "f.yaml")) == []
    choice = start_run(tmp_path / "choice", evaluation=settings)
    assert vllm_problems(choice.run) == [], "nothing is generated"
    jobs = workspace.grid.jobs.values()
    said = {job.rule: "generation_backend=vllm" in workspace.grid.settings(job) for job in jobs}
    assert said == {rule: rule in ("evaluate_model", "evaluate_adapter") for rule in RULES}


def _made(folder):
    folder.mkdir()
    return folder


def test_out_of_memory_is_the_jobs_and_is_tried_again(tmp_path, monkeypatch, vllm):
    """Not a failed cell: the job ends, and its next attempt gets more."""
    monkeypatch.chdir(tmp_path)

    def run_out(self, requests, disable_tqdm=False):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(vllm, "generate_until", run_out)
    settings = {"device": "auto", "generation_backend": "vllm"}
    workspace = start_run(tmp_path, rows=one_answer, evaluation=settings, **GENERATION)
    with pytest.raises(torch.OutOfMemoryError):
        run_all(workspace, "evaluate_model")


def test_a_model_that_writes_nothing_needs_no_gpu(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = {"device": "auto", "generation_backend": "vllm"}
    workspace = start_run(tmp_path, evaluation=settings, **GENERATION)
    values = key_values(workspace.run.configuration) | {"size_classes": {"small": {"gpu": 0}}}
    sheet = Path(values["models"])
    head, *rows = sheet.read_text().splitlines()
    of_signal = "\n".join([f"{head}\tstudies", *(f"{row}\tsignal" for row in rows)])
    sheet.write_text(of_signal + "\n")
    benchmarks = Path(values["benchmarks"])
    head, *rows = benchmarks.read_text().splitlines()
    benchmarks.write_text("\n".join([f"{head}\tstudies", *(f"{row}\tagreement" for row in rows)]) + "\n")
    assert build_run(values, "f.yaml").models


def test_sampled_runs_give_vllm_a_temperature_and_seeds(tmp_path, monkeypatch, vllm):
    monkeypatch.chdir(tmp_path)
    asked = []
    write = vllm.generate_until

    def note(self, requests, disable_tqdm=False):
        asked.append([request.args[1] for request in requests])
        return write(
            self,
            [
                replace(request, arguments=(request.args[0], {"until": ["</s>"], "max_gen_toks": 8}))
                for request in requests
            ],
        )

    monkeypatch.setattr(vllm, "generate_until", note)
    sampled = {"temperature": 0.7, "top_p": 0.9, "runs": 2}
    settings = {"device": "auto", "generation_backend": "vllm", "generation": sampled}
    workspace = start_run(tmp_path, rows=one_answer, evaluation=settings, **GENERATION)
    run_all(workspace, "evaluate_model")
    first, second = asked
    assert {(options["temperature"], options["top_p"], options["do_sample"]) for options in first} == {(0.7, 0.9, True)}
    seeds = [{options["seed"] for options in options_of} for options_of in (first, second)]
    assert len(seeds[0]) == 10 and not seeds[0] & seeds[1], "an answer's seed is of its run and its prompt"
