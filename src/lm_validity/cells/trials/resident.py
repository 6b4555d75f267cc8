"""A language model that stays in memory: one backbone under two heads (the LM's own and a linear classifier), pristine
weights beside it, reset in place. Nothing is ever written to disk.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any, Literal

import torch
import transformers
from transformers.activations import NewGELUActivation

from lm_validity.cells.models.model_files import DTYPES, is_models_fault, model_folder
from lm_validity.cells.training.low_rank import BatchPosition
from lm_validity.errors import INSTALL_NF4, CellError
from lm_validity.run.recipe import derive_seed
from lm_validity.run.trial_plan import TrialPlan

transformers.utils.logging.disable_progress_bar()

Arm = Literal["base", "extra", "test"]
LANGUAGE_MODELS = {"masked": transformers.AutoModelForMaskedLM, "causal": transformers.AutoModelForCausalLM}


@dataclass
class TrialCounters:
    """What a process did, for the sidecar."""

    model_loads: int = 0
    resets: int = 0
    trainings: int = 0
    optimizer_steps: int = 0
    training_tokens: int = 0
    forward_tokens: int = 0
    shared_base_arms: int = 0
    packed_sequences_cut: int = 0

    def to_json(self) -> dict[str, int]:
        """The counts by name."""
        return asdict(self)


class DropoutPosition:
    """Tells an adapter's dropout where in training a forward pass stands (see `low_rank.BatchDropout`)."""

    def __init__(self, position: "BatchPosition | None"):
        self.position = position

    def begin_step(self, rows: int, width: int) -> None:
        """A batch of `rows` padded to `width` tokens follows."""
        if self.position is not None:
            here = self.position
            here.step += 1
            here.rows, here.width, here.length, here.start, here.count, here.training = rows, width, width, 0, 0, True

    def begin_micro_batch(self, rows: int) -> None:
        """The next `rows` of that batch follow."""
        if self.position is not None:
            self.position.start += self.position.count
            self.position.count = rows


class FirstToken(torch.nn.Module):
    """In the place of a BERT's pooler: the first token's vector as it is."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """(texts, tokens, width) -> (texts, width): the vector of each text's first token."""
        return hidden_states[:, 0]


