"""The miniature world on disk: tasks of lm-eval, tasks of text classification, training rows and tokenizer."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from pathlib import Path
from random import Random
from typing import NamedTuple

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing

from lm_validity.config.sections import MiniatureSettings
from lm_validity.config.sheets import MiniatureModel
from lm_validity.files import replaced_folder, write_json, write_text
from lm_validity.miniature import world as language
from lm_validity.miniature.world import ATTRIBUTES, BEGIN, FORMATS, SCIENCE, SPLITS, World, generator

# ----------------------------------------------------------------------------------------------------------------------
# The miniature's tokenizer: one token per word, in the files that `AutoTokenizer` reads.
#
# Words are what blanks separate, so a context and a choice that follows after a blank never merge. Every text
# begins with the token 0, which the tokenizer adds, as Llama's does; the same token ends documents and pads.

BEGIN_ID = 0
CONTEXT_LENGTH = 32  # the longest document has 17 words
CAUSAL_TOKENS = dict.fromkeys(("bos_token", "eos_token", "pad_token"), BEGIN) | {"unk_token": language.UNKNOWN}


def vocabulary(world: World) -> dict[str, int]:
    """Word -> id. 0 begins, ends and pads; 1 stands for unknown words."""
    words = sorted(language.words_of_language() | set(world.facts))
    return {word: index for index, word in enumerate([BEGIN, language.UNKNOWN, *words])}


def build_tokenizer(world: World) -> Tokenizer:
    """A word-level tokenizer that puts BEGIN before every text."""
    return _word_tokenizer(vocabulary(world), f"{BEGIN} $A", {BEGIN: BEGIN_ID, language.UNKNOWN: 1})


def _word_tokenizer(words: dict[str, int], text: str, special: dict[str, int]) -> Tokenizer:
    """A token a word; `text`: what is put around a text. The second of the special tokens stands for unknown words."""
    tokenizer = Tokenizer(WordLevel(words, unk_token=list(special)[1]))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens(list(special))
    around = [(token, special[token]) for token in text.split() if token in special]
    tokenizer.post_processor = TemplateProcessing(single=text, special_tokens=around)
    return tokenizer


def write_tokenizer(tokenizer: Tokenizer, folder: Path, tokens: Mapping[str, str] = CAUSAL_TOKENS) -> None:
    """Write the tokenizer's files into `folder`. `tokens`: the special ones, by transformers' names."""
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **tokens,
        "model_max_length": CONTEXT_LENGTH,
        "clean_up_tokenization_spaces": False,
    }
    write_text(folder / "tokenizer.json", tokenizer.to_str(pretty=True) + "\n")
    write_json(folder / "tokenizer_config.json", settings)


# what masked language models (BERT) begin, end, pad and mask with; words follow in the order of `vocabulary`
PAD, UNKNOWN_MASKED, CLASS, SEPARATOR, MASK = MASKED_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CLASS_ID, SEPARATOR_ID, MASK_ID = 2, 3, 4
MASKED_TOKENS = {"cls_token": CLASS, "sep_token": SEPARATOR, "mask_token": MASK, "pad_token": PAD}
MASKED_TOKENS |= {"unk_token": UNKNOWN_MASKED}
MASKED_SHIFT = len(MASKED_SPECIALS) - 2  # from a word's id in `vocabulary` (after two specials) to its id here


def masked_vocabulary(world: World) -> dict[str, int]:
    """Word -> id for masked language models."""
    words = {word: index + MASKED_SHIFT for word, index in vocabulary(world).items() if index > 1}
    return {special: index for index, special in enumerate(MASKED_SPECIALS)} | words


# ----------------------------------------------------------------------------------------------------------------------
# What a model of the pool reads in pretraining: batches of token ids, and how many tokens they hold.

SORTED_BATCHES = 8  # documents of this many batches are sorted by length together, so that little is padding
DOUBLE_BEGIN_SHARE = 0.25
DIALOGUE_SHARE = 0.5  # of a tuned model's documents


def training_batches(settings: MiniatureSettings, world: World, row: MiniatureModel) -> Iterator[list[list[int]]]:
    """Batches of token ids, endless: each row one document, begun and ended with token 0.

    One document a row: packing several into a window costs these models several times the steps. A quarter of the
    rows begin with two tokens 0. Lm-eval's own rolling log-likelihood feeds that to a tokenizer that begins texts
    itself (its prefix token, then a text already begun), and a model that never saw it would be scored on its surprise.
    Half of a tuned model's documents are those of pretraining, so that what it taught is not lost.
    """
    draw = generator(settings.seed, "pretraining", row.model)
    documents = language.pretraining_documents(settings, world, row.family, row.training_data, draw)
    tuning = language.dialogues(world, row.training_data, draw)
    words, size = vocabulary(world), settings.batch_documents

    def tokens() -> list[int]:
        is_dialogue = row.tuned_from and draw.random() < DIALOGUE_SHARE
        text = next(tuning if is_dialogue else documents)
        begin = [BEGIN_ID] * (1 + (draw.random() < DOUBLE_BEGIN_SHARE))
        return [*begin, *map(words.__getitem__, text.split()), BEGIN_ID]

    while True:
        rows = sorted((tokens() for _ in range(SORTED_BATCHES * size)), key=len)
        batches = [rows[start : start + size] for start in range(0, len(rows), size)]
        draw.shuffle(batches)
        yield from batches


def tokens_at(settings: MiniatureSettings, world: World, row: MiniatureModel) -> dict[int, int]:
    """Tokens seen (without padding) at each checkpoint's iteration and at the last step of the row's own training."""
    marks, batches = {*row.checkpoints, row.steps}, islice(training_batches(settings, world, row), row.steps)
    seen = enumerate(accumulate(sum(map(len, batch)) for batch in batches), start=1)
    return {step: tokens for step, tokens in seen if step in marks}


# ----------------------------------------------------------------------------------------------------------------------
# The miniature's benchmarks as lm-eval tasks: a YAML file each, over local JSON lines.
#
#     <world>/tasks/<task>.yaml, <world>/tasks/dataset.py   what lm-eval reads (include_path)
#     <world>/data/<folder>/{training,validation,test}.jsonl
#
# The YAML files hold no path. lm-eval would resolve `data_files` against the working directory, and an
# absolute path would make two runs in two places differ; so the tasks name a function beside them
# (`custom_dataset`) that finds the data relative to itself. The world's folder can be moved, and lm-eval
# started from anywhere.

TASK_VERSION = 1.0


class MiniatureBenchmark(NamedTuple):
    """A benchmark: its name, its category, lm-eval's output type. form: of its questions; null: that of its own name.
    Without a split for validation, its rows are training rows: who fine-tunes must carve some off."""

    name: str
    category: str
    output_type: str = "multiple_choice"
    studies: tuple[str, ...] = ("agreement",)
    splits: tuple[str, ...] = SPLITS
    form: str | None = None
    attributes: tuple[str, ...] = tuple(ATTRIBUTES)
    mutual_information: bool = False

    @property
    def task(self) -> str:
        """Its name among lm-eval's tasks; the prefix keeps it apart from lm-eval's own."""
        return f"miniature_{self.name}"

    def rows(self, world: World, split: str) -> Sequence[Mapping[str, object]]:
        """The documents of one of its splits."""
        if self.output_type == "loglikelihood_rolling":
            return language.corpus_rows(world, self.name, split)
        if self.name == "grammar":
            return language.grammar_items(world, split)
        parts = [split, *(set(SPLITS) - set(self.splits) if split == "training" else ())]
        form = self.form or self.name
        return [row for part in parts for row in language.fact_items(world, self.name, form, part, self.attributes)]


BENCHMARKS: tuple[MiniatureBenchmark, ...] = (
    MiniatureBenchmark("cloze", "recall", studies=("agreement", "signal")),
    MiniatureBenchmark("ending", "recall"),
    MiniatureBenchmark("question", "dialogue"),
    MiniatureBenchmark("dialogue", "dialogue", splits=("training", "test")),
    MiniatureBenchmark("choose", "choice"),
    # stays near chance whatever the models know: a floor, kept out of the agreement study
    MiniatureBenchmark("letter", "choice", studies=("signal",)),
    MiniatureBenchmark("record", "structured"),
    MiniatureBenchmark("table", "structured", "generate_until"),
    MiniatureBenchmark(
        "science", "recall", studies=("signal",), form="cloze", attributes=SCIENCE, mutual_information=True
    ),
    MiniatureBenchmark("grammar", "language", studies=("signal",)),
    MiniatureBenchmark("encyclopedia", "corpus", "loglikelihood_rolling"),
    MiniatureBenchmark("everything", "corpus", "loglikelihood_rolling"),
)
assert {*FORMATS} <= {benchmark.name for benchmark in BENCHMARKS}

DATASET_MODULE = '''"""Loads a task's splits from the JSON lines beside this folder, wherever it lies."""

