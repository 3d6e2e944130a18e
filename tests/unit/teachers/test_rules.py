from itertools import pairwise

import numpy as np
import pytest
from datasets import Dataset

from clozify.config.rule_patterns import compile_words
from clozify.config.task import load_task
from clozify.data.rows import Rows
from clozify.errors import TaskError
from clozify.teachers import rules as rules_module
from clozify.teachers.base import ScoringContext
from clozify.teachers.rules import match_rules, rule_teachers

RUNAWAY = "(a|aa)+$"  # takes exponential time in a text such as aaa...!
LONG = "a" * 80 + "!"


def make_rows(rules: list[dict], titles: list[str], texts: list[str] | None = None, **entries: object) -> Rows:
    task = load_task(
        {
            "fields": ["title", "text"],
            "patterns": ["{mask}: {title} {text}"],
            "labels": ["billing", "login", "other"],
            "rules": rules,
            **entries,
        }
    )
    return Rows(
        Dataset.from_dict({"title": titles, "text": texts or [""] * len(titles), "n": range(len(titles))}), task
    )


def matches(rule: dict, titles: list[str], texts: list[str] | None = None) -> list[bool]:
    rows = make_rows([{"label": "billing"} | rule], titles, texts)
    (result,) = match_rules(rule_teachers(rows.task), rows, pytest.fail)
    return result.tolist()


def context(tmp_path, rows: Rows, log=pytest.fail) -> ScoringContext:
    return ScoringContext(rows, "cpu", tmp_path, log)


@pytest.mark.parametrize(
    ("word", "found", "not_found"),
    [
        (
            "refund",
            ["A Refund, please", "REFUND", "(refund)", "refund's", "no-refund"],
            ["refunds", "prerefund", "re fund"],
        ),
        ("invoice*", ["invoice", "Invoices", "invoiced me"], ["preinvoice", "in voice"]),
        ("*port", ["support", "port", "a PORT"], ["ports", "portal"]),
        ("*card*", ["postcards", "card"], ["car d"]),
        ("col*r", ["color", "colour", "colr"], ["col r", "colors"]),
        ("log in", ["log in", "Log  in", "log\tin"], ["login", "blog in", "log into"]),
        ("straße", ["STRASSE", "Straße", "strasse"], ["strassen"]),
        ("über*", ["Überweisung", "u\u0308ber"], ["uber"]),
        ("noe\u0308l", ["noël"], ["noel"]),
        ("C++", ["in c++.", "(C++)"], ["c+", "abc++"]),
        ("$", ["cost 5$", "$5"], ["5 EUR"]),
        (".com", ["example.com"], ["example.company", "telecom"]),
        ("can't", ["I can't", "I can\u2019t"], ["cant"]),
        ("a_b", ["A_B"], ["a b"]),
        ("退款", ["我要退款吗", "退款"], ["退 款"]),
        ("[a-z]+", ["x [a-z]+"], ["abc"]),
        (" refund ", ["refund"], ["refunds"]),
    ],
)
def test_a_word_is_found_as_a_whole_in_any_case(word, found, not_found):
    assert matches({"any": [word]}, found) == [True] * len(found)
    assert matches({"any": [word]}, not_found) == [False] * len(not_found)


def test_words_agree_with_a_search_written_out_naively():
    rng = np.random.default_rng(0)
    vocabulary = ["a", "ab", "abc", "Ab", "b", "ba", "c"]
    texts = [" ".join(rng.choice(vocabulary, 4)) for _ in range(200)]
    pattern = compile_words(["ab", "c a", "ba*"])
    for text in texts:
        tokens = text.lower().split()
        pairs = list(pairwise(tokens))
        expected = "ab" in tokens or ("c", "a") in pairs or any(token.startswith("ba") for token in tokens)
        assert bool(pattern.search(text)) == expected


def test_one_word_of_any_is_enough_and_one_of_none_is_too_much():
    titles = ["refund", "invoice", "refund and password", "password"]
    assert matches({"any": ["refund", "invoice"], "none": ["password"]}, titles) == [True, True, False, False]


