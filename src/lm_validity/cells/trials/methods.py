"""What a trial does by each method: a linear head, or prompts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import transformers

from lm_validity.cells.models.passes import Request, in_batches
from lm_validity.cells.training.loop import layers_recomputed
from lm_validity.cells.training.lora import BatchPosition
from lm_validity.cells.trials.data import LoadedTask
from lm_validity.cells.trials.training import (
    IGNORED,
    SHARED_ROWS,
    Arm,
    Batch,
    LogitsAndLabels,
    ResidentModel,
    TrialCounters,
    Trials,
    next_tokens,
    padded,
    share_rows,
)
from lm_validity.errors import CellError
from lm_validity.run.rules.pretrain_on_test import TrialPlan

# ----------------------------------------------------------------------------------------------------------------------
# Trials with a linear head: pretrain on unlabelled texts, then train backbone and head on m labelled ones.


class HeadTrials(Trials):
    """Trains and predicts with a resident model; one method per stage. Tokenised texts are kept."""

    def __init__(self, plan: TrialPlan, task: LoadedTask, model: ResidentModel, counters: TrialCounters):
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
        return self._train(self.model.lm, "pretraining", len(sequences), make_batch, predict, settings, seed)

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

        def predict(batch: Batch) -> LogitsAndLabels:
            """The logits of the classes (rows, classes) and the class of each row."""
            return LogitsAndLabels(self._class_logits(batch), batch.labels)

        self._train(model.classifier, "classifier", len(sequences), make_batch, predict, settings, seed)

    @torch.no_grad()
    def probabilities(self, rows: np.ndarray) -> np.ndarray:
        """Class probabilities (observations, classes) of the trained classifier, float32."""
        sequences = [tokens for tokens, _ in self._encode(rows, self.plan.classification.max_length)]
        probabilities = np.empty((len(rows), len(self.task.class_names)), dtype=np.float32)
        order = np.argsort([len(tokens) for tokens in sequences], kind="stable")

        def predict(chosen: Sequence[int]) -> None:
            ids, attention = padded([sequences[example] for example in chosen], self.model.tokenizer.pad_token_id)
            batch = self.batch(ids, attention, torch.zeros(len(chosen)))
            probabilities[chosen] = self._class_logits(batch).float().softmax(dim=-1).cpu().numpy()
            self.counters.forward_tokens += batch.tokens

        in_batches(order.tolist(), self.plan.classification.predict_batch, predict)
        return probabilities

    # ---- forward passes ---------------------------------------------------------------------------------------------

    def batch(self, ids: torch.Tensor, attention: torch.Tensor, labels: torch.Tensor) -> Batch:
        """A padded batch as the model takes it, on its device: texts share rows where the architecture allows it."""
        if self.model.lm.config.model_type not in SHARED_ROWS:
            return super().batch(ids, attention, labels)
        causal = self.plan.architecture == "causal"
        return share_rows(ids, attention, labels, causal=causal, dtype=self.model.lm.dtype).to(self.model.device)

    def _class_logits(self, batch: Batch) -> torch.Tensor:
        """(texts, classes). The library's classifiers read one text per row, so shared rows go to their heads here."""
        classifier = self.model.classifier
        if batch.places is None:
            return classifier(**batch.inputs()).logits
        row, first, last = batch.places.T
        hidden = classifier.base_model(**batch.inputs())[0]
        if self.plan.architecture == "causal":
            return classifier.score(hidden[row, last])
        pooled = classifier.base_model.pooler(hidden[row, first][:, None])
        return classifier.classifier(classifier.dropout(pooled))

    def _causal_logits(self, batch: Batch) -> LogitsAndLabels:
        logits = self.model.lm(**batch.inputs(), use_cache=False).logits
        return LogitsAndLabels(logits.flatten(0, 1), batch.labels.flatten())

    def _masked_logits(self, batch: Batch) -> LogitsAndLabels:
        """Logits at the masked positions only: the vocabulary's layer is a large part of a small model's work."""
        lm, predicted, labels = self.model.lm, batch.predicted_places(), batch.labels[batch.labels != IGNORED]
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
                    raise CellError(
                        f"{self.task.where(row)}: the tokenizer of {self.model.model_id} makes no token of its text.",
                        "correct or remove the row.",
                    )
                self._encoded[row, length] = encoding
        return [self._encoded[int(row), length] for row in rows]


