"""Causal and encoder-decoder models as members: zero-shot, PET and iPET, whole models and adapters."""

import json

import numpy as np
import pytest

import clozify
from clozify.cli import main
from clozify.data.in_memory import load_rows
from clozify.errors import ModelError
from clozify.pipeline.cost import estimate
from clozify.pipeline.prepare import TrainInputs, prepare
from clozify.runs.context import RunContext
from tests.tiny import make_generative

TASK = {
    "name": "stars",
    "fields": ["text"],
    "label": "label",
    "patterns": ["{text}. It was {mask}.", "Just {mask}! || {text}"],
    "labels": {"1": "bad", "2": ["great", "an astonishing surprise"]},
}
LABELED = [{"text": f"It was {'good' if i % 2 else 'wrong'} {i}", "label": str(1 + i % 2)} for i in range(6)]
UNLABELED = [{"text": f"All in all {'good' if i % 3 else 'wrong'} in {i}"} for i in range(12)]
FEW_STEPS = {
    "finetune_without_lm.max_steps": 2,
    "distill.max_steps": 2,
    "repetitions": 1,
    "language_modeling": False,
    "ipet.generations": 1,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = {}

    def get(architecture):
        if architecture not in made:
            made[architecture] = make_generative(architecture, tmp_path_factory.mktemp(architecture))
        return made[architecture]

    return get


@pytest.mark.parametrize("architecture", ["gpt2-chat", "llama", "t5"])
def test_zero_shot_answers_with_every_pattern(architecture, folder):
    result = clozify.zero_shot(TASK, LABELED, folder(architecture))
    assert result.scores.scores.shape == (2, 6, 2)
    assert np.isfinite(result.probabilities).all()


@pytest.mark.parametrize("adapter", ["none", "lora"])
@pytest.mark.parametrize("architecture", ["gpt2", "llama", "t5"])
def test_pet_trains_members_and_a_kept_ensemble_predicts_as_it_scored(architecture, adapter, folder, tmp_path):
    settings = FEW_STEPS | {"adapter.method": adapter, "adapter.learning_rate": 0.01}
    run = clozify.train(
        TASK, LABELED, tmp_path / "run", test=LABELED, model=folder(architecture), recipe="quick", settings=settings
    )
    assert run.metrics.members is not None
    scores = [np.load(path) for path in sorted((tmp_path / "run/members").glob("*/test.npy"))]
    assert len(scores) == 2
    ensemble = json.loads((tmp_path / "run/ensemble.json").read_text())
    again = clozify.load_run(tmp_path / "run")
    for member, loaded in zip(ensemble["weights"], again.ensemble.members(), strict=True):
        kept = np.load(tmp_path / "run/members" / member["member"] / "test.npy")
        assert np.abs(loaded.scores(load_rows(LABELED, again.task)) - kept).max() < 1e-4


def test_training_changes_the_scores_and_the_classifier_starts_from_the_built_in_model(folder, tmp_path):
    messages = []
    run = clozify.train(
        TASK,
        LABELED,
        tmp_path / "run",
        unlabeled=UNLABELED,
        test=LABELED,
        model=folder("gpt2"),
        recipe="quick",
        settings=FEW_STEPS | {"finetune_without_lm.learning_rate": 0.01},
        log=messages.append,
    )
    assert any("starts from the built-in model" in message for message in messages)
    assert len(run.predict(["good"]).labels) == 1
    before = clozify.zero_shot(TASK, LABELED, folder("gpt2"), max_length=64).scores.scores
    after = np.stack([np.load(path) for path in sorted((tmp_path / "run/members").glob("*/test.npy"))])
    assert np.abs(np.sort(before.ravel()) - np.sort(after.ravel())).max() > 1e-3


def test_ipet_trains_generations_of_a_causal_model(folder, tmp_path):
    run = clozify.train(
        TASK,
        LABELED,
        tmp_path / "run",
        unlabeled=UNLABELED,
        model=folder("llama"),
        student="builtin:mini",
        method="ipet",
        recipe="quick",
        settings=FEW_STEPS,
    )
    assert len(run.metrics.generations) == 2


def test_the_auxiliary_task_is_left_out_with_a_note(folder, tmp_path):
    messages = []
    clozify.train(
        TASK,
        LABELED,
        tmp_path / "run",
        model=folder("gpt2"),
        recipe="quick",
        settings=FEW_STEPS | {"language_modeling": True},
        log=messages.append,
    )
    assert sum("no auxiliary language modelling" in message for message in messages) == 1


@pytest.mark.parametrize("method", ["frozen", "supervised"])
def test_methods_that_need_a_masked_model_say_so(method, folder, tmp_path):
    with pytest.raises(ModelError, match="mask"):
        clozify.train(TASK, LABELED, tmp_path / "run", model=folder("gpt2"), method=method, recipe="quick")


def test_a_folder_with_several_gguf_files_asks_for_one(tmp_path):
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ModelError, match="several GGUF files"):
        clozify.load_model(tmp_path)


def test_a_damaged_gguf_file_is_named(tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"nothing")
    with pytest.raises(ModelError, match=r"a\.gguf"):
        clozify.load_model(tmp_path / "a.gguf")


