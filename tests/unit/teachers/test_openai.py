import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from clozify.config.budget import Budget
from clozify.config.task import load_task
from clozify.config.teachers import OpenAIEntry
from clozify.data.in_memory import make_rows
from clozify.errors import ClozifyError, ModelError, RunError
from clozify.teachers.base import ScoringContext
from clozify.teachers.llm_answers import Answer
from clozify.teachers.llm_cache import FILE, AnswerCache
from clozify.teachers.llm_client import ChatClient
from clozify.teachers.llm_limits import Tally
from clozify.teachers.openai import OpenAITeacher
from tests.fake_llm_server import FakeLLM, error, last_text

TASK = load_task({"fields": ["text"], "patterns": ["{text} {mask}"], "labels": ["good", "bad"]})
KEY = "sk-very-secret-4711"
GOOD, BAD = [0, -np.inf], [-np.inf, 0]
NONE = [np.nan, np.nan]


@pytest.fixture(autouse=True)
def fast_retries(monkeypatch):
    """The client waits half a second before it repeats a request; here a hundredth."""
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    monkeypatch.setattr("clozify.teachers.llm_client.REPEAT_DELAY", 0.01)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def by_text(body):
    return "1" if "good" in last_text(body) else "2"


@pytest.fixture
def server():
    with FakeLLM(by_text) as fake:
        yield fake


@pytest.fixture
def ask(server, tmp_path):
    """Scores texts with a teacher that has these settings; `ask.log` holds the log's lines."""

    def ask(texts, labeled=None, uncertainty=None, budget=None, tally=None, **settings):
        settings = {"logprobs": False, "retries": 2, "base_url": server.url, **settings}
        teacher = OpenAITeacher(OpenAIEntry(kind="openai", model="m", **settings), TASK, budget, tally)
        rows = make_rows({"text": texts}, TASK, "D")
        empty = make_rows({"text": [], "label": []}, TASK, "T") if labeled is None else labeled
        context = ScoringContext(empty, "cpu", tmp_path / "cache", ask.log.append, uncertainty)
        return teacher.score(rows, context)

    ask.log = []
    return ask


def same(scores, expected):
    np.testing.assert_allclose(scores, np.array(expected, dtype=np.float32), rtol=1e-5)


def test_an_answer_is_a_vote(ask, server):
    same(ask(["good a", "bad b"]), [GOOD, BAD])
    assert len(server.requests) == 2
    assert server.requests[0]["temperature"] == 0
    assert not {"logprobs", "top_logprobs", "n"} & set(server.requests[0])


def test_several_answers_are_fractions_and_as_many_requests(ask, server):
    server.answer = lambda body: "1" if body["seed"] < 3 else "bad"
    same(ask(["x"], answers=4), [[np.log(0.75), np.log(0.25)]])
    assert sorted(body["seed"] for body in server.requests) == [0, 1, 2, 3]
    assert {body["temperature"] for body in server.requests} == {1.0}


def test_log_probabilities_are_used_where_the_server_gives_them(ask, server):
    server.logprobs = "give"
    server.top = lambda body: {"2": 0.6, "1": 0.3, "x": 0.1}
    same(ask(["a", "b"], logprobs="auto"), [[np.log(1 / 3), np.log(2 / 3)]] * 2)
    assert len(server.requests) == 2
    assert not any("log-probabilities" in line for line in ask.log)


@pytest.mark.parametrize("behaviour", ["refuse", "ignore"])
def test_without_log_probabilities_answers_are_votes_and_the_log_says_so_once(ask, server, behaviour):
    server.logprobs = behaviour
    same(ask(["good a", "bad b", "bad c", "good d"], logprobs="auto"), [GOOD, BAD, BAD, GOOD])
    assert sum("gives no log-probabilities" in line for line in ask.log) == 1
    assert len(server.requests) == 5
    ask(["good a", "bad e"], logprobs="auto")  # what the server cannot do is remembered
    assert len(server.requests) == 6


@pytest.mark.parametrize("behaviour", ["refuse", "ignore"])
def test_log_probabilities_that_were_insisted_on_are_an_error_where_there_are_none(ask, server, behaviour):
    server.logprobs = behaviour
    with pytest.raises(ModelError, match="gives no log-probabilities; write logprobs"):
        ask(["a"], logprobs=True)


def test_a_setting_that_the_server_refuses_is_left_out(ask, server):
    server.faults = [error(400, "Unsupported parameter: 'max_tokens'; use 'max_completion_tokens' instead."),
                     error(400, "'temperature' does not support 0")]  # fmt: skip
    same(ask(["good a", "bad b"]), [GOOD, BAD])
    assert [sorted(body) for body in server.requests[2:]] == [
        ["max_completion_tokens", "messages", "model", "seed"]
    ] * 2


