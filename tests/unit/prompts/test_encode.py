import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozify.config.pattern import Pattern, Slot
from clozify.config.recipe import Wording
from clozify.errors import TaskError
from clozify.gpu.packing import LENGTH_MULTIPLE, pack
from clozify.prompts.encode import (
    EncodedRows,
    FieldInContext,
    compile_pattern,
    forward_batches,
)
from clozify.prompts.tokenizer import RaggedTokens
from clozify.prompts.truncation import truncate_longest_field, truncate_longest_segment
from clozify.prompts.verbalizer import word_ids


def one_at_a_time(lengths: list[int], budget: int) -> list[int]:
    """What Transformers' `longest_first` does, written out: the longest loses a token, of equals the later one."""
    kept = list(lengths)
    while sum(kept) > budget:
        longest = max(kept)
        kept[max(index for index, length in enumerate(kept) if length == longest)] -= 1
    return kept


@given(st.lists(st.lists(st.integers(0, 40), min_size=3, max_size=3), min_size=1, max_size=5), st.integers(0, 100))
def test_truncation_by_arithmetic_takes_what_token_by_token_takes(lengths, budget):
    """A field cut too short loses the user's text without a word."""
    kept = truncate_longest_field(np.array(lengths), budget)
    assert kept.tolist() == [one_at_a_time(row, budget) for row in lengths]


@given(st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1))
def test_ragged_rows_come_back_as_they_went_in(rows):
    ragged = RaggedTokens.from_lists(rows)
    assert [ragged.ids[a:b].tolist() for a, b in zip(ragged.offsets, ragged.offsets[1:], strict=False)] == rows


@pytest.fixture(scope="module")
def splice(tiny):
    template = compile_pattern(Pattern("It was {mask}. {a} and {b} || Yes {a}"), tiny("bert").tokenizer)
    a, b = template.fields[0], template.fields[1]

    def encode(rows_a, rows_b, max_length=40):
        ragged = {a: RaggedTokens.from_lists(rows_a), b: RaggedTokens.from_lists(rows_b)}
        return template, EncodedRows(template, ragged, max_length)

    return encode


ids = st.lists(st.integers(10, 99), max_size=30)


@given(rows=st.lists(st.tuples(ids, ids), min_size=1, max_size=8), max_length=st.integers(14, 60))
def test_splicing_equals_joining_the_pieces_by_hand(splice, rows, max_length):
    """An off-by-one here would feed one row's words to another row's question."""
    template, encoded = splice([a for a, _ in rows], [b for _, b in rows], max_length)
    batch = encoded.batch(np.arange(len(rows)))
    for row, (a, b) in enumerate(rows):
        kept = one_at_a_time([len(a), len(b), len(a)], max_length - template.fixed_tokens)
        fields = [a[: kept[0]], b[: kept[1]], a[: kept[2]]]
        expected, types = [], []
        for piece in template.pieces:
            part = list(piece.ids) if piece.field_index is None else fields[piece.field_index]
            expected += part
            types += list(piece.types) if piece.field_index is None else [piece.types[0]] * len(part)
        length = int(batch.attention_mask[row].sum())
        assert batch.input_ids[row, :length].tolist() == expected
        assert batch.token_type_ids[row, :length].tolist() == types
        assert (batch.input_ids[row, length:] == template.pad_id).all()
        assert batch.input_ids[row, batch.mask_positions[row]] == template.mask_id
        assert length == encoded.lengths[row] <= max_length
        assert encoded.truncated[row] == (sum(kept) < 2 * len(a) + len(b))
        assert encoded.lost_tokens[row] == 2 * len(a) + len(b) - sum(kept)


@given(lengths=st.lists(st.integers(0, 30), min_size=1, max_size=40), budget=st.integers(1, 300))
def test_batches_hold_every_row_once_within_the_token_budget(splice, lengths, budget):
    _, encoded = splice([[7] * n for n in lengths], [[8]] * len(lengths), 100)
    seen = []
    for batch in encoded.batches(budget):
        assert batch.input_ids.size <= max(budget, batch.input_ids.shape[1])
        seen += batch.rows.tolist()
    assert sorted(seen) == list(range(len(lengths)))


def test_a_gpu_is_given_no_mask_where_there_is_no_padding(splice):
    """With a mask, attention takes a slower way; without one where it is needed, text would look at padding."""
    _, encoded = splice([[7] * 3, [7] * 3, [7] * 9], [[8]] * 3, 100)
    for rows, masked in (([0, 1], False), ([0, 2], True)):
        batch = encoded.batch(np.array(rows))
        ((group, inputs),) = forward_batches(batch, batch.attention_mask.sum(axis=1), False, 0, token_types=False)
        assert ("attention_mask" in inputs) is masked
        assert group.tolist() == [0, 1]
        assert inputs["input_ids"].shape[1] % 8 == 0 or not masked


