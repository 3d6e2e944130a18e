"""Patterns as prompts of a causal model, which reads from left to right and writes the word at the end.

- A pattern that ends with its mask, closing punctuation aside, is read up to the mask: "{text} It was {mask}." becomes
  "{text} It was".
- Any other becomes a question: its mask is a blank, and the word is the answer:
  "[ Category: ____ ] {text}", and below it "Question: Which word belongs in the blank?" and "Answer:". The labels'
  words are not listed: small models then prefer some of them whatever the row says.
- Where the model has a chat template, the question is a user's message, and the answer starts with the word.

Segments (`||`) are joined by a space.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from clozify.config.pattern import Mask, Part, Pattern, Segment
from clozify.config.recipe import Wording
from clozify.errors import ModelError
from clozify.prompts.encode import AS_WRITTEN, Piece, Template, compile_segments
from clozify.prompts.tokenizer import PromptTokenizer

BLANK = "____"
CLOSING = string.punctuation + string.whitespace + "»”…。"
QUESTION = "\n\nQuestion: Which word belongs in the blank?\nAnswer: "
PLACEHOLDER = "CLOZIFYPROMPT"


@dataclass(frozen=True)
class ChatFrame:
    """What a chat template puts before a user's message, and between it and the answer."""

    before: str
    after: str


def find_chat_frame(tokenizer: PromptTokenizer, chat: Literal["auto", "always", "never"]) -> ChatFrame | None:
    """The frame of the tokenizer's chat template; None where it has none, or is not to be used."""
    hf_tokenizer = tokenizer.hf_tokenizer
    if chat == "never" or (chat == "auto" and not hf_tokenizer.chat_template):
        return None
    try:
        messages = [{"role": "user", "content": PLACEHOLDER}]
        text = str(hf_tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    except Exception as error:  # a template is a program, and may fail in any way
        if chat == "auto":
            return None
        raise ModelError(
            f"The model's tokenizer has no chat template that works ({' '.join(str(error).split())[:200]}); set "
            "generative.chat to 'never'."
        ) from error
    before, separator, after = text.partition(PLACEHOLDER)
    return ChatFrame(before, after) if separator else None


def is_last(segments: Sequence[Segment]) -> bool:
    """Whether nothing but closing punctuation follows the mask."""
    parts = _join(segments)
    following = parts[parts.index(Mask()) + 1 :]
    return all(isinstance(part, str) and not part.strip(CLOSING) for part in following)


def compile_prompt(pattern: Pattern, tokenizer: PromptTokenizer, frame: ChatFrame | None, wording: Wording) -> Template:
    """The template of a pattern's prompt, up to where the word belongs."""
    wording = AS_WRITTEN.model_copy(update={"truncation": wording.truncation})  # the others are about masked LMs
    parts = _join(pattern.segments)
    before_mask = parts[: parts.index(Mask())]
    if frame is None and is_last(pattern.segments):
        return _without_end(compile_segments(pattern, [(*before_mask, Mask())], tokenizer, wording, masks=0))
    asked = _merge([BLANK if isinstance(part, Mask) else part for part in parts])
    own_tokens = compile_segments(pattern, [asked], tokenizer, wording).fixed_tokens
    question = _merge((*asked, QUESTION, Mask()))
    template = compile_segments(pattern, [question], tokenizer, wording, masks=0)
    template = _without_end(template) if frame is None else _in_frame(template, tokenizer, frame)
    return replace(template, extra_tokens=max(0, template.fixed_tokens - own_tokens))


def word_ids_in_chat(tokenizer: PromptTokenizer, frame: ChatFrame, word: str) -> list[int]:
    """The ids of a word at the start of the model's answer."""
    left, ids = tokenizer.encode_template(frame.after), tokenizer.encode_template(frame.after + word)
    return ids[len(left) :] if ids[: len(left)] == left else tokenizer.encode(word)


def _join(segments: Sequence[Segment]) -> Segment:
    """All segments in one, with a space between them."""
    joined: list[Part] = list(segments[0])
    for segment in segments[1:]:
        joined += [" ", *segment]
    return _merge(joined)


def _merge(parts: Sequence[Part]) -> Segment:
    """The parts with adjacent literals joined."""
    merged: list[Part] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        else:
            merged.append(part)
    return tuple(merged)


def _without_end(template: Template) -> Template:
    """The template without the special tokens at its end, since the word follows."""
    *pieces, end = template.pieces
    return replace(template, pieces=tuple(pieces), fixed_tokens=template.fixed_tokens - len(end.ids))


def _in_frame(template: Template, tokenizer: PromptTokenizer, frame: ChatFrame) -> Template:
    """The template with a chat's frame in place of the special tokens around it."""
    _, *pieces, _ = template.pieces
    before, after = (tuple(tokenizer.encode_template(text)) for text in (frame.before, frame.after))
    framed = (Piece(before, (0,) * len(before)), *pieces, Piece(after, (0,) * len(after)))
    return replace(template, pieces=framed, fixed_tokens=sum(len(piece.ids) for piece in framed))
