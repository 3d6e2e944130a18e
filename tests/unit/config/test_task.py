import pytest

from clozify.config.recipe import Recipe, load_recipe
from clozify.config.task import Task, load_task, parse_task
from clozify.errors import RecipeError, TaskError

GOOD = {
    "name": '"t"',
    "fields": '["text"]',
    "patterns": '["It was {mask}. {text}"]',
}
LABELS = '[labels]\na = "bad"\nb = "good"\n'


def toml(labels: str = LABELS, **changes: str) -> str:
    return "".join(f"{key} = {value}\n" for key, value in (GOOD | changes).items()) + labels


def problems(text: str) -> str:
    with pytest.raises(TaskError) as error:
        parse_task(text, "Task file 'x.toml'")
    assert "Task file 'x.toml'" in str(error.value)
    return str(error.value)


def test_the_short_form_is_one_verbalizer():
    task = parse_task(toml())
    assert task.labels == ["a", "b"]
    assert [pair.name for pair in task.pairs] == ["p1"]
    assert task.verbalizers[0].words == {"a": ("bad",), "b": ("good",)}


def test_every_pattern_is_paired_with_every_verbalizer():
    """The paper's MNLI has two patterns and two verbalizers, which are four pairs."""
    pairs = load_task("mnli").pairs
    assert [pair.name for pair in pairs] == ["p1-v1", "p1-v2", "p2-v1", "p2-v2"]


@pytest.mark.parametrize(
    "text",
    [
        toml(),
        toml('[labels]\na = ["bad", "awful"]\nb = "good"\n', line_breaks="['\\n', '\\']", metric='"macro-f1"'),
        toml(
            '[[verbalizers]]\nname = "x"\nwords = { a = "bad", b = "good" }\n'
            '[[verbalizers]]\nname = "y"\nwords = { a = "Ja", b = ["Nein", "\\"Nö\\""] }\n',
            aliases='[["0", "1"]]',
            columns='["label", "text"]',
            description='"What?\\nReally"',
            id='"uid"',
            optional='["text"]',
        ),
    ],
)
def test_a_task_is_written_back_without_loss(text, tmp_path):
    task = parse_task(text)
    task.save(tmp_path / "again.toml")
    assert load_task(tmp_path / "again.toml") == task


def test_a_named_single_verbalizer_keeps_its_name():
    task = parse_task(toml('[[verbalizers]]\nname = "x"\nwords = { a = "bad", b = "good" }\n'))
    assert parse_task(task.to_toml()).verbalizers[0].name == "x"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("name = ", "not valid TOML"),
        (toml(""), "there are no labels"),
        (toml(LABELS, verbalizers="[]"), "both [labels] and [[verbalizers]]"),
        (toml(LABELS, patern='"x"'), "'patern' is not known (did you mean 'patterns'?)"),
        (toml(LABELS, fields='"text"'), "'fields'"),
        (toml(LABELS, metric='"f1"'), "'metric'"),
        (toml('[labels]\na = "bad"\n'), "only the label 'a'"),
        (toml('[labels]\na = "bad"\nb = []\n'), "no word for the label 'b'"),
        (toml('[labels]\na = "bad"\nb = "bad"\n'), "the same word 'bad'"),
        (toml('[labels]\na = "bad"\nb = " good"\n'), "white space"),
        (toml(LABELS, patterns='["{text}"]'), "no {mask}"),
        (toml(LABELS, patterns='["{mask} {mask} {text}"]'), "2 times {mask}"),
        (toml(LABELS, patterns='["{mask} {title}"]'), "{title}, which is not a field"),
        (toml(LABELS, fields='["text", "mask"]'), "called 'mask'"),
        (toml(LABELS, aliases='[["0"]]'), "1 names"),
        (toml(LABELS, columns='["label"]'), "lacks the field 'text'"),
        (toml(LABELS, optional='["body"]'), "'body' under 'optional'"),
        (toml(LABELS, line_breaks='[""]'), "empty text"),
        (toml('[[verbalizers]]\nwords = {a = "x"}\n[[verbalizers]]\nwords = {a = "y"}\n'), "name of its own"),
    ],
)
def test_a_file_that_is_wrong_says_what(text, part):
    assert part in problems(text)


def test_all_faults_are_reported_at_once():
    result = problems(toml('[labels]\na = "x"\nb = "x"\n', patterns='["{text}", "{mask} {nope}"]'))
    assert len(result.splitlines()) == 3


def test_a_missing_verbalizer_word_names_the_verbalizer():
    text = toml(
        '[[verbalizers]]\nname = "x"\nwords = {a = "p", b = "q"}\n[[verbalizers]]\nname = "y"\nwords = {a = "r"}\n'
    )
    assert "The verbalizer 'y' has no word for the label 'b'" in problems(text)


def test_a_task_made_without_load_task_says_where_labels_are_written():
    with pytest.raises(TaskError, match="'labels' is an entry of a task file: give clozify.load_task a dict"):
        Task(name="t", fields=["text"], patterns=["It was {mask}. {text}"], labels={"a": "bad"})


