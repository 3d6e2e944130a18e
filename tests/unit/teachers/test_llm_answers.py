import math

import numpy as np
import pytest

from clozify.config.task import load_task
from clozify.teachers.llm_answers import Answer, AnswerReader, Token, to_log, vote_fractions
from clozify.teachers.llm_prompt import label_codes


def reader(labels):
    task = load_task({"fields": ["text"], "patterns": ["{text} {mask}"], "labels": labels})
    return AnswerReader(task, label_codes(task.labels))


NEWS = ["World", "Sports", "Business", "Sci/Tech"]


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("2", 1), (" 2.", 1), ('"2"', 1), ("(2)", 1), ("02", 1), ("2. Sports", 1), ("**2**", 1), ("2\nBecause", 1),
        ("sports", 1), ("SPORTS!", 1), ("“Sports”", 1), ("Label: Sports", 1), ("The label is 2.", 1),
        ("It is about sports, I think", 1), ("Sci/Tech", 3), ("<think>1 or 3?</think>2", 1), ("Answer: 2", 1),
        ("", None), ("5", None), ("I do not know", None), ("World or Sports", None), ("22", None),
        ("2 teams played", None), ("<think>2", None), ("sportsman", None),
    ],
)  # fmt: skip
def test_a_label_is_read_by_number_or_name_in_any_dress(text, label):
    assert reader(NEWS).label(text) == label


def test_the_longer_of_two_names_is_read():
    assert reader(["spam", "not spam"]).label("This is not spam.") == 1


def test_names_with_underscores_are_read_as_words():
    assert reader(["card_arrival", "lost_card"]).label("Lost card") == 1


def test_a_single_word_of_a_label_names_it():
    assert reader({"pos": "great", "neg": "terrible"}).label("terrible") == 1


def test_a_letter_at_the_start_of_a_sentence_is_no_label():
    letters = reader([f"label {name}" for name in "qrstuvwxyz"])
    assert letters.label("A good one") is None
    assert letters.label("b) label r") == 1
    assert letters.label("c") == 2


def test_numbers_of_many_labels_are_read_with_and_without_a_zero():
    many = reader([f"topic {chr(97 + index // 26)}{chr(97 + index % 26)}" for index in range(40)])
    assert many.label("7") == many.label("07") == 6
    assert many.label("40") == 39


@pytest.mark.parametrize(
    ("labels", "codes"),
    [
        (["a b", "c d"], ("1", "2")),
        (["0", "1"], ("A", "B")),  # "1" would be read as the label "1"
        (["1", "2", "3"], ("1", "2", "3")),
        ([f"x{index}" for index in range(12)], tuple("ABCDEFGHIJKL")),
        ([f"x{index}" for index in range(27)], tuple(f"{index:02}" for index in range(1, 28))),
    ],
)
def test_codes_are_short_and_never_another_labels_name(labels, codes):
    assert label_codes(labels).codes == codes


def answer(*tokens, text=None):
    made = [Token(text=next(iter(top)), top=tuple((t, math.log(p)) for t, p in top.items())) for top in tokens]
    return Answer(text="".join(token.text for token in made) if text is None else text, tokens=tuple(made))


def test_probabilities_are_those_of_the_first_tokens_made_to_sum_to_one():
    got = reader(["x y", "z w"]).probabilities(answer({"1": 0.6, " 2": 0.2, "The": 0.1}))
    np.testing.assert_allclose(got, [0.75, 0.25])


def test_spellings_of_a_label_add_up():
    got = reader(["cat", "dog"]).probabilities(answer({"1": 0.4, " 1": 0.1, "Cat": 0.1, "2": 0.3, "do": 0.1}))
    np.testing.assert_allclose(got, [0.6, 0.4])


def test_marks_and_spaces_before_the_label_are_skipped():
    got = reader(["cat", "dog"]).probabilities(answer({'"': 0.9, "2": 0.1}, {"1": 0.5, "2": 0.5}))
    np.testing.assert_allclose(got, [0.45, 0.55])


def test_a_code_of_several_tokens_is_followed_to_its_end():
    labels = [f"topic {chr(97 + index // 26)}{chr(97 + index % 26)}" for index in range(40)]
    got = reader(labels).probabilities(answer({"0": 0.5, "1": 0.5}, {"7": 0.8, "8": 0.2}))
    np.testing.assert_allclose(got[[6, 7]], [0.4, 0.1], atol=1e-6)
    np.testing.assert_allclose(got[9:19], 0.05, atol=1e-6)  # begin with 1: an equal share each


def test_a_label_outside_the_list_gets_at_most_what_the_list_leaves():
    got = reader(NEWS).probabilities(answer({"1": 0.7, "2": 0.2, "x": 0.06}))
    np.testing.assert_allclose(got, np.array([0.7, 0.2, 0.02, 0.02]) / 0.94)


def test_an_answer_that_is_no_label_has_no_probabilities():
    assert reader(NEWS).probabilities(answer({"The": 0.95, "1": 0.05})) is None


def test_a_label_by_name_counts_as_a_vote_where_no_token_tells():
    got = reader(NEWS).probabilities(answer({"The": 0.97, "1": 0.03}, text="The label is Sports"))
    np.testing.assert_array_equal(got, [0, 1, 0, 0])


def test_votes_are_fractions_of_the_answers_that_name_a_label():
    np.testing.assert_allclose(vote_fractions([0, 0, 1, None], 3), [2 / 3, 1 / 3, 0])
    assert vote_fractions([None, None], 3) is None


def test_scores_are_logs_and_nan_where_the_teacher_abstains():
    scores = to_log([np.array([1.0, 0.0]), None], 2)
    np.testing.assert_array_equal(scores, np.array([[0, -np.inf], [np.nan, np.nan]], dtype=np.float32))
