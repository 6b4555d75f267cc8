"""The first minutes on a new cluster's GPU (`gpu_quarter_hour.sh check`): does what jobs do give the CPU's numbers?

A small model with random weights goes through the project's own code (load, score, train, write answers) on the CPU and
on the device. The same checks run with the CPU in the device's place, so that all but CUDA itself is tested.
"""

import importlib.util
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import numpy as np
import torch
import transformers
from _toys import word_tokenizer

from lm_validity.cells.models.language_model import LanguageModel, load_language_model
from lm_validity.cells.models.loading import keep_four_bits
from lm_validity.cells.models.passes import HALF_TOLERANCE, TOLERANCE
from lm_validity.cells.runner import versions
from lm_validity.cells.tasks.evaluation import Example
from lm_validity.cells.training.loop import Epoch, FinetuneSettings, Member, Plan, train_side_by_side
from lm_validity.cells.trials.training import four_bits
from lm_validity.cells.workers import FinetuneResult, finetune
from lm_validity.errors import InputError, first_line

Outcome = Literal["passed", "noted", "skipped", "failed"]
VOCABULARY, SEED = 1024, 7
# largest relative error of a product of matrices. TF32, which keeps 10 bits of float32's 23, is beyond the first
PRODUCT = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}
LOSS, HALF_LOSS = 1e-3, 2e-2  # largest relative difference of a loss in float32, and in bfloat16
NF4_ERROR = 0.5  # 16 values for a weight: logits of random weights move by a good part of their size


@dataclass(frozen=True)
class CheckResult:
    """What one check found: its name, whether it holds, and the numbers behind that."""

    check: str
    outcome: Outcome
    detail: str


def each_check(device: str) -> Iterator[CheckResult]:
    """Try the device, `cuda` or `cpu`: what is found, one by one. Raises InputError where torch can use no GPU."""
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("torch can use no GPU here.", "check `nvidia-smi`; DEVICE=cpu runs the same on the CPU.")
    yield from _describe(device)
    yield from _products(device)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder)
        checks = {"scores": _scores, "training": _training, "answers": _answers}
        checks |= {"bitsandbytes": _bitsandbytes}
        for title, check in checks.items():
            yield from _tried(title, check(folder, device))


def _tried(title: str, check: Iterator[CheckResult]) -> Iterator[CheckResult]:
    """The check's findings; whatever it raises is one more."""
    try:
        yield from check
    except Exception as error:  # the table is for finding out what breaks on an unknown machine
        yield CheckResult(title, "failed", f"{type(error).__name__}: {first_line(error)}")


def _judge(check: str, detail: str, *, good: bool) -> CheckResult:
    return CheckResult(check, "passed" if good else "failed", detail)


# ---- the machine ----------------------------------------------------------------------------------------------------


def _describe(device: str) -> Iterator[CheckResult]:
    package_names = ("python", "torch", "transformers", "peft", "lm_eval")
    packages = {name: version for name, version in versions().items() if name in package_names}
    listed = ", ".join(f"{name} {version}" for name, version in packages.items())
    yield CheckResult("versions", "passed", f"{listed}, CUDA of torch {torch.version.cuda}")
    if device == "cpu":
        yield CheckResult("GPU", "skipped", "the CPU is checked in its place")
        return
    yield CheckResult("driver", "passed", _driver())
    for number in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(number)
        free, total = torch.cuda.mem_get_info(number)
        detail = f"{properties.name}, compute capability {properties.major}.{properties.minor}, "
        detail += f"{free / 1e9:.1f} of {total / 1e9:.1f} GB free"
        # others' processes take memory that no limit of the job counts
        yield CheckResult(f"GPU {number}", "passed" if free > 0.9 * total else "noted", detail)


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return f"works; its version is not known ({first_line(error)})"
    return ", ".join(sorted({line.strip() for line in done.stdout.splitlines() if line.strip()}))


