"""A tokenizer as it was saved: loaded, tried on a few texts, and kept to its own file, or refused."""

import contextlib
import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

import tokenizers
import transformers
from tokenizers.processors import TemplateProcessing

from lm_validity.cells.models.chat import check_question, thought_settings
from lm_validity.errors import CellError, first_line

# ----------------------------------------------------------------------------------------------------------------------
# Loading. The login node does it when a model is prefetched, and every job again: what is found depends on the files
# alone. The rules, each with the key under which a model's record and its cells' recipes say that it applied:
#
# - tokenizer_file: where there is a tokenizer.json, it is the tokenizer. AutoTokenizer's choice of a class can depend
#   on the folder's name and on the config.json beside it, and some classes rebuild what the file says.
# - bpe_dropout: none, as in scoring by those who trained it: with it, a text has other tokens each time.
# - appended_tokens: nothing is appended to a text, neither to a question nor to the answer that follows it.

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


class LoadedTokenizer(NamedTuple):
    """A tokenizer, and the rules that were applied to it: key -> what was done."""

    tokenizer: Tokenizer
    rules: dict[str, str]


def load_tokenizer(folder: Path, name: str, *, weights: Path | None = None, causal: bool = True) -> LoadedTokenizer:
    """The tokenizer of a folder, and the rules that were applied to it: key -> what was done.

    weights: the folder of the model that it is for, where the tokenizer's own has no config.json. causal: whether
    texts are continued; masked models keep what their tokenizers append. Raises CellError for a tokenizer that has no
    vocabulary, or that does not encode as its own file says; what transformers raises comes through.
    """
    options: dict[str, object] = {"local_files_only": True, "trust_remote_code": False}
    if weights is not None and not (folder / "config.json").is_file():
        options["config"] = transformers.AutoConfig.from_pretrained(weights, **options)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **options)
    _check_vocabulary(tokenizer, folder, name)
    rules: dict[str, str] = {}
    if _without_dropout(getattr(tokenizer, "backend_tokenizer", None)):
        rules["bpe_dropout"] = "none"
    if (folder / FILE).is_file():
        differing_token = _as_in_file(tokenizer, folder, name)
        if differing_token is not None:
            tokenizer, rules["tokenizer_file"] = differing_token, f"as in {FILE}"
    if causal and _append_nothing(tokenizer, folder, name):
        rules["appended_tokens"] = "left out"
    return LoadedTokenizer(tokenizer, rules)


def _without_dropout(backend: tokenizers.Tokenizer | None) -> bool:
    """Whether a tokenizer left out merges of BPE at random. Afterwards it does not."""
    if backend is None or not getattr(backend.model, "dropout", None):
        return False
    backend.model.dropout = None
    return True


def _check_vocabulary(tokenizer: Tokenizer, folder: Path, name: str) -> None:
    """Raise CellError for a tokenizer without tokens of its own: transformers makes an empty one where files are
    missing, which scores every text 0."""
    vocabulary = set(tokenizer.get_vocab()) - set(tokenizer.get_added_vocab()) - set(tokenizer.all_special_tokens)
    if vocabulary and tokenizer.encode(PLAIN, add_special_tokens=False):
        return
    file_names = sorted({FILE, *(file for file in tokenizer.vocab_files_names.values() if file)})
    missing = [file for file in file_names if not (folder / file).is_file()]
    raise CellError(
        f"{name}: its tokenizer has no vocabulary: {' and '.join(missing) or FILE} missing in {folder}.",
        f"copy {FILE} of the model into the folder, or fetch the model again.",
    )


