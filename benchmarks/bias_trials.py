"""Trials of the bias study: the authors' loop against the resident worker, on a tiny BERT and a tiny GPT-2.

    python benchmarks/bias_trials.py --output FILE [--subsamples 4] [--rounds 3]

The authors' loop is written after the description of arXiv 2410.00179 and its code: per subsample five trainings by the
library's Trainer, three loads of a classifier from disk and two saves of a pretrained model, whole-set padding, texts
tokenised anew each time. (Their two further loads, of the model to pretrain, are copies in memory here.) Both sides
run in this process on one thread, one round of subsamples each in turn; the worker's loading and tokenising are in its
time, the imports are in nobody's. Time is CPU time, which other programs on the machine do not disturb.

Both compute every (subsample, n). The base arm does not depend on n: the worker trains it once for both values.

Dropout is off, texts come in one order, heads and masks are drawn from the same seeds: both sides must then give the
same accuracy in every trial and arm. Where they do not, no ratio is printed. `agreement` is the largest difference of
a class probability.
"""

import argparse
import copy
import json
import math
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
import transformers
from _measure import compare, interleave, write_records
from _toys import describe_model
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import DataCollatorForLanguageModeling, PrinterCallback, Trainer, TrainingArguments

from lm_validity.cells.trials.data import Draw, LoadedTask, draw_trial, prefetch_task, read_task
from lm_validity.cells.trials.training import start_fresh
from lm_validity.cells.trials.worker import FIXED_SEED, ResidentWorker, read_tables
from lm_validity.config.sheets import Task as TaskRow
from lm_validity.run.rules.pretrain_on_test import ARMS, Classification, Pretraining, TaskData, TrialPlan

TARGET = 3.0
WIDTH, LAYERS, VOCABULARY = 32, 5, 1000
CLASSES = ("first", "second", "third", "fourth")
TRAINING_TEXTS, TEST_TEXTS, POSITIONS = 100, (50, 100), 256
# log-normal lengths: the middle one of the paper's 25 tasks, by its quartiles of characters at 5.5 a word
TEXT_WORDS, TEXT_SPREAD = 20, 0.5
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LOADERS = {"masked": transformers.AutoModelForMaskedLM, "causal": transformers.AutoModelForCausalLM}


# ---- a task and models --------------------------------------------------------------------------------------------


def write_task(folder: Path) -> dict:
    """600 texts of a Zipf-like vocabulary, with a few words that tell the class."""
    rng = np.random.default_rng(0)
    words = np.array([f"w{number}" for number in range(VOCABULARY)])
    share = 1 / np.arange(1, VOCABULARY + 1)
    path = folder / "texts.jsonl"
    with open(path, "w") as handle:
        for number in range(600):
            label = number % len(CLASSES)
            length = max(3, round(TEXT_WORDS * math.exp(TEXT_SPREAD * rng.standard_normal())))
            chosen = rng.choice(words, length, p=share / share.sum())
            chosen[rng.random(len(chosen)) < 0.15] = f"w{20 + label}"
            handle.write(json.dumps({"text": " ".join(chosen), "label": label}) + "\n")
    source = TaskRow(task="generated", path=str(path), text=("text",), label="label", class_names=CLASSES)
    return prefetch_task(source, folder / "task.parquet")


def word_numbers() -> dict[str, int]:
    """The tokenizer's vocabulary."""
    return {word: number for number, word in enumerate([*SPECIAL, *(f"w{number}" for number in range(VOCABULARY))])}


def write_tokenizer(architecture: str, folder: Path) -> None:
    """One token a word, in hub format."""
    words = word_numbers()
    tokenizer = Tokenizer(models.WordLevel(words, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if architecture == "masked":
        ends = [("[CLS]", words["[CLS]"]), ("[SEP]", words["[SEP]"])]
        tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    named = {"cls_token": "[CLS]", "sep_token": "[SEP]", "eos_token": "[SEP]", "mask_token": "[MASK]"}
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", model_max_length=POSITIONS, **named
    ).save_pretrained(folder)


def write_model(architecture: str, folder: Path) -> Path:
    """A random model without dropout, in hub format."""
    words = word_numbers()
    torch.manual_seed(0)
    if architecture == "masked":
        model = transformers.BertForMaskedLM(
            transformers.BertConfig(
                vocab_size=len(words),
                hidden_size=WIDTH,
                num_hidden_layers=LAYERS,
                num_attention_heads=4,
                intermediate_size=4 * WIDTH,
                max_position_embeddings=POSITIONS,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            )
        )
    else:
        sizes = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": 4, "n_positions": POSITIONS, "vocab_size": len(words)}
        rates = {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
        ends = {"bos_token_id": words["[SEP]"], "eos_token_id": words["[SEP]"], "pad_token_id": 0}
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **rates, **ends))
    write_tokenizer(architecture, folder)
    model.save_pretrained(folder)
    return folder


