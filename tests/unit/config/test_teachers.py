import pytest

from clozify.config.rule_patterns import regex_fault
from clozify.config.task import Task, load_task, parse_task
from clozify.config.teacher_faults import rule_names, teacher_names
from clozify.errors import TaskError

TASK = """
name = "support"
fields = ["title", "text"]
patterns = ["{mask}: {title} {text}"]

[labels]
billing = "money"
login = "password"
1 = "other"
"""
TEACHERS = """
[[rules]]
label = "billing"
any = ["refund", "invoice*"]
none = "no refund"
regex = '\\d+ "EUR"'
field = "title"

[[rules]]
label = 1
any = "question"
name = "questions"

[[teachers]]
kind = "nli"
model = "nli-model"

[[teachers]]
kind = "openai"
model = "an-llm"
name = "the LLM"
"""


def problems(text: str) -> list[str]:
    with pytest.raises(TaskError) as error:
        parse_task(TASK + text, "t.toml")
    assert all(problem.startswith("t.toml: ") for problem in error.value.problems)
    return [problem.removeprefix("t.toml: ") for problem in error.value.problems]


def test_rules_and_teachers_are_written_back_without_loss(tmp_path):
    task = parse_task(TASK + TEACHERS)
    task.save(tmp_path / "again.toml")
    assert load_task(tmp_path / "again.toml") == task
    assert Task.model_validate(task.model_dump()) == task


def test_a_single_word_needs_no_list_and_a_label_may_be_a_number():
    rules = parse_task(TASK + TEACHERS).rules
    assert rules[0].none == ("no refund",)
    assert (rules[1].label, rules[1].any) == ("1", ("question",))


def test_rules_and_teachers_without_a_name_have_one():
    task = parse_task(TASK + TEACHERS)
    assert rule_names(task.rules) == ["rule 1 (billing)", "questions"]
    assert teacher_names(task.teachers) == ["nli-model", "the LLM"]


def test_a_task_without_rules_and_teachers_is_dumped_as_before_they_existed():
    task = parse_task(TASK)
    assert not {"rules", "teachers"} & {*task.model_dump()}
    assert "rules" not in task.to_toml()


def test_all_faults_of_rules_are_reported_at_once():
    found = problems("""
[[rules]]
label = "biling"
any = ["refund", " ", "*"]
field = "titel"

[[rules]]
label = "login"
none = ["password"]

[[rules]]
label = "login"
regex = "pass(word"
name = "twice"

[[rules]]
label = "login"
any = ["log in"]
none = ["log in"]
name = "twice"

[[rules]]
label = "login"
regex = ""
name = "p1"

[[teachers]]
kind = "nli"
model = "twice"
""")
    assert found == [
        "The rule 1 (biling) votes for 'biling', which is no label (did you mean 'billing'?); the labels are "
        "'billing', 'login' and '1'.",
        "The rule 1 (biling) reads the field 'titel', which the task does not have (did you mean 'title'?); its fields "
        "are 'title' and 'text'.",
        "The rule 1 (biling) has an empty word in 'any'; remove it.",
        "The rule 1 (biling) has '*' in 'any', which every text matches; write letters before or after *.",
        'The rule 2 (login) never votes; add any = ["..."] with words, or regex = "...".',
        "The rule 'twice' has a regex that is not valid at character 10 (missing )): pass(word; correct it.",
        "The rule 'twice' has 'log in' in both 'any' and 'none'; remove one of them.",
        "The rule 'p1' has an empty regex, which every text matches; write one, or remove the entry.",
        "The name 'twice' stands for 3 rules or teachers; give each its own with name = \"...\".",
        "A rule or teacher is called 'p1', which is a name of patterns; rename it.",
    ]


