"""Near-duplicates: prefix filtering gives the pairs that comparing all rows gives."""

from itertools import combinations

import numpy as np
import pytest

from clozify.data.near_duplicates import (
    CHARACTERS,
    MIN_CHARACTERS,
    MIN_FIELD_SIMILARITY,
    MIN_SIMILARITY,
    find_duplicates,
    normalize,
)


def character_set(text):
    text = normalize(text)
    return {text[i : i + CHARACTERS] for i in range(len(text) - CHARACTERS + 1)}


def naive_groups(rows):
    """All pairs of rows compared, and the groups that the similar ones connect."""

    def are_similar(one, other):
        if [normalize(text) for text in one] == [normalize(text) for text in other]:
            return any(one)
        if min(sum(len(normalize(text)) for text in row) for row in (one, other)) < MIN_CHARACTERS:
            return False
        fields = [(character_set(a), character_set(b)) for a, b in zip(one, other, strict=True)]
        shared, union = sum(len(a & b) for a, b in fields), sum(len(a | b) for a, b in fields)
        in_fields = [len(a & b) / len(a | b) if a | b else 1.0 for a, b in fields]
        return shared / union >= MIN_SIMILARITY and min(in_fields) >= (MIN_FIELD_SIMILARITY if len(one) > 1 else 0)

    group = list(range(len(rows)))
    for a, b in combinations(range(len(rows)), 2):
        if are_similar(rows[a], rows[b]):
            group = [group[a] if each == group[b] else each for each in group]
    members = [tuple(i for i, each in enumerate(group) if each == number) for number in dict.fromkeys(group)]
    return [rows_of_group for rows_of_group in members if len(rows_of_group) > 1]


def random_rows(fields, seed):
    """Sentences of which some are others with a few words changed."""
    rng = np.random.default_rng(seed)
    words = ["".join(rng.choice(list("abcdefghij"), rng.integers(2, 9))) for _ in range(60)]
    rows = []
    for _ in range(50):
        if rows and rng.random() < 0.6:
            row = [text.split() for text in rows[rng.integers(len(rows))]]
            for _ in range(rng.integers(0, 4)):
                field = row[rng.integers(fields)]
                field[rng.integers(len(field))] = str(rng.choice(words))
        else:
            row = [list(rng.choice(words, rng.integers(3, 25))) for _ in range(fields)]
        rows.append(tuple(" ".join(map(str, field)) for field in row))
    return rows


@pytest.mark.parametrize("fields", [1, 2])
@pytest.mark.parametrize("seed", range(2))
def test_groups_are_those_of_comparing_all_pairs(fields, seed):
    rows = random_rows(fields, seed)
    groups = find_duplicates([[row[field] for row in rows] for field in range(fields)])
    assert [group.rows for group in groups] == naive_groups(rows)
    assert len(groups) > 3


def test_case_and_punctuation_do_not_make_a_text_different():
    (group,) = find_duplicates([["Set an alarm!", "other", "set  an alarm"]])
    assert group.rows == (0, 2)
    assert group.similarity == 1


def test_short_texts_are_duplicates_only_if_equal():
    assert not find_duplicates([["set alarm for 5 am", "set alarm for 6 am", "", ""]])


def test_texts_without_letters_are_compared_as_they_are():
    (group,) = find_duplicates([["???", ":-)", ":-)", "!!!"]])
    assert group.rows == (1, 2)


def test_two_questions_about_one_long_text_are_different_rows():
    text = " ".join(f"chapter {number} tells about the year {1700 + 7 * number}" for number in range(60))
    premises, hypotheses = [text, text], ["nobody left the town", "the king was very old"]
    assert not find_duplicates([premises, hypotheses])
    assert find_duplicates([[f"{p} {h}" for p, h in zip(premises, hypotheses, strict=True)]])
