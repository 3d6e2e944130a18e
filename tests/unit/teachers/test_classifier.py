from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from clozify.config.task import load_task
from clozify.data.in_memory import load_rows
from clozify.data.rows import Rows
from clozify.errors import ModelError, TaskError
from clozify.teachers import sequence_model
from clozify.teachers.base import ScoringContext
from clozify.teachers.classifier import ClassifierTeacher
from clozify.teachers.nli import NliTeacher

LABELS = {"world": "World", "sports": "Sports", "business": ["Business", "trade"]}
PATTERNS = {"text": ["{mask}: {text}"], "title": ["{mask}: {title} {text}"]}
ONE_FIELD = load_task({"fields": ["text"], "patterns": PATTERNS["text"], "labels": LABELS})
TWO_FIELDS = load_task({"fields": ["title", "text"], "patterns": PATTERNS["title"], "labels": LABELS})
TEXTS = ["It was good", "all in Sports", "a game about a community of gardeners " * 3, "bad", "Yes No Maybe"]


def rows_of(task, texts=TEXTS) -> Rows:
    return load_rows([dict.fromkeys(task.fields, text) for text in texts], task)


def context(task, tmp_path: Path, log=lambda line: None) -> ScoringContext:
    return ScoringContext(rows_of(task, ["x"]).select([]), "cpu", tmp_path, log)


@pytest.fixture(scope="module")
def make_classifier(tiny_folder, tmp_path_factory):
    """A function that writes a tiny classifier with these labels and random weights."""

    def make(labels: list[str], architecture: str = "bert", **config: object) -> Path:
        folder = tmp_path_factory.mktemp("classifier")
        source = tiny_folder(architecture)
        torch.manual_seed(1)
        names = dict(enumerate(labels))
        model = transformers.AutoModelForSequenceClassification.from_pretrained(
            source, id2label=names, label2id={name: index for index, name in names.items()}, **config
        )
        for parameter in model.classifier.parameters():
            torch.nn.init.normal_(parameter)
        model.save_pretrained(folder)
        transformers.AutoTokenizer.from_pretrained(source).save_pretrained(folder)
        return folder

    return make


@pytest.fixture(scope="module")
def nli_folder(make_classifier) -> Path:
    return make_classifier(["CONTRADICTION", "NEUTRAL", "ENTAILMENT"])