def test_an_answer_that_is_no_label_is_asked_again_once_then_the_teacher_abstains(ask, server):
    server.answer = lambda body: "Hm?" if "odd" in last_text(body) and len(body["messages"]) < 3 else "never"
    same(ask(["odd"]), [NONE])
    assert [len(body["messages"]) for body in server.requests] == [1, 3]
    assert server.requests[1]["messages"][1] == {"role": "assistant", "content": "Hm?"}
    assert "m: no label in the answers: no vote on 1 rows" in ask.log


def test_a_label_in_the_second_answer_counts(ask, server):
    server.answer = lambda body: "Well ..." if len(body["messages"]) == 1 else "2"
    same(ask(["a"]), [BAD])


def test_a_row_whose_log_probabilities_name_no_label_is_asked_again(ask, server):
    server.logprobs = "give"
    server.top = lambda body: {"The": 0.9, "1": 0.01} if len(body["messages"]) == 1 else {"1": 0.5, "2": 0.5}
    same(ask(["a"], logprobs="auto"), [[np.log(0.5), np.log(0.5)]])


@pytest.mark.parametrize(
    "fault",
    [error(429, "slow down", **{"Retry-After": "0.02"}), error(500, "oops"), error(503, "busy"),
     (200, "{not json", {}), (200, '{"choices": []}', {}), (200, "<html>", {"Content-Type": "text/html"}),
     (200, "null", {})],
    ids=["429", "500", "503", "cut", "no choice", "html", "null"],
)  # fmt: skip
def test_a_passing_error_is_repeated(ask, server, fault):
    server.faults = [fault, fault]
    same(ask(["good a", "bad b"]), [GOOD, BAD])
    assert len(server.requests) == 4


def test_retry_after_is_waited_for(ask, server):
    server.faults = [error(429, "slow down", **{"Retry-After": "0.3"})]
    same(ask(["good a"]), [GOOD])
    assert server.times[1] - server.times[0] >= 0.3


