"""Models of the bias study that stay in memory, one plain training loop, and trials with a linear head."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from importlib.util import find_spec
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor
from transformers.activations import NewGELUActivation
from transformers.models.auto.auto_factory import _BaseAutoModelClass

from lm_validity.cells.lm_eval_internals import errors_only
from lm_validity.cells.models.loading import LoadedWeights, keep_saved_head, load_weights, names_what_fails
from lm_validity.cells.models.passes import is_out_of_memory
from lm_validity.cells.models.prefetch import model_folder
from lm_validity.cells.models.scorer import SharedContextLM
from lm_validity.cells.models.tokenizing import load_tokenizer
from lm_validity.cells.training.loop import loss_scale, unscale
from lm_validity.cells.training.lora import BatchPosition, add_adapter
from lm_validity.cells.trials.data import LoadedTask
from lm_validity.errors import INSTALL_NF4, CellError
from lm_validity.run.cell import derive_seed
from lm_validity.run.rules.pretrain_on_test import Classification, Pretraining, TrialPlan

# ----------------------------------------------------------------------------------------------------------------------
# Batches of texts of very different lengths without the padding: short texts share a row.
#
# A text in a shared row sees itself alone (a block-diagonal attention mask) and counts its positions from zero, so its
# vectors are those of a row of its own up to rounding. Architectures whose code is not known to take such masks and
# positions get one padded row a text.

IGNORED = -100  # cross_entropy's label of what is not predicted
SHARED_ROWS = frozenset(("bert", "gpt2", "llama", "mistral", "qwen2"))  # model types


class Batch(NamedTuple):
    """input_ids: (rows, tokens). attention_mask: (rows, tokens), or of shared rows additive (rows, 1, tokens, tokens)
    with position_ids (rows, tokens). labels: (rows, tokens) of token ids, or one class per text; IGNORED where nothing
    is predicted; they stay on the host, which would wait for a device to count them. places: (texts, 3), row, first and
    last token of each text. tokens: without padding. first: row of the whole batch with which these rows begin."""

    input_ids: Tensor
    attention_mask: Tensor
    labels: Tensor
    tokens: int
    position_ids: Tensor | None = None
    places: Tensor | None = None
    first: int = 0

    def inputs(self) -> dict[str, Tensor]:
        """What a model's forward pass is called with."""
        inputs = {"input_ids": self.input_ids, "attention_mask": self.attention_mask}
        return inputs if self.position_ids is None else inputs | {"position_ids": self.position_ids}

    def rows(self, start: int, stop: int) -> "Batch":
        """Some of the rows; of labelled tokens only, since classes are not by row."""
        names = ("input_ids", "attention_mask", "labels", "position_ids")
        return self._changed(names, lambda tensor: tensor[start:stop])._replace(places=None, first=start)

    def to(self, device: torch.device) -> "Batch":
        """The batch on a device, but for its labels."""
        names = ("input_ids", "attention_mask", "position_ids", "places")
        return self._changed(names, lambda tensor: tensor.to(device, non_blocking=True))

    def _changed(self, names: Sequence[str], change: Callable[[Tensor], Tensor]) -> "Batch":
        return self._replace(**{name: change(getattr(self, name)) for name in names if getattr(self, name) is not None})


class Padded(NamedTuple):
    """Token ids and attention mask (texts, longest), padded on the right."""

    ids: Tensor
    mask: Tensor


def padded(sequences: Sequence[Sequence[int]], padding: int) -> Padded:
    """Token ids and attention mask (texts, longest), padded on the right."""
    rows, pad = [torch.tensor(tokens) for tokens in sequences], torch.nn.utils.rnn.pad_sequence
    masks = [torch.ones_like(row) for row in rows]
    return Padded(pad(rows, batch_first=True, padding_value=padding), pad(masks, batch_first=True))


def next_tokens(ids: Tensor, attention: Tensor) -> Tensor:
    """At each position the token to predict from it; IGNORED at the end and in the padding."""
    labels = torch.full_like(ids, IGNORED)
    labels[:, :-1] = torch.where(attention[:, 1:] == 1, ids[:, 1:], IGNORED)
    return labels