class ResidentModel:
    """The language model `lm` and, for the method `head`, the `classifier` over the same backbone.

    Raises CellError where files, tokenizer or architecture do not fit the plan.
    """

    def __init__(self, plan: TrialPlan):
        self.name, self.plan = plan.language_model, plan
        self.folder = model_folder(plan.model_path, revision=plan.model_revision)
        self.device = torch.device(plan.device)
        self.tokenizer = self._tokenizer(plan)
        self.fresh: list[str] = []  # the classifier's parameters that the model came without
        self.quantized = plan.quantizes()
        if self.quantized and find_spec("bitsandbytes") is None:
            raise CellError(
                f"{self.name}: bias.zero_shot.quantization is nf4, and bitsandbytes is missing.", INSTALL_NF4
            )
        options = four_bits(self.device) if self.quantized else {}
        loader = LANGUAGE_MODELS[plan.architecture]
        self.lm, found = self._load(loader, output_loading_info=True, **options)
        if found["missing_keys"]:  # transformers draws them at random, anew in each process, and only warns
            raise self._unusable(ValueError(f"its weights lack {', '.join(sorted(found['missing_keys'])[:3])}"))
        self.classifier: transformers.PreTrainedModel | None = None
        if plan.classification.method == "head":
            self._add_classifier(plan)
        for model in (self.lm, self.classifier):
            _fuse_activations(model)
        self.limit = self._limit()
        self._adapted = None  # PEFT's view of the language model while it has an adapter
        self._weights = self._unique_weights()
        self._pristine = [weight.detach().clone() for weight in self._weights]

    @property
    def base(self) -> transformers.PreTrainedModel:
        """What adapters are put on, as `lora.add_adapter` calls it."""
        return self.lm

    @property
    def head_model(self) -> transformers.PreTrainedModel:
        """The classifier of a plan whose method is `head`."""
        assert self.classifier is not None
        return self.classifier

    @property
    def model_id(self) -> str:
        """The model's name in the language models sheet, as `lora.add_adapter` asks for it."""
        return self.name

    def reset(self) -> None:
        """All weights of both heads and the backbone as they were loaded, and no adapter."""
        if self._adapted is not None:
            self._adapted.unload()
            self._adapted = None
        if self._weights:
            with torch.no_grad():
                torch._foreach_copy_(self._weights, self._pristine)

    @contextlib.contextmanager
    def adapting(self, seed: int) -> Iterator["DropoutPosition"]:
        """Train inside the block: a fresh adapter where the plan has one, which stays until `reset`; else all
        weights."""
        adapter = self.plan.pretraining.adapter
        if adapter is None:
            yield DropoutPosition(None)
            return
        from lm_validity.cells.training.lora import add_adapter
        from lm_validity.cells.training.low_rank import BatchPosition

        position = BatchPosition(seed)
        self._adapted = add_adapter(self, adapter, "all-linear", position)
        try:
            yield DropoutPosition(position)
        finally:
            position.rest()

    def start_classifier(self, arm: Arm, seed: int) -> None:
        """Fresh weights for the classifier's head, and for the pooler as `pooler` says; the backbone stays.

        The same for all arms of a subsample (see `start_fresh`).
        """
        fresh = set(self.fresh)
        if self.plan.classification.pooler == "paper" and arm != "base":
            fresh |= {name for name, _ in self.head_model.named_parameters() if ".pooler." in name}
        start_fresh(self.head_model, fresh, seed)

    def encode(self, texts: Sequence[str], max_length: int | None) -> list[tuple[list[int], list[int]]]:
        """(token ids, 1 where the tokenizer added the token) of each text, cut at `max_length` or the model's limit."""
        length = min(max_length or self.limit, self.limit)
        encoded = self.tokenizer(
            list(texts), truncation=True, max_length=length, return_special_tokens_mask=True, verbose=False
        )
        return list(zip(encoded["input_ids"], encoded["special_tokens_mask"], strict=True))

    # ---- loading ----------------------------------------------------------------------------------------------------

    def _tokenizer(self, plan: TrialPlan) -> transformers.PreTrainedTokenizerBase:
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(self.folder, local_files_only=True)
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise self._unusable(error) from error
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        if tokenizer.pad_token_id is None:
            raise CellError(
                f"{self.name}: the tokenizer has neither a padding nor an end-of-text token.",
                "set one of them in tokenizer_config.json.",
            )
        if plan.architecture == "masked" and tokenizer.mask_token_id is None:
            raise CellError(f"{self.name}: the tokenizer has no mask token.", "is it a masked LM (architecture)?")
        return tokenizer

    def _load(self, loader: type[Any], **options: Any) -> transformers.PreTrainedModel:
        try:
            return loader.from_pretrained(
                self.folder,
                dtype=DTYPES[self.plan.dtype],
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                **options,
            )
        except Exception as error:
            if not is_models_fault(error):
                raise
            raise self._unusable(error) from error

    def _unusable(self, error: Exception) -> CellError:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return CellError(
            f"{self.name}: cannot be loaded as a {self.plan.architecture} language model ({reason}).",
            "check model and architecture in the sheet of language models.",
        )

    def _add_classifier(self, plan: TrialPlan) -> None:
        """The library's classifier of the architecture, its backbone shared with the language model."""
        verbosity = transformers.utils.logging.get_verbosity()
        transformers.utils.logging.set_verbosity_error()  # it reports the head's missing weights, which are ours to set
        try:
            classifier, found = self._load(
                transformers.AutoModelForSequenceClassification,
                num_labels=len(plan.data.class_names),
                output_loading_info=True,
            )
        finally:
            transformers.utils.logging.set_verbosity(verbosity)
        prefix = classifier.base_model_prefix
        if self.lm.base_model_prefix != prefix or not hasattr(self.lm, prefix):
            raise CellError(
                f"{self.name}: its classifier does not share the language model's backbone.",
                "this architecture is not supported with a linear head.",
            )
        self.fresh = sorted(found["missing_keys"])
        backbone = getattr(classifier, prefix)
        if plan.classification.pooler == "none" and getattr(backbone, "pooler", None) is not None:
            backbone.pooler = FirstToken()
            self.fresh = [name for name in self.fresh if ".pooler." not in name]
        setattr(self.lm, prefix, backbone)
        self.lm.tie_weights()
        classifier.config.pad_token_id = self.tokenizer.pad_token_id
        self.classifier = classifier.to(self.device)

    def _limit(self) -> int:
        positions = getattr(self.lm.config, "max_position_embeddings", None) or self.tokenizer.model_max_length
        if not self.quantized:  # which is on its device already
            self.lm.to(self.device)
        return min(positions, self.tokenizer.model_max_length)

    def _unique_weights(self) -> list[torch.Tensor]:
        """What training changes: nothing of the model itself where only an adapter is trained."""
        if self.plan.pretraining.adapter is not None:
            self.lm.requires_grad_(requires_grad=False)
            return []
        found: dict[int, torch.Tensor] = {}
        for model in (self.lm, self.classifier):
            for tensor in [] if model is None else [*model.parameters(), *model.buffers()]:
                found.setdefault(id(tensor), tensor)
        return list(found.values())


def _fuse_activations(model: torch.nn.Module | None) -> None:
    """GPT-2's activation as torch's one kernel instead of the library's eight: the same function, up to rounding."""
    for module in [] if model is None else list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, NewGELUActivation):
                setattr(module, name, torch.nn.GELU(approximate="tanh"))


@torch.no_grad()
def start_fresh(classifier: transformers.PreTrainedModel, names: Iterable[str], seed: int) -> None:
    """Draw the named parameters anew: normal with the model's initializer_range, biases zero, as these architectures
    themselves do. A function of seed and name alone."""
    deviation = getattr(classifier.config, "initializer_range", 0.02)
    parameters = dict(classifier.named_parameters())
    for name in sorted(names):
        generator = torch.Generator().manual_seed(derive_seed(seed, name))
        start = torch.zeros(parameters[name].shape)
        if start.ndim > 1:
            start.normal_(0.0, deviation, generator=generator)
        parameters[name].copy_(start)


def four_bits(device: torch.device) -> dict[str, Any]:
    """The paper's quantisation: NF4, doubly quantised, bfloat16 arithmetic."""
    settings = transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_use_double_quant=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    return {"quantization_config": settings, "device_map": {"": device}}