def test_a_slow_answer_is_given_up_and_asked_for_again(ask, server):
    server.faults = [2.0]
    same(ask(["good a"], timeout=0.2), [GOOD])
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (
            error(401, f"Incorrect API key provided: {KEY}"),
            "refuses the key in the environment variable OPENAI_API_KEY",
        ),
        (error(403, "no"), "refuses the key"),
        (error(404, "no model m"), "answers 404 (no model m); correct model or base_url"),
        (error(429, "quota"), "still answers 429 after 2 repetitions (quota)"),
        (error(500, f"trace {KEY}"), "still answers 500"),
        ((200, "{", {}), "not of OpenAI's protocol"),
        (5.0, "did not answer within 0.1 seconds, 3 times"),
    ],
)
def test_a_lasting_error_is_one_sentence_without_the_key(ask, server, fault, said, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    server.faults = [fault] * 3
    with pytest.raises(ClozifyError) as caught:
        ask(["a", "b"], timeout=0.1 if fault == 5.0 else 10)
    (problem,) = caught.value.problems
    assert said in problem
    assert KEY not in problem
    assert "\n" not in problem


def test_a_server_that_needs_a_key_and_one_that_is_not_there_are_named(ask, server):
    server.faults = [error(401, "no key")]
    with pytest.raises(ModelError, match="needs a key; put it into the environment variable OPENAI_API_KEY"):
        ask(["a"])
    with pytest.raises(ModelError, match="'127.0.0.1:9' cannot be reached"):
        ask(["a"], base_url="http://127.0.0.1:9/v1", retries=0)


def test_a_row_that_the_server_refuses_gets_no_vote(ask, server):
    server.faults = [error(400, "maximum context length is 10 tokens; you sent max_tokens")]
    same(ask(["good long", "bad b"]), [NONE, BAD])
    assert any("refused by the server: no vote on 1 rows (maximum context length" in line for line in ask.log)


def test_a_server_that_refuses_every_row_is_an_error(ask, server):
    server.faults = [error(422, "what?")] * 50
    with pytest.raises(ModelError, match="refuses every request"):
        ask([f"row {index}" for index in range(50)], concurrency=1)
    assert len(server.requests) == 5


def test_a_refusal_for_another_reason_says_nothing_about_log_probabilities(ask, server):
    server.logprobs = "give"
    server.top = lambda body: {"2": 0.6, "1": 0.4}
    server.faults = [error(400, "the model is another one")] * 4
    with pytest.raises(ModelError, match=r"refuses every request \(the model is another one\)"):
        ask(["a", "b"], logprobs="auto", concurrency=1)
    server.faults = []
    same(ask(["a"], logprobs="auto"), [np.log([0.4, 0.6])])


def test_requests_run_at_the_same_time_but_not_more_than_asked_for(ask, server):
    server.delay = 0.05
    ask([f"row {index}" for index in range(9)], concurrency=4)
    assert 1 < server.most_at_once <= 4


def test_the_same_row_twice_is_asked_about_once(ask, server):
    server.delay = 0.02
    same(ask(["good a"] * 6), [GOOD] * 6)
    assert len(server.requests) == 1


def test_only_the_most_uncertain_rows_are_asked_about(ask, server):
    scores = ask(["good 0", "good 1", "good 2", "good 3"], uncertainty=np.array([0.1, 0.9, 0.5, 0.9]), rows=3,
                 concurrency=1)  # fmt: skip
    assert [last_text(body) for body in server.requests] == ["good 1", "good 3", "good 2"]
    same(scores, [NONE, GOOD, GOOD, GOOD])


def test_kept_answers_are_not_paid_for_again(ask, server):
    first = ask(["good a", "bad b"])
    same(ask(["bad b", "good a", "bad c"]), [first[1], first[0], BAD])
    assert len(server.requests) == 3
    ask(["good a"], temperature=0.5)  # another question
    assert len(server.requests) == 4


def test_requests_stop_at_the_limit_and_a_higher_one_continues(ask, server):
    texts = [f"good {index}" for index in range(6)]
    for _ in range(2):  # the second time all is kept already
        same(ask(texts, max_requests=2), [GOOD, GOOD, NONE, NONE, NONE, NONE])
        assert len(server.requests) == 2
        assert "m: a limit is reached: no vote on 4 rows" in ask.log
    same(ask(texts, max_requests=6), [GOOD] * 6)
    assert len(server.requests) == 6


def test_a_limit_gives_the_same_votes_whatever_is_kept(ask, server):
    texts = [f"good {index}" for index in range(6)]
    ask(texts[3:])
    same(ask(texts, max_requests=4), [GOOD, GOOD, GOOD, GOOD, NONE, NONE])
    assert len(server.requests) == 6  # three of them before


def test_a_second_question_is_not_asked_beyond_the_limit(ask, server):
    server.answer = lambda body: "what?"
    same(ask(["a", "b"], max_requests=3), [NONE, NONE])
    assert len(server.requests) == 3


def test_all_answers_to_a_row_are_within_the_limit_or_none(ask, server):
    same(ask(["good a", "good b"], max_requests=5, answers=3), [GOOD, NONE])
    assert len(server.requests) == 3


def test_tokens_are_limited(ask, server):
    teacher = OpenAITeacher(OpenAIEntry(kind="openai", model="m", examples=0), TASK)
    one = teacher.cost(make_rows({"text": ["good 1"]}, TASK, "D"))
    most = 3 * (one.input_tokens + one.output_tokens)  # of an answer's 16 tokens 2 are used, so 3 fit, but not 4
    scores = ask([f"good {index}" for index in range(9)], max_tokens=most)
    assert len(server.requests) == 3
    assert np.isfinite(scores[:3, 0]).all()
    assert np.isnan(scores[3:]).all()


@pytest.mark.parametrize("budget", [Budget(requests=3), Budget(tokens=100), Budget(price=100e-6)])
def test_a_budget_is_shared_by_all_teachers_of_a_run(ask, server, budget):
    settings = {"input_price": 1.0, "output_price": 1.0, "prompt": "{row}", "budget": budget, "tally": Tally()}
    long = "good" + 54 * " "  # 22 + 2 tokens with this prompt, up to 22 + 16 by estimate
    same(ask([long + "a", long + "b"], name="one", **settings), [GOOD, GOOD])
    same(ask([long + "c", long + "d"], name="two", **settings), [GOOD, NONE])
    assert len(server.requests) == 3


def test_a_sum_of_money_needs_prices(ask):
    with pytest.raises(RunError, match="add input_price and output_price"):
        ask(["a"], budget=Budget(price=1.0))


def test_the_key_is_sent_and_is_in_no_file_log_or_key(ask, server, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_KEY", f" {KEY}\n")
    ask(["good a"], api_key_env="MY_KEY")
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not any(KEY.encode() in path.read_bytes() for path in files)
    teacher = OpenAITeacher(OpenAIEntry(kind="openai", model="m", api_key_env="MY_KEY"), TASK)
    assert KEY not in json.dumps(teacher.key()) + "".join(ask.log)


def test_the_key_of_scores_holds_what_they_depend_on_and_nothing_else():
    def key(budget=None, **settings):
        return json.dumps(OpenAITeacher(OpenAIEntry(kind="openai", model="m", **settings), TASK, budget).key())

    same_scores = {"name": "x", "concurrency": 2, "timeout": 5, "retries": 1, "input_price": 2.0, "api_key_env": "K"}
    assert all(key(**{name: value}) == key() for name, value in same_scores.items())
    other = {"examples": 1, "rows": 5, "answers": 2, "max_requests": 5, "prompt": "{row}", "base_url": "http://a/v1"}
    assert all(key(**{name: value}) != key() for name, value in other.items())
    assert key(Budget(requests=5)) != key()


def test_a_limit_of_any_kind_limits_the_rows():
    def limit(budget=None, **settings):
        return OpenAITeacher(OpenAIEntry(kind="openai", model="m", **settings), TASK, budget).row_limit

    assert limit() is None
    assert limit(rows=5, max_requests=9) == limit(Budget(requests=5)) == 5
    assert limit(max_tokens=1) > 1e9
    assert limit(Budget(price=1.0), input_price=1.0) > 1e9


def test_examples_are_rows_of_t_without_the_row_itself(ask, server):
    labeled = make_rows({"text": ["good x", "bad y"], "label": ["good", "bad"]}, TASK, "T")
    ask(["good x"], labeled=labeled)
    content = server.requests[0]["messages"][0]["content"]
    assert "Text:\nbad y\nLabel: 2" in content
    assert content.count("good x") == 1


def test_the_cost_is_known_before_anything_is_sent():
    rows = make_rows({"text": ["word " * 40] * 100}, TASK, "D")

    def cost(budget=None, **settings):
        settings = {"input_price": 1.0, "output_price": 2.0, "examples": 0, **settings}
        return OpenAITeacher(OpenAIEntry(kind="openai", model="m", **settings), TASK, budget).cost(rows)

    assert cost().requests == 100
    assert 80 <= cost().input_tokens / 100 <= 120
    assert cost().price == pytest.approx((cost().input_tokens + 2 * cost().output_tokens) / 1e6)
    assert cost(rows=7, answers=3).requests == 21
    assert cost(max_requests=5).requests == cost(Budget(requests=5)).requests == 5
    assert cost(Budget(price=cost().price / 2)).requests in (49, 50)
    assert cost(max_tokens=1_000).requests < 11
    assert cost(examples=4).input_tokens > cost().input_tokens + 100 * 4 * 40
    assert cost(input_price=None, output_price=None).price is None


def test_a_missing_package_is_named_with_its_extra(ask, monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(ClozifyError, match=r"pip install 'clozify\[llm\]'"):
        ask(["a"])


def test_a_damaged_file_of_answers_is_named(ask, tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / FILE).write_bytes(b"no database" * 100)
    with pytest.raises(RunError, match=f"{FILE}.*delete it"):
        ask(["a"])


def test_answers_are_kept_for_the_next_process(tmp_path):
    cache = AnswerCache(tmp_path)
    cache.add("a", Answer(text="1"))
    assert AnswerCache(tmp_path).get("a") == Answer(text="1")
    assert AnswerCache(tmp_path).get("b") is None


def test_the_client_repeats_with_growing_pauses():
    client = ChatClient(OpenAIEntry(kind="openai", model="m"), "m")
    assert client._client.max_retries == 6  # OpenAI's client waits exponentially longer, with jitter
    client.close()


SCORING = """
import sys
from pathlib import Path
from clozify.config.teachers import OpenAIEntry
from clozify.data.in_memory import make_rows
from clozify.teachers.base import ScoringContext
from clozify.teachers.openai import OpenAITeacher
from tests.unit.teachers.test_openai import TASK
url, cache = sys.argv[1:]
rows = make_rows({"text": [f"good {index}" for index in range(40)]}, TASK, "D")
teacher = OpenAITeacher(OpenAIEntry(kind="openai", model="m", base_url=url, concurrency=4), TASK)
context = ScoringContext(make_rows({"text": [], "label": []}, TASK, "T"), "cpu", Path(cache), print)
print((teacher.score(rows, context)[:, 0] == 0).sum())
"""


def test_a_killed_run_pays_again_only_for_what_was_under_way(server, tmp_path):
    server.delay = 0.05
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", SCORING, server.url, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
    process = subprocess.Popen(command, env=environment, cwd=root, stdout=subprocess.DEVNULL)
    deadline = threading.Event()
    threading.Timer(60, deadline.set).start()
    while len(server.requests) < 16 and not deadline.is_set():
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = len(server.requests)
    assert 16 <= before < 40
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "40"
    asked = [last_text(body) for body in server.requests if "logprobs" not in body]
    twice = {text for text in asked if asked.count(text) > 1}
    assert set(asked) == {f"good {index}" for index in range(40)}
    assert len(twice) <= 4  # as many as are under way at a time
    assert all(asked.count(text) <= 2 for text in twice)
