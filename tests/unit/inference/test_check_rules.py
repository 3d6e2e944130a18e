import pytest
from datasets import Dataset

from clozify.config.task import load_task
from clozify.data.rows import Rows
from clozify.inference import check_rules as module
from clozify.inference.check_rules import check_rules

RULES = [
    {"label": "billing", "any": ["refund"]},
    {"label": "billing", "any": ["money"]},
    {"label": "login", "any": ["password", "refund"], "name": "wide"},
    {"label": "other", "any": ["xyz"]},
]
LABELED = [
    ("billing", "refund my money"),
    ("billing", "refund"),
    ("login", "money and password"),
    ("", "password"),
    ("other", "hello"),
    ("billing", "refund"),
]


def make_rows(labeled: list[tuple[str, str]], rules: list[dict] = RULES, with_labels: bool = True) -> Rows:
    task = load_task(
        {"fields": ["text"], "patterns": ["{mask}: {text}"], "labels": ["billing", "login", "other"], "rules": rules}
    )
    columns = {"text": [text for _, text in labeled]} | (
        {"label": [name for name, _ in labeled]} if with_labels else {}
    )
    return Rows(Dataset.from_dict(columns), task)


def test_coverage_correct_votes_and_conflicts_are_counted():
    result = check_rules(make_rows(LABELED))
    found = {
        rule.rule: (rule.rows, rule.correct, rule.labeled, rule.conflicts, rule.conflicts_with) for rule in result.rules
    }
    assert found == {
        "rule 1 (billing)": (3, 3, 3, 3, "wide"),
        "rule 2 (billing)": (2, 1, 2, 2, "wide"),
        "wide": (5, 1, 4, 4, "rule 1 (billing)"),
        "rule 4 (other)": (0, 0, 0, 0, None),
    }
    assert [rule.coverage for rule in result.rules] == pytest.approx([3 / 6, 2 / 6, 5 / 6, 0])
    assert (result.rows, result.covered, result.conflicting) == (6, 5, 4)


def test_rules_that_match_nothing_are_named_once():
    rules = [{"label": "login", "any": word} for word in ("a", "b", "refund")]
    (warning,) = check_rules(make_rows(LABELED, rules, with_labels=False)).warnings
    assert warning == "In these 6 rows nothing matches 'rule 1 (login)' and 'rule 2 (login)'."


def test_rules_no_better_than_chance_are_named_once():
    rules = [
        {"label": "login", "any": "refund"},
        {"label": "other", "any": "refund"},
        {"label": "billing", "any": "refund"},
    ]
    (warning,) = check_rules(make_rows(LABELED, rules)).warnings
    assert "'rule 1 (login) (0 of 3)' and 'rule 2 (other) (0 of 3)' are right no more often than chance" in warning


def test_rules_are_not_judged_on_very_few_votes():
    assert check_rules(make_rows(LABELED, [{"label": "other", "any": "money"}])).warnings == []


def test_data_without_labels_says_nothing_about_correct_votes():
    result = check_rules(make_rows(LABELED, with_labels=False))
    assert all(rule.correct is None and rule.labeled is None for rule in result.rules)


def test_of_very_many_rows_evenly_spaced_ones_are_taken(monkeypatch):
    monkeypatch.setattr(module, "MAX_ROWS", 3)
    result = check_rules(make_rows(LABELED, RULES[:1]))
    assert result.rows == 3
    assert "The rules were tried on 3 of 6 rows" in result.warnings[0]


def test_there_may_be_no_rows():
    result = check_rules(make_rows([]))
    assert (result.covered, result.coverage) == (0, 0.0)
