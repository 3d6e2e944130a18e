"""A task's patterns and verbalizers in the tokens of one model (section 3).

Words that the model cannot use are reported all at once, each with words that it can.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from textwrap import shorten

import numpy as np
import torch

from clozify.config.pattern import Pattern
from clozify.config.recipe import Wording
from clozify.config.task import Task, Verbalizer
from clozify.data.rows import Rows
from clozify.errors import TaskError, quoted
from clozify.models.cloze import ClozeModel
from clozify.models.generative import GenerativeModel
from clozify.models.language_model import LanguageModel
from clozify.prompts.encode import AS_WRITTEN, Batch, EncodedRows, FieldInContext, Template, compile_pattern
from clozify.prompts.tokenizer import RaggedTokens
from clozify.prompts.verbalizer import LabelWords, label_tokens, most_tokens, verbalize, word_ids

SAMPLE_ROWS = 8  # rows that words are suggested from
TOP_TOKENS = 400  # of the model's most likely tokens at the mask, of which words are suggested


@dataclass(frozen=True)
class PatternPrompt:
    """One pattern in the model's tokens, and the pairs of the task that use it."""

    template: Template
    pairs: tuple[int, ...]  # indices into `task.pairs`
    words: tuple[LabelWords, ...]  # of each pair's verbalizer


@dataclass(frozen=True)
class TaskPrompts:
    """A task's patterns for one model, in their order, and warnings about their words."""

    patterns: list[PatternPrompt]
    warnings: list[str]
    fields: list[FieldInContext]  # every field that some pattern of the task reads, once for each way it is tokenised

    def for_pair(self, pair: int, zero_points: Sequence[float] | None = None) -> TaskPrompts:
        """The pattern of one pair, by its index in `task.pairs`; `zero_points` are subtracted from the scores."""
        (prompt,) = [prompt for prompt in self.patterns if pair in prompt.pairs]
        words = prompt.words[prompt.pairs.index(pair)]
        if zero_points is not None:
            words = replace(words, zero_points=np.asarray(zero_points, dtype=np.float32))
        return TaskPrompts([PatternPrompt(prompt.template, (pair,), (words,))], [], self.fields)

    def tokenize(self, model: LanguageModel, rows: Rows, start: int, stop: int) -> dict[FieldInContext, RaggedTokens]:
        """The tokens of a range of rows, each field tokenised once for all patterns."""
        fields = {column.slot.field for column in self.fields}
        texts = {name: rows.texts(name, start, stop) for name in fields}
        return {column: column.tokenize(model.tokenizer, texts[column.slot.field]) for column in self.fields}


def compile_task(
    model: LanguageModel, task: Task, rows: Rows | None = None, wording: Wording = AS_WRITTEN
) -> TaskPrompts:
    """The task in the model's tokens; raises `TaskError` with every word that cannot be used."""
    if isinstance(model, GenerativeModel):
        return _compile_generative(model, task, wording)
    prompts = []
    # a problem or warning -> advice, then the patterns that it concerns
    problems, warnings = dict[str, list[str]](), dict[str, list[str]]()
    for text in task.patterns:
        verbalizers = [pair.verbalizer for pair in task.pairs if pair.pattern.text == text]
        template = _compile(model, Pattern(text), verbalizers, wording)
        words, pairs = [], []
        for index, pair in enumerate(task.pairs):
            if pair.pattern.text != text:
                continue
            label_words, unusable, errors, remarks = verbalize(model.tokenizer, template, pair.verbalizer)
            for word in unusable:
                if str(word) not in problems:
                    near = near_words(model, template, word.word, rows, taken=pair.verbalizer.words.values())
                    problems[str(word)] = [f"; near words that it knows: {quoted(near)}"]
                problems[str(word)].append(text)
            for error in [*errors, *_too_long_words(model, template, pair.verbalizer)]:
                problems.setdefault(error, [""]).append(text)
            for remark in remarks:
                warnings.setdefault(remark, [""]).append(text)
            words.append(label_words)
            pairs.append(index)
        prompts.append(PatternPrompt(template, tuple(pairs), tuple(words)))
    if problems:
        raise TaskError(_sentences(problems))
    return TaskPrompts(prompts, _sentences(warnings), _fields(prompts))


def _fields(prompts: Sequence[PatternPrompt]) -> list[FieldInContext]:
    return list(dict.fromkeys(field for prompt in prompts for field in prompt.template.fields))


def _compile_generative(model: GenerativeModel, task: Task, wording: Wording) -> TaskPrompts:
    """The task for a model that writes from left to right."""
    prompts, problems = list[PatternPrompt](), dict[str, list[str]]()
    for text in task.patterns:
        template = model.compile_prompt(Pattern(text), wording)
        pairs = [index for index, pair in enumerate(task.pairs) if pair.pattern.text == text]
        verbalized = [model.verbalize(template, task.pairs[index].verbalizer) for index in pairs]
        for _, unusable, errors, _ in verbalized:
            for problem in [*map(str, unusable), *errors]:
                problems.setdefault(problem, [""]).append(text)
        prompts.append(PatternPrompt(template, tuple(pairs), tuple(words for words, *_ in verbalized)))
    if problems:
        raise TaskError(_sentences(problems))
    return TaskPrompts(prompts, [], _fields(prompts))


