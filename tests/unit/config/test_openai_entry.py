import pytest
from pydantic import ValidationError

from clozify.config.budget import Budget, parse_budget
from clozify.config.task import load_task
from clozify.config.teachers import OpenAIEntry
from clozify.errors import RunError, TaskError


def entry(**settings):
    return OpenAIEntry(kind="openai", model="m", **settings)


def problems(**settings):
    return entry(**settings).problems(["title", "text"], ["good", "bad"])


def test_an_entry_with_a_model_alone_is_complete():
    assert problems() == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"prompt": "{row} {lables}"}, "'lables' (did you mean 'labels'?)"),
        ({"prompt": "{row} {"}, "single brace"),
        ({"prompt": "{row!r}"}, "holds ':' or '!'"),
        ({"prompt": "{row} {row.__class__}"}, "'row.__class__'"),
        ({"prompt": "{labels}"}, "without a row's text"),
        ({"prompt": "{} {title}"}, "placeholder ''"),
        ({"base_url": "localhost:8000"}, "no address"),
        ({"base_url": "http://[host"}, "no address"),
        ({"base_url": "http://me:secret@host/v1"}, "user, a password"),
        ({"base_url": "http://host/v1?key=secret"}, "user, a password"),
        ({"api_key_env": "sk-secret"}, "no name of an environment variable"),
        ({"descriptions": {"goood": "x"}}, "'goood' (did you mean 'good'?)"),
    ],
)
def test_a_fault_is_one_sentence_that_repeats_no_secret(settings, said):
    (problem,) = problems(**settings)
    assert said in problem
    assert "secret" not in problem
    assert problem.endswith(".")


@pytest.mark.parametrize("prompt", ["{title}: {text}", "{{json}} {row} {labels} {examples} {task} {code}"])
def test_a_prompt_may_hold_fields_and_every_placeholder(prompt):
    assert problems(prompt=prompt) == []


@pytest.mark.parametrize(
    "settings",
    [{"rows": 0}, {"answers": 0}, {"examples": -1}, {"timeout": 0}, {"max_requests": -1}, {"retries": -1},
     {"input_price": -1.0}, {"concurrency": 0}, {"temperature": -0.1}, {"logprobs": "maybe"}, {"api_key": "x"}],
)  # fmt: skip
def test_values_out_of_range_are_refused(settings):
    with pytest.raises(ValidationError):
        entry(**settings)


def test_every_setting_has_a_description():
    fields = {name: field for name, field in OpenAIEntry.model_fields.items() if name != "kind"}
    assert all(field.description for field in fields.values())


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("500requests", Budget(requests=500)),
        ("1request", Budget(requests=1)),
        ("200_000 tokens", Budget(tokens=200_000)),
        ("1.50", Budget(price=1.5)),
        ("500requests, 2", Budget(requests=500, price=2.0)),
    ],
)
def test_a_budget_is_requests_tokens_or_money(text, budget):
    assert parse_budget(text) == budget


@pytest.mark.parametrize("text", ["", "many", "-1", "1.5tokens", "5euros", "1,2", "1e9", "nan"])
def test_what_is_no_budget_is_refused_in_one_sentence(text):
    with pytest.raises(RunError, match="not understood; write"):
        parse_budget(text)


def test_a_task_file_with_faults_in_an_entry_names_all_of_them():
    teachers = [{"kind": "openai", "model": "m", "base_url": "x", "prompt": "{row} {nothing}"}]
    content = {"fields": ["text"], "patterns": ["{text} {mask}"], "labels": ["good", "bad"], "teachers": teachers}
    with pytest.raises(TaskError) as caught:
        load_task(content)
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"api_key": "sk-secret"}, "the entry 'api_key' in number 1 of [[teachers]] is not known"),
        ({"logprobs": "maybe"}, "the entry 'logprobs' in number 1 of [[teachers]] is 'maybe'"),
        ({"rows": -1}, "the entry 'rows' in number 1 of [[teachers]] is -1"),
    ],
)
def test_a_wrong_entry_is_named(settings, said):
    teachers = [{"kind": "openai", "model": "m", **settings}]
    with pytest.raises(TaskError) as caught:
        load_task({"fields": ["text"], "patterns": ["{text} {mask}"], "labels": ["a b", "c d"], "teachers": teachers})
    (problem,) = caught.value.problems
    assert said in problem
    assert "secret" not in problem