def share_rows(ids: Tensor, attention: Tensor, labels: Tensor, *, causal: bool, dtype: torch.dtype) -> Batch:
    """The texts of a padded batch (texts, tokens) in as few rows as first fit finds, longest first.

    labels: token labels of the shape of `ids`, which move with their tokens, or (texts,), which stay. causal: a token
    sees none after it. dtype: the model's, of the additive mask.
    """
    lengths = attention.sum(dim=1).tolist()
    width, filled = max(lengths), list[int]()  # tokens in each row, which holds as many as the longest text
    places: list[tuple[int, int]] = [(0, 0)] * len(lengths)  # row and first token of each text
    for text in sorted(range(len(lengths)), key=lambda text: -lengths[text]):
        row = next((row for row, tokens in enumerate(filled) if tokens + lengths[text] <= width), len(filled))
        if row == len(filled):
            filled.append(0)
        places[text] = (row, filled[row])
        filled[row] += lengths[text]
    shape = (len(filled), width)
    # numpy's slices: many small copies, for which a tensor's are ten times as slow
    shared, positions = np.full(shape, int(ids[0, 0])), np.zeros(shape, dtype=np.int64)
    owner = np.full(shape, -1)  # padding sees padding: a row without any key would be NaN
    moved = np.full(shape, IGNORED)
    own_ids, own_labels, counting = ids.numpy(), labels.numpy(), np.arange(width)
    for text, ((row, first), length) in enumerate(zip(places, lengths, strict=True)):
        last = first + length
        shared[row, first:last] = own_ids[text, :length]
        positions[row, first:last] = counting[:length]
        owner[row, first:last] = text
        if labels.ndim > 1:
            moved[row, first:last] = own_labels[text, :length]
    unseen = owner[:, :, None] != owner[:, None, :]
    if causal:
        unseen |= counting[:, None] < counting
    mask = torch.zeros(unseen.shape, dtype=dtype).masked_fill_(torch.from_numpy(unseen), torch.finfo(dtype).min)
    spans = [(row, first, first + length - 1) for (row, first), length in zip(places, lengths, strict=True)]
    return Batch(
        torch.from_numpy(shared),
        mask[:, None],
        torch.from_numpy(moved) if labels.ndim > 1 else labels,
        sum(lengths),
        torch.from_numpy(positions),
        torch.tensor(spans),
    )


# ----------------------------------------------------------------------------------------------------------------------
# A language model that stays in memory: one backbone under two heads (the LM's own and a linear classifier), pristine
# weights beside it, reset in place. Nothing is ever written to disk.

log = logging.getLogger(__name__)
transformers.utils.logging.disable_progress_bar()

Arm = Literal["base", "extra", "test"]
LANGUAGE_MODELS = {"masked": transformers.AutoModelForMaskedLM, "causal": transformers.AutoModelForCausalLM}


