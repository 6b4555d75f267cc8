"""A tokenizer as it was saved: loaded, tried on a few texts, and kept to its own file, or refused; and its chat
template, whose prompts are of one date, print the question, and open no thought in which an answer would stand."""

import contextlib
import datetime
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self, TypeAlias

import tokenizers
import transformers
from tokenizers.processors import TemplateProcessing

from lm_validity.cells.models.passes import replaced
from lm_validity.errors import CellError, first_line

# ----------------------------------------------------------------------------------------------------------------------
# Loading. The login node does it when a model is prefetched, and every job again: what is found depends on the files
# alone. The rules:
#
# - Where there is a tokenizer.json, it is the tokenizer. AutoTokenizer's choice of a class can depend on the folder's
#   name and on the config.json beside it, and some classes rebuild what the file says.
# - No dropout of BPE, as in scoring by those who trained it: with it, a text has other tokens each time.
# - Nothing is appended to a text, neither to a question nor to the answer that follows it.

FILE = "tokenizer.json"
PLAIN = "The answer is yes"
TEXTS = (
    PLAIN,
    "In 2023 it was 841823, then 3.14159 and 1,000,000.",
    "  two blanks,\ttab \n\n  line breaks\nAnswer:\n",
    " Don't you'll WE'VE (x+y)*2 == [z]; https://example.org/a_b?c=1",
    "Straße café naïve Ελλάδα 東京 здравствуй 🙂",
)
MOST_WORDS = 20_000  # of a vocabulary that are tried
Tokenizer: TypeAlias = transformers.PreTrainedTokenizerBase


def load_tokenizer(folder: Path, name: str, *, weights: Path | None = None, causal: bool = True) -> Tokenizer:
    """The tokenizer of a folder, by the rules above.

    weights: the folder of the model that it is for, where the tokenizer's own has no config.json. causal: whether
    texts are continued; masked models keep what their tokenizers append. Raises CellError for a tokenizer that has no
    vocabulary, or that does not encode as its own file says; what transformers raises comes through.
    """
    options: dict[str, object] = {"local_files_only": True, "trust_remote_code": False}
    if weights is not None and not (folder / "config.json").is_file():
        options["config"] = transformers.AutoConfig.from_pretrained(weights, **options)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **options)
    _check_vocabulary(tokenizer, folder, name)
    _drop_nothing(getattr(tokenizer, "backend_tokenizer", None))
    if (folder / FILE).is_file():
        tokenizer = _as_in_file(tokenizer, folder, name)
    if causal:
        _append_nothing(tokenizer, folder, name)
    return tokenizer


def _drop_nothing(backend: tokenizers.Tokenizer | None) -> None:
    """No merges of BPE are left out at random from here on."""
    if backend is not None and getattr(backend.model, "dropout", None):
        backend.model.dropout = None


def _check_vocabulary(tokenizer: Tokenizer, folder: Path, name: str) -> None:
    """Raise CellError for a tokenizer without tokens of its own: transformers makes an empty one where files are
    missing, which scores every text 0."""
    vocabulary = set(tokenizer.get_vocab()) - set(tokenizer.get_added_vocab()) - set(tokenizer.all_special_tokens)
    if vocabulary and tokenizer.encode(PLAIN, add_special_tokens=False):
        return
    file_names = sorted({FILE, *(file for file in tokenizer.vocab_files_names.values() if file)})
    missing = [file for file in file_names if not (folder / file).is_file()]
    problem = f"{name}: its tokenizer has no vocabulary: {' and '.join(missing) or FILE} missing in {folder}."
    raise CellError(problem, f"copy {FILE} of the model into the folder, or fetch the model again.")


