import re

import numpy as np
import pytest
from datasets import Dataset

import clozify
from clozify.config.task import load_task
from clozify.data.rows import Rows
from clozify.errors import ClozifyError
from clozify.teachers.base import ScoringContext


@pytest.fixture
def rows():
    task = load_task(
        {"fields": ["title", "text"], "patterns": ["{mask}: {title} {text}"], "labels": ["billing", "login", "other"]}
    )
    return Rows(Dataset.from_dict({"title": ["refund", "hello", "x"], "text": ["a", "b", "c"]}), task, "mails.csv")


def score(function, rows, tmp_path):
    return function.score(rows, ScoringContext(rows, "cpu", tmp_path, pytest.fail))


@clozify.rule
def refunds(row):
    """Refunds are about money."""
    return "billing" if "refund" in row["title"] else None


def test_a_function_votes_for_the_label_that_it_returns(rows, tmp_path):
    scores = score(refunds, rows, tmp_path)
    np.testing.assert_array_equal(scores, [[0, -np.inf, -np.inf], [np.nan] * 3, [np.nan] * 3])
    assert scores.dtype == np.float32
    assert (refunds.name, refunds.kind, refunds.cost(rows).requests) == ("refunds", "function", 0)


def test_a_function_gets_every_field_of_a_row(rows, tmp_path):
    seen = []
    score(clozify.rule(lambda row: seen.append(row)), rows, tmp_path)
    assert seen == [{"title": "refund", "text": "a"}, {"title": "hello", "text": "b"}, {"title": "x", "text": "c"}]


def test_a_function_may_return_probabilities(rows, tmp_path):
    scores = score(clozify.rule(lambda row: {"login": 0.75, "other": 0.25}), rows, tmp_path)
    np.testing.assert_allclose(np.exp(scores), [[0, 0.75, 0.25]] * 3)


def test_a_decorated_function_can_be_called_and_keeps_its_documentation():
    assert refunds({"title": "my refund"}) == "billing"
    assert refunds.__doc__ == "Refunds are about money."


def test_a_function_can_have_another_name():
    @clozify.rule(name="money back")
    def refund(row):
        return None

    assert refund.name == "money back"


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (
            "biling",
            "and 'biling' is no label (did you mean 'billing'?); the labels are 'billing', 'login' and 'other'.",
        ),
        (1, "of the type int; return the name of a label, None to abstain"),
        (["login"], "of the type list; return"),
        ({"logins": 1.0}, "and 'logins' is no label (did you mean 'login'?)"),
        ({"login": "much"}, "whose values are not all numbers"),
        ({"login": 2.0}, "whose values are no probabilities with the sum 1"),
        ({"login": 1.5, "other": -0.5}, "whose values are no probabilities with the sum 1"),
        ({"login": float("nan")}, "whose values are no probabilities with the sum 1"),
        ({}, "whose values are no probabilities with the sum 1"),
    ],
)
def test_another_result_is_an_error_that_names_function_row_and_result(result, message, rows, tmp_path):
    function = clozify.rule(name="f")(lambda row: result if row["title"] == "hello" else None)
    with pytest.raises(ClozifyError) as error:
        score(function, rows, tmp_path)
    assert f"The rule function 'f' returned {result!r} for row 2 of 'mails.csv', {message}" in str(error.value)


def test_a_function_that_fails_is_named_with_the_row_and_keeps_its_traceback(rows, tmp_path):
    @clozify.rule
    def typo(row):
        return row["titel"]

    with pytest.raises(ClozifyError, match=r"'typo' failed at row 1 of 'mails.csv' with KeyError: 'titel'") as error:
        score(typo, rows, tmp_path)
    assert isinstance(error.value.__cause__, KeyError)


@pytest.mark.parametrize("value", ["money", print, 3])
def test_only_functions_are_rules(value):
    with pytest.raises(TypeError, match="takes a function"):
        clozify.rule(value)


def keyword(word, helper=None):
    @clozify.rule(name="keyword")
    def function(row):
        return "billing" if (helper or word) in row["title"] else None

    return function.key()


def test_the_key_changes_with_what_the_function_uses():
    first = keyword("refund")
    assert first == keyword("refund")
    assert first != keyword("invoice")
    assert keyword({"b", "a", "c"}) == keyword({"c", "a", "b"})
    assert keyword(re.compile("a")) != keyword(re.compile("a", re.IGNORECASE))
    assert keyword("x", lambda: 1) != keyword("x", lambda: 2)
    assert keyword("x", refunds) == keyword("x", refunds)


def test_the_key_of_a_function_without_source_is_that_of_its_code():
    def key(source):
        names = {}
        exec(source, names)  # as typed in an interactive session
        return clozify.rule(names["f"]).key()

    assert key("def f(row): return 'a'") == key("\n\ndef f(row): return 'a'")
    assert key("def f(row): return 'a'") != key("def f(row): return 'b'")
    assert key("def f(row): return len(row)") != key("def f(row): return str(row)")


def test_functions_that_call_each_other_have_a_key():
    def even(row, depth=0):
        return odd(row, depth + 1) if depth < 3 else None

    def odd(row, depth):
        return even(row, depth + 1)

    assert clozify.rule(even).key() == clozify.rule(even).key()