# ----------------------------------------------------------------------------------------------------------------------
# The zero-shot prompt of arXiv 2410.00179: an instruction with the class names, the text, a cue for the answer.
#
# Note the blank before the cue, which the paper's figure hides.

QUERY = "### Text:"
CUE = " ### Answer:"


@dataclass(frozen=True)
class PromptFormat:
    """A task's prompts. characters: how much of a text is quoted."""

    class_names: tuple[str, ...]
    description: str
    characters: int

    @property
    def instruction(self) -> str:
        """What all prompts of the task begin with."""
        names = "\n".join(self.class_names)
        return f"Your task is to classify a given text as one of these categories:\n{names}\n\n{self.description}\n\n"

    def query(self, text: str) -> str:
        """One text as a prompt quotes it, cut to `characters`."""
        return f"{QUERY} {text[: self.characters]}\n"

    def prompt(self, text: str) -> str:
        """What is scored, and what is pretrained on: it ends before the answer."""
        return f"{self.instruction}{self.query(text)}{CUE}"

    def packed(self, texts: Sequence[str]) -> str:
        """Several texts under one instruction, without a cue."""
        return self.instruction + "\n\n".join(self.query(text) for text in texts)


# ----------------------------------------------------------------------------------------------------------------------
# Zero-shot trials: pretrain a causal LM (LoRA, or all weights) on prompts without answers, then prompt it.
#
# A class's score is the mean log-probability of its name's tokens after the prompt; the probabilities are the scores'
# softmax. They are scored as the choices of a benchmark are: a prompt is computed once for all classes.


