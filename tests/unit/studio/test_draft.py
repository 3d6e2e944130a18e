from dataclasses import replace

from clozify.config.task import load_task
from clozify.studio.draft import TaskDraft

TASK = {
    "fields": ["text"],
    "patterns": ["{mask}: {text}"],
    "labels": {"transfer": "send", "balance": "money", "flight": "fly"},
    "groups": {"banking": ["transfer", "balance"], "travel": ["flight"]},
}


def test_groups_of_labels_outlive_the_page_that_does_not_show_them():
    task = load_task(TASK)
    draft = TaskDraft.from_task(task)
    assert draft.to_task() == task
    fewer = replace(draft, words=[("transfer", "send"), ("balance", "money"), ("weather", "rain")])
    assert fewer.to_task().groups == {"banking": ["transfer", "balance"]}


def test_rules_and_teachers_outlive_the_page_that_does_not_show_them():
    rules = [{"label": "transfer", "any": ["send"]}, {"label": "flight", "any": ["fly"]}]
    teachers = [{"kind": "nli", "model": "m"}]
    draft = TaskDraft.from_task(load_task(TASK | {"rules": rules, "teachers": teachers}))
    assert [rule.label for rule in draft.to_task().rules] == ["transfer", "flight"]
    assert draft.to_task().teachers[0].model == "m"
    fewer = replace(draft, words=[word for word in draft.words if word[0] != "flight"])
    assert [rule.label for rule in fewer.to_task().rules] == ["transfer"]