def make_plans(architecture: str, folder: Path, record: dict, subsamples: int) -> list[TrialPlan]:
    """The paper's settings for each n, randomness off."""
    plan = TrialPlan(
        experiment="benchmark",
        language_model=f"tiny-{architecture}",
        model_path=str(folder),
        architecture=architecture,
        data=TaskData.of_record(record),
        m=TRAINING_TEXTS,
        n=TEST_TEXTS[0],
        subsamples=tuple(range(1, subsamples + 1)),
        pretraining=Pretraining(epochs=2 if architecture == "masked" else 1),
        classification=Classification(max_length=None, pooler="paper"),
        seeds="fixed",
        drop_duplicate_texts=False,
        shuffle=False,
        share_base=tuple((n, subsamples) for n in TEST_TEXTS),
    )
    return [replace(plan, n=n) for n in TEST_TEXTS]


# ---- the authors' loop --------------------------------------------------------------------------------------------


class InOrder(Trainer):
    """The library's Trainer with the texts in the order in which they are given, saying nothing."""

    def __init__(self, **options):
        super().__init__(**options)
        self.remove_callback(PrinterCallback)

    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)


class Texts(torch.utils.data.Dataset):
    """Tokenised one by one, whenever it is asked."""

    def __init__(self, texts: list[str], tokenizer, max_length: int):
        self.texts, self.tokenizer, self.max_length = texts, tokenizer, max_length

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> dict:
        return self.tokenizer(
            self.texts[index], truncation=True, max_length=self.max_length, return_special_tokens_mask=True
        )


class Labelled(torch.utils.data.Dataset):
    """Padded to the longest text of the whole set."""

    def __init__(self, texts: list[str], labels: np.ndarray, tokenizer):
        self.encoded = tokenizer(texts, return_tensors="pt", truncation=True, padding=True)
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict:
        own = {name: values[index] for name, values in self.encoded.items() if name != "token_type_ids"}
        return own | {"labels": int(self.labels[index])}


class AuthorsLoop:
    """One task, language model, m and n; a subsample a call."""

    def __init__(self, plan: TrialPlan, task: LoadedTask, folder: Path):
        self.plan, self.task, self.folder = plan, task, folder
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(plan.model_path)
        self.pristine = LOADERS[plan.architecture].from_pretrained(plan.model_path, dtype=torch.float32)

    def run(self, subsample: int) -> dict[str, np.ndarray]:
        """Class probabilities of the test set in each arm."""
        draw = draw_trial(self.task, self.plan.m, self.plan.n, subsample)
        found = {"base": self._classify(self.plan.model_path, draw, "base")}
        for arm, rows in (("extra", draw.extra), ("test", draw.test)):
            pretrained = self.folder / "pretrained"
            self._pretrain(rows, pretrained)
            found[arm] = self._classify(pretrained, draw, arm)
            shutil.rmtree(pretrained)
        return found

    def _pretrain(self, rows: np.ndarray, folder: Path) -> None:
        settings = self.plan.pretraining
        masked = self.plan.architecture == "masked"
        collator = DataCollatorForLanguageModeling(
            self.tokenizer, mlm=masked, mlm_probability=settings.mask_probability if masked else None
        )
        collator.generator = torch.Generator().manual_seed(FIXED_SEED)
        trainer = InOrder(
            model=copy.deepcopy(self.pristine),
            args=self._arguments(settings),
            train_dataset=Texts([self.task.texts[row] for row in rows], self.tokenizer, settings.max_length),
            data_collator=collator,
        )
        trainer.train()
        trainer.save_model(str(folder))

    def _classify(self, path: str | Path, draw: Draw, arm: str) -> np.ndarray:
        classifier, found = transformers.AutoModelForSequenceClassification.from_pretrained(
            path, num_labels=len(CLASSES), dtype=torch.float32, output_loading_info=True
        )
        start_fresh(classifier, found["missing_keys"], FIXED_SEED)  # the same head as the worker's, to compare
        classifier.config.pad_token_id = self.tokenizer.pad_token_id
        trainer = InOrder(
            model=classifier, args=self._arguments(self.plan.classification), train_dataset=self._labelled(draw.train)
        )
        trainer.train()
        logits = trainer.predict(self._labelled(draw.test)).predictions
        return torch.softmax(torch.tensor(logits), dim=-1).numpy()

    def _labelled(self, rows: np.ndarray) -> Labelled:
        return Labelled([self.task.texts[row] for row in rows], self.task.labels[rows], self.tokenizer)

    def _arguments(self, settings: Pretraining | Classification) -> TrainingArguments:
        return TrainingArguments(
            output_dir=str(self.folder / "trainer"),
            num_train_epochs=settings.epochs,
            learning_rate=settings.learning_rate,
            weight_decay=settings.weight_decay,
            per_device_train_batch_size=settings.batch_size,
            per_device_eval_batch_size=64,
            optim="adamw_torch",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            dataloader_pin_memory=False,
        )