def naive_probabilities(folder: Path, texts: list[tuple[str, ...]]) -> np.ndarray:
    """Transformers' own probabilities, one text at a time."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        logits = [
            model(**tokenizer(*text, return_tensors="pt", truncation=True, max_length=64)).logits for text in texts
        ]
    return torch.cat(logits).softmax(dim=-1).numpy()


def test_scores_are_the_log_probabilities_of_transformers(make_classifier, tmp_path, monkeypatch):
    monkeypatch.setattr(sequence_model, "TOKENS_PER_BATCH", {"cpu": 40})  # several batches
    folder = make_classifier(["Sports", "WORLD", "business"])
    scores = ClassifierTeacher(folder).score(rows_of(ONE_FIELD), context(ONE_FIELD, tmp_path))
    expected = naive_probabilities(folder, [(text,) for text in TEXTS])[:, [1, 0, 2]]
    assert scores.dtype == np.float32
    assert np.exp(scores) == pytest.approx(expected, abs=1e-5)


def test_the_last_of_several_fields_is_the_text_pair_unless_fields_are_joined(make_classifier, tmp_path):
    folder = make_classifier(list(LABELS))
    texts = [text[:60] for text in TEXTS]  # short enough that nothing is cut off
    rows, where = rows_of(TWO_FIELDS, texts), context(TWO_FIELDS, tmp_path)
    texts = rows.texts("text")
    pairs = ClassifierTeacher(folder).score(rows, where)
    assert np.exp(pairs) == pytest.approx(naive_probabilities(folder, [(text, text) for text in texts]), abs=1e-5)
    joined = ClassifierTeacher(folder, pair=False).score(rows, where)
    assert np.exp(joined) == pytest.approx(naive_probabilities(folder, [(f"{t} {t}",) for t in texts]), abs=1e-5)


def test_labels_are_mapped_and_what_is_left_out_is_logged(make_classifier, tmp_path):
    folder, lines = make_classifier(["football", "tennis", "World", "weather"]), []
    teacher = ClassifierTeacher(folder, {"football": "sports", "tennis": "sports"}, name="old")
    scores = teacher.score(rows_of(ONE_FIELD), context(ONE_FIELD, tmp_path, lines.append))
    theirs = naive_probabilities(folder, [(text,) for text in TEXTS])
    mapped = theirs[:, :3].sum(axis=1)
    assert np.exp(scores[:, 0]) == pytest.approx(theirs[:, 2] / mapped, abs=1e-5)
    assert np.exp(scores[:, 1]) == pytest.approx(theirs[:, :2].sum(axis=1) / mapped, abs=1e-5)
    assert np.isneginf(scores[:, 2]).all()
    assert len(lines) == 2
    assert "'old'" in lines[0]
    assert "'weather'" in lines[0]


def test_a_classifier_of_several_labels_a_row_gives_its_sigmoids_renormalised(make_classifier, tmp_path):
    folder = make_classifier(list(LABELS), problem_type="multi_label_classification")
    scores = ClassifierTeacher(folder).score(rows_of(ONE_FIELD), context(ONE_FIELD, tmp_path))
    model = sequence_model.SequenceModel(str(folder), "cpu")
    sigmoids = 1 / (1 + np.exp(-model.logits(TEXTS, None, lambda count: None)))
    assert np.exp(scores) == pytest.approx(sigmoids / sigmoids.sum(axis=1, keepdims=True), abs=1e-5)


def test_a_classifier_that_clozify_trained_answers_as_clozify_does(tiny_folder, tmp_path):
    from clozify.config.recipe import load_recipe
    from clozify.models.classifier import new_classifier

    torch.manual_seed(2)
    classifier = new_classifier(tiny_folder("bert"), TWO_FIELDS, load_recipe("quick"), "cpu")
    for parameter in classifier.model.classifier.parameters():
        torch.nn.init.normal_(parameter)
    classifier.save(tmp_path / "own")
    rows = rows_of(TWO_FIELDS, TEXTS[:2] + TEXTS[3:])
    scores = np.concatenate([chunk for _, chunk in classifier.score_rows(rows, 2_048)])
    expected = torch.from_numpy(scores).softmax(dim=-1).numpy()
    teacher = ClassifierTeacher(tmp_path / "own")
    assert np.exp(teacher.score(rows, context(TWO_FIELDS, tmp_path))) == pytest.approx(expected, abs=1e-5)


def test_a_classifier_on_a_causal_model_without_a_padding_token_scores_and_abstains_on_empty_text(tmp_path):
    from tests.tiny import byte_bpe

    tokenizer = byte_bpe()
    tokenizer._tokenizer.post_processor = None  # as GPT-2's: no special tokens around a text
    plain = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer, eos_token="</s>")
    size = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}
    config = transformers.GPT2Config(vocab_size=len(plain), **size, id2label=dict(enumerate(LABELS)))
    torch.manual_seed(0)
    model = transformers.GPT2ForSequenceClassification(config).eval()
    torch.nn.init.normal_(model.score.weight)
    model.save_pretrained(tmp_path / "gpt2")
    plain.save_pretrained(tmp_path / "gpt2")
    scores = ClassifierTeacher(tmp_path / "gpt2").score(
        rows_of(ONE_FIELD, ["It was good", "", "bad"]), context(ONE_FIELD, tmp_path)
    )
    assert np.isnan(scores).all(axis=1).tolist() == [False, True, False]
    with torch.no_grad():
        expected = model(torch.tensor([plain("It was good")["input_ids"]])).logits.softmax(dim=-1).numpy()
    assert np.exp(scores[:1]) == pytest.approx(expected, abs=1e-5)


def test_a_model_without_a_trained_head_is_an_error(tiny_folder, tmp_path):
    teacher = ClassifierTeacher(tiny_folder("bert"), {"LABEL_0": "world", "LABEL_1": "sports"})
    with pytest.raises(ModelError, match=r"lacks weights of a classifier"):
        teacher.score(rows_of(ONE_FIELD), context(ONE_FIELD, tmp_path))


def test_faults_show_before_weights_are_loaded(make_classifier, tmp_path):
    folder = make_classifier(["LABEL_0", "LABEL_1"])
    (folder / "model.safetensors").unlink()
    with pytest.raises(TaskError, match="'LABEL_0' and 'LABEL_1', which stand for none"):
        ClassifierTeacher(folder).check(ONE_FIELD)
    with pytest.raises(ModelError, match=r"no model\.safetensors"):
        ClassifierTeacher(folder, {"LABEL_0": "world", "LABEL_1": "sports"}).score(
            rows_of(ONE_FIELD), context(ONE_FIELD, tmp_path)
        )
    with pytest.raises(ModelError, match="does not exist"):
        ClassifierTeacher(tmp_path / "nothing").check(ONE_FIELD)
    with pytest.raises(ModelError, match="one output"):
        ClassifierTeacher(make_classifier(["score"])).check(ONE_FIELD)


def test_keys_depend_on_the_weights_the_mapping_and_the_hypothesis(make_classifier, nli_folder):
    one, other = make_classifier(list(LABELS)), make_classifier(["a", *LABELS])
    keys = [
        ClassifierTeacher(one).key(),
        ClassifierTeacher(other).key(),
        ClassifierTeacher(one, {"world": "sports"}).key(),
        ClassifierTeacher(one, pair=False).key(),
        NliTeacher(nli_folder).key(),
        NliTeacher(nli_folder, "On {label}.").key(),
    ]
    assert len({str(key) for key in keys}) == len(keys)
    assert ClassifierTeacher(one, name="x").key() == keys[0]


def test_an_nli_model_gives_the_probabilities_of_transformers_pipeline(nli_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(sequence_model, "TOKENS_PER_BATCH", {"cpu": 60})
    texts = [text[:60] for text in TEXTS]
    scores = NliTeacher(nli_folder, "It was {label}.").score(rows_of(ONE_FIELD, texts), context(ONE_FIELD, tmp_path))
    pipeline = transformers.pipeline("zero-shot-classification", model=str(nli_folder), device="cpu")
    words = ["World", "Sports", "Business"]  # the first of each label
    answers = pipeline([text.strip() for text in texts], words, hypothesis_template="It was {}.", multi_label=False)
    expected = [[answer["scores"][answer["labels"].index(word)] for word in words] for answer in answers]
    assert np.exp(scores) == pytest.approx(np.array(expected), abs=1e-5)


def test_a_model_without_entailment_is_no_nli_model(make_classifier, tmp_path):
    teacher = NliTeacher(make_classifier(["yes", "not_entailment"]))
    with pytest.raises(ModelError, match="'yes' and 'not_entailment', none of which is 'entailment'"):
        teacher.score(rows_of(ONE_FIELD), context(ONE_FIELD, tmp_path))


def test_a_hypothesis_needs_a_place_for_the_label():
    from pydantic import ValidationError

    from clozify.config.teachers import NliEntry

    with pytest.raises(TaskError, match=r"'It is\.' has no \{label\}"):
        NliTeacher("x", "It is.")
    with pytest.raises(ValidationError, match=r"it has no \{label\} where"):
        NliEntry(kind="nli", model="x", hypothesis="It is.")