@pytest.mark.parametrize("method", ["pet", "ipet"])
def test_a_mixed_ensemble_of_masked_and_causal_members_trains_in_one_run(method, folder, tmp_path):
    task = TASK | {"teachers": [{"kind": "model", "model": str(folder("llama")), "name": "small llama"}]}
    run = clozify.train(
        task,
        LABELED,
        tmp_path / "run",
        unlabeled=UNLABELED,
        test=LABELED,
        model="builtin:mini",
        method=method,
        recipe="quick",
        settings=FEW_STEPS,
    )
    assert [(teacher.name, teacher.kind) for teacher in run.metrics.teachers] == [
        ("patterns", "patterns"),
        ("small llama", "patterns"),
    ]
    ensemble = json.loads((tmp_path / "run/ensemble.json").read_text())
    assert [member.get("teacher") for member in ensemble["weights"]] == [None, None, "small llama", "small llama"]
    assert len(list((tmp_path / "run/members").glob("*/test.npy"))) == (4 if method == "pet" else 8)


def test_a_kept_mixed_ensemble_predicts_as_it_was_measured(folder, tmp_path):
    task = TASK | {"teachers": [{"kind": "model", "model": str(folder("t5"))}]}
    run = clozify.train(
        task, LABELED, tmp_path / "run", test=LABELED, model="builtin:mini", recipe="quick", settings=FEW_STEPS
    )
    again = clozify.load_run(tmp_path / "run").evaluate(LABELED)
    assert again.accuracy == run.metrics.ensemble.accuracy


def test_a_plan_counts_the_members_of_further_models(folder):
    task = TASK | {"teachers": [{"kind": "model", "model": str(folder("gpt2"))}]}
    inputs = TrainInputs(
        task, LABELED, UNLABELED, model=str(folder("llama")), student="builtin:mini", recipe="quick", settings=FEW_STEPS
    )
    cost = estimate(prepare(inputs), RunContext("cpu"))
    assert (cost.members, cost.steps_a_member, cost.rows_to_score_a_member) == (4, 2, 12)


def test_zero_shot_counts_further_models(folder):
    task = TASK | {"teachers": [{"kind": "model", "model": str(folder("gpt2")), "name": "gpt"}]}
    result = clozify.zero_shot(task, LABELED, "builtin:mini")
    assert [teacher.name for teacher in result.teachers] == ["patterns", "gpt"]


@pytest.fixture
def check_files(tmp_path):
    rows = "\n".join(f"{row['label']},{row['text']}" for row in LABELED * 2)
    (tmp_path / "labeled.csv").write_text(f"label,text\n{rows}\n")
    return tmp_path


def reads(architecture):
    """The first row in each pattern, as the documentation says."""
    first = LABELED[0]["text"]
    ask = "\n\nQuestion: Which word belongs in the blank?\nAnswer:"
    last, other = f"{first}. It was", f"Just ____! {first}{ask}"
    if architecture == "gpt2":
        return [last, other]
    if architecture == "t5":
        return [f"{first}. It was<extra_id_0>.</s>", f"Just<extra_id_0>!</s> {first}</s>"]
    chat = "<s>user\n{}</s>\n<s>assistant\n"
    return [chat.format(f"{last} ____.{ask}"), chat.format(other)]


@pytest.mark.parametrize("architecture", ["gpt2", "gpt2-chat", "t5"])
def test_check_shows_what_a_model_that_writes_reads_and_answers(architecture, folder, check_files):
    from clozify.inference.check import check
    from clozify.models.language_model import load_model

    model, task = load_model(folder(architecture)), clozify.load_task(TASK)
    result = check(task, model, check_files / "labeled.csv")
    assert not result.problems
    assert [pattern.rows[0].read_as.strip() for pattern in result.patterns] == [
        text.strip() for text in reads(architecture)
    ]
    surprise = result.patterns[0].pairs[0].words["2"][1]
    assert len(surprise.tokens) == len(surprise.ids) > 1
    assert model.tokenizer.hf_tokenizer.decode(surprise.ids).strip() == "an astonishing surprise"
    assert all(pattern.own_answers for pattern in result.patterns)
    zero_shot = clozify.zero_shot(TASK, check_files / "labeled.csv", folder(architecture))
    assert [pattern.accuracies[0] for pattern in result.patterns] == zero_shot.accuracy.patterns
    shown = [pattern.rows[0].answers[0]["1"] for pattern in result.patterns]
    raw = np.asarray(zero_shot.scores.scores[:, 0], dtype=np.float64)  # (patterns, labels)
    assert shown == pytest.approx((np.exp(raw) / np.exp(raw).sum(axis=1, keepdims=True))[:, 0], abs=1e-4)


def test_a_word_of_too_many_tokens_is_a_problem_that_check_names(folder):
    from clozify.inference.check import check
    from clozify.models.language_model import load_model

    long = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
    result = check(clozify.load_task(TASK | {"labels": {"1": "bad", "2": long}}), load_model(folder("gpt2")))
    assert any("shorten it" in problem for problem in result.problems)


@pytest.mark.parametrize("architecture", ["gpt2", "t5"])
@pytest.mark.parametrize("command", ["find-words", "pretrain"])
def test_commands_that_need_a_mask_say_so_in_one_sentence_and_write_nothing(
    command, architecture, folder, check_files, monkeypatch, capsys
):
    task, data = check_files / "task.toml", str(check_files / "labeled.csv")
    task.write_text(clozify.load_task(TASK).to_toml())
    output = check_files / "output.toml"
    arguments = {
        "find-words": ["find-words", str(task), "--labeled", data, "--output", str(output)],
        "pretrain": ["pretrain", "--data", data, "--field", "text", "--output", str(output)],
    }[command]
    monkeypatch.setattr("sys.argv", ["clozify", *arguments, "--model", str(folder(architecture))])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    assert capsys.readouterr().err.strip().endswith("use one like BERT or RoBERTa, or 'builtin'.")
    assert not output.exists()