def _products(device: str) -> Iterator[CheckResult]:
    """A product of matrices in each dtype against float64 on the CPU."""
    draw = torch.Generator().manual_seed(SEED)
    first, second = torch.randn(256, 512, generator=draw), torch.randn(512, 256, generator=draw)
    for name, tolerance in PRODUCT.items():
        dtype = getattr(torch, name)
        a, b = first.to(dtype), second.to(dtype)
        exact = a.double() @ b.double()
        try:
            product = (a.to(device) @ b.to(device)).cpu().double()
        except RuntimeError as error:
            yield CheckResult(name, "failed", first_line(error))
            continue
        off = float((product - exact).norm() / exact.norm())
        detail = f"relative error of a matrix product {off:.1e}, at most {tolerance:.0e}"
        if off > tolerance:
            yield CheckResult(name, "failed", detail + ("; is TF32 switched on?" if name == "float32" else ""))
        elif name == "bfloat16" and device == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
            yield CheckResult(name, "noted", f"{detail}; this GPU emulates it, which is slow: use float16 or float32")
        else:
            yield CheckResult(name, "passed", detail)


# ---- the work -------------------------------------------------------------------------------------------------------


def write_model(folder: Path) -> None:
    """A Llama of half a million random weights with a tokenizer of one word per token, in hub format."""
    word_tokenizer(VOCABULARY).save_pretrained(folder)
    config = transformers.LlamaConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=VOCABULARY,
        max_position_embeddings=256,
        initializer_range=0.05,
        bos_token_id=0,
        eos_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        transformers.LlamaForCausalLM(config).save_pretrained(folder)


def _load(folder: Path, device: str, dtype: str = "float32") -> LanguageModel:
    return load_language_model(folder, dtype=dtype, device=device, eval_batch_size=16, model_id="gpu-check")


def _texts(count: int, shortest: int, longest: int) -> list[str]:
    random = np.random.default_rng(SEED)
    lengths = random.integers(shortest, longest, size=count)
    return [" ".join(f"w{word}" for word in random.integers(1, VOCABULARY, size=size)) for size in lengths]