class ZeroShotTrials(Trials):
    """The stages of a trial with a resident causal LM."""

    def __init__(self, plan: TrialPlan, task: LoadedTask, model: ResidentModel, counters: TrialCounters):
        super().__init__(plan, task, model, counters)
        self.format = PromptFormat(task.class_names, task.description, plan.classification.prompt_characters)
        self.answers = [self._answer_tokens(name) for name in task.class_names]
        self._check_apart()
        self.longest_answer = max(map(len, self.answers))
        self._prompts: dict[int, list[int]] = {}

    def prepare(self, rows: np.ndarray) -> None:
        """Tokenise the observations' prompts. Raises CellError for one that the model cannot read whole."""
        self._encode(rows)

    def pretrain(self, rows: np.ndarray, seed: int, leaks: int) -> float:
        """Pretrain on prompts; the last epoch's mean loss over all tokens, in nats.

        leaks: how many of the prompts carry their answer, a planted leak.
        """
        settings = self.plan.pretraining
        self._forget_training()
        texts = self._pretraining_texts(rows, leaks)
        if settings.packing:
            self._check_packed(texts)
        sequences = [tokens for tokens, _ in self.model.encode(texts, settings.max_length)]
        position = BatchPosition(seed)
        self.model.adapt(position)

        def make_batch(examples: np.ndarray) -> Batch:
            """The sequences of these examples, padded; begins a step of the adapter's dropout."""
            ids, attention = padded([sequences[index] for index in examples], self.model.tokenizer.pad_token_id)
            position.begin_step(*ids.shape)
            return Batch(ids, attention, next_tokens(ids, attention), int(attention.sum())).to(self.model.device)

        def predict(batch: Batch) -> LogitsAndLabels:
            """The logits of all positions (rows * positions, tokens) and the token that each is to predict."""
            position.begin_micro_batch(batch.first, len(batch.input_ids))
            output = self.model.lm(**batch.inputs(), use_cache=False)
            return LogitsAndLabels(output.logits.flatten(0, 1), batch.labels.flatten())

        with layers_recomputed(self.model.lm, recompute=settings.gradient_checkpointing):
            loss = self._train(self.model.lm, "pretraining", len(sequences), make_batch, predict, settings, seed)
        position.rest()
        return loss

    def classify(self, rows: np.ndarray, arm: Arm, seed: int) -> None:
        """Nothing is trained on labels; base is the model as it came."""
        if arm == "base":
            self._forget_training()

    @torch.no_grad()
    def probabilities(self, rows: np.ndarray) -> np.ndarray:
        """Class probabilities (observations, classes), float32."""
        prompts, scorer = self._encode(rows), self.model.scorer
        requests: list[Request] = [(None, prompt, answer) for prompt in prompts for answer in self.answers]
        counted = scorer.counters.forward_tokens
        sums = [value for value, _ in scorer._loglikelihood_tokens(requests)]
        self.counters.forward_tokens += scorer.counters.forward_tokens - counted
        lengths = torch.tensor([len(answer) for answer in self.answers])
        scores = torch.tensor(sums).reshape(len(rows), -1) / lengths
        probabilities: np.ndarray = scores.softmax(dim=-1).numpy()
        return probabilities

    # ---- tokens and weights -----------------------------------------------------------------------------------------

    def _encode(self, rows: np.ndarray) -> list[list[int]]:
        """Their prompts' tokens, of those not seen before as well: a base arm is also asked about other jobs' texts."""
        missing = [int(row) for row in rows if int(row) not in self._prompts]
        texts = [self.format.prompt(self.task.texts[row]) for row in missing]
        encoded = self.model.tokenizer(texts, verbose=False)["input_ids"] if texts else []
        for row, tokens in zip(missing, encoded, strict=True):
            n_tokens = len(tokens) + self.longest_answer
            if n_tokens > self.model.limit:
                raise CellError(
                    f"{self.task.where(row)}: its prompt and answer have {n_tokens} tokens, {self.model.model_id} "
                    f"reads {self.model.limit}.",
                    "lower prompt_characters.",
                )
            self._prompts[row] = tokens
        return [self._prompts[int(row)] for row in rows]

    def _check_apart(self) -> None:
        """Raise CellError for two classes that are the same tokens, as unknown words are: their scores would tie."""
        first: dict[tuple[int, ...], str] = {}
        for name, tokens in zip(self.task.class_names, self.answers, strict=True):
            if (other_name := first.setdefault(tuple(tokens), name)) != name:
                where = f"task {self.task.name!r}: the tokenizer of {self.model.model_id}"
                raise CellError(
                    f"{where} writes the classes {other_name!r} and {name!r} as the same tokens.",
                    "use other class names, or leave the model out.",
                )

    def _answer_tokens(self, name: str) -> list[int]:
        """Tokens of an answer as they follow the cue."""
        prompt = f"{self.format.query('text')}{CUE}"
        tokens_before = self.model.tokenizer(prompt)["input_ids"]
        tokens_of_both = self.model.tokenizer(f"{prompt} {name}")["input_ids"]
        if tokens_of_both[: len(tokens_before)] != tokens_before:  # a merge over the border: the answer by itself
            tokens_before, tokens_of_both = [], self.model.tokenizer(f" {name}", add_special_tokens=False)["input_ids"]
        if len(tokens_of_both) == len(tokens_before):
            where = f"task {self.task.name!r}: the tokenizer of {self.model.model_id}"
            raise CellError(f"{where} makes no token of the class {name!r}.", "use other class names.")
        result: list[int] = tokens_of_both[len(tokens_before) :]
        return result

    def _pretraining_texts(self, rows: np.ndarray, leaks: int) -> list[str]:
        texts = [self.task.texts[row] for row in rows]
        size = self.plan.pretraining.packing
        if size:
            return [self.format.packed(texts[start : start + size]) for start in range(0, len(texts), size)]
        answers = [f" {self.task.class_name(row)}" for row in rows[:leaks]] + [""] * (len(rows) - leaks)
        return [self.format.prompt(text) + answer for text, answer in zip(texts, answers, strict=True)]

    def _check_packed(self, texts: Sequence[str]) -> None:
        """Count packed sequences that lose their end to packed_max_length. Raises CellError for one that would lose it
        to the model's own limit, which the configuration does not say."""
        limit, max_length = self.model.limit, self.plan.pretraining.max_length
        longest = [len(tokens) for tokens in self.model.tokenizer(list(texts), verbose=False)["input_ids"]]
        if max(longest) > limit and max_length > limit:
            raise CellError(
                f"task {self.task.name!r}: a packed sequence has {max(longest)} tokens, {self.model.model_id} reads "
                f"{limit}.",
                "leave `packing` out of the experiment, or take a model that reads more.",
            )
        self.counters.packed_sequences_cut += sum(length > max_length for length in longest)
