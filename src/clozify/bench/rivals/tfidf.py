"""TF-IDF vectors with logistic regression, fitted on the labelled rows alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from clozify.bench.rivals.worker import Job

NAME = "tfidf"
TITLE = "TF-IDF"
SETTINGS = "words and pairs of words, sublinear TF-IDF, logistic regression with C=10"
VERSION = 1
REQUIREMENTS: tuple[str, ...] = ()
PACKAGES: tuple[str, ...] = ("scikit-learn",)
ENCODER = "none"
UNLABELED = False
MAX_LENGTH = False
NEEDS = ""
TOKENS = r"\w+|[^\w\s]"  # words of one letter and single symbols, too


def load_libraries() -> None:
    """Import scikit-learn."""
    import sklearn.linear_model  # noqa: F401


class TfidfModel:
    """A vectorizer and a regression."""

    def __init__(self, job: Job) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression

        self.test = job.texts("test")
        self.vectorizer = TfidfVectorizer(token_pattern=TOKENS, ngram_range=(1, 2), sublinear_tf=True)
        vectors = self.vectorizer.fit_transform(job.texts("labeled"))
        self.classifier: Any = LogisticRegression(C=10.0, max_iter=1_000).fit(vectors, job.label_indices)
        self.folder = Path(job.work)
        np.save(self.folder / "weights.npy", self.classifier.coef_.astype(np.float32))
        words = sorted(self.vectorizer.vocabulary_, key=self.vectorizer.vocabulary_.__getitem__)
        (self.folder / "words.txt").write_text("\n".join(words), encoding="utf-8")

    @property
    def kept(self) -> Sequence[Path]:
        """The vocabulary and the weights."""
        return [self.folder]

    def predict(self, rows: int) -> NDArray[np.int64]:
        """The labels of the first test rows."""
        predicted: NDArray[np.int64] = self.classifier.predict(self.vectorizer.transform(self.test[:rows]))
        return predicted


def train(job: Job) -> TfidfModel:
    """Fit the vectorizer and the regression."""
    return TfidfModel(job)