def test_faults_in_the_entries_name_the_table_and_the_nearest_entry():
    found = problems("""
[[rules]]
labell = "billing"
any = [3]

[[teachers]]
kind = "opnai"
model = "x"

[[teachers]]
model = "x"

[[teachers]]
kind = "classifier"
modl = "x"
""")
    assert "number 1 of [[rules]] lacks the entry 'label'; add it." in found
    assert "the entry 'any.0' in number 1 of [[rules]] is 3: write it in quotation marks." in found
    assert (
        "the entry 'labell' in number 1 of [[rules]] is not known (did you mean 'label'?); remove or rename it."
        in found
    )
    assert (
        "number 1 of [[teachers]] has the unknown kind 'opnai' (did you mean 'openai'?); the kinds are 'model', "
        "'classifier', 'nli' and 'openai'."
    ) in found
    assert any(problem.startswith("number 2 of [[teachers]] has no kind; add kind") for problem in found)
    assert "number 3 of [[teachers]] lacks the entry 'model'; add it." in found
    assert (
        "the entry 'modl' in number 3 of [[teachers]] is not known (did you mean 'model'?); remove or rename it."
        in found
    )


@pytest.mark.parametrize("entry", ["rules", "teachers"])
@pytest.mark.parametrize("value", ["3", "[3]", '"x"', "{ label = 3 }"])
def test_what_is_no_list_of_tables_is_an_error(entry, value):
    text = f"{entry} = {value}\n{TASK}"
    with pytest.raises(TaskError, match=rf"write a table \[\[{entry}\]\] for each"):
        parse_task(text)


def test_rules_and_teachers_need_one_label_a_row():
    content = f"multilabel = true\n{TASK}{TEACHERS}"
    with pytest.raises(TaskError, match=r"\[\[rules\]\] and \[\[teachers\]\] need one label a row"):
        parse_task(content)


@pytest.mark.parametrize(
    "text", ["((a{1000}){1000}){1000}", "a{99999999999999999999}", "(ab|cd){99999,}", "(?:[)]{200}){200}"]
)
def test_a_regex_that_would_fill_the_memory_when_compiled_is_an_error(text):
    assert "lower the numbers in braces" in regex_fault(text)


@pytest.mark.parametrize(
    "text", [r"\d{4}-\d{2}-\d{2}", "a{0,99999}", "[{]99999}", r"\{99999}", "(a{20}){20}", "x{2}" * 500]
)
def test_counts_that_compile_to_little_are_allowed(text):
    assert regex_fault(text) is None


def test_a_regex_that_is_nested_too_deeply_is_an_error():
    assert "nested too deeply" in regex_fault("(" * 5000 + "a" + ")" * 5000)


def test_a_classifiers_labels_are_mapped_to_labels_of_the_task_and_a_hypothesis_has_a_slot():
    text = '\n[[teachers]]\nkind = "classifier"\nmodel = "old"\nlabels = { LABEL_0 = "nothing", LABEL_1 = 7 }\n'
    with pytest.raises(TaskError, match="The teacher 'old' maps labels to 'nothing' and '7', which the task does not"):
        parse_task(TASK + text)
    with pytest.raises(
        TaskError, match=r"'hypothesis' in number 1 of \[\[teachers\]\] is 'It is.': it has no \{label\}"
    ):
        parse_task(TASK + '\n[[teachers]]\nkind = "nli"\nmodel = "x"\nhypothesis = "It is."\n')


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("label = 1\nany = 3", "the entry 'any' in number 1 of [[rules]] is 3: write a list"),
        ("label = 1\nany = 'a'\nname = 3", "the entry 'name' in number 1 of [[rules]] is 3: write it in quotation"),
    ],
)
def test_a_wrong_type_is_said_in_the_terms_of_the_file(entry, said):
    with pytest.raises(TaskError) as caught:
        parse_task(f"{TASK}\n[[rules]]\n{entry}\n")
    assert any(said in problem for problem in caught.value.problems)


def test_a_models_folder_is_its_name_and_no_rule_may_have_it():
    entries = '[[teachers]]\nkind = "model"\nmodel = "models/gpt2"\n[[rules]]\nlabel = 1\nany = "a"\nname = "gpt2"\n'
    with pytest.raises(TaskError, match="The name 'gpt2' stands for 2"):
        parse_task(f"{TASK}\n{entries}")