# ---- the comparison -----------------------------------------------------------------------------------------------


def resident(plans: list[TrialPlan], folder: Path) -> list[dict[tuple[int, str], np.ndarray]]:
    """Batches of trials by a worker of their own, in a new folder."""
    worker, found = ResidentWorker(), []
    for plan in plans:
        worker.run(plan, folder / str(plan.n), shared=folder / "shared")
        rows = read_tables(plan, folder / str(plan.n)).probabilities.groupby(["subsample", "arm"])["probabilities"]
        found.append({key: np.stack(each.to_list()) for key, each in rows})
    return found


def largest_difference(plan: TrialPlan, task: LoadedTask, theirs: dict, ours: dict) -> float:
    """Of a class probability. Raises SystemExit where an accuracy differs."""
    largest = 0.0
    for subsample in plan.subsamples:
        labels = task.labels[draw_trial(task, plan.m, plan.n, subsample).test]
        for arm in ARMS:
            one, other = theirs[subsample][arm], ours[subsample, arm]
            largest = max(largest, float(np.abs(one - other).max()))
            if (one.argmax(axis=1) == labels).sum() != (other.argmax(axis=1) == labels).sum():
                raise SystemExit(
                    f"Error: {plan.language_model}: accuracies differ between the two sides (subsample {subsample} "
                    f"{arm}, probabilities up to {largest:.2g}); no ratio is given. Hint: both must do the same work."
                )
    return largest


def measure(architecture: str, folder: Path, arguments: argparse.Namespace) -> dict:
    """One record. Raises SystemExit where accuracies differ."""
    data = write_task(folder)
    model = write_model(architecture, folder / "model")
    plans = make_plans(architecture, model, data, arguments.subsamples)
    task, trials = read_task(plans[0].data), arguments.subsamples * len(plans)
    loops = [AuthorsLoop(plan, task, folder) for plan in plans]
    loops[0].run(1)  # untimed: first calls of the libraries
    resident(make_plans(architecture, model, data, 1)[:1], folder / "warm")
    sides = {
        "the authors' loop": lambda: [{each: loop.run(each) for each in loop.plan.subsamples} for loop in loops],
        "the worker": lambda: resident(plans, Path(tempfile.mkdtemp(dir=folder))),
    }
    differences: list[float] = []
    costs, _ = interleave(
        sides,
        arguments.rounds,
        lambda _, found: differences.extend(map(largest_difference, plans, [task] * len(plans), *found.values())),
    )
    description = describe_model(loops[0].pristine)
    return compare(
        f"bias study: trials with a tiny {'BERT' if architecture == 'masked' else 'GPT-2'}",
        "the authors' loop (five trainings, three loads, two saves a subsample)",
        *costs.values(),
        target=TARGET,
        agreement=max(differences),
        tolerance=1e-4,
        detail=f"{trials} trials a round; {LAYERS} layers of width {WIDTH}, "
        f"{description['parameters']} parameters, m = {plans[0].m}, n = {' and '.join(map(str, TEST_TEXTS))}; "
        "all accuracies equal",
        model=description,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--subsamples", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    records = []
    for architecture in LOADERS:
        with tempfile.TemporaryDirectory() as name:
            records.append(measure(architecture, Path(name), arguments))
    write_records(arguments.output, records)


if __name__ == "__main__":
    main()