import json
from pathlib import Path

import datasets


def load(folder: str, splits: list[str], **_metadata) -> datasets.DatasetDict:
    """The named splits of ../data/<folder>, without a network or a cache."""
    data = Path(__file__).resolve().parent.parent / "data" / folder
    loaded = {}
    for split in splits:
        with open(data / f"{split}.jsonl", encoding="utf-8") as lines:
            loaded[split] = datasets.Dataset.from_list([json.loads(line) for line in lines])
    return datasets.DatasetDict(loaded)
'''


# by output type: the metrics, of which the first is the benchmark's, and how a document is rendered
METRICS = {
    "multiple_choice": ("acc", "acc_norm"),
    "generate_until": ("exact_match",),
    "loglikelihood_rolling": ("bits_per_byte", "word_perplexity"),
}
AGGREGATIONS = {"bits_per_byte": "bits_per_byte", "word_perplexity": "weighted_perplexity"}  # else means, higher better
FIELDS: dict[str, dict[str, object]] = {
    "multiple_choice": {"doc_to_text": "{{context}}", "doc_to_choice": "choices", "doc_to_target": "gold"},
    "generate_until": {
        "doc_to_text": "{{context}}",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": [BEGIN], "max_gen_toks": 1, "do_sample": False},
    },
    "loglikelihood_rolling": {"doc_to_text": "", "doc_to_target": "{{text}}"},
}


def task_yaml(benchmark: MiniatureBenchmark) -> str:
    """The lm-eval task of a benchmark."""
    import yaml

    metrics = [*METRICS[benchmark.output_type], *(["acc_mutual_info"] if benchmark.mutual_information else [])]
    config = {
        "task": benchmark.task,
        "dataset_kwargs": {"folder": benchmark.name, "splits": list(benchmark.splits)},
        "output_type": benchmark.output_type,
        **{f"{split}_split": split for split in benchmark.splits},
        **FIELDS[benchmark.output_type],
        "metric_list": [
            {
                "metric": name,
                "aggregation": AGGREGATIONS.get(name, "mean"),
                "higher_is_better": name not in AGGREGATIONS,
            }
            for name in metrics
        ],
        "metadata": {"version": TASK_VERSION},
    }
    # PyYAML has no node for lm-eval's !function tag, so this line is written by hand
    function = "custom_dataset: !function dataset.load\n"
    return function + yaml.safe_dump(config, sort_keys=False, allow_unicode=True)


# ----------------------------------------------------------------------------------------------------------------------
# Text-classification tasks of the miniature world, for the bias study: texts in the world's words, a class for each.
#
#     <world>/classification/<task>.jsonl      one object per line: text, label (class number)
#
# Names of classes are words of the world, so that a language model can read them. None can be solved by a word that
# only one class has: a class is known by words that are alike (values of one attribute), by order, or by a relation,
# so that what a language model learned in pretraining helps, and few labelled texts leave something to learn. Classes
# are equally frequent.

TEXTS = 500  # of each task, all different


class ClassificationTask(NamedTuple):
    """A task: its name, its classes, and an endless (or long enough) stream of texts of one class."""

    name: str
    class_names: tuple[str, ...]
    texts: Callable[[World, int, Random], Iterator[str]]

    def rows(self, world: World) -> list[dict[str, object]]:
        """`TEXTS` different texts with their class numbers, shuffled."""
        draw = generator(world.seed, "classification", self.name)
        share = TEXTS // len(self.class_names)
        rows: list[dict[str, object]] = []
        for label in range(len(self.class_names)):
            texts: dict[str, None] = {}
            for text in self.texts(world, label, draw):
                texts[text] = None
                if len(texts) == share:
                    break
            assert len(texts) == share, f"{self.name}: only {len(texts)} texts of class {label}"
            rows += [{"text": text, "label": label} for text in texts]
        draw.shuffle(rows)
        return rows


def _first_attribute(world: World, label: int, draw: Random) -> Iterator[str]:
    """An entity with two values, the first one of eight of the class's attribute; nothing else tells the attribute."""
    values = {name: attribute.values for name, attribute in ATTRIBUTES.items()}
    value, entities = list(values)[label], list(world.facts)
    while True:
        distractor = draw.choice([name for name in values if name != value])
        entity, first, second = draw.choice(entities), draw.choice(values[value]), draw.choice(values[distractor])
        yield f"row {entity} cell {first} cell {second}"


def _science_majority(world: World, label: int, draw: Random) -> Iterator[str]:
    """Five values, at least three of them of the class's attributes (general, science)."""
    groups = [[value for name in names for value in ATTRIBUTES[name].values] for names in (language.GENERAL, SCIENCE)]
    while True:
        count = draw.choice((3, 3, 4, 5))
        words = draw.sample(groups[label], count) + draw.sample(groups[1 - label], 5 - count)
        draw.shuffle(words)
        yield " or ".join(words)


def _first_number(world: World, label: int, draw: Random) -> Iterator[str]:
    """Three nouns, the first of them of the class's number. Pretraining has sentences of two."""
    while True:
        nouns = [noun + draw.choice(("", "s")) for noun in draw.sample(language.NOUNS, 2)]
        first = draw.choice(language.NOUNS) + ("", "s")[label]
        places = [f"the {noun} {draw.choice(language.PREPOSITIONS)}" for noun in (first, nouns[0])]
        yield f"{' '.join(places)} the {nouns[1]}"


def _agreement(world: World, label: int, draw: Random) -> Iterator[str]:
    """A noun phrase with a verb that agrees with its first noun (class 1) or does not. Never part of pretraining."""
    questions = language.grammar_splits(world)
    phrases = [(question.context, question.gold) for split in SPLITS for question in questions[split]]
    draw.shuffle(phrases)
    half = [pair for position, pair in enumerate(phrases) if position % 2 == label]
    return (f"{context} {language.VERBS[number if label else 1 - number]} there ." for context, number in half)


TASKS = (
    ClassificationTask("first_attribute", tuple(ATTRIBUTES), _first_attribute),
    ClassificationTask("science_majority", ("home", "gas"), _science_majority),
    ClassificationTask("first_number", language.VERBS, _first_number),
    ClassificationTask("agreement", ("again", "sure"), _agreement),
)


# ----------------------------------------------------------------------------------------------------------------------
# Writing a miniature world: facts, benchmarks as lm-eval tasks, classification tasks, corpora, tokenizers.


_FOLDERS = ("tasks", "data", "classification", "tokenizer", "tokenizer_chat", "tokenizer_masked")


def write_world(settings: MiniatureSettings, output: Path) -> None:
    """Write the world of `settings` into `output`; `world.json` comes last: where it is, the rest is too.

    The same settings give the same bytes, wherever `output` lies.
    """
    world, special = language.make_world(settings), {token: number for number, token in enumerate(MASKED_SPECIALS)}
    tokenizer = build_tokenizer(world)
    masked = _word_tokenizer(masked_vocabulary(world), f"{CLASS} $A {SEPARATOR}", special)
    with replaced_folder(output, "miniature world", names=("world.json", *_FOLDERS)) as folder:
        write_tokenizer(tokenizer, folder / "tokenizer")
        write_tokenizer(tokenizer, folder / "tokenizer_chat")
        write_text(folder / "tokenizer_chat" / "chat_template.jinja", language.CHAT_TEMPLATE)
        write_tokenizer(masked, folder / "tokenizer_masked", MASKED_TOKENS)
        write_text(folder / "tasks" / "dataset.py", DATASET_MODULE)
        for benchmark in BENCHMARKS:
            for split in benchmark.splits:
                write_text(folder / "data" / benchmark.name / f"{split}.jsonl", _lines(benchmark.rows(world, split)))
            write_text(folder / "tasks" / f"{benchmark.task}.yaml", task_yaml(benchmark))
        for task in TASKS:
            write_text(folder / "classification" / f"{task.name}.jsonl", _lines(task.rows(world)))
        write_json(folder / "world.json", world._asdict())


def _lines(rows: Iterable[Mapping[str, object]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