class ResidentModel:
    """The language model `lm` and, for the method `head`, the `classifier` over the same backbone, else `lm` again.

    Raises CellError where files, tokenizer or architecture do not fit the plan.
    """

    def __init__(self, plan: TrialPlan):
        self.model_id, self.plan = plan.language_model, plan
        self.folder = model_folder(plan.model_path)
        self.device = torch.device(plan.device)
        self.tokenizer = self._tokenizer()
        self.fresh: list[str] = []  # the classifier's parameters that the model came without
        self.quantized = plan.quantizes()
        if self.quantized and find_spec("bitsandbytes") is None:
            problem = f"{self.model_id}: bias.zero_shot.quantization is nf4, and bitsandbytes is missing."
            raise CellError(problem, INSTALL_NF4)
        options = four_bits(self.device) if self.quantized else {}
        self.lm, missing, _ = self._load_model(LANGUAGE_MODELS[plan.architecture], None, **options)
        keep_saved_head(self.lm)
        if missing:  # transformers draws them at random, anew in each process, and only warns
            problem = f"{self.model_id}: its weights lack {missing[0]} of a {plan.architecture} language model."
            raise CellError(problem, "check model and architecture in the sheet of language models.")
        self.classifier = self._classifier() if plan.classification.method == "head" else self.lm
        for module in [*self.lm.modules(), *self.classifier.modules()]:
            for name, child in module.named_children():
                if isinstance(child, NewGELUActivation):  # the library's eight kernels, up to rounding
                    setattr(module, name, torch.nn.GELU(approximate="tanh"))
        if not self.quantized:  # which is on its device already
            self.lm.to(self.device)
        longest = getattr(self.lm.config, "max_position_embeddings", None) or self.tokenizer.model_max_length
        self.limit = min(longest, self.tokenizer.model_max_length)
        self.base = self.lm  # what adapters are put on
        self._adapted = None  # PEFT's view of the language model while it has an adapter
        # what training changes: nothing of the model itself where only an adapter is trained
        models = (self.lm, self.classifier) if plan.pretraining.adapter is None else ()
        tensors = [tensor for model in models for tensor in (*model.parameters(), *model.buffers())]
        self._weights = list({id(tensor): tensor for tensor in tensors}.values())
        if not models:
            self.lm.requires_grad_(requires_grad=False)
        self._pristine = [weight.detach().clone() for weight in self._weights]

    @cached_property
    def scorer(self) -> SharedContextLM:
        """What scores prompts with the language model, which is held against plain passes on this very model."""
        rows = self.plan.classification.predict_batch
        with errors_only("lm_eval.models.huggingface"):  # it warns that arguments that were not given are ignored
            return SharedContextLM(pretrained=self.lm, tokenizer=self.tokenizer, backend="causal", batch_size=rows)

    def reset(self) -> None:
        """All weights of both heads and the backbone as they were loaded, and no adapter."""
        if self._adapted is not None:
            self._adapted.unload()
            self._adapted = None
        if self._weights:
            with torch.no_grad():
                torch._foreach_copy_(self._weights, self._pristine)

    def adapt(self, position: BatchPosition) -> None:
        """Put a fresh adapter on the language model where the plan has one; it stays until `reset`."""
        if self.plan.pretraining.adapter is not None:
            self._adapted = add_adapter(self, self.plan.pretraining.adapter, "all-linear", position)

    def start_classifier(self, arm: Arm, seed: int) -> None:
        """Fresh weights for the classifier's head, and for the pooler as `pooler` says; the backbone stays.

        The same for all arms of a subsample (see `start_fresh`).
        """
        fresh = set(self.fresh)
        if self.plan.classification.pooler == "paper" and arm != "base":
            fresh |= {name for name, _ in self.classifier.named_parameters() if ".pooler." in name}
        start_fresh(self.classifier, fresh, seed)

    def encode(self, texts: Sequence[str], max_length: int | None) -> list[tuple[list[int], list[int]]]:
        """(token ids, 1 where the tokenizer added the token) of each text, cut at `max_length` or the model's limit."""
        length = min(max_length or self.limit, self.limit)
        encoded = self.tokenizer(
            list(texts), truncation=True, max_length=length, return_special_tokens_mask=True, verbose=False
        )
        return list(zip(encoded["input_ids"], encoded["special_tokens_mask"], strict=True))

    # ---- loading ----------------------------------------------------------------------------------------------------

    def _tokenizer(self) -> transformers.PreTrainedTokenizerBase:
        with names_what_fails(self.model_id, self.plan.architecture):
            tokenizer = load_tokenizer(self.folder, self.model_id, causal=self.plan.architecture == "causal")
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        if tokenizer.pad_token_id is None:
            hint = "set one of them in tokenizer_config.json."
            raise CellError(f"{self.model_id}: the tokenizer has neither a padding nor an end-of-text token.", hint)
        if self.plan.architecture == "masked" and tokenizer.mask_token_id is None:
            raise CellError(f"{self.model_id}: the tokenizer has no mask token.", "is it a masked LM (architecture)?")
        return tokenizer

    def _load_model(self, loader: type[_BaseAutoModelClass], labels: int | None, **options: object) -> LoadedWeights:
        """The model of a class of the library, with `labels` if it is a classifier."""
        options |= {"dtype": getattr(torch, self.plan.dtype)}
        return load_weights(loader, self.folder, self.model_id, self.plan.architecture, labels=labels, **options)

    def _classifier(self) -> transformers.PreTrainedModel:
        """The library's classifier of the architecture, its backbone shared with the language model."""
        verbosity = transformers.utils.logging.get_verbosity()
        transformers.utils.logging.set_verbosity_error()  # it reports the head's missing weights, which are ours to set
        try:
            classes = len(self.plan.data.class_names)
            classifier, self.fresh, _ = self._load_model(
                transformers.AutoModelForSequenceClassification, labels=classes
            )
        finally:
            transformers.utils.logging.set_verbosity(verbosity)
        prefix = classifier.base_model_prefix
        if self.lm.base_model_prefix != prefix or not hasattr(self.lm, prefix):
            hint = "this architecture is not supported with a linear head."
            raise CellError(f"{self.model_id}: its classifier does not share the language model's backbone.", hint)
        setattr(self.lm, prefix, getattr(classifier, prefix))
        self.lm.tie_weights(recompute_mapping=False)  # as loading found them: a head of its own stays
        classifier.config.pad_token_id = self.tokenizer.pad_token_id
        return classifier.to(self.device)


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


