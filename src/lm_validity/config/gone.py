"""Keys of earlier versions that have one value now. Configurations that give this value load; others say what to do.

Standard library and pydantic only: the Snakefile reads this at parse time.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from lm_validity.config.rows import bad_value

_RATE = "the learning rates are tuned, on validation; another {} would be a different study from the published one"
_SHEET = "give the column `{}` of the tasks sheet, which takes precedence"
_PAPER = "`bias: paper: true` sets what the authors' code has; nothing else is valid"
_ADAPTER = "it is the paper's adapter, and `pretraining_epochs` of the experiment makes it learn more"
_PACKED = "it is the packed experiment's of the paper"
_HALVED = "it is halved automatically where memory runs out"
_WORLD = "choose another world by `formats`, `test_facts` and `seed`; its sizes are those for which it was checked"

# Keys that `bias: paper: true` went before: beside it they were not read
BY_PAPER = ("bias.drop_duplicate_texts", "bias.seeds", "bias.training.max_length", "bias.training.pooler")
# key (`*`: of any name) -> its only value, and why nothing is missed: what to do in place of giving another value
GONE: dict[str, tuple[object, str]] = {
    "signal": (None, "every benchmark is scored at every checkpoint, in one stage; finished cells stay"),
    "evaluation.generation_cache": ("dynamic", "the static cache was never faster; finished cells stay"),
    "evaluation.document_bos": ("auto", "give the models that differ the column `document_bos` of the models sheet"),
    "evaluation.chat_answer_start": ("template", "what the template puts there is what the model was trained on"),
    "finetuning.effective_batch": (8, _RATE.format("batch")),
    "finetuning.micro_batch": (8, _HALVED),
    "finetuning.loss": ("all", _RATE.format("loss")),
    "finetuning.rank": (8, _RATE.format("rank")),
    "finetuning.alpha": (32, "it multiplies the learning rate; give other learning_rates"),
    "finetuning.dropout": (0.1, _RATE.format("dropout")),
    "finetuning.weight_decay": (0.01, _RATE.format("weight decay")),
    "size_classes.*.batching": (None, "give `batching: job_hours`, under which larger models have fewer cells per job"),
    "batch_ramps": (
        {"e2lm": {"sequence_length": 4096, "ramp_batches": [256, 512, 768], "ramp_sequences": 1627604.0,
                  "final_batch": 1024}},
        "give `tokens_b` in the sheet of checkpoints; the ramp e2lm stays",
    ),
    "bias.drop_duplicate_texts": (True, _PAPER),
    "bias.seeds": ("varied", _PAPER),
    "bias.pretraining.batch_size": (16, _SHEET.format("pretraining_batch")),
    "bias.pretraining.max_length": (256, "longer texts are cut, as in the paper; shorten the texts themselves"),
    "bias.pretraining.weight_decay": (0.0, "give another learning rate"),
    "bias.pretraining.mask_probability": (0.15, "it is BERT's own"),
    "bias.pretraining.masked_epochs": (2, "give the experiment's `pretraining_epochs`"),
    "bias.pretraining.causal_epochs": (1, "give the experiment's `pretraining_epochs`"),
    "bias.pretraining.micro_batch": (None, _HALVED),
    "bias.training.batch_size": (16, _SHEET.format("masked_batch` or `causal_batch")),
    "bias.training.weight_decay": (0.01, "give another learning rate"),
    "bias.training.max_length": (256, _PAPER),
    "bias.training.pooler": ("keep", _PAPER),
    "bias.zero_shot.learning_rate": (2e-4, _ADAPTER),
    "bias.zero_shot.rank": (16, _ADAPTER),
    "bias.zero_shot.alpha": (32, _ADAPTER),
    "bias.zero_shot.dropout": (0.05, _ADAPTER),
    "bias.zero_shot.max_length": (512, "longer prompts are cut, as in the paper; shorten the texts themselves"),
    "bias.zero_shot.epochs": (1, "give the experiment's `pretraining_epochs`"),
    "bias.zero_shot.batch_size": (16, _SHEET.format("pretraining_batch")),
    "bias.zero_shot.micro_batch": (None, _HALVED),
    "bias.zero_shot.prompt_characters": (1000, "shorten the task's texts themselves"),
    "bias.zero_shot.packed_texts": (8, _PACKED),
    "bias.zero_shot.packed_max_length": (8192, _PACKED),
    "reports.signal": (
        {"convention": "code", "ties": "stable", "normalisation": "joint_minmax", "base_window": [100.0, 200.0],
         "later_window": [220.0, 1000.0], "weights": [0.5, 0.1, 0.4]},
        "`lm-validity report signal` has these options; on the run's tables it takes seconds and computes no cell",
    ),
    "miniature.test_entities": (48, _WORLD),
    "miniature.training_entities": (40, _WORLD),
    "miniature.validation_entities": (20, _WORLD),
    "miniature.public_entities": (28, _WORLD),
    "miniature.grammar_share": (0.06, _WORLD),
    "miniature.format_share": (0.40, _WORLD),
    "miniature.batch_documents": (64, _WORLD),
}  # fmt: skip


def without_gone(values: Mapping[str, object]) -> dict[str, object]:
    """Values of a configuration without the keys that are gone. Refuses another value than the one that is left; not
    under `bias: paper: true`, which went before those of its own meaning."""
    values_now = {key: _copy(value) for key, value in values.items()}
    bias = values_now.get("bias")
    by_paper = isinstance(bias, dict) and bias.get("paper")
    for key, (only, instead) in GONE.items():
        *above, name = key.split(".")
        for key_path, holder in _holders(values_now, above):
            odd = _odd_one(holder.pop(name, only), only, f"{key_path}{name}")
            if odd is not None and not (by_paper and key in BY_PAPER):
                now = "" if odd.only is None else f", and in every run it is {odd.only!r}"
                problem = f"key {odd.key_path!r}, value {odd.value!r}: this key is gone{now}"
                raise bad_value(problem, f"take it out: {instead}.")
    return values_now


def _copy(values: object) -> object:
    return {key: _copy(value) for key, value in values.items()} if isinstance(values, dict) else values


def _holders(values: object, above: list[str], key_path: str = "") -> Iterator[tuple[str, dict[str, object]]]:
    """Each mapping below `above`, where `*` is any key, with its own place."""
    if isinstance(values, dict) and not above:
        yield key_path, values
    elif isinstance(values, dict):
        for key in list(values) if above[0] == "*" else [above[0]]:
            yield from _holders(values.get(key), above[1:], f"{key_path}{key}.")


class _OddKey(NamedTuple):
    """A key of the configuration whose value differs from the only one that is left: path, value and that one."""

    key_path: str
    value: object
    only: object


def _odd_one(value: object, only: object, key_path: str) -> _OddKey | None:
    """The place of the first value that is not the only one, the value, and the only one. A mapping may have fewer
    keys."""
    if isinstance(value, dict) and isinstance(only, dict):
        odd = (_odd_one(value[key], only.get(key), f"{key_path}.{key}") for key in value)
        return next(filter(None, odd), None)
    return None if _plain(value) == _plain(only) else _OddKey(key_path, value, only)


def _plain(value: object) -> object:
    """A value as it is compared: YAML reads 1e-4 as a text, and an option of a command is `100,200`."""
    if isinstance(value, str) and "," in value:
        return _plain(value.split(","))
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    try:
        return float(value) if isinstance(value, str | float | int) else value
    except ValueError:
        return value
