"""How much of a text is read: what the tokens of a batch decode to."""

import numpy as np
import pytest

from clozify.config.pattern import Pattern
from clozify.prompts.encode import EncodedRows, compile_pattern
from clozify.prompts.reading import read_lengths

PATTERNS = ("It was {mask}. {title} {text}", "Just {mask}! || {text}", "{text:no_final_punctuation}: {mask}")


def letters(text):
    return "".join(text.lower().split())


@pytest.mark.parametrize("architecture", ["bert", "roberta", "xlm-roberta"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_characters_that_are_read_are_those_of_the_tokens(tiny, architecture, pattern):
    tokenizer = tiny(architecture).tokenizer
    template = compile_pattern(Pattern(pattern), tokenizer)
    texts = {
        "title": ["a game", "utility for mail and data analysis, and for more of it, " * 3, ""],
        "text": ["database server for fonts. " * 9, "mail server for all games and fonts, " * 5, "x"],
    }
    lengths = read_lengths(tokenizer, [template], 30, texts)
    columns = {c: c.tokenize(tokenizer, texts[c.slot.field]) for c in template.fields}
    kept, full = EncodedRows(template, columns, 30).kept_lengths(np.arange(3))
    for index, column in enumerate(template.fields):
        for row, text in enumerate(texts[column.slot.field]):
            count = lengths[column.slot.field][row]
            if kept[row, index] == full[row, index]:
                assert count == len(text)
                continue
            assert 0 < count < len(text)
            start = columns[column].offsets[row]
            ids = columns[column].ids[start : start + kept[row, index]]
            assert letters(tokenizer.decode(ids)) == letters(text[:count])
    if "{title}" not in pattern:
        assert not lengths["title"].any()


def test_several_patterns_read_what_some_of_them_reads(tiny):
    tokenizer = tiny("bert").tokenizer
    texts = {"title": ["game " * 30], "text": ["mail " * 30]}
    templates = [compile_pattern(Pattern(pattern), tokenizer) for pattern in PATTERNS]
    alone = [read_lengths(tokenizer, [template], 20, texts) for template in templates]
    together = read_lengths(tokenizer, templates, 20, texts)
    for field in texts:
        assert together[field][0] == max(lengths[field][0] for lengths in alone)
