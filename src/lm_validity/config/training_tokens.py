"""Optimizer steps to training tokens, for runs whose batch size grows in phases (standard library only)."""

from dataclasses import dataclass


@dataclass(frozen=True)
class BatchRamp:
    """A batch that is `ramp_batches[0]`, then `ramp_batches[1]`, ... sequences, then `final_batch` for good.

    Every phase of the ramp lasts for `ramp_sequences` sequences, so phase i lasts for `ramp_sequences /
    batch_i` optimizer steps (a fraction is allowed: the step in which a phase ends is shared by two batch
    sizes).
    """

    sequence_length: int  # tokens a sequence
    ramp_batches: tuple[int, ...]  # sequences a step
    ramp_sequences: float  # sequences a phase
    final_batch: int  # sequences a step

    def tokens_b(self, iteration: float) -> float:
        """Billions of tokens seen after `iteration` optimizer steps."""
        if iteration < 0:
            raise ValueError(f"iteration must not be negative, got {iteration}")
        sequences, remaining = 0.0, float(iteration)
        for batch in self.ramp_batches:
            steps = min(remaining, self.ramp_sequences / batch)
            sequences += steps * batch
            remaining -= steps
        return (sequences + remaining * self.final_batch) * self.sequence_length / 1e9


# The dense-{500m,1b,3b}-{arch1,arch2} models of the NeurIPS 2025 early-training competition (its scoring
# notebook)
E2LM_BATCH_RAMP = BatchRamp(
    sequence_length=4096, ramp_batches=(256, 512, 768), ramp_sequences=4_882_812 / 3, final_batch=1024
)