def _as_in_file(tokenizer: Tokenizer, folder: Path, name: str) -> Tokenizer:
    """The tokenizer that tokenizer.json describes: `tokenizer` where it encodes all texts so."""
    try:
        saved = tokenizers.Tokenizer.from_file(str(folder / FILE))
    except Exception as error:  # tokenizers raises no other kind
        raise CellError(
            f"{name}: {folder / FILE} cannot be read ({first_line(error)}).", "fetch or copy the file again."
        ) from error
    saved.no_truncation()
    saved.no_padding()
    _drop_nothing(saved)
    if _differing(tokenizer, saved) is None:
        return tokenizer
    plain = transformers.PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    _drop_nothing(plain.backend_tokenizer)
    for token in ("bos_token", "eos_token", "unk_token", "pad_token"):  # that the class knows and the files do not name
        token_now = getattr(tokenizer, token)
        if getattr(plain, token) is None and token_now is not None and saved.token_to_id(token_now) is not None:
            setattr(plain, token, token_now)
    if _differing(plain, saved) is None:
        return plain
    text = _differing(tokenizer, saved, special=False)
    if text is None:  # both have the configuration's word for what stands around special tokens
        return tokenizer
    problem = f"{name}: {folder}/tokenizer_config.json has {text[:40]!r} encoded otherwise than {FILE} does."
    hint = "is one of the two of another model? Save the tokenizer again with the transformers it was made with."
    raise CellError(problem, hint)