def four_bits(device: torch.device) -> dict[str, object]:
    """The paper's quantisation: NF4, doubly quantised, bfloat16 arithmetic."""
    settings = transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_use_double_quant=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    return {"quantization_config": settings, "device_map": {"": device}}


# ----------------------------------------------------------------------------------------------------------------------
# One plain training loop for both stages of a trial: AdamW, linear decay without warm-up, gradients clipped at norm 1.
#
# Everything random is a function of the seed: the order of the batches, dropout, and the tokens that are masked.

MAX_GRADIENT_NORM = 1.0


class LogitsAndLabels(NamedTuple):
    """Logits (predictions, tokens or classes) of a batch, and the label of each."""

    logits: Tensor
    labels: Tensor


MakeBatch = Callable[[np.ndarray], Batch]  # of the examples with these numbers
Predict = Callable[[Batch], LogitsAndLabels]
Settings = Pretraining | Classification


class Trials:
    """What trials of both methods share: a plan, its task, the resident model and the counters."""

    def __init__(self, plan: TrialPlan, task: LoadedTask, model: ResidentModel, counters: Counter[str]):
        self.plan, self.task, self.model, self.counters = plan, task, model, counters

    def batch(self, ids: Tensor, attention: Tensor, labels: Tensor) -> Batch:
        """A padded batch as the model takes it, on its device."""
        return Batch(ids, attention, labels, int(attention.sum())).to(self.model.device)

    def _forget_training(self) -> None:
        self.model.reset()
        self.counters["resets"] += 1

    def _train(
        self, model: transformers.PreTrainedModel, count: int, make_batch: MakeBatch, predict: Predict, seed: int
    ) -> float:
        """Train one of the two models in place; the mean loss (nats per predicted token or row) over the last epoch,
        dropout on.

        make_batch: of some of `count` examples, on the model's device. Where memory runs out, the step is repeated in
        halves. Raises CellError for a loss that is not finite.
        """
        pretraining = model is self.model.lm
        settings: Settings = self.plan.pretraining if pretraining else self.plan.classification
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        # weight decay on matrices only, as in the library's Trainer: not on biases and normalisation weights
        groups = [
            {"params": [weight for weight in trained if weight.ndim > 1], "weight_decay": settings.weight_decay},
            {"params": [weight for weight in trained if weight.ndim <= 1], "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, fused=True)
        total = settings.epochs * -(-count // settings.batch_size)
        losses: list[Tensor] = []
        weights: list[int] = []
        rows = settings.batch_size  # per forward pass
        model.train()
        device = trained[0].device
        # the library's dropout reads torch's global generators: seeded inside the block, given back after it
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            for step, examples in enumerate(_batches(count, settings, seed, shuffle=self.plan.shuffle)):
                batch = make_batch(examples)
                predicted = max(1, int((batch.labels != IGNORED).sum()))
                scale = loss_scale(model.dtype, predicted)
                while True:
                    try:
                        losses.append(_backward(batch, predicted, scale, predict, rows))
                        break
                    except RuntimeError as error:
                        if rows == 1 or batch.labels.ndim == 1 or not is_out_of_memory(error):  # classes are not by row
                            raise
                    # outside `except`, whose traceback holds the tensors that did not fit
                    rows = min(rows, len(batch.input_ids)) // 2 or 1
                    self.counters["oom_halvings"] += 1
                    optimizer.zero_grad(set_to_none=True)
                    torch.cuda.empty_cache()
                unscale(trained, scale)
                weights.append(predicted)
                self.counters["training_tokens"] += batch.tokens
                torch.nn.utils.clip_grad_norm_(trained, MAX_GRADIENT_NORM)
                for group in optimizer.param_groups:
                    group["lr"] = settings.learning_rate * (1 - step / total)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        model.eval()
        self.counters["trainings"] += 1
        self.counters["optimizer_steps"] += total
        values = torch.stack(losses).double().cpu().numpy()
        if not np.isfinite(values).all():
            hint = "lower the learning rate."
            where = (
                f"task {self.task.name!r}, {'pretraining' if pretraining else 'classifier'} of {self.model.model_id}"
            )
            raise CellError(f"{where}: the loss is not finite.", hint)
        last = total // settings.epochs
        return float(np.average(values[-last:], weights=weights[-last:]))


def _backward(batch: Batch, predicted: int, scale: int, predict: Predict, rows: int) -> Tensor:
    """Gradients of the mean over the whole batch times the scale, so many rows at a time; the mean."""
    total = torch.zeros((), device=batch.input_ids.device)
    for start in range(0, len(batch.input_ids), rows):
        logits, labels = predict(batch.rows(start, start + rows) if rows < len(batch.input_ids) else batch)
        labels = labels.to(logits.device, non_blocking=True)
        loss = F.cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="sum") / predicted
        (loss * scale).backward()
        total += loss.detach()
    return total


def _batches(count: int, settings: Settings, seed: int, *, shuffle: bool) -> Iterator[np.ndarray]:
    for epoch in range(settings.epochs):
        order = np.random.default_rng([seed, epoch]).permutation(count) if shuffle else np.arange(count)
        for start in range(0, count, settings.batch_size):
            yield order[start : start + settings.batch_size]


# ----------------------------------------------------------------------------------------------------------------------
# Trials with a linear head: pretrain on unlabelled texts, then train backbone and head on m labelled ones.


class HeadTrials(Trials):
    """Trains and predicts with a resident model; one method per stage. Tokenised texts are kept."""

    def __init__(self, plan: TrialPlan, task: LoadedTask, model: ResidentModel, counters: Counter[str]):
        super().__init__(plan, task, model, counters)
        self._encoded: dict[tuple[int, int | None], tuple[list[int], list[int]]] = {}

    def prepare(self, rows: np.ndarray) -> None:
        """Tokenise observations at once, at both lengths."""
        for length in {self.plan.pretraining.max_length, self.plan.classification.max_length}:
            self._encode(rows, length)

    def pretrain(self, rows: np.ndarray, seed: int, leaks: int) -> float:
        """Pretrain the pristine model on texts; the last epoch's mean loss in nats per predicted token.

        leaks: how many of the texts carry their class's name, a planted leak.
        """
        settings = self.plan.pretraining
        self._forget_training()
        sequences = self._encode(rows, settings.max_length)
        if leaks:
            texts = [f"{self.task.texts[row]} {self.task.class_name(row)}" for row in rows[:leaks]]
            sequences[:leaks] = self.model.encode(texts, settings.max_length)
        masked = self.plan.architecture == "masked"
        # the library's corruption (80% mask, 10% random, 10% kept), from a generator of ours
        mask = transformers.DataCollatorForLanguageModeling(
            self.model.tokenizer, mlm=masked, mlm_probability=settings.mask_probability
        )
        mask.generator = torch.Generator().manual_seed(seed)

        def make_batch(examples: np.ndarray) -> Batch:
            """The sequences of these examples, padded, with the tokens to predict as labels."""
            chosen = [sequences[example] for example in examples]
            ids, attention = padded([tokens for tokens, _ in chosen], self.model.tokenizer.pad_token_id)
            if masked:
                special, _ = padded([special for _, special in chosen], 1)
                ids, labels = mask.torch_mask_tokens(ids, special_tokens_mask=special)
            else:
                labels = next_tokens(ids, attention)
            return self.batch(ids, attention, labels)

        predict = self._masked_logits if masked else self._causal_logits
        return self._train(self.model.lm, len(sequences), make_batch, predict, seed)

    def classify(self, rows: np.ndarray, arm: Arm, seed: int) -> None:
        """Train the classifier on labelled observations, from the backbone as it stands (base: pristine)."""
        settings, model = self.plan.classification, self.model
        if arm == "base":
            self._forget_training()
        model.start_classifier(arm, seed)
        sequences = [tokens for tokens, _ in self._encode(rows, settings.max_length)]
        labels = torch.from_numpy(self.task.labels[rows].astype(np.int64))

        def make_batch(examples: np.ndarray) -> Batch:
            """The sequences of these examples, padded, with their classes as labels."""
            ids, attention = padded([sequences[example] for example in examples], model.tokenizer.pad_token_id)
            return self.batch(ids, attention, labels[examples])

        self._train(model.classifier, len(sequences), make_batch, self._class_logits, seed)

    @torch.no_grad()
    def probabilities(self, rows: np.ndarray) -> np.ndarray:
        """Class probabilities (observations, classes) of the trained classifier, float32."""
        sequences = [tokens for tokens, _ in self._encode(rows, self.plan.classification.max_length)]
        probabilities = np.empty((len(rows), len(self.task.class_names)), dtype=np.float32)
        order = np.argsort([len(tokens) for tokens in sequences], kind="stable")
        start, size = 0, self.plan.classification.predict_batch
        while start < len(order):  # half as many at a time from where memory runs out
            chosen, fits = order[start : start + size], True
            try:
                ids, attention = padded([sequences[example] for example in chosen], self.model.tokenizer.pad_token_id)
                batch = self.batch(ids, attention, torch.zeros(len(chosen)))
                probabilities[chosen] = self._class_logits(batch).logits.float().softmax(dim=-1).cpu().numpy()
                self.counters["forward_tokens"] += batch.tokens
            except RuntimeError as error:
                if size == 1 or not is_out_of_memory(error):
                    raise
                fits = False
            if fits:
                start += size
            else:  # outside `except`, whose traceback holds the tensors that did not fit
                size //= 2
                torch.cuda.empty_cache()
        return probabilities

    # ---- forward passes ---------------------------------------------------------------------------------------------

    def batch(self, ids: Tensor, attention: Tensor, labels: Tensor) -> Batch:
        """A padded batch as the model takes it, on its device: texts share rows where the architecture allows it."""
        if self.model.lm.config.model_type not in SHARED_ROWS:
            return super().batch(ids, attention, labels)
        causal = self.plan.architecture == "causal"
        return share_rows(ids, attention, labels, causal=causal, dtype=self.model.lm.dtype).to(self.model.device)

    def _class_logits(self, batch: Batch) -> LogitsAndLabels:
        """(texts, classes). The library's classifiers read one text per row, so shared rows go to their heads here."""
        classifier = self.model.classifier
        if batch.places is None:
            return LogitsAndLabels(classifier(**batch.inputs()).logits, batch.labels)
        row, first, last = batch.places.T
        hidden = classifier.base_model(**batch.inputs())[0]
        if self.plan.architecture == "causal":
            return LogitsAndLabels(classifier.score(hidden[row, last]), batch.labels)
        pooled = classifier.base_model.pooler(hidden[row, first][:, None])
        return LogitsAndLabels(classifier.classifier(classifier.dropout(pooled)), batch.labels)

    def _causal_logits(self, batch: Batch) -> LogitsAndLabels:
        logits = self.model.lm(**batch.inputs(), use_cache=False).logits
        return LogitsAndLabels(logits.flatten(0, 1), batch.labels.flatten())

    def _masked_logits(self, batch: Batch) -> LogitsAndLabels:
        """Logits at the masked positions only: the vocabulary's layer is a large part of a small model's work."""
        lm, labels, device = self.model.lm, batch.labels[batch.labels != IGNORED], batch.input_ids.device
        places = np.nonzero(batch.labels.numpy() != IGNORED)
        predicted = tuple(torch.from_numpy(indices).to(device, non_blocking=True) for indices in places)
        head = getattr(lm, "cls", None) or getattr(lm, "lm_head", None)
        if head is None:  # an architecture whose head has another name: the whole forward pass
            return LogitsAndLabels(lm(**batch.inputs()).logits[predicted], labels)
        return LogitsAndLabels(head(lm.base_model(**batch.inputs())[0][predicted]), labels)

    # ---- tokens -----------------------------------------------------------------------------------------------------

    def _encode(self, rows: np.ndarray, length: int | None) -> list[tuple[list[int], list[int]]]:
        missing = [int(row) for row in rows if (int(row), length) not in self._encoded]
        if missing:
            encoded = self.model.encode([self.task.texts[row] for row in missing], length)
            for row, encoding in zip(missing, encoded, strict=True):
                if not encoding[0]:
                    problem = (
                        f"{self.task.where(row)}: the tokenizer of {self.model.model_id} makes no token of its text."
                    )
                    raise CellError(problem, "correct or remove the row.")
                self._encoded[row, length] = encoding
        return [self._encoded[int(row), length] for row in rows]