@given(lengths=st.lists(st.integers(0, 30), min_size=1, max_size=20), pad_length=st.booleans())
def test_packing_keeps_every_token_in_its_row(splice, lengths, pad_length):
    """A token at another row's position would be read as that row's."""
    _, encoded = splice([[7 + n] * n for n in lengths], [[8]] * len(lengths), 100)
    batch = encoded.batch(np.arange(len(lengths)))
    packed = pack(batch, 0, pad_length)
    cu_seqlens = packed.arrays["cu_seqlens"].tolist()
    for row, length in enumerate(encoded.lengths):
        positions = packed.start[row] + np.arange(length)
        assert cu_seqlens[row : row + 2] == [packed.start[row], packed.start[row] + length]
        assert (packed.arrays["input_ids"][0, positions] == batch.input_ids[row, :length]).all()
        assert (packed.arrays["token_type_ids"][0, positions] == batch.token_type_ids[row, :length]).all()
        assert packed.arrays["row_positions"][0, positions].tolist() == list(range(length))
    tokens = packed.arrays["input_ids"].shape[1]
    assert cu_seqlens[-1] == tokens
    assert len(cu_seqlens) == len(lengths) + 1 + pad_length
    if pad_length:  # the padding is a row of its own, never empty and never longer than a multiple
        assert tokens % LENGTH_MULTIPLE == 0
        assert 0 < tokens - encoded.lengths.sum() <= 2 * LENGTH_MULTIPLE
    else:
        assert tokens == encoded.lengths.sum()


def test_a_pattern_that_leaves_no_room_for_text_is_an_error(tiny):
    template = compile_pattern(Pattern("It was {mask}. {a}"), tiny("bert").tokenizer)
    with pytest.raises(TaskError, match="leaves none for text"):
        EncodedRows(template, {FieldInContext(Slot("a")): RaggedTokens.from_lists([[1]])}, template.fixed_tokens)


def off_the_longer_segment(lengths: list[int], segment_of: tuple[int, ...], budget: int) -> list[int]:
    """What the authors' code does, written out: a token off the last field of the segment that has more of them."""
    kept = list(lengths)
    while sum(kept) > budget:
        size = [sum(k for k, s in zip(kept, segment_of, strict=True) if s == segment) for segment in (0, 1)]
        longer = 0 if size[0] > size[1] else 1
        kept[max(n for n, k in enumerate(kept) if segment_of[n] == longer and k)] -= 1
    return kept


@given(
    st.lists(st.lists(st.integers(0, 40), min_size=3, max_size=3), min_size=1, max_size=5),
    st.integers(0, 100),
    st.sampled_from([(0, 0, 0), (0, 0, 1), (0, 1, 1), (1, 1, 1)]),
)
def test_the_authors_truncation_takes_what_their_loop_takes(lengths, budget, segment_of):
    kept = truncate_longest_segment(np.array(lengths), budget, segment_of)
    assert kept.tolist() == [off_the_longer_segment(row, segment_of, budget) for row in lengths]


@pytest.mark.parametrize("architecture", ["bert", "roberta", "xlm-roberta"])
def test_the_authors_spacing_encodes_each_part_by_itself_behind_a_space(tiny, architecture):
    """`it was ___ .` and `it was ___.` are other questions to a model that sees spaces."""
    tokenizer = tiny(architecture).tokenizer
    wording = Wording(spacing="between-parts", label_words="leading-space")
    template = compile_pattern(Pattern("({mask}). {text}: it was"), tokenizer, wording)
    columns = {c: c.tokenize(tokenizer, ["a game"]) for c in template.fields}
    result = EncodedRows(template, columns, 60).batch(np.arange(1)).input_ids[0].tolist()
    behind_a_space = [
        tokenizer.encode("x " + part)[len(tokenizer.encode("x")) :]
        for part in ("(", "). ".strip(), "a game", ": it was")
    ]
    (before,), (after,) = tokenizer.special_tokens(1).specials
    left, right, text, end = behind_a_space
    assert result == [before, *left, tokenizer.mask_id, *right, *text, *end, after]
    assert word_ids(tokenizer, template, "game") == tokenizer.encode("x game")[len(tokenizer.encode("x")) :]
