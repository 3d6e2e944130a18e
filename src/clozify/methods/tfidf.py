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
    """The predicted label indices of the test rows."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    step = -(-len(labeled) // MAX_LABELED)
    labels = labeled.labels[::step]
    texts = _texts(labeled, 0, len(labeled))[::step]
    if len(set(labels.tolist())) == 1 or not any(texts):
        return np.full(len(test), np.bincount(labels).argmax(), dtype=np.int64)
    vectorizer = TfidfVectorizer(token_pattern=TOKENS, ngram_range=(1, 2), sublinear_tf=True)
    classifier = LogisticRegression(C=10.0, max_iter=1_000).fit(vectorizer.fit_transform(texts), labels)
    predicted = np.empty(len(test), dtype=np.int64)
    for start, stop in test.chunks():
        predicted[start:stop] = classifier.predict(vectorizer.transform(_texts(test, start, stop)))
    return predicted


def _texts(rows: Rows, start: int, stop: int) -> list[str]:
    """The rows' fields, joined."""
    fields = [rows.texts(field, start, stop) for field in rows.task.fields]
    return [" ".join(values).strip() for values in zip(*fields, strict=True)]
