"""The miniature's tokenizer: one token per word, in the files that `AutoTokenizer` reads.

Words are what blanks separate, so a context and a choice that follows after a blank never merge. Every text
begins with the token 0, which the tokenizer adds, as Llama's does; the same token ends documents and pads.
"""

from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing

from lm_validity.files import write_json, write_text
from lm_validity.miniature.language import BEGIN, CHAT_TEMPLATE, UNKNOWN, words_of_language
from lm_validity.miniature.world import World

BEGIN_ID = 0
CONTEXT_LENGTH = 32  # the longest document has 17 words


def vocabulary(world: World) -> dict[str, int]:
    """Word -> id. 0 begins, ends and pads; 1 stands for unknown words."""
    words = sorted(words_of_language() | set(world.entities))
    return {word: index for index, word in enumerate([BEGIN, UNKNOWN, *words])}


def build_tokenizer(world: World) -> Tokenizer:
    """A word-level tokenizer that puts BEGIN before every text."""
    tokenizer = Tokenizer(WordLevel(vocabulary(world), unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens([BEGIN, UNKNOWN])
    tokenizer.post_processor = TemplateProcessing(single=f"{BEGIN} $A", special_tokens=[(BEGIN, BEGIN_ID)])
    return tokenizer


def write_tokenizer(tokenizer: Tokenizer, folder: Path, *, chat: bool) -> None:
    """Write the tokenizer's files into `folder`; with `chat` also its chat template."""
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": BEGIN,
        "pad_token": BEGIN,
        "unk_token": UNKNOWN,
        "model_max_length": CONTEXT_LENGTH,
        "clean_up_tokenization_spaces": False,
    }
    write_text(folder / "tokenizer.json", tokenizer.to_str(pretty=True) + "\n")
    write_json(folder / "tokenizer_config.json", settings)
    if chat:
        write_text(folder / "chat_template.jinja", CHAT_TEMPLATE)


# what masked language models (BERT) begin, end, pad and mask with; words follow in the order of `vocabulary`
PAD, UNKNOWN_MASKED, CLASS, SEPARATOR, MASK = MASKED_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CLASS_ID, SEPARATOR_ID, MASK_ID = 2, 3, 4
MASKED_SHIFT = len(MASKED_SPECIALS) - 2  # from a word's id in `vocabulary` (after two specials) to its id here


def masked_vocabulary(world: World) -> dict[str, int]:
    """Word -> id for masked language models."""
    words = {word: index + MASKED_SHIFT for word, index in vocabulary(world).items() if index > 1}
    return {special: index for index, special in enumerate(MASKED_SPECIALS)} | words


def write_masked_tokenizer(world: World, folder: Path) -> None:
    """The files of a word-level tokenizer that puts [CLS] before every text and [SEP] after it."""
    tokenizer = Tokenizer(WordLevel(masked_vocabulary(world), unk_token=UNKNOWN_MASKED))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens(list(MASKED_SPECIALS))
    tokenizer.post_processor = TemplateProcessing(
        single=f"{CLASS} $A {SEPARATOR}", special_tokens=[(CLASS, CLASS_ID), (SEPARATOR, SEPARATOR_ID)]
    )
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "cls_token": CLASS,
        "sep_token": SEPARATOR,
        "mask_token": MASK,
        "pad_token": PAD,
        "unk_token": UNKNOWN_MASKED,
        "model_max_length": CONTEXT_LENGTH,
        "clean_up_tokenization_spaces": False,
    }
    write_text(folder / "tokenizer.json", tokenizer.to_str(pretty=True) + "\n")
    write_json(folder / "tokenizer_config.json", settings)