def test_an_unknown_task_name_gets_a_suggestion():
    with pytest.raises(TaskError, match=r"did you mean 'agnews'\?"):
        load_task("agnew")


def test_a_task_file_that_is_not_utf8_says_so(tmp_path):
    (tmp_path / "t.toml").write_bytes(b'name = "caf\xe9"')
    with pytest.raises(TaskError, match="not UTF-8"):
        load_task(tmp_path / "t.toml")


@pytest.mark.parametrize(
    ("text", "part"),
    [("x = " + "[" * 5_000, "nested too deeply"), ("x = " + "9" * 5_000, "not valid TOML: Exceeds the limit")],
)
def test_toml_that_no_parser_takes_is_one_sentence(text, part, tmp_path):
    for load, error in ((load_task, TaskError), (load_recipe, RecipeError)):
        (tmp_path / "file.toml").write_text(text)
        with pytest.raises(error, match=part) as raised:
            load(tmp_path / "file.toml")
        assert len(raised.value.problems) == 1


def test_a_label_that_is_a_field_or_has_white_space_is_a_problem():
    assert "'text' is a field, too" in problems(toml(label='"text"'))
    assert "white space around it" in problems(toml('[labels]\n" a" = "bad"\nb = "good"\n'))


def test_a_task_or_recipe_made_in_python_raises_the_errors_of_clozify():
    with pytest.raises(TaskError, match="'fields' is missing"):
        Task(name="x")
    with pytest.raises(RecipeError, match="'seed' is 'x'"):
        Recipe(seed="x")
    for recipe, settings in ((5, ()), ("paper", 5), ("paper", [5]), ("paper", ["seed=" + "9" * 5_000])):
        with pytest.raises(RecipeError):
            load_recipe(recipe, settings)
    assert load_recipe("paper", "seed=1").seed == 1


NAMES = 'labels = ["card_arrival", "LostCard"]\n'


def test_names_in_a_list_are_the_words():
    assert parse_task(toml(NAMES)).verbalizers[0].words == {
        "card_arrival": ("card arrival",),
        "LostCard": ("lost card",),
    }
    assert load_task({"fields": ["text"], "patterns": ["{mask}: {text}"], "labels": ["a_b", 1]}).labels == ["a_b", "1"]


def test_a_list_of_labels_stays_a_list():
    task = parse_task(toml(NAMES))
    assert 'labels = [\n    "card_arrival",' in task.to_toml()
    assert parse_task(task.to_toml()) == task
    changed = task.with_changes(verbalizers=[{"words": {"card_arrival": "card arrival", "LostCard": "lost"}}])
    assert "[labels]" in changed.to_toml()
    assert parse_task(changed.to_toml()) == changed


def test_some_labels_of_a_list_may_have_words_of_their_own():
    task = parse_task(toml(NAMES + '[words]\nLostCard = ["stolen", "gone"]\n'))
    assert task.verbalizers[0].words == {"card_arrival": ("card arrival",), "LostCard": ("stolen", "gone")}
    assert parse_task(task.to_toml()) == task


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (
            NAMES + '[words]\nlostcard = "x"\n',
            "the label 'lostcard' (did you mean 'LostCard'?), which is not in 'labels'",
        ),
        (NAMES + 'words = "x"\n', "the entry 'words' is 'x'; write a table"),
        (LABELS + '[words]\na = "x"\n', "the entry 'words' belongs to a list of labels"),
        (NAMES + "[words]\nLostCard = 3\n", "the entry 'labels.LostCard' is 3, not a word"),
        ('labels = "a b"\n', "write a list of names, or a table"),
        ("", "there are no labels; write labels = ["),
        ('labels = ["a_b", "a-b"]\n', "gives the labels 'a_b' and 'a-b' the same word 'a b'"),
    ],
)
def test_faults_of_labels_are_told(labels, message):
    assert message in problems(toml(labels))


def test_faults_of_a_list_are_told_with_all_others():
    message = problems(toml('labels = ["a", "", "b", "a"]\n', patterns='["no gap {text}"]'))
    assert "Name 2 of the list 'labels' is empty" in message
    assert "'a' stands twice in 'labels'" in message
    assert "has no {mask}" in message


def test_faults_of_a_list_are_told_with_entries_that_are_not_known():
    message = problems(toml('labels = ["a", "b", "a"]\n', patern='"x"'))
    assert "'a' stands twice in 'labels'" in message
    assert "did you mean 'patterns'?" in message


def test_hundreds_of_labels_are_not_all_named_in_a_message():
    names = ", ".join(f'"label_{number}"' for number in range(300))
    words = '[words]\nlabel_300 = "x"\n'
    message = problems(toml(f"labels = [{names}]\n{words}", aliases='[["x", "y"]]', label='"text"'))
    assert len(message.splitlines()) == 3
    assert max(map(len, message.splitlines())) < 400