def _scores(folder: Path, device: str) -> Iterator[CheckResult]:
    """Log-likelihoods against the CPU's in the same dtype, and the ways that are exact here."""
    contexts, choices = _texts(24, 3, 60), _texts(96, 1, 8)
    requests = [SimpleNamespace(args=(contexts[number // 4], f" {text}")) for number, text in enumerate(choices)]
    tokens = np.array([len(text.split()) for text in choices])
    for dtype in ("float32", "bfloat16"):
        lm = _load(folder, device, dtype)
        on_device, on_cpu = (
            np.array([value for value, _ in model.loglikelihood(requests)])
            for model in (lm, _load(folder, "cpu", dtype))
        )
        tolerance = TOLERANCE.get(getattr(torch, dtype), HALF_TOLERANCE)
        difference = float((np.abs(on_device - on_cpu) / tokens).max())
        detail = f"largest difference from the CPU {difference:.1e} nats per token, at most {tolerance:.0e}"
        yield _judge(f"scores in {dtype}", detail, good=difference <= tolerance)
        ways = lm.describe_scorer()["exact_ways"] or []
        shared = {"packed", "cached"} & set(ways)
        detail = f"exact here: {', '.join(ways) or 'none, lm-eval scores'}"
        yield CheckResult(f"scorer in {dtype}", "passed" if len(shared) == 2 else "noted", detail)


def _examples() -> list[Example]:
    random = np.random.default_rng(SEED)
    # few words, so that there is something to learn
    return [Example(tuple(map(int, random.integers(1, 20, size=size))), 1) for size in random.integers(5, 40, size=32)]


def _train(lm: LanguageModel, folder: Path, rate: float = 3e-3, **options: object) -> FinetuneResult:
    """A fine-tune of two epochs."""
    settings = FinetuneSettings(learning_rate=rate, epochs=2, effective_batch=8, **options)
    result = finetune(Plan(lm, _examples(), [Member(settings, folder)], float, SEED))
    if result.diverged:
        raise ArithmeticError(result.diverged)
    return result


def _apart(losses: Iterable[float], references: Iterable[float]) -> float:
    """Largest relative difference of losses."""
    return max(abs(loss / reference - 1) for loss, reference in zip(losses, references, strict=True))


def _training(folder: Path, device: str) -> Iterator[CheckResult]:
    """Steps against the CPU's (without dropout, whose masks are a device's own), and what a step may change."""
    with tempfile.TemporaryDirectory() as name:
        work, lm = Path(name), _load(folder, device)
        weights_before = {key: value.clone() for key, value in lm.base.state_dict().items()}
        losses_on_device = _train(lm, work / "here", dropout=0.0).step_losses
        difference = _apart(losses_on_device, _train(_load(folder, "cpu"), work / "there", dropout=0.0).step_losses)
        detail = f"largest difference of a step's loss from the CPU's {difference:.1e}, at most {LOSS:.0e}"
        yield _judge(
            "training in float32", detail, good=difference <= LOSS and losses_on_device[-1] < losses_on_device[0]
        )
        weights_after = lm.base.state_dict()
        unchanged = weights_before.keys() == weights_after.keys() and all(
            torch.equal(weights_before[key], weights_after[key]) for key in weights_before
        )
        yield _judge(
            "base restored", "the weights after training are compared with those before, bit by bit", good=unchanged
        )
        rates: dict[float, list[Epoch]] = {1e-3: [], 3e-3: []}
        settings = {rate: FinetuneSettings(learning_rate=rate, epochs=2, effective_batch=8) for rate in rates}
        members = [Member(settings[rate], work / f"together-{rate}", epochs.append) for rate, epochs in rates.items()]
        train_side_by_side(Plan(lm, _examples(), members, float, SEED))
        single_losses = [
            epoch.train_loss for rate in rates for epoch in _train(lm, work / f"alone-{rate}", rate).epochs
        ]
        difference = _apart([epoch.train_loss for epochs in rates.values() for epoch in epochs], single_losses)
        detail = f"largest difference of an epoch's loss from one rate at a time {difference:.1e}, at most {LOSS:.0e}"
        yield _judge("rates side by side", detail, good=difference <= LOSS)
        lm = _load(folder, device, "bfloat16")
        plain = _train(lm, work / "plain").step_losses
        spared = _train(lm, work / "spared", gradient_checkpointing=True, micro_batch=2).step_losses
        difference = _apart(spared, plain)
        detail = f"loss {plain[0]:.2f} to {plain[-1]:.2f}; with gradient checkpointing and micro-batches of 2 "
        detail += f"{difference:.1e} from that, at most {HALF_LOSS:.0e}"
        yield _judge("training in bfloat16", detail, good=plain[-1] < plain[0] and difference <= HALF_LOSS)


def _questions() -> list[SimpleNamespace]:
    options = {"until": ["w7"], "max_gen_toks": 12, "do_sample": False}
    return [SimpleNamespace(args=(text, dict(options))) for text in _texts(16, 3, 40)]


def _answers(folder: Path, device: str) -> Iterator[CheckResult]:
    on_device, on_cpu = (
        _load(folder, compute_device).generate_until(_questions()) for compute_device in (device, "cpu")
    )
    yield _alike("answers in float32", on_device, on_cpu, "the CPU's")


def _alike(check: str, answers: list[str], theirs: list[str], whose: str) -> CheckResult:
    n_equal = sum(answer == reference for answer, reference in zip(answers, theirs, strict=True))
    detail = f"{n_equal} of {len(answers)} are {whose}"
    if len(answers) > n_equal >= len(answers) / 2:
        return CheckResult(check, "noted", f"{detail}: where two tokens are nearly as likely, rounding decides")
    return _judge(check, detail, good=n_equal == len(answers))


# ---- what may be there ----------------------------------------------------------------------------------------------


def _bitsandbytes(folder: Path, device: str) -> Iterator[CheckResult]:
    """4-bit weights, loaded as the bias study loads them."""
    if importlib.util.find_spec("bitsandbytes") is None:
        yield CheckResult(
            "bitsandbytes", "skipped", "not installed; bias.zero_shot.quantization: nf4 needs the extra nf4"
        )
        return
    exact = _load(folder, device, "bfloat16").base
    settings = four_bits(torch.device(device))
    coarse = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, **settings)
    keep_four_bits(coarse)
    tokens = torch.arange(1, 33, device=coarse.device)[None]
    with torch.no_grad():
        coarse_logits, theirs = (model(input_ids=tokens).logits.float() for model in (coarse, exact))
    error = float((coarse_logits - theirs).norm() / theirs.norm())
    detail = f"nf4 weights change the logits by {error:.2f} of their size, at most {NF4_ERROR}"
    yield _judge("bitsandbytes", detail, good=0 < error <= NF4_ERROR)