def _differing(tokenizer: Tokenizer, saved: tokenizers.Tokenizer, *, special: bool = True) -> str | None:
    """The first text that a tokenizer encodes otherwise than its file does: of TEXTS, of the words of the file's own
    vocabulary (which a class that splits texts elsewhere never makes), and with `special` of texts with special tokens.
    Tokens that the configuration adds to those of the file are in none of them."""
    tokens = [token for token in tokenizer.all_special_tokens if saved.token_to_id(token) is not None]
    added = saved.get_added_tokens_decoder()
    words = [number for number in sorted(saved.get_vocab(with_added_tokens=False).values()) if number not in added]
    step = -(-len(words) // MOST_WORDS) or 1
    texts = [*TEXTS, *saved.decode_batch([[number] for number in words[::step]], skip_special_tokens=False)]
    texts += [f"Yes{token}\nNo {token} 7" for token in tokens[: 8 * special]]
    expected = [encoding.ids for encoding in saved.encode_batch_fast(texts, add_special_tokens=False)]
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        encodings = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    else:
        backend.no_truncation()
        backend.no_padding()
        encodings = [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]
    return next((text for text, *pair in zip(texts, encodings, expected, strict=True) if pair[0] != pair[1]), None)


def _append_nothing(tokenizer: Tokenizer, folder: Path, name: str) -> None:
    """The tokenizer appends no tokens to a text from here on. Raises CellError where it does all the same."""
    prefix, suffix = _around(tokenizer)
    if not suffix:
        return
    if getattr(tokenizer, "add_eos_token", False):
        tokenizer.add_eos_token = False
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if _around(tokenizer)[1] and backend is not None:
        words = tokenizer.convert_ids_to_tokens(prefix)
        backend.post_processor = TemplateProcessing(
            single=[*words, "$A"], pair=[*words, "$A", "$B:1"], special_tokens=[*zip(words, prefix, strict=True)]
        )
    if _around(tokenizer) != [prefix, []]:
        problem = f"{name}: the tokenizer in {folder} appends {tokenizer.convert_ids_to_tokens(suffix)} to every text."
        raise CellError(problem, "set add_eos_token to false in its tokenizer_config.json.")


def _around(tokenizer: Tokenizer) -> list[list[int]]:
    """The special tokens that a tokenizer puts before a text, and those after it."""
    bare, encoded = tokenizer.encode(PLAIN, add_special_tokens=False), tokenizer.encode(PLAIN)
    starts = range(len(encoded) - len(bare) + 1)
    start = next((start for start in starts if encoded[start : start + len(bare)] == bare), None)
    return [[], []] if start is None else [encoded[:start], encoded[start + len(bare) :]]


# ----------------------------------------------------------------------------------------------------------------------
# What is tried of a model's tokenizer when it is prefetched.


def examine(folder: Path, name: str, *, weights: Path, causal: bool, embeddings: int | None, chat: bool) -> None:
    """Try the tokenizer of a folder on texts, beside the model in `weights`. embeddings: their number with an adapter,
    which may have been trained with more; None without one. chat: whether questions are asked in the chat template.
    Raises CellError for what cannot be used: what `load_tokenizer` says, and a token without an embedding."""
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

    reading, hint = f"{weights}/config.json", "correct it: a model folder is what save_pretrained writes."
    try:
        configuration = transformers.AutoConfig.from_pretrained(weights, local_files_only=True)
        reading = f"the tokenizer in {folder}"
        hint = f"it needs {FILE}, or the vocabulary files of an architecture that transformers knows."
        tokenizer = load_tokenizer(folder, name, weights=weights, causal=causal)
    except CellError:
        raise
    except Exception as error:  # transformers raises whatever a file's content leads to
        raise CellError(f"{name}: {reading} cannot be used ({first_line(error)}).", hint) from error
    parts = (configuration, configuration.get_text_config())
    for settings in (getattr(part, "quantization_config", None) for part in parts):
        if not isinstance(settings, dict) or any(key.startswith("load_in_") for key in settings):
            continue
        if (kind := settings.get("quant_method")) not in AUTO_QUANTIZATION_CONFIG_MAPPING:  # it would be passed over
            problem = (
                f"{name}: its config.json has a quantization_config of the kind {kind!r}, unknown to transformers."
            )
            raise CellError(problem, "give the model in bfloat16, or update transformers.")
    prompt = ""
    if chat:
        check_question(tokenizer, name)
        options = chat_options(tokenizer, {})
        with contextlib.suppress(Exception):  # whatever a template raises: the real prompts will raise it again
            prompt = render(tokenizer, [PLAIN], options)
    sizes = (size for part in parts if isinstance(size := getattr(part, "vocab_size", None), int))
    size = embeddings or max(sizes, default=2**40)
    # tokens that were added to the vocabulary, for padding say, are in no text of a benchmark but a prompt
    added = tokenizer.get_added_vocab()
    own_ids = (number for token, number in tokenizer.get_vocab().items() if token not in added)
    largest = max([*own_ids, *(max(tokenizer.encode(text), default=0) for text in (*TEXTS, prompt))])
    if largest >= size:
        problem = f"{name}: the tokenizer in {folder} makes token {largest}, and the model has {size} embeddings."
        hint = f"{FILE} is of another model, or embeddings of added tokens were not saved with the adapter."
        raise CellError(problem, hint)


def lost_bytes(tokenizer: Tokenizer, text: str) -> int:
    """Bytes of UTF-8 of a text that are not in decode(encode(text)): of unknown characters, of letter case, of white
    space that is left out. What Unicode holds for the same (NFKC) is not lost, nor are blanks of one kind for those
    of another."""
    tokens = tokenizer.encode(text, add_special_tokens=False)
    model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    unknown = tokenizer.unk_token or getattr(model, "unk_token", None)
    if unknown is not None and unknown not in text:
        tokens = [token for token in tokens if token != tokenizer.convert_tokens_to_ids(unknown)]
    decoded = tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    if decoded.strip() == text.strip():
        return 0
    lost = _characters(text) - _characters(decoded)
    return sum(len(character.encode()) * count for character, count in lost.items())


def _characters(text: str) -> Counter[str]:
    return Counter(re.sub(r"[\s\u2581]", " ", unicodedata.normalize("NFKC", text.strip())))


# ----------------------------------------------------------------------------------------------------------------------
# Chat templates may print the date of today: it is one fixed date here.

CHAT_DATE = datetime.date(2024, 7, 26)  # which Llama 3.2's template itself falls back to


def fixed_date() -> contextlib.AbstractContextManager[None]:
    """Inside the block chat templates are rendered on CHAT_DATE. transformers hands templates a function that asks its
    own module for the time, and takes no other."""
    import transformers.utils.chat_template_utils as rendering

    return replaced((rendering, "datetime", _ChatDate))


class _ChatDate(datetime.datetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Self:
        return cls.combine(CHAT_DATE, datetime.time())


def render(
    tokenizer: Tokenizer, turns: Sequence[str], options: Mapping[str, object], *, system: str = "", prompt: bool = True
) -> str:
    """A dialogue in the chat template: what user and assistant say in turn, below a `system` message. options: what
    the template is told beside. prompt: with what it puts before an answer. Raises whatever the template raises."""
    messages = [{"role": "system", "content": system}] if system else []
    messages += [{"role": ("user", "assistant")[turn % 2], "content": text} for turn, text in enumerate(turns)]
    with fixed_date():
        text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt, **options)
    return text


# ----------------------------------------------------------------------------------------------------------------------
# Templates that open a thought behind the question, which a choice would then be part of. The rule: the answer follows
# an empty thought. Where the template writes one when it is told `enable_thinking: false`, it is told; else the thought
# is closed as most of these templates close theirs: a blank line, the closing tag, a blank line.

_TAG = re.compile(r"[<\[][^<>\[\]\s]*(?:think|thought|reason)[^<>\[\]\s]*[>\]]", re.IGNORECASE)
_CHANNEL = re.compile(r"<\|?channel\|?>\s*(?:thought|analysis)\S*\s*$")
_START, _ENDS = re.compile(r"START|start|BEGIN|begin"), re.compile(r"^[<\[]\|?/|end", re.IGNORECASE)


def open_thought(prompt: str) -> str | None:
    """The tag that a prompt ends with and that opens a thought; None where it ends otherwise."""
    end = prompt.rstrip()[-80:]
    tags = [tag for tag in _TAG.finditer(end) if tag.end() == len(end)]
    if tags:
        return None if _ENDS.search(tags[0][0]) else tags[0][0]
    channel = _CHANNEL.search(end)
    return channel[0] if channel else None


def close_thought(prompt: str) -> str:
    """A prompt that ends in an open thought with that thought closed, any other as it is. Raises CellError for a tag
    whose end is not known."""
    tag = open_thought(prompt)
    if tag is None:
        return prompt
    if _START.search(tag):
        closing = _START.sub(lambda word: "END" if word[0].isupper() else "end", tag)
    elif re.fullmatch(r"[<\[][\w:]+[>\]]", tag):
        closing = f"{tag[0]}/{tag[1:]}"
    else:
        hint = "give the model a template without it, or set instruction_tuned to 0 in the models sheet."
        raise CellError(f"the chat template opens a thought with {tag!r}, whose end is not known.", hint)
    return f"{prompt.rstrip()}\n\n{closing}\n\n"


def check_question(tokenizer: Tokenizer, name: str) -> None:
    """Raise CellError where there is no chat template, it raises for every prompt, or prints no question: some want a
    list of parts in place of a text, and print nothing of a text."""
    reason = "" if tokenizer.chat_template is not None else "is missing"
    for system in () if reason else ("", "brief"):
        try:
            if "question" in render(tokenizer, ["question"], {}, system=system).casefold():
                return
        except Exception as error:  # whatever a template raises
            reason = reason or f"cannot be rendered ({first_line(error)})"
            continue
        reason = "prints nothing of a question"
        break
    hint = "give the tokenizer a chat_template.jinja that takes texts, or set instruction_tuned to 0 in the sheet."
    raise CellError(f"{name}: its chat template {reason}.", hint)


def chat_options(tokenizer: Tokenizer, options: Mapping[str, object]) -> dict[str, object]:
    """What the chat template is told beside the messages: `options`, the date, and that there be no thought where it
    opens one and can leave it out. What a template raises says nothing of thoughts: the real prompts will raise it
    again. Raises CellError for a thought that cannot be closed."""
    options = dict(options)
    if tokenizer.chat_template is None:
        return options
    if "date_string" in str(tokenizer.chat_template):
        options["date_string"] = CHAT_DATE.strftime("%d %b %Y")
    try:
        if open_thought(render(tokenizer, ["question"], options)) is None:
            return options
        prompt = render(tokenizer, ["question"], {**options, "enable_thinking": False})
    except Exception:  # whatever a template raises
        return options
    if open_thought(prompt) is None:
        return {**options, "enable_thinking": False}
    close_thought(prompt)  # raises where it cannot be closed
    return options
