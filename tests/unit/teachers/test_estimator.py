from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.dummy import DummyClassifier
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.svm import LinearSVC

from clozify.config.task import load_task
from clozify.data.in_memory import load_rows
from clozify.errors import DataError, TaskError
from clozify.teachers.base import ScoringContext
from clozify.teachers.estimator import EstimatorTeacher

LABELS = {"world": "World", "sports": "Sports", "business": "Business"}
TASK = load_task({"fields": ["text"], "patterns": ["{mask}: {text}"], "labels": LABELS})
TWO_FIELDS = load_task({"fields": ["title", "text"], "patterns": ["{mask}: {title} {text}"], "labels": LABELS})
TRAIN = [("troops in the capital", "world"), ("a late goal", "sports"), ("shares fell", "business")]
TEXTS = ["shares and troops", "a goal", "the capital", ""]


def context(tmp_path: Path, labeled=None) -> ScoringContext:
    empty = load_rows([("x", "world")], TASK).select([])
    return ScoringContext(empty if labeled is None else labeled, "cpu", tmp_path, lambda line: None)


def fitted(estimator, train=TRAIN):
    return make_pipeline(TfidfVectorizer(), estimator).fit(*zip(*train, strict=True))


def test_scores_are_the_logs_of_predict_proba_in_the_order_of_the_labels(tmp_path):
    pipeline = fitted(LogisticRegression())
    scores = EstimatorTeacher(pipeline).score(load_rows(TEXTS, TASK), context(tmp_path))
    columns = [list(pipeline.classes_).index(label) for label in TASK.labels]
    assert np.exp(scores) == pytest.approx(pipeline.predict_proba(TEXTS)[:, columns], abs=1e-6)


def test_without_predict_proba_scores_are_the_softmax_of_the_decision_function(tmp_path):
    pipeline = fitted(LinearSVC())
    scores = EstimatorTeacher(pipeline).score(load_rows(TEXTS, TASK), context(tmp_path))
    exponentials = np.exp(pipeline.decision_function(TEXTS))
    expected = exponentials / exponentials.sum(axis=1, keepdims=True)
    assert np.exp(scores) == pytest.approx(
        expected[:, [list(pipeline.classes_).index(n) for n in TASK.labels]], abs=1e-6
    )


def test_a_decision_function_of_two_classes_is_the_score_of_the_second(tmp_path):
    pipeline = fitted(LinearSVC(), TRAIN[:2])
    scores = EstimatorTeacher(pipeline).score(load_rows(TEXTS, TASK), context(tmp_path))
    world = 1 / (1 + np.exp(-pipeline.decision_function(TEXTS)))  # its classes are sports and world
    assert np.exp(scores) == pytest.approx(np.column_stack([world, 1 - world, np.zeros(4)]), abs=1e-6)


class KeywordVotes:
    """Has nothing but `predict`."""

    def predict(self, texts):
        return ["Sports" if "goal" in text else "weather" for text in texts]


def test_predictions_are_votes_and_classes_that_are_no_label_abstain(tmp_path):
    scores = EstimatorTeacher(KeywordVotes()).score(load_rows(TEXTS, TASK), context(tmp_path))
    assert scores[1].tolist() == [-np.inf, 0.0, -np.inf]
    assert np.isnan(scores[[0, 2, 3]]).all()


def test_several_fields_come_as_a_data_frame(tmp_path):
    columns = ColumnTransformer([("title", CountVectorizer(), "title"), ("text", CountVectorizer(), "text")])
    frame = pd.DataFrame({"title": [text for text, _ in TRAIN], "text": ["a goal in the capital"] * 3})
    pipeline = make_pipeline(columns, MultinomialNB()).fit(frame, [label for _, label in TRAIN])
    rows = load_rows([{"title": text, "text": "goal"} for text in TEXTS], TWO_FIELDS)
    scores = EstimatorTeacher(pipeline).score(rows, context(tmp_path))
    expected = pipeline.predict_proba(pd.DataFrame({"title": TEXTS, "text": ["goal"] * 4}))
    assert np.exp(scores)[:, [2, 1, 0]] == pytest.approx(expected, abs=1e-6)