def _as_in_file(tokenizer: Tokenizer, folder: Path, name: str) -> Tokenizer | None:
    """The tokenizer that tokenizer.json describes; None where `tokenizer` already encodes all texts so."""
    try:
        saved = tokenizers.Tokenizer.from_file(str(folder / FILE))
    except Exception as error:  # tokenizers raises no other kind
        raise CellError(
            f"{name}: {folder / FILE} cannot be read ({first_line(error)}).", "fetch or copy the file again."
        ) from error
    saved.no_truncation()
    saved.no_padding()
    _without_dropout(saved)
    if _differing(tokenizer, saved) is None:
        return None
    plain = transformers.PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    _without_dropout(plain.backend_tokenizer)
    for token in ("bos_token", "eos_token", "unk_token", "pad_token"):  # that the class knows and the files do not name
        token_now = getattr(tokenizer, token)
        if getattr(plain, token) is None and token_now is not None and saved.token_to_id(token_now) is not None:
            setattr(plain, token, token_now)
    if _differing(plain, saved) is None:
        return plain
    text = _differing(tokenizer, saved, special=False)
    if text is None:  # both have the configuration's word for what stands around special tokens
        return None
    raise CellError(
        f"{name}: {folder}/tokenizer_config.json has {text[:40]!r} encoded otherwise than {FILE} does.",
        "is one of the two of another model? Save the tokenizer again with the transformers it was made with.",
    )


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
    return next(
        (
            text
            for text, one_encoding, expected_encoding in zip(texts, encodings, expected, strict=True)
            if one_encoding != expected_encoding
        ),
        None,
    )


def _append_nothing(tokenizer: Tokenizer, folder: Path, name: str) -> bool:
    """Whether the tokenizer appended tokens to a text. Afterwards it does not."""
    prefix, suffix = _around(tokenizer)
    if not suffix:
        return False
    if getattr(tokenizer, "add_eos_token", False):
        tokenizer.add_eos_token = False
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if _around(tokenizer)[1] and backend is not None:
        words = tokenizer.convert_ids_to_tokens(prefix)
        backend.post_processor = TemplateProcessing(
            single=[*words, "$A"],
            pair=[*words, "$A", "$B:1"],
            special_tokens=[*zip(words, prefix, strict=True)],
        )
    if _around(tokenizer) != (prefix, []):
        raise CellError(
            f"{name}: the tokenizer in {folder} appends {tokenizer.convert_ids_to_tokens(suffix)} to every text.",
            "set add_eos_token to false in its tokenizer_config.json.",
        )
    return True


class _SpecialTokens(NamedTuple):
    """The special tokens that a tokenizer puts before and after a text."""

    prefix: list[int]
    suffix: list[int]


def _around(tokenizer: Tokenizer) -> _SpecialTokens:
    """The special tokens that a tokenizer puts before and after a text."""
    bare, encoded = tokenizer.encode(PLAIN, add_special_tokens=False), tokenizer.encode(PLAIN)
    places = range(len(encoded) - len(bare) + 1)
    start = next(
        (start_of_text for start_of_text in places if encoded[start_of_text : start_of_text + len(bare)] == bare), None
    )
    return _SpecialTokens([], []) if start is None else _SpecialTokens(encoded[:start], encoded[start + len(bare) :])


# ----------------------------------------------------------------------------------------------------------------------
# What is said of a model's tokenizer when it is prefetched.


@dataclass(frozen=True)
class Findings:
    """rules: those of `load_tokenizer`. closes_thoughts: see `chat`. loses: what decode(encode(text)) does not give
    back. tied: whether the configuration ties head and embeddings; vocabulary: its sizes of the vocabulary."""

    rules: dict[str, str]
    closes_thoughts: bool
    loses: set[str]
    tied: bool
    vocabulary: set[int]


