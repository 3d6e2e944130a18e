"""Models and data sets by their names on the hub: fetched once, read from the cache without a network, refusals."""

import re

import pytest

from tests.fake_hub import FakeHub
from tests.integration.fork_server import ForkServer

TASK = """
name = "films"
fields = ["text"]
patterns = ["It was {mask}. {text}"]
[labels]
bad = "terrible"
good = "great"
"""
ROWS = [("good", f"a great film, number {i}") if i % 2 else ("bad", f"a terrible film, number {i}") for i in range(24)]


@pytest.fixture(scope="module")
def make_hub(tmp_path_factory, tiny_folder):
    """Make a hub with a model and a data set that anybody may read, and one of each that the user has no access to."""
    films = tmp_path_factory.mktemp("films")
    for name, rows in (("train", ROWS), ("test", ROWS[:6])):
        lines = [f'{label},"{text}"' for label, text in rows]
        (films / f"{name}.csv").write_text("\n".join(["label,text", *lines]) + "\n")
    model = tiny_folder("bert")
    return lambda: FakeHub(
        models={"user/tiny": model, "org/gated": model},
        datasets={"user/films": films, "org/gated": films},
        gated={"models/org/gated", "datasets/org/gated"},
    )


def machine(hub, folder):
    """A server for commands of a machine that knows this hub alone; what they fetch stays in its cache."""
    return ForkServer(folder, HF_ENDPOINT=hub.url, HF_HOME=str(folder / "home"), HF_HUB_OFFLINE="0")


@pytest.fixture(scope="module")
def server(make_hub, tmp_path_factory):
    with make_hub() as hub:
        server = machine(hub, tmp_path_factory.mktemp("machine"))
        yield server
        server.close()


@pytest.fixture
def task(tmp_path):
    path = tmp_path / "task.toml"
    path.write_text(TASK)
    return path


def test_what_was_fetched_from_the_hub_is_read_without_a_network(make_hub, task, tmp_path):
    command = "zero-shot", task, "--data", "user/films@test", "--model", "user/tiny", "--output"
    with make_hub() as hub:
        server = machine(hub, tmp_path)
        online = server.run(*command, tmp_path / "online.csv")
    assert (online.status, online.err) == (0, "")
    requests = len(hub.requests)
    offline = server.run(*command, tmp_path / "offline.csv")
    server.close()
    assert (offline.status, offline.err) == (0, "")  # no retries, which the hub's client would print
    assert len(hub.requests) == requests
    assert (tmp_path / "offline.csv").read_text() == (tmp_path / "online.csv").read_text()


def test_a_run_is_trained_on_data_and_with_a_model_of_the_hub(server, task, tmp_path):
    settings = ["finetune.max_steps=1", "distill.max_steps=1", "repetitions=1", "estimate.folds=0"]
    trained = server.run(
        "train", task, "--labeled", "user/films@train", "--examples", 4, "--unlabeled", "user/films@train",
        "--model", "user/tiny", "--recipe", "paper", *[word for setting in settings for word in ("--set", setting)],
        "--output", tmp_path / "run",
    )  # fmt: skip
    assert trained.status == 0, trained.err
    predicted = server.run("predict", tmp_path / "run", "--text", "a great film")
    assert predicted.status == 0, predicted.err


def test_a_bench_reads_data_of_the_hub(server, tmp_path):
    data = "--data", "user/films@train", "--test", "user/films@test", "--per-label", 4, "--draws", 1
    bench = server.run("bench", *data, "--methods", "tfidf", "--output", tmp_path / "bench", "--json")
    assert bench.status == 0, bench.err
    assert '"test_rows": 6' in bench.out


@pytest.mark.parametrize(
    ("data", "model", "message"),
    [
        ("user/films@test", "user/nothing", "The hub has no model 'user/nothing' that you can see"),
        ("user/films@test", "org/gated", "The hub gives you no access to the model 'org/gated'; accept its terms"),
        ("user/nothing@test", "user/tiny", "'user/nothing@test' could not be fetched from the hub .* doesn't exist"),
        ("org/gated@test", "user/tiny", "'org/gated@test' could not be fetched from the hub .* gated dataset"),
        ("user/films@valid", "user/tiny", "'user/films@valid' cannot be read: Unknown split"),
    ],
)
def test_what_the_hub_refuses_is_said_in_a_sentence(server, task, data, model, message):
    outcome = server.run("zero-shot", task, "--data", data, "--model", model)
    assert outcome.status == 2
    assert re.search(message, outcome.err), outcome.err
    assert outcome.err.count("\n") == 1
