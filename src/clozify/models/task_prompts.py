"""A task as cloze questions for one model: every pattern in its tokens, every verbalizer in its ids.

In: a task and a `ClozeModel`. Out: a `Question` for each pattern, with its pairs; or every problem at once, each
with words that would do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch

from clozify.config.pattern import Pattern
from clozify.config.recipe import Wording
from clozify.config.task import Task
from clozify.data.rows import Rows
from clozify.errors import TaskError, quoted
from clozify.models.cloze import ClozeModel
from clozify.prompts.encode import AS_WRITTEN, EncodedRows, FieldInContext, Template, compile_pattern
from clozify.prompts.tokenizer import RaggedTokens
from clozify.prompts.verbalizer import LabelWords, verbalize, word_ids

FEW = 8  # rows that words are suggested from
LIKELY = 400  # how many of the model's own answers are looked at for near words


@dataclass(frozen=True)
class PatternPrompt:
    """One pattern, and the pairs of the task that use it (by their place in `task.pairs`)."""

    template: Template
    pairs: tuple[int, ...]
    words: tuple[LabelWords, ...]


@dataclass(frozen=True)
class TaskPrompts:
    """A task's questions for one model, in the order of its patterns, with what is worth a warning."""

    patterns: list[PatternPrompt]
    warnings: list[str]
    fields: list[FieldInContext]  # every field that some pattern of the task reads, once for each way it is tokenised
    # by the rows' identity; the rows are held too, since another object could take the number of one that is gone
    _kept: dict[int, tuple[Rows, dict[FieldInContext, RaggedTokens]]] = field(default_factory=dict)

    def for_pair(self, pair: int) -> TaskPrompts:
        """The one question of a pair, by its place in `task.pairs`; what was kept is shared."""
        (question,) = [question for question in self.patterns if pair in question.pairs]
        words = question.words[question.pairs.index(pair)]
        return TaskPrompts([PatternPrompt(question.template, (pair,), (words,))], [], self.fields, self._kept)

    def keep(self, model: ClozeModel, rows: Rows) -> dict[FieldInContext, RaggedTokens]:
        """All rows, tokenised once and kept for as long as these questions are asked."""
        return self.kept(rows) or self.hold(rows, self.tokenize(model, rows, 0, len(rows)))

    def kept(self, rows: Rows) -> dict[FieldInContext, RaggedTokens] | None:
        """What is kept of these rows."""
        return self._kept[id(rows)][1] if id(rows) in self._kept else None

    def hold(self, rows: Rows, columns: dict[FieldInContext, RaggedTokens]) -> dict[FieldInContext, RaggedTokens]:
        """Keep these rows, which somebody else tokenised."""
        self._kept[id(rows)] = (rows, columns)
        return columns

    def tokenize(self, model: ClozeModel, rows: Rows, start: int, stop: int) -> dict[FieldInContext, RaggedTokens]:
        """A stretch of rows, each field tokenised once for all patterns."""
        if id(rows) in self._kept:
            return {column: ragged.slice(start, stop) for column, ragged in self._kept[id(rows)][1].items()}
        fields = {column.slot.field for column in self.fields}
        texts = {name: rows.texts(name, start, stop) for name in fields}
        return {column: column.tokenize(model.tokenizer, texts[column.slot.field]) for column in self.fields}


def compile_task(model: ClozeModel, task: Task, rows: Rows | None = None, wording: Wording = AS_WRITTEN) -> TaskPrompts:
    """The task in the model's tokens; raises `TaskError` with every word that cannot be used."""
    asked = []
    problems, warnings = dict[str, list[str]](), dict[str, list[str]]()  # what -> the patterns it is found in
    for text in task.patterns:
        template = compile_pattern(Pattern(text), model.tokenizer, wording)
        words, places = [], []
        for place, pair in enumerate(task.pairs):
            if pair.pattern.text != text:
                continue
            found, split, errors, remarks = verbalize(model.tokenizer, template, pair.verbalizer)
            for word in split:
                if str(word) not in problems:
                    near = near_words(model, template, word.word, rows, taken=pair.verbalizer.words.values())
                    problems[str(word)] = [f"; near words that are one token: {quoted(near)}"]
                problems[str(word)].append(text)
            for error in errors:
                problems.setdefault(error, [""]).append(text)
            for remark in remarks:
                warnings.setdefault(remark, [""]).append(text)
            words.append(found)
            places.append(place)
        asked.append(PatternPrompt(template, tuple(places), tuple(words)))
    if problems:
        raise TaskError(_sentences(problems))
    columns = list(dict.fromkeys(column for question in asked for column in question.template.fields))
    return TaskPrompts(asked, _sentences(warnings), columns)


def _sentences(found: dict[str, list[str]]) -> list[str]:
    """One sentence for each thing found, however many patterns it is found in."""
    sentences = []
    for what, (advice, first, *more) in found.items():
        others = f" and {len(more)} more" if more else ""
        sentences.append(f"In the pattern '{first}'{others}, {what}{advice}.")
    return sentences


@torch.inference_mode()
def answers(model: ClozeModel, template: Template, rows: Rows | None = None, count: int = FEW) -> torch.Tensor:
    """The model's log-probability of every word at the mask, the mean over a few rows: (vocabulary,)."""
    stop = min(count, len(rows)) if rows is not None else 1
    ragged = {
        column: column.tokenize(model.tokenizer, rows.texts(column.slot.field, 0, stop) if rows is not None else [""])
        for column in set(template.fields)
    }
    batch = EncodedRows(template, ragged, model.max_length).batch(np.arange(stop))
    scores = model.head(model.states_at_mask(batch))  # (rows, vocabulary)
    return torch.log_softmax(scores, dim=-1).mean(dim=0)


def top_words(model: ClozeModel, template: Template, rows: Rows | None = None, count: int = 5) -> list[str]:
    """The whole words that the model itself would put in the mask's place, likeliest first."""
    found: list[str] = []
    for token in answers(model, template, rows).topk(LIKELY).indices.tolist():
        word = model.tokenizer.decode([token])
        if word.isalpha() and word not in found and word_ids(model.tokenizer, template, word) == [token]:
            found.append(word)
            if len(found) == count:
                break
    return found


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
    likely = [w for w in top_words(model, template, rows, LIKELY) if len(w) > 2 and w.lower() not in used]
    if not likely or not torch.isfinite(pieces).all():
        return likely[:count]
    ids = torch.tensor([word_ids(model.tokenizer, template, w)[0] for w in likely], device=vectors.device)
    nearness = torch.cosine_similarity(vectors[ids], pieces[None], dim=-1)
    return [likely[place] for place in nearness.topk(min(count, len(likely))).indices.tolist()]
