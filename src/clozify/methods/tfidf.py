"""A trivial baseline: logistic regression on TF-IDF vectors of words and pairs of words, fitted on T in about a second.

A result that is no better than this needs no language model. The vectorizer sees the labelled rows alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clozify.data.rows import Rows

MAX_LABELED = 20_000  # labelled rows that it is fitted on; of more, evenly spaced ones
TOKENS = r"\w+|[^\w\s]"  # words of one letter and single symbols, too


def tfidf_predictions(labeled: Rows, test: Rows) -> NDArray[np.int64]:
    """The predicted label indices of the test rows; with several labels a row, a matrix of 0 and 1."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    step = -(-len(labeled) // MAX_LABELED)
    labels = labeled.targets[::step]
    texts = _texts(labeled, 0, len(labeled))[::step]
    if labels.ndim == 2:
        return _predict_several(labels, texts, test)
    if len(set(labels.tolist())) == 1 or not any(texts):
        return np.full(len(test), np.bincount(labels).argmax(), dtype=np.int64)
    vectorizer = TfidfVectorizer(token_pattern=TOKENS, ngram_range=(1, 2), sublinear_tf=True)
    classifier = LogisticRegression(C=10.0, max_iter=1_000).fit(vectorizer.fit_transform(texts), labels)
    predicted = np.empty(len(test), dtype=np.int64)
    for start, stop in test.chunks():
        predicted[start:stop] = classifier.predict(vectorizer.transform(_texts(test, start, stop)))
    return predicted


def _predict_several(labels: NDArray[np.int8], texts: list[str], test: Rows) -> NDArray[np.int64]:
    """One regression for each label that some rows have and some do not; a probability of 0.5 decides."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    predicted = np.zeros((len(test), labels.shape[1]), dtype=np.int64)
    predicted[:, labels.all(axis=0)] = 1
    if not any(texts):
        return predicted
    vectorizer = TfidfVectorizer(token_pattern=TOKENS, ngram_range=(1, 2), sublinear_tf=True)
    vectors = vectorizer.fit_transform(texts)
    test_vectors = vectorizer.transform(_texts(test, 0, len(test)))
    for label in np.flatnonzero(labels.any(axis=0) & ~labels.all(axis=0)):
        classifier = LogisticRegression(C=10.0, max_iter=1_000).fit(vectors, labels[:, label])
        predicted[:, label] = classifier.predict(test_vectors)
    return predicted


def _texts(rows: Rows, start: int, stop: int) -> list[str]:
    """The rows' fields, joined."""
    fields = [rows.texts(field, start, stop) for field in rows.task.fields]
    return [" ".join(values).strip() for values in zip(*fields, strict=True)]
