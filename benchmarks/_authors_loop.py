"""One learning rate of one cell, with the calls of the published train-before-test program.

    python benchmarks/_authors_loop.py FOLDER LEARNING_RATE BATCH_SIZE OUTPUT

In the order of that program's main loop: load the model; score validation and test; train 5 epochs, after each the
trainer's own pass over validation for its loss, then validation and test again; load the best epoch's adapter and score
validation and test once more. Requests are built anew for each of the 14 passes. Scoring is lm-eval's HFLM (batch 1, as
that program really runs; 32 is the repaired one), training a plain loop: forward over the padded batch of 8, logits at
every position. Initial adapter, dropout masks and order of documents are this project's, so that both sides train the
same model and scores can be held against each other.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from lm_validity.cells.models.language_model import load_language_model
from lm_validity.cells.tasks.evaluation import metric_value, prepare_requests, training_examples
from lm_validity.cells.tasks.finding import find_task
from lm_validity.cells.tasks.splits import documents, make_splits
from lm_validity.cells.tasks.tasks import load_task
from lm_validity.cells.training.lora import BatchPosition, adapter_tensors, add_adapter, save_adapter, use_adapter
from lm_validity.config.sections import OneFinetune
from lm_validity.run.cell import derive_seed

EPOCHS, BATCH, METRIC = 5, 8, "acc,none"
SHAPE = OneFinetune(rank=8, alpha=32, dropout=0.1)


def main(folder: Path, rate: float, batch_size: int, output: Path) -> None:
    torch.set_num_threads(1)
    lm = load_language_model(
        folder / "model", dtype="float32", device="cpu", eval_batch_size=batch_size, scorer="lm-eval"
    )
    task = load_task(find_task("toy", folder / "tasks"))
    splits = make_splits(task)

    def score(split: str) -> float:
        lm.share_encodings({})
        docs = documents(task, getattr(splits, split))
        return metric_value(lm, prepare_requests(lm, task, docs), METRIC)

    found = {"direct": [score("validation"), score("test")], "epochs": [], "losses": []}
    examples = training_examples(lm, task, documents(task, splits.train))
    heldout = training_examples(lm, task, documents(task, splits.validation))
    position = BatchPosition(derive_seed("finetune_adapter", "m", "toy", "plain", 0) % 2**63)
    model = add_adapter(lm, SHAPE, "all-linear", position)
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=rate, weight_decay=0.01)
    steps = -(-len(examples) // BATCH) * EPOCHS
    best = None
    for epoch in range(1, EPOCHS + 1):
        order = np.random.default_rng([position.seed, epoch]).permutation(len(examples))
        losses = []
        for start in range(0, len(order), BATCH):
            batch = sorted((examples[i] for i in order[start : start + BATCH]), key=lambda row: -len(row.token_ids))
            loss = batch_loss(lm, batch, position)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.param_groups[0]["lr"] = rate * (1 - position.step / steps)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            position.step += 1
            losses.append(loss.item())
        with torch.no_grad():  # the trainer's own evaluation, whose loss nobody reads
            for start in range(0, len(heldout), BATCH):
                batch_loss(lm, heldout[start : start + BATCH])
        found["losses"].append(float(np.mean(losses)))
        found["epochs"].append([score("validation"), score("test")])
        if best is None or found["epochs"][-1][0] > best:
            best = found["epochs"][-1][0]
            save_adapter(model, adapter_tensors(model), output.parent / f"adapter-{rate}")
    model.unload()
    with use_adapter(lm, output.parent / f"adapter-{rate}"):
        found["selected"] = [score("validation"), score("test")]
    output.write_text(json.dumps(found))


def batch_loss(lm, batch, position: BatchPosition | None = None) -> torch.Tensor:
    """Token mean over a batch padded to its longest, logits at every position."""
    rows = [torch.tensor(example.token_ids) for example in batch]
    inputs = torch.nn.utils.rnn.pad_sequence(rows, True, lm.tokenizer.pad_token_id)
    labels = torch.nn.utils.rnn.pad_sequence(rows, True, -100)
    if position is not None:
        position.rows, position.width, position.training = *inputs.shape, True
        position.start, position.count, position.length = 0, *inputs.shape
    logits = lm.base(input_ids=inputs, use_cache=False).logits
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
    if position is not None:
        position.training = False
    return loss


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