def examine(
    folder: Path,
    name: str,
    *,
    weights: Path,
    causal: bool,
    embeddings: int | None = None,
    chat: bool = False,
) -> Findings:
    """Try the tokenizer of a folder on texts, beside the model in `weights`. embeddings: their number with an adapter,
    which may have been trained with more. chat: whether questions are asked in the chat template. Raises CellError for
    what cannot be used: what `load_tokenizer` says, and a token that the model has no embedding for."""
    try:
        configuration = transformers.AutoConfig.from_pretrained(weights, local_files_only=True)
    except Exception as error:  # transformers raises whatever a file's content leads to
        raise CellError(
            f"{name}: {weights / 'config.json'} cannot be used ({first_line(error)}).",
            "correct it: a model folder is what save_pretrained writes.",
        ) from error
    try:
        tokenizer, rules = load_tokenizer(folder, name, weights=weights, causal=causal)
    except CellError:
        raise
    except Exception as error:  # as above
        raise CellError(
            f"{name}: the tokenizer in {folder} cannot be loaded ({first_line(error)}).",
            f"it needs {FILE}, or the vocabulary files of an architecture that transformers knows.",
        ) from error
    parts = (configuration, configuration.get_text_config())
    _check_quantization(parts, name)
    sizes = {size for part in parts if isinstance(size := getattr(part, "vocab_size", None), int)}
    closes, prompt = False, ""
    if tokenizer.chat_template is not None:
        render = functools.partial(tokenizer.apply_chat_template, tokenize=False)
        if chat:
            check_question(render, name)
        options, closes = thought_settings(render)
        with contextlib.suppress(Exception):  # whatever a template raises: the real prompts will raise it again
            prompt = render([{"role": "user", "content": PLAIN}], add_generation_prompt=True, **options)
    check_ids(tokenizer, folder, embeddings or max(sizes, default=2**40), name, prompt if chat else "")
    return Findings(
        rules=rules,
        closes_thoughts=closes,
        loses={kind for kind, text in LOSSES.items() if lost_bytes(tokenizer, text)},
        tied=any(getattr(part, "tie_word_embeddings", False) for part in parts),
        vocabulary=sizes,
    )


def _check_quantization(parts: Sequence[transformers.PretrainedConfig], name: str) -> None:
    """Raise CellError for a quantization_config of a kind that transformers does not know."""
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

    for part in parts:
        settings = getattr(part, "quantization_config", None)
        if not isinstance(settings, dict):
            continue
        kind = settings.get("quant_method")
        if kind not in AUTO_QUANTIZATION_CONFIG_MAPPING and not any(key.startswith("load_in_") for key in settings):
            raise CellError(
                f"{name}: its config.json has a quantization_config of the kind {kind!r}, which transformers lacks.",
                "give the model in bfloat16, or update transformers.",
            )


# ----------------------------------------------------------------------------------------------------------------------
# What a tokenizer loses of a text.

LOSSES = {"letters": TEXTS[4], "case": "Yes YES yes", "white space": TEXTS[2].strip(), "digits": TEXTS[1]}


def check_ids(tokenizer: Tokenizer, folder: Path, size: int, name: str, prompt: str) -> None:
    """Raise CellError where a text can have a token beyond the `size` embeddings of the model. Tokens that were added
    to the vocabulary, for padding say, are in no text of a benchmark but a `prompt` in the chat template."""
    added = tokenizer.get_added_vocab()
    own_ids = (number for token, number in tokenizer.get_vocab().items() if token not in added)
    largest = max([*own_ids, *(max(tokenizer.encode(text), default=0) for text in (*TEXTS, prompt))])
    if largest >= size:
        raise CellError(
            f"{name}: the tokenizer in {folder} makes token {largest}, and the model has {size} embeddings.",
            f"{FILE} is of another model, or the embeddings of tokens that were added were not saved with the adapter.",
        )


def lost_bytes(tokenizer: Tokenizer, text: str) -> int:
    """Bytes of UTF-8 of a text that are not in decode(encode(text)): of unknown characters, of letter case, of white
    space that is left out. What Unicode holds for the same (NFKC) is not lost, nor are blanks of one kind for those
    of another."""
    tokens = tokenizer.encode(text, add_special_tokens=False)
    unknown = _unknown(tokenizer)
    if unknown is not None and unknown not in text:
        tokens = [token for token in tokens if token != tokenizer.convert_tokens_to_ids(unknown)]
    decoded = tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    if decoded.strip() == text.strip():
        return 0
    lost = _characters(text) - _characters(decoded)
    return sum(len(character.encode()) * count for character, count in lost.items())


def _unknown(tokenizer: Tokenizer) -> str | None:
    """The token that stands for what a tokenizer does not know."""
    model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    return tokenizer.unk_token or getattr(model, "unk_token", None)


def _characters(text: str) -> Counter[str]:
    return Counter(re.sub(r"[\s\u2581]", " ", unicodedata.normalize("NFKC", text.strip())))
