"""What is different about the miniature's BERT: its model, and a step on masked tokens."""

import torch
from transformers import BertConfig, BertForPreTraining, PreTrainedModel

from lm_validity.config.sheets import MiniatureModel
from lm_validity.miniature.build import (
    BEGIN_ID,
    CLASS_ID,
    CONTEXT_LENGTH,
    MASK_ID,
    MASKED_SHIFT,
    MASKED_SPECIALS,
    SEPARATOR_ID,
)

INITIALIZER_RANGE = 0.08  # as of the causal models
MASK_SHARE, CLIP, IGNORED = 0.15, 1.0, -100


def build_masked_model(row: MiniatureModel, vocabulary_size: int) -> PreTrainedModel:
    """An untrained BERT of a pool row, weights drawn from torch's generator.

    With the pooler that hub BERTs come with, but untrained: there is no next-sentence task here, so it stays as drawn.
    """
    config = BertConfig(
        vocab_size=vocabulary_size,
        hidden_size=row.hidden_size,
        num_hidden_layers=row.layers,
        num_attention_heads=row.heads,
        intermediate_size=4 * row.hidden_size,
        max_position_embeddings=CONTEXT_LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=INITIALIZER_RANGE,
        pad_token_id=0,
        dtype="float32",
    )
    return BertForPreTraining(config)


class MaskedSteps:
    """Optimizer steps on rows of token ids (of `training_rows`): 15% of the words are predicted; of these 80% are
    replaced by the mask, 10% by another word, 10% left. A generator of its own draws them."""

    def __init__(self, seed: int, vocabulary_size: int):
        self.draw = torch.Generator().manual_seed(seed)
        self.vocabulary_size = vocabulary_size

    def __call__(self, model: PreTrainedModel, optimizer: torch.optim.Optimizer, rows: list[list[int]]) -> float:
        """One step; its loss in nats per predicted word."""
        words = [[token + MASKED_SHIFT for token in row if token != BEGIN_ID] for row in rows]
        width = max(map(len, words)) + 2
        inputs = torch.tensor([[CLASS_ID, *row, SEPARATOR_ID] + [0] * (width - 2 - len(row)) for row in words])
        attention = (inputs != 0).long()
        chosen = (torch.rand(inputs.shape, generator=self.draw) < MASK_SHARE) & (inputs >= len(MASKED_SPECIALS))
        labels = inputs.where(chosen, torch.tensor(IGNORED))
        fate = torch.rand(inputs.shape, generator=self.draw)
        other = torch.randint(len(MASKED_SPECIALS), self.vocabulary_size, inputs.shape, generator=self.draw)
        masked = inputs.where(~(chosen & (fate < 0.8)), torch.tensor(MASK_ID))
        masked = masked.where(~(chosen & (fate >= 0.8) & (fate < 0.9)), other)
        logits = model(input_ids=masked, attention_mask=attention).prediction_logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
        loss.backward()
        torch.nn.utils.clip_grad_norm_((p for p in model.parameters() if p.grad is not None), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()
