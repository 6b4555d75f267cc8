"""A quarter of an hour with a GPU: what of this project only a GPU can tell, the most valuable first.

    bash benchmarks/gpu_quarter_hour.sh                     also where the package is not installed, see there
    python benchmarks/gpu_quarter_hour.py --output FOLDER [--device cuda] [--shapes full] [STAGE ...]

Each stage is a process of its own, ended after its seconds (`STAGES`, 8 minutes in all), and adds a line of JSON to
FOLDER/lines.jsonl for each thing it found, as it goes: a kill loses nothing. What fails is a line too, and the next
part begins. `--device cpu --shapes tiny` runs every line of this without a GPU. Weights are random.
"""

import argparse
import contextlib
import functools
import gc
import importlib.util
import itertools
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Place:
    """Where and at what size the stages run."""

    device: str
    tiny: bool

    def size(self, full, tiny):
        """One of two sizes."""
        return tiny if self.tiny else full

    def wait(self) -> None:
        """Until the device has done what it was given."""
        import torch

        if self.device != "cpu":
            torch.cuda.synchronize()

    def seconds(self, work: Callable[[], object]) -> float:
        """On the clock, to the device's end."""
        self.wait()
        start = time.perf_counter()
        work()
        self.wait()
        return time.perf_counter() - start


Line = dict[str, object]
Part = tuple[str, Callable[[], Iterator[Line]]]  # what it is about, and what it finds


# ---- check: the numbers ---------------------------------------------------------------------------------------------


def check(place: Place) -> Iterator[Part]:
    """The numbers of a small model beside the CPU's."""
    from gpu_check import each_check

    yield "numbers", lambda: (vars(finding) for finding in each_check(place.device))


# ---- workflow: config/test.yaml from beginning to end ---------------------------------------------------------------

# largest difference of a number: an item or two of these small benchmarks, where rounding decides between two choices;
# of a step's loss in nats. Everything else is counted, and not judged: equal scores are told apart by rounding
MOST = {"value": 0.05, "validation_value": 0.05, "loss": 0.02}
TABLES = ("scores", "selections", "losses", "settings")


def workflow(place: Place) -> Iterator[Part]:
    """The run of config/test.yaml with `evaluation.device` as asked, then on the CPU."""
    missing = [name for name in ("snakemake", "yaml", "pandas") if importlib.util.find_spec(name) is None]
    if missing:
        yield (
            "config/test.yaml",
            lambda: iter([{"outcome": "skipped", "detail": f"not installed: {', '.join(missing)}"}]),
        )
        return
    yield "config/test.yaml", functools.partial(_both_runs, place)


def _both_runs(place: Place) -> Iterator[Line]:
    """At the same time, each in a folder of its own."""
    import pandas as pd

    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor() as pool:
        # the CPU's reports are nobody's question
        # the rule of this table writes the others beside it
        wanted = {place.device: [], "cpu only": ["results/test/tables/scores.parquet"]}
        runs = {side: pool.submit(_run_workflow, Path(name) / side, side, targets) for side, targets in wanted.items()}
        for side, run in runs.items():
            yield {"run on": side, "seconds": run.result()}
        for table in TABLES:
            here, there = (pd.read_parquet(Path(name) / side / f"results/test/tables/{table}.parquet") for side in runs)
            yield {"table": table, **compared(here, there)}


