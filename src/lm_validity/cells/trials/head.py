"""Trials with a linear head: pretrain on unlabelled texts, then train backbone and head on m labelled ones."""

from collections.abc import Sequence

import numpy as np
import torch
import transformers

from lm_validity.cells.models.scorer import in_batches
from lm_validity.cells.trials.data import Task
from lm_validity.cells.trials.training import (
    SHARED_ROWS,
    Arm,
    Batch,
    ResidentModel,
    Schedule,
    TrialCounters,
    next_tokens,
    padded,
    share_rows,
    train,
)
from lm_validity.errors import CellError
from lm_validity.run.trial_plan import TrialPlan


class HeadTrials:
    """Trains and predicts with a resident model; one method per stage. Tokenised texts are kept."""

    def __init__(self, plan: TrialPlan, task: Task, model: ResidentModel, counters: TrialCounters):
        self.plan, self.task, self.model, self.counters = plan, task, model, counters
        self._encoded: dict[tuple[int, int | None], tuple[list[int], list[int]]] = {}

    def prepare(self, rows: np.ndarray) -> None:
        """Tokenise observations at once, at both lengths."""
        for length in {self.plan.pretraining.max_length, self.plan.classification.max_length}:
            self._encode(rows, length)

    def pretrain(self, rows: np.ndarray, seed: int, answers: Sequence[str | None]) -> float:
        """Pretrain the pristine model on texts; the last epoch's mean loss in nats per predicted token.

        answers: what is appended to each text, for planted leaks only; else null.
        """
        settings = self.plan.pretraining
        self.model.reset()
        self.counters.resets += 1
        sequences = self._pretraining_sequences(rows, answers)
        masked = self.plan.architecture == "masked"
        mask = _Masking(self.model, settings.mask_probability, seed) if masked else None

        def make_batch(examples: np.ndarray) -> Batch:
            chosen = [sequences[example] for example in examples]
            ids, attention = padded([tokens for tokens, _ in chosen], self.model.tokenizer.pad_token_id)
            if mask is not None:
                special, _ = padded([special for _, special in chosen], 1)
                ids, labels = mask(ids, special)
            else:
                labels = next_tokens(ids, attention)
            return self._batch(ids, attention, labels)

        return train(
            self.model.lm,
            len(sequences),
            make_batch,
            self._masked_logits if masked else self._causal_logits,
            Schedule(
                settings.epochs,
                settings.learning_rate,
                settings.batch_size,
                settings.weight_decay,
                seed,
                self.plan.shuffle,
                settings.micro_batch,
            ),
            self.counters,
            f"task {self.task.name!r}, pretraining of {self.model.name}",
        )

    def classify(self, rows: np.ndarray, arm: Arm, seed: int) -> None:
        """Train the classifier on labelled observations, from the backbone as it stands (base: pristine)."""
        settings, model = self.plan.classification, self.model
        if arm == "base":
            model.reset()
            self.counters.resets += 1
        model.start_classifier(arm, seed)
        sequences = [tokens for tokens, _ in self._encode(rows, settings.max_length)]
        labels = torch.from_numpy(self.task.labels[rows].astype(np.int64))

        def make_batch(examples: np.ndarray) -> Batch:
            ids, attention = padded([sequences[example] for example in examples], model.tokenizer.pad_token_id)
            return self._batch(ids, attention, labels[examples])

        train(
            model.classifier,
            len(sequences),
            make_batch,
            lambda batch: (self._class_logits(batch), batch.labels),
            Schedule(
                settings.epochs,
                settings.learning_rate,
                settings.batch_size,
                settings.weight_decay,
                seed,
                self.plan.shuffle,
            ),
            self.counters,
            f"task {self.task.name!r}, classifier of {self.model.name}",
        )

    @torch.no_grad()
    def probabilities(self, rows: np.ndarray) -> np.ndarray:
        """Class probabilities (observations, classes) of the trained classifier, float32."""
        sequences = [tokens for tokens, _ in self._encode(rows, self.plan.classification.max_length)]
        found = np.empty((len(rows), len(self.task.class_names)), dtype=np.float32)
        order = np.argsort([len(tokens) for tokens in sequences], kind="stable")

        def predict(chosen: Sequence[int]) -> None:
            ids, attention = padded([sequences[example] for example in chosen], self.model.tokenizer.pad_token_id)
            batch = self._batch(ids, attention, torch.zeros(len(chosen)))
            found[chosen] = self._class_logits(batch).float().softmax(dim=-1).cpu().numpy()
            self.counters.forward_tokens += batch.tokens

        in_batches(order.tolist(), self.plan.classification.predict_batch, predict)
        return found

    # ---- forward passes ---------------------------------------------------------------------------------------------

    def _batch(self, ids: torch.Tensor, attention: torch.Tensor, labels: torch.Tensor) -> Batch:
        """A padded batch as the model takes it, on its device."""
        if self.model.lm.config.model_type in SHARED_ROWS:
            causal = self.plan.architecture == "causal"
            batch = share_rows(ids, attention, labels, causal=causal, dtype=self.model.lm.dtype)
        else:
            batch = Batch(ids, attention, labels, int(attention.sum()))
        return batch.to(self.model.device)

    def _class_logits(self, batch: Batch) -> torch.Tensor:
        """(texts, classes). The library's classifiers read one text per row, so shared rows go to their heads here."""
        classifier = self.model.head_model
        if batch.places is None:
            return classifier(**batch.inputs()).logits
        row, first, last = batch.places.T
        hidden = classifier.base_model(**batch.inputs())[0]
        if self.plan.architecture == "causal":
            return classifier.score(hidden[row, last])
        pooled = classifier.base_model.pooler(hidden[row, first][:, None])
        return classifier.classifier(classifier.dropout(pooled))

    def _causal_logits(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.model.lm(**batch.inputs(), use_cache=False).logits
        return logits.flatten(0, 1), batch.labels.flatten()

    def _masked_logits(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits at the masked positions only: the vocabulary's layer is a large part of a small model's work."""
        lm, wanted = self.model.lm, batch.predicted_places()
        head = getattr(lm, "cls", None) or getattr(lm, "lm_head", None)
        if head is None:  # an architecture whose head has another name: the whole forward pass
            logits = lm(**batch.inputs()).logits[wanted]
        else:
            logits = head(lm.base_model(**batch.inputs())[0][wanted])
        return logits, batch.labels[wanted]

    # ---- tokens -----------------------------------------------------------------------------------------------------

    def _encode(self, rows: np.ndarray, length: int | None) -> list[tuple[list[int], list[int]]]:
        missing = [int(row) for row in rows if (int(row), length) not in self._encoded]
        if missing:
            encoded = self.model.encode([self.task.texts[row] for row in missing], length)
            for row, one in zip(missing, encoded, strict=True):
                if not one[0]:
                    raise CellError(
                        f"{self.task.where(row)}: the tokenizer of {self.model.name} makes no token of its text.",
                        "correct or remove the row.",
                    )
                self._encoded[row, length] = one
        return [self._encoded[int(row), length] for row in rows]

    def _pretraining_sequences(
        self, rows: np.ndarray, answers: Sequence[str | None]
    ) -> list[tuple[list[int], list[int]]]:
        length = self.plan.pretraining.max_length
        sequences = list(self._encode(rows, length))
        leaking = [place for place, answer in enumerate(answers) if answer is not None]
        if leaking:
            texts = [f"{self.task.texts[rows[place]]} {answers[place]}" for place in leaking]
            for place, one in zip(leaking, self.model.encode(texts, length), strict=True):
                sequences[place] = one
        return sequences


class _Masking:
    """The library's masked-LM corruption (80% mask, 10% random, 10% kept), from a generator of ours."""

    def __init__(self, model: ResidentModel, probability: float, seed: int):
        self.collator = transformers.DataCollatorForLanguageModeling(
            model.tokenizer, mlm=True, mlm_probability=probability
        )
        self.collator.generator = torch.Generator().manual_seed(seed)

    def __call__(self, ids: torch.Tensor, special: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.collator.torch_mask_tokens(ids, special_tokens_mask=special)