def _compile(model: ClozeModel, pattern: Pattern, verbalizers: Sequence[Verbalizer], wording: Wording) -> Template:
    """The template of a pattern, with a mask for every token of the longest word if the wording asks for that."""
    template = compile_pattern(pattern, model.tokenizer, wording)
    if wording.several_tokens == "mean":
        return template
    masks = max(most_tokens(model.tokenizer, template, verbalizer) for verbalizer in verbalizers)
    return compile_pattern(pattern, model.tokenizer, wording, masks)


def _too_long_words(model: ClozeModel, template: Template, verbalizer: Verbalizer) -> list[str]:
    """A problem for each word that, together with the pattern's own words, leaves no tokens for a row's text."""
    own_tokens = template.fixed_tokens - template.masks
    return [
        f"the word '{shorten(word, 40, placeholder=' ...')}' of the label '{label}' has {len(ids):,} tokens, which "
        f"leaves none for the pattern and the text within the model's {model.max_length:,}; shorten it"
        for label, words in label_tokens(model.tokenizer, template, verbalizer).items()
        for word, ids in words.items()
        if len(ids) > 1 and own_tokens + len(ids) >= model.max_length
    ]


def _sentences(problems: dict[str, list[str]]) -> list[str]:
    """One sentence for each problem, however many patterns it concerns."""
    sentences = []
    for problem, (advice, first, *patterns) in problems.items():
        count = f" and {len(patterns)} more" if patterns else ""
        sentences.append(f"In the pattern '{first}'{count}, {problem}{advice}.")
    return sentences


def compile_template(model: LanguageModel, pattern: Pattern) -> Template:
    """A pattern as the model reads it."""
    if isinstance(model, GenerativeModel):
        return model.compile_prompt(pattern, AS_WRITTEN)
    return compile_pattern(pattern, model.tokenizer)


def ids_of_word(model: LanguageModel, template: Template, word: str) -> list[int]:
    """The ids of a word at the mask, or where a causal or encoder-decoder model writes it."""
    if isinstance(model, GenerativeModel):
        return model.word_ids(template, word)
    return word_ids(model.tokenizer, template, word)


def log_probabilities_at_mask(model: LanguageModel, batch: Batch) -> torch.Tensor:
    """The log-probability of every token at the mask, or of the first that the model writes: (batch, vocabulary)."""
    if isinstance(model, GenerativeModel):
        return model.states_at_mask(batch).log_probabilities
    scores = model.head(model.states_at_mask(batch).to(model.dtype))
    return torch.log_softmax(scores.float(), dim=-1)


@torch.inference_mode()
def mean_log_probabilities(
    model: LanguageModel, template: Template, rows: Rows | None = None, count: int = SAMPLE_ROWS
) -> torch.Tensor:
    """The model's log-probability of every word at the mask, the mean over the first rows: (vocabulary,)."""
    stop = min(count, len(rows)) if rows is not None else 1
    columns = {
        column: column.tokenize(model.tokenizer, rows.texts(column.slot.field, 0, stop) if rows is not None else [""])
        for column in set(template.fields)
    }
    batch = EncodedRows(template, columns, model.max_length).batch(np.arange(stop))
    return log_probabilities_at_mask(model, batch).mean(dim=0)


def top_words(model: LanguageModel, template: Template, rows: Rows | None = None, count: int = 5) -> list[str]:
    """The complete words of one token that the model predicts at the mask, the most likely first."""
    words: list[str] = []
    probabilities = mean_log_probabilities(model, template, rows)  # (vocabulary,)
    for token in probabilities.topk(min(TOP_TOKENS, len(probabilities))).indices.tolist():
        word = model.tokenizer.decode([token]).strip()
        if word.isalpha() and word not in words and ids_of_word(model, template, word) == [token]:
            words.append(word)
            if len(words) == count:
                break
    return words


def near_words(
    model: ClozeModel,
    template: Template,
    word: str,
    rows: Rows | None,
    taken: Iterable[Iterable[str]] = (),
    count: int = 3,
) -> list[str]:
    """One-token words that the model expects at the mask, those nearest to the pieces of `word` first."""
    used = {other.lower() for words in taken for other in words}
    vectors = model.model.get_input_embeddings().weight.detach()
    pieces = vectors[torch.tensor(word_ids(model.tokenizer, template, word), dtype=torch.long)].mean(dim=0)
    likely = [w for w in top_words(model, template, rows, TOP_TOKENS) if len(w) > 2 and w.lower() not in used]
    if not likely or not torch.isfinite(pieces).all():
        return likely[:count]
    ids = torch.tensor([word_ids(model.tokenizer, template, w)[0] for w in likely], device=vectors.device)
    similarity = torch.cosine_similarity(vectors[ids], pieces[None], dim=-1)
    return [likely[index] for index in similarity.topk(min(count, len(likely))).indices.tolist()]
