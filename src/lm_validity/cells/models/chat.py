"""What a chat template adds to a prompt that would differ from day to day, or would be read as part of an answer."""

import contextlib
import datetime
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Self

from lm_validity.errors import CellError, first_line
from lm_validity.files import read_json_or

# ----------------------------------------------------------------------------------------------------------------------
# Chat templates may print the date of today: it is one fixed date here.

CHAT_DATE = datetime.date(2024, 7, 26)  # which Llama 3.2's template itself falls back to


@contextlib.contextmanager
def fixed_date() -> Iterator[None]:
    """Inside the block chat templates are rendered on CHAT_DATE. transformers hands templates a function that asks its
    own module for the time, and takes no other."""
    import transformers.utils.chat_template_utils as rendering

    real_datetime, rendering.datetime = rendering.datetime, _ChatDate
    try:
        yield
    finally:
        rendering.datetime = real_datetime


class _ChatDate(datetime.datetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Self:
        return cls.combine(CHAT_DATE, datetime.time())


def read_chat_template(folder: Path) -> str | None:
    """The chat template(s) among a tokenizer's files, None where there is none."""
    if (folder / "chat_template.jinja").is_file():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    settings = read_json_or(folder / "tokenizer_config.json", {})
    template = settings.get("chat_template") if isinstance(settings, dict) else None
    return str(template) if template else None


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
    return f"{prompt.rstrip()}\n\n{_closing(tag)}\n\n"


def _closing(tag: str) -> str:
    if _START.search(tag):
        return _START.sub(lambda word: "END" if word[0].isupper() else "end", tag)
    if re.fullmatch(r"[<\[][\w:]+[>\]]", tag):
        return f"{tag[0]}/{tag[1:]}"
    raise CellError(
        f"the chat template opens a thought with {tag!r}, whose end is not known.",
        "give the model a template without it, or set instruction_tuned to 0 in the models sheet.",
    )


def check_question(render: Callable[..., str], name: str) -> None:
    """Raise CellError where a chat template raises for every prompt, or prints no question: some want a list of parts
    in place of a text, and print nothing of a text. render: messages and further arguments -> prompt."""
    system, asked = {"role": "system", "content": "brief"}, {"role": "user", "content": "question"}
    raised: Exception | None = None
    for messages in ([asked], [system, asked]):
        try:
            with fixed_date():
                prompt = render(messages, add_generation_prompt=True)
        except Exception as error:  # whatever a template raises
            raised = raised or error
            continue
        if "question" in prompt.casefold():
            return
        raised = None
        break
    reason = f"cannot be rendered ({first_line(raised)})" if raised else "prints nothing of a question"
    raise CellError(
        f"{name}: its chat template {reason}.",
        "give the tokenizer a chat_template.jinja that takes texts, or set instruction_tuned to 0 in the models sheet.",
    )


class ThoughtSettings(NamedTuple):
    """What a chat template is told beside the messages, and whether thoughts are closed."""

    options: dict[str, bool]
    closed: bool


def thought_settings(render: Callable[..., str]) -> ThoughtSettings:
    """What the chat template is told beside the messages, and whether thoughts are closed. render: messages and further
    arguments -> prompt. What a template raises says nothing of thoughts: the real prompts will raise it again."""
    messages = [{"role": "user", "content": "question"}]
    try:
        with fixed_date():
            if open_thought(render(messages, add_generation_prompt=True)) is None:
                return ThoughtSettings({}, closed=False)
            template_options = {"enable_thinking": False}
            prompt = render(messages, add_generation_prompt=True, **template_options)
    except Exception:  # whatever a template raises
        return ThoughtSettings({}, closed=False)
    if open_thought(prompt) is None:
        return ThoughtSettings(template_options, closed=True)
    close_thought(prompt)  # raises where it cannot be closed
    return ThoughtSettings({}, closed=True)