def _run_workflow(folder: Path, side: str, targets: list[str]) -> float:
    """Every rule, or those before the targets, by a command `lm-validity` that is this Python's; its seconds."""
    import yaml

    for part in ("src", "workflow", "config", "profiles", "envs"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "Snakefile", folder)
    configuration = yaml.safe_load((ROOT / "config/test.yaml").read_text(encoding="utf-8"))
    configuration["evaluation"]["device"] = side.removesuffix(" only")
    (folder / "device.yaml").write_text(yaml.safe_dump(configuration), encoding="utf-8")
    program = folder / "bin" / "lm-validity"
    program.parent.mkdir()
    program.write_text(
        f"#!/bin/sh\nexec '{sys.executable}' -c 'from lm_validity.cli import main; main()' \"$@\"\n", encoding="utf-8"
    )
    program.chmod(0o755)
    before = os.environ.get("PYTHONPATH")
    environment = {
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(folder / "src"), *([before] if before else [])]),
        "OMP_NUM_THREADS": "1",
    }
    start, half = time.perf_counter(), str(max(1, (os.cpu_count() or 2) // 2))
    command = [sys.executable, "-m", "snakemake", "--profile", "profiles/local", "--configfile", "device.yaml"]
    done = subprocess.run(
        [*command, "--cores", half, "--", *targets],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"snakemake: exit {done.returncode}\n{(done.stdout + done.stderr)[-1500:]}")
    return time.perf_counter() - start


def compared(here: "pd.DataFrame", there: "pd.DataFrame") -> Line:
    """Largest difference in each column of numbers, judged by MOST; rows whose entry in another column is not alike."""
    if list(here) != list(there) or len(here) != len(there):
        return {"outcome": "failed", "detail": f"{len(here)} rows of {list(here)}, {len(there)} of {list(there)}"}
    apart, unlike = {}, {}
    for name in here:
        ours, theirs = here[name], there[name]
        both = ours.notna() & theirs.notna()
        count = int((ours.isna() != theirs.isna()).sum())
        if ours.dtype.kind == "f":
            apart[name] = float((ours - theirs).abs().fillna(0.0).max())
        else:
            count += int((ours[both].astype(str) != theirs[both].astype(str)).sum())
        unlike |= {name: count} if count else {}
    good = all(apart.get(name, 0.0) <= most and name not in unlike for name, most in MOST.items())
    judged = {name: most for name, most in MOST.items() if name in apart}
    return {
        "outcome": "passed" if good else "failed",
        "rows": len(here),
        "largest difference": {name: value for name, value in apart.items() if value or name in judged},
        "at most": judged,
        "rows with other entries": unlike,
    }


# ---- scoring: against HFLM, and against the card --------------------------------------------------------------------


def scoring(place: Place) -> Iterator[Part]:
    """bfloat16; questions few enough that HFLM's batch of 1 does not take the minutes."""
    shapes, count = place.size(("0.5B", "7B"), ("tiny",)), place.size(128, 8)
    for shape in shapes:
        yield shape, functools.partial(_scoring, place, shape, count)


def _scoring(place: Place, shape: str, count: int) -> Iterator[Line]:
    import gpu

    for each in gpu.scorings(shape, "bfloat16", place.device, count):
        speed = product_speed(place)
        sides = each.sides(place.device)
        sides["ours"]()  # untimed: the probe of the ways, and first calls
        each.lm.counters["forward_tokens"] = each.lm.counters["forward_tokens_padded"] = 0
        seconds = place.seconds(sides["ours"])
        weights = sum(parameter.numel() for parameter in each.lm.base.parameters())
        asked = sum(len(text.split()) for request in each.requests for text in request.args)
        computed = each.lm.counters["forward_tokens_padded"]
        yield {
            "scoring": each.name,
            "tokens asked a second": asked / seconds,
            "tokens computed a second": computed / seconds,
            "padding": computed / each.lm.counters["forward_tokens"] - 1,
            # of all weights: the output head's count, though it is computed only where a token is scored
            "times longer than its products would take": seconds / (2 * weights * computed / speed),
            "product TFLOP/s": speed / 1e12,
            "ways": each.lm.describe_scorer(),
            **shares(place, sides["ours"], seconds),
        }
        try:
            yield from each.records(place.device, rounds=place.size(2, 1))
        except SystemExit as error:  # scores differ: no ratio, and the next length begins
            yield {"outcome": "failed", "detail": str(error)}


def product_speed(place: Place) -> float:
    """Floating-point operations a second in products of large bfloat16 matrices."""
    import torch

    side, times = place.size((8192, 20), (256, 3))
    a = torch.randn(side, side, device=place.device, dtype=torch.bfloat16)
    a @ a
    return 2 * side**3 * times / place.seconds(lambda: [a @ a for _ in range(times)])


# how kernels and operations of matrix products and of attention are named
PRODUCTS = ("gemm", "cutlass", "cublas", "nvjet", "xmma", "::mm", "::addmm", "::bmm", "::baddbmm", "mkldnn", "_matmul")
ATTENTION = ("flash", "fmha", "attention")


def shares(place: Place, work: Callable[[], object], seconds: float) -> Line:
    """What a piece of work that takes `seconds` waits for. Of the kernels' time, as the profiler saw it: products,
    attention, and the rest, which memory limits. On a GPU also the share of the clock in which no kernel ran, since the
    host had launched none; null on a CPU."""
    import torch

    kinds = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[kinds.CPU, *([kinds.CUDA] if place.device != "cpu" else [])]) as profile:
        work()
        place.wait()
    found = {"matrix products": 0.0, "attention": 0.0, "memory": 0.0}
    launches = 0
    for event in profile.key_averages():
        if place.device == "cpu":
            took = event.self_cpu_time_total
        elif event.device_type == torch.autograd.DeviceType.CUDA and not event.is_user_annotation:
            took = event.self_device_time_total
        else:
            continue
        launches += event.count
        name = event.key.lower()
        alike = "attention" if any(part in name for part in ATTENTION) else "memory"
        found["matrix products" if any(part in name for part in PRODUCTS) else alike] += took / 1e6
    busy = sum(found.values())
    return {
        "share of kernel time": {name: value / busy if busy else None for name, value in found.items()},
        "share of the clock without a kernel": None if place.device == "cpu" else max(0.0, 1 - busy / seconds),
        "kernels": launches,
        "seconds": seconds,
    }


# ---- lora: memory, and speed beside the library's Trainer ------------------------------------------------------------

ROWS, STEPS = 8, 4  # texts of a step; steps, of which the first is not timed


def lora(place: Place) -> Iterator[Part]:
    """An 8B model in bfloat16 at 1 and 8 texts of 1,024 tokens a pass."""
    tokens = place.size(1024, 32)
    model = functools.cache(functools.partial(_llama, place))
    yield "peak", functools.partial(_peaks, place, model, tokens)
    for rows in (1, ROWS):
        yield f"our steps at {rows} x {tokens}", functools.partial(_our_steps, place, model, rows, tokens)
    for rows in (1, ROWS):
        yield f"Trainer and PEFT at {rows} x {tokens}", functools.partial(_trainer_steps, place, model, rows, tokens)


def _llama_config(place: Place):
    """That of Llama 3's 8B."""
    import transformers

    sizes = place.size((4096, 14_336, 32, 32, 8, 128_256), (64, 128, 2, 2, 1, 1024))
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    return transformers.LlamaConfig(
        **dict(zip((*names, "vocab_size"), sizes, strict=True)), max_position_embeddings=2048, eos_token_id=0
    )


def _llama(place: Place):
    import torch
    import transformers
    from _toys import word_tokenizer

    from lm_validity.cells.models.language_model import LanguageModel

    with torch.device(place.device):
        model = transformers.AutoModelForCausalLM.from_config(_llama_config(place), dtype=torch.bfloat16).eval()
    return LanguageModel(model.to(place.device), word_tokenizer(1000), model_id="8B", eval_batch_size=ROWS)


def _peaks(place: Place, model: Callable, tokens: int) -> Iterator[Line]:
    """Most bytes of a step of one full micro-batch, weights included; on a CPU only that it runs."""
    import torch

    from lm_validity.cells.tasks.evaluation import Example
    from lm_validity.cells.training.loop import FinetuneSettings, Member, Plan, started

    lm = model()
    for rows in (1, ROWS):
        examples = [Example(tuple(text), 1) for text in _texts(900, [tokens] * rows)]
        settings = FinetuneSettings(learning_rate=1e-4, effective_batch=rows, micro_batch=rows)
        with started(Plan(lm, examples, [Member(settings, Path("nowhere"))], float, seed=1)) as run:
            (batch,) = run.trainings[0].batches(1)
            run.step(run.trainings, batch)  # from the second on, the optimizer has its state
            if place.device != "cpu":
                torch.cuda.reset_peak_memory_stats()
            run.step(run.trainings, batch)
        peak = None if place.device == "cpu" else torch.cuda.max_memory_allocated() / 1e9
        yield {"micro-batch": rows, "tokens": tokens, "peak GB": peak}


def _texts(vocabulary: int, lengths: list[int]) -> list[list[int]]:
    import numpy as np

    random = np.random.default_rng(0)
    return [random.integers(1, vocabulary, size=length).tolist() for length in lengths]


def _speed(rows: int, tokens: int, marks: list[float]) -> Line:
    """Of the steps after the first, from the times at which steps ended."""
    step = statistics.median(after - before for before, after in itertools.pairwise(marks))
    return {"micro-batch": rows, "seconds a step": step, "tokens a second": ROWS * tokens / step}


def _our_steps(place: Place, model: Callable, rows: int, tokens: int) -> Iterator[Line]:
    from lm_validity.cells.tasks.evaluation import Example
    from lm_validity.cells.training.loop import FinetuneSettings, Member, Plan, started

    lm = model()
    examples = [Example(tuple(text), 1) for text in _texts(900, [tokens] * ROWS * STEPS)]
    settings = FinetuneSettings(learning_rate=1e-4, effective_batch=ROWS, micro_batch=rows)
    with started(Plan(lm, examples, [Member(settings, Path("nowhere"))], float, seed=1)) as run:
        marks = []
        for batch in run.trainings[0].batches(1):
            run.step(run.trainings, batch)
            place.wait()
            marks.append(time.perf_counter())
        yield _speed(rows, tokens, marks) | {"micro-batch at the end": run.micro_batch}


def _trainer_steps(place: Place, model: Callable, rows: int, tokens: int) -> Iterator[Line]:
    """What one writes oneself: the library's Trainer with PEFT's layers, same texts, same sizes."""
    import peft
    import torch
    import transformers

    base, marks = model().base, []

    class Clock(transformers.TrainerCallback):
        def on_step_end(self, *arguments, **options):
            place.wait()
            marks.append(time.perf_counter())

    shape = peft.LoraConfig(
        task_type="CAUSAL_LM", r=8, lora_alpha=32, lora_dropout=0.1, target_modules="all-linear", bias="none"
    )
    texts = [{"input_ids": text, "labels": text} for text in _texts(900, [tokens] * ROWS * STEPS)]
    adapted = peft.get_peft_model(base, shape)
    try:
        with tempfile.TemporaryDirectory() as name:
            options = transformers.TrainingArguments(
                output_dir=name,
                per_device_train_batch_size=rows,
                gradient_accumulation_steps=ROWS // rows,
                max_steps=STEPS,
                learning_rate=1e-4,
                weight_decay=0.01,
                optim="adamw_torch_fused",
                save_strategy="no",
                logging_strategy="no",
                report_to=[],
                disable_tqdm=True,
                use_cpu=place.device == "cpu",
            )
            if place.device != "cpu":
                torch.cuda.reset_peak_memory_stats()
            trainer = transformers.Trainer(model=adapted, args=options, train_dataset=texts, callbacks=[Clock()])
            trainer.train()
        peak = None if place.device == "cpu" else torch.cuda.max_memory_allocated() / 1e9
        yield _speed(rows, tokens, marks) | {"peak GB": peak}
    finally:
        adapted.unload()
        base.eval()


# ---- rates: three side by side --------------------------------------------------------------------------------------


def rates(place: Place) -> Iterator[Part]:
    """Three learning rates side by side against one after another."""
    import gpu

    shape, count = place.size(("0.5B", 256), ("tiny", 16))
    yield shape, lambda: iter(gpu.training_records(shape, "bfloat16", place.device, place.size(2, 1), count))


# ---- adapter: our forward pass of a LoRA layer against PEFT's -------------------------------------------------------


def adapter(place: Place) -> Iterator[Part]:
    """A forward and backward pass of a whole model."""
    for shape in place.size(("0.5B", "7B"), ("tiny",)):
        yield shape, functools.partial(_adapter, place, shape)


def _adapter(place: Place, shape: str) -> Iterator[Line]:
    """Ours; PEFT's with our masks, which must give the same gradients; PEFT's with its own dropout."""
    import gpu
    import torch
    from _toys import word_tokenizer

    from lm_validity.cells.models.language_model import LanguageModel
    from lm_validity.cells.tasks.evaluation import Example
    from lm_validity.cells.training.loop import FinetuneSettings, Member, Plan, started
    from lm_validity.cells.training.lora import DEFAULT_ADAPTER, adapted_layers

    model = gpu.build(shape, "bfloat16", place.device)
    lm = LanguageModel(model, word_tokenizer(1000), model_id=shape, eval_batch_size=ROWS)
    for tokens in place.size((64, 512), (16,)):
        examples = [Example(tuple(text), 1) for text in _texts(900, [tokens] * ROWS)]
        settings = FinetuneSettings(learning_rate=1e-4, effective_batch=ROWS, micro_batch=ROWS)
        with started(Plan(lm, examples, [Member(settings, Path("nowhere"))], float, seed=1)) as run:
            (training,) = run.trainings
            (batch,) = training.batches(1)
            with torch.no_grad():  # B begins at zero, where A has no gradient
                for name, parameter in training.parameters.items():
                    if "lora_B" in name:
                        parameter.fill_(1e-3)
            layers = [layer for layer in adapted_layers(training.model).values() if "forward" in vars(layer)]

            def one_pass(run=run, batch=batch) -> torch.Tensor:
                run.trainings[0].optimizer.zero_grad(set_to_none=True)
                return run.accumulate(run.trainings, batch)

            ours = _passes(place, one_pass, training)
            for layer in layers:
                del layer.forward
            masked = _passes(place, one_pass, training)
            for layer in layers:
                layer.lora_dropout[DEFAULT_ADAPTER] = torch.nn.Dropout(settings.dropout).train()
            plain = _passes(place, one_pass, training)
            gradients, others = ours.pop("gradients"), masked.pop("gradients")
            plain.pop("gradients")
            apart = math.sqrt(
                sum(float((gradients[name] - others[name]).square().sum()) for name in gradients)
                / sum(float(value.square().sum()) for value in others.values())
            )
            yield {
                "pass of": f"{ROWS} x {tokens}",
                "ours": ours,
                "PEFT's with our masks": masked,
                "PEFT's with its own": plain,
                "PEFT's time over ours": plain["seconds"] / ours["seconds"],
                "relative difference of gradients": apart,
                "relative difference of the loss": abs(masked["loss"] / ours["loss"] - 1),
            }


def _passes(place: Place, one_pass: Callable, training) -> Line:
    """Median seconds of a pass, its peak beyond what was there before, loss and gradients."""
    import torch

    one_pass()
    training.optimizer.zero_grad(set_to_none=True)
    before = 0
    if place.device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    seconds = [place.seconds(one_pass) for _ in range(place.size(5, 2))]
    peak = None if place.device == "cpu" else (torch.cuda.max_memory_allocated() - before) / 1e9
    loss = float(one_pass())
    gradients = {
        name: parameter.grad.detach().float().cpu()
        for name, parameter in training.parameters.items()
        if parameter.grad is not None
    }
    return {"seconds": statistics.median(seconds), "peak GB": peak, "loss": loss, "gradients": gradients}


# ---- trials: the bias study -----------------------------------------------------------------------------------------


def trials(place: Place) -> Iterator[Part]:
    """One trial by each method of the bias study."""
    yield "GPT-2 small, a linear head", functools.partial(_trial, place, "head")
    if importlib.util.find_spec("bitsandbytes") is None:
        skipped = {"outcome": "skipped", "detail": "bitsandbytes is not installed: weights in bfloat16 instead of NF4"}
        yield "quantization", lambda: iter([skipped])
    yield "Mistral 7B, zero-shot", functools.partial(_trial, place, "zero_shot")


def _trial(place: Place, method: str) -> Iterator[Line]:
    import bias_trials
    import torch
    import transformers

    from lm_validity.cells.trials.worker import ResidentWorker
    from lm_validity.config.sections import Adapter
    from lm_validity.run.rules.pretrain_on_test import Classification, Pretraining

    vocabulary = len(bias_trials.word_numbers())
    if method == "head":
        width, layers, heads = place.size((768, 12, 12), (32, 2, 2))
        ends = {"bos_token_id": 3, "eos_token_id": 3, "pad_token_id": 0}
        config = transformers.GPT2Config(
            n_embd=width, n_layer=layers, n_head=heads, vocab_size=place.size(50_257, vocabulary), **ends
        )
        settings = {"classification": Classification(), "pretraining": Pretraining(epochs=1), "dtype": "float32"}
    else:
        width, inner, layers, heads, shared = place.size((4096, 14_336, 32, 32, 8), (64, 128, 2, 2, 1))
        config = transformers.MistralConfig(
            hidden_size=width,
            intermediate_size=inner,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=shared,
            vocab_size=place.size(32_000, vocabulary),
            max_position_embeddings=2048,
            eos_token_id=3,
            pad_token_id=0,
        )
        quantized = "none" if importlib.util.find_spec("bitsandbytes") is None else "nf4"
        settings = {
            "classification": Classification(method="zero_shot"),
            "pretraining": Pretraining(
                epochs=1, learning_rate=2e-4, max_length=512, adapter=Adapter(quantization=quantized)
            ),
            "dtype": "bfloat16",
        }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with torch.device(place.device):
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, settings["dtype"]))
        model.save_pretrained(folder / "model")
        del model
        bias_trials.write_tokenizer("causal", folder / "model")
        record = bias_trials.write_task(folder)
        count = place.size(100, 8)
        plan = bias_trials.make_plans("causal", folder / "model", record, 1)[0]
        names = tuple(f"w{20 + number}" for number in range(len(bias_trials.CLASSES)))  # words of the tokenizer
        data = plan.data if method == "head" else replace(plan.data, class_names=names)
        plan = replace(plan, **settings, data=data, m=count, n=count // 2, device=place.device, share_base=())
        worker = ResidentWorker()
        if place.device != "cpu":
            torch.cuda.reset_peak_memory_stats()
        first = place.seconds(lambda: worker.run(plan, folder / "first"))
        yield {"method": method, "first trial with loading, seconds": first, "quantized": plan.quantizes()}
        second = place.seconds(lambda: worker.run(replace(plan, subsamples=(2,)), folder / "second"))
        peak = None if place.device == "cpu" else torch.cuda.max_memory_allocated() / 1e9
        yield {"method": method, "seconds a trial": second, "m": plan.m, "n": plan.n, "peak GB": peak}


# ---- the stages, each in a process ----------------------------------------------------------------------------------

STAGES: dict[str, tuple[int, Callable[[Place], Iterator[Part]]]] = {
    "check": (50, check),
    "workflow": (110, workflow),
    "scoring": (105, scoring),
    "lora": (80, lora),
    "rates": (35, rates),
    "adapter": (35, adapter),
    "trials": (65, trials),
}
SLOWER = 10  # times as long on a CPU, where all this is only tried


def write_line(output: Path, line: Line) -> None:
    """Add a line, on disk when this returns, and print it."""
    text = json.dumps(line, default=str)
    print(text, flush=True)
    with open(output / "lines.jsonl", "a", encoding="utf-8") as handle:
        handle.write(text + "\n")
        handle.flush()
        os.fsync(handle.fileno())


def run_parts(name: str, place: Place, output: Path) -> int:
    """A stage in this process; the number of its parts that failed."""
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    failed = 0
    for about, part in STAGES[name][1](place):
        start, error = time.monotonic(), None
        try:
            for line in part():
                write_line(output, {"stage": name, "about": about, **line, "after": time.monotonic() - start})
                failed += line.get("outcome") == "failed"
        except (Exception, SystemExit) as raised:  # what breaks on an unknown machine is what this is for
            error = f"{type(raised).__name__}: {str(raised)[-1500:]}"
        # outside `except`, whose traceback holds what was on the device
        if error is not None:
            failed += 1
            write_line(output, {"stage": name, "about": about, "outcome": "failed", "detail": error})
        gc.collect()
        if place.device != "cpu":
            torch.cuda.empty_cache()
    return failed


def run_stage(name: str, arguments: argparse.Namespace) -> Line:
    """A stage in a process of its own, which is ended with all that it started when its seconds are over."""
    command = [sys.executable, __file__, "--output", str(arguments.output), "--device", arguments.device]
    command += ["--shapes", arguments.shapes, "--here", name]
    most, start = STAGES[name][0] * (SLOWER if arguments.device == "cpu" else 1), time.monotonic()
    process = subprocess.Popen(command, start_new_session=True)
    try:
        code = process.wait(most)
        outcome = "done" if code == 0 else "failed"
    except subprocess.TimeoutExpired:
        outcome = f"ended after {most} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return {"stage": name, "outcome": outcome, "seconds": time.monotonic() - start}


def machine(device: str) -> Line:
    """The card and the versions."""
    import torch
    from _measure import describe_machine

    card = {}
    if device != "cpu" and torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        card = {"GPU": properties.name, "GB": properties.total_memory / 1e9, "CUDA": torch.version.cuda}
    return {"stage": "machine", "machine": describe_machine(), **card}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"of {', '.join(STAGES)}; all")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shapes", choices=("full", "tiny"), default="full")
    parser.add_argument("--here", action="store_true", help="in this process, without an end")
    arguments = parser.parse_args()
    if unknown := set(arguments.stages) - set(STAGES):
        parser.error(f"no stage {', '.join(sorted(unknown))}; there are {', '.join(STAGES)}")
    arguments.output.mkdir(parents=True, exist_ok=True)
    if arguments.here:
        place = Place(arguments.device, arguments.shapes == "tiny")
        sys.exit(1 if sum(run_parts(name, place, arguments.output) for name in arguments.stages) else 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the stage ends as well
    write_line(arguments.output, machine(arguments.device))
    ends = []
    for name in arguments.stages or STAGES:
        ends.append(run_stage(name, arguments))
        write_line(arguments.output, ends[-1])
    sys.exit(0 if all(end["outcome"] == "done" for end in ends) else 1)


if __name__ == "__main__":
    main()
