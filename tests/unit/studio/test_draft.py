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