def test_all_conditions_of_a_rule_must_hold():
    rule = {"any": ["refund"], "regex": r"\d+ EUR"}
    assert matches(rule, ["refund of 20 EUR", "refund", "20 EUR", "refund of 20 eur"]) == [True, False, False, False]


def test_without_a_field_all_fields_are_read_but_no_phrase_spans_two():
    titles, texts = ["refund", "x", "log", "refund"], ["x", "refund", "in", "spam"]
    assert matches({"any": ["refund", "log in"], "none": "spam"}, titles, texts) == [True, True, False, False]
    assert matches({"any": ["refund"], "field": "text"}, titles, texts) == [False, True, False, False]


def test_a_rule_votes_for_its_label_and_abstains_elsewhere(tmp_path):
    rows = make_rows([{"label": "login", "any": "password"}], ["my password", "a refund"])
    (teacher,) = rule_teachers(rows.task)
    scores = teacher.score(rows, context(tmp_path, rows))
    np.testing.assert_array_equal(scores, [[-np.inf, 0, -np.inf], [np.nan] * 3])
    assert scores.dtype == np.float32
    assert (teacher.name, teacher.kind) == ("rule 1 (login)", "rule")
    assert teacher.cost(rows).requests == 0


def test_rows_of_several_chunks_are_those_of_one(monkeypatch):
    titles = ["refund" if number % 3 == 0 else "x" for number in range(100)]
    expected = matches({"any": "refund"}, titles)
    chunks = Rows.chunks
    monkeypatch.setattr(Rows, "chunks", lambda self: chunks(self, 7))
    assert matches({"any": "refund"}, titles) == expected == [title == "refund" for title in titles]


def test_there_may_be_no_rows():
    assert matches({"any": "refund"}, []) == []


def test_a_search_that_runs_away_is_stopped_and_its_row_is_named(monkeypatch):
    monkeypatch.setattr(rules_module, "SEARCH_SECONDS", 0.05)
    rows = make_rows([{"label": "billing", "regex": RUNAWAY, "name": "slow"}], ["aa", LONG, "b", LONG])
    log = list[str]()
    (found,) = match_rules(rule_teachers(rows.task), rows, log.append)
    assert found.tolist() == [True, False, False, False]
    assert log == ["The rule 'slow' was stopped after 0.05 s in row 2, row 4 of 'the data'; it abstains there."]


def test_a_rule_that_runs_away_in_many_rows_is_an_error(monkeypatch):
    monkeypatch.setattr(rules_module, "SEARCH_SECONDS", 0.05)
    rows = make_rows([{"label": "billing", "regex": RUNAWAY}], [LONG] * 1_000, id="n")
    with pytest.raises(TaskError, match=r"'rule 1 \(billing\)' was stopped after 0.05 s in row '0', .*, row '4' of"):
        match_rules(rule_teachers(rows.task), rows, pytest.fail)


def test_classic_catastrophic_expressions_end(monkeypatch):
    monkeypatch.setattr(rules_module, "SEARCH_SECONDS", 0.05)
    for text in ("(a+)+$", "(a*)*$x", "(.*a){25}$x", r"^(\w+\s?)*$y"):
        rows = make_rows([{"label": "billing", "regex": text}], [LONG])
        (found,) = match_rules(rule_teachers(rows.task), rows, lambda message: None)
        assert found.tolist() == [False], text


def test_the_key_holds_the_rule_but_not_its_name():
    def key(labels=("billing", "login"), **rule: object) -> dict:
        return rule_teachers(make_rows([{"label": "billing", **rule}], [], labels=list(labels)).task)[0].key()

    first = key(any=["refund"], name="x")
    assert first == key(any="refund", name="y")
    others = [
        key(any="refunds"),
        key(any="refund", none="x"),
        key(any="refund", regex="x"),
        key(any="refund", field="text"),
        key(("login", "billing"), any="refund"),
    ]
    assert all(first != other for other in others)