def test_an_estimator_that_reads_columns_as_texts_is_an_error(tmp_path):
    rows = load_rows([{"title": text, "text": text} for text in TEXTS], TWO_FIELDS)
    with pytest.raises(TaskError, match=r"shape \(2, 3\) for 4 rows .* a DataFrame"):
        EstimatorTeacher(fitted(LogisticRegression()), "mine").score(rows, context(tmp_path))


def test_one_that_is_not_fitted_is_fitted_on_the_labelled_rows_and_stays_as_it_was(tmp_path):
    teacher = EstimatorTeacher(make_pipeline(TfidfVectorizer(), LogisticRegression()))
    assert teacher.learns_from_labeled
    scores = teacher.score(load_rows(TEXTS, TASK), context(tmp_path, load_rows(TRAIN, TASK)))
    reference = EstimatorTeacher(fitted(LogisticRegression()))
    assert not reference.learns_from_labeled
    assert np.array_equal(scores, reference.score(load_rows(TEXTS, TASK), context(tmp_path)))
    assert teacher.learns_from_labeled
    with pytest.raises(DataError, match="not fitted, and there are no labelled rows"):
        teacher.score(load_rows(TEXTS, TASK), context(tmp_path))


def test_one_that_cannot_be_fitted_on_a_single_label_abstains(tmp_path):
    teacher = EstimatorTeacher(make_pipeline(TfidfVectorizer(), LogisticRegression()))
    scores = teacher.score(load_rows(TEXTS, TASK), context(tmp_path, load_rows(TRAIN[:1], TASK)))
    assert np.isnan(scores).all()


def test_failures_of_an_estimator_name_the_teacher(tmp_path):
    teacher = EstimatorTeacher(make_pipeline(TfidfVectorizer(), LogisticRegression()), "mine")
    with pytest.raises(TaskError, match="'mine' failed as it was fitted on the labelled rows .ValueError: empty voc"):
        teacher.score(load_rows(TEXTS, TASK), context(tmp_path, load_rows([("?", "world"), ("!", "sports")], TASK)))
    with pytest.raises(TaskError, match="the labels 'a' and 'b', which stand for none"):
        EstimatorTeacher(DummyClassifier().fit([0, 1], ["a", "b"])).score(load_rows(TEXTS, TASK), context(tmp_path))
    with pytest.raises(TaskError, match="which TfidfVectorizer lacks"):
        EstimatorTeacher(TfidfVectorizer())


def strip_all(texts):
    return [text.strip() for text in texts]


def test_keys_depend_on_parameters_and_on_what_was_learned_and_hold_no_address():
    def key(*train, c: float = 1.0):
        pipeline = make_pipeline(FunctionTransformer(strip_all), TfidfVectorizer(), LogisticRegression(C=c))
        return EstimatorTeacher(pipeline.fit(*zip(*train, strict=True)) if train else pipeline).key()

    keys = [key(), key(c=2.0), key(*TRAIN), key(*TRAIN[:2])]
    assert len({str(entry) for entry in keys}) == len(keys)
    assert key(*TRAIN) == key(*TRAIN)
    assert "0x" not in str(keys)


def test_keys_do_not_depend_on_addresses_that_vectorizers_keep():
    pipeline = fitted(LogisticRegression())
    key = EstimatorTeacher(pipeline).key()
    pipeline[0]._stop_words_id += 1  # as in another process
    assert EstimatorTeacher(pipeline).key() == key


def test_an_estimator_that_cannot_be_hashed_is_an_error():
    with pytest.raises(TaskError, match="cannot be hashed"):
        EstimatorTeacher(make_pipeline(FunctionTransformer(lambda texts: texts), LogisticRegression())).key()
