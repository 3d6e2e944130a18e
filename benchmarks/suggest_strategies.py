"""Ways to choose the rows to label next, which `suggest.py` compares; `suggest` is that of `clozify suggest`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax
from suggest_simulation import Indices, State, Strategy

from clozify.report.active_learning import _entropy, eligible_rows, measure_informativeness, select_rows


def random(state: State, count: int) -> Indices:
    """At random."""
    return state.rng.permutation(state.free)[:count]


def suggest(state: State, count: int) -> Indices:
    """What `clozify suggest` names."""
    eligible = np.intersect1d(eligible_rows(state.candidates), state.free)
    scores = measure_informativeness(state.round.scores, state.round.weights)
    chosen = select_rows(scores, count, eligible, state.label_counts, state.candidates)
    return np.concatenate([chosen, np.setdiff1d(state.free, chosen)])[:count]  # duplicates, where no others are left


def margin(state: State, count: int) -> Indices:
    """The smallest margin between the two highest probabilities."""
    return _highest(state, _margin(state), count)


def entropy(state: State, count: int) -> Indices:
    """The highest entropy of the members' mean probabilities."""
    return _highest(state, _entropies(state)[0], count)


def disagreement(state: State, count: int) -> Indices:
    """The highest disagreement of the members: the entropy of their mean less the mean of their entropies."""
    return _highest(state, _entropies(state)[1], count)


def stratified(state: State, count: int) -> Indices:
    """At random, but always of the predicted label that has the fewest rows."""
    return _balanced(state, state.rng.uniform(size=len(state.candidates)), count, distances=False)


def balanced(state: State, count: int) -> Indices:
    """Entropy plus disagreement, times distance, always of the predicted label that has the fewest rows."""
    return _balanced(state, sum(_entropies(state)), count, distances=True)


def clusters(state: State, count: int) -> Indices:
    """The row nearest to the centre of each of `count` clusters of texts, weighted by margin (k-means)."""
    from sklearn.cluster import KMeans

    free, weights, vectors = state.free, _margin(state)[state.free], _text_vectors(state)[state.free]
    fitted = KMeans(count, n_init=1, random_state=0).fit(vectors, sample_weight=weights)
    distances = ((vectors - fitted.cluster_centers_[fitted.labels_]) ** 2).sum(axis=1)
    nearest = [free[members[distances[members].argmin()]] for members in _groups(fitted.labels_, count)]
    return _fill(state, nearest, count)


def typical(state: State, count: int) -> Indices:
    """The most typical text of each of the largest clusters without a labelled row (TypiClust)."""
    from sklearn.cluster import KMeans

    vectors, size = _text_vectors(state), len(state.labeled) + count
    fitted = KMeans(min(size, len(vectors)), n_init=1, random_state=0).fit(vectors)
    covered = np.bincount(fitted.labels_[state.labeled], minlength=size)
    chosen = []
    for cluster in np.lexsort((-np.bincount(fitted.labels_, minlength=size), covered)):
        members = np.intersect1d(np.flatnonzero(fitted.labels_ == cluster), state.free)
        if len(members):
            distances = np.sqrt(((vectors[members][:, None] - vectors[members][None]) ** 2).sum(axis=-1))
            chosen.append(members[np.sort(distances, axis=1)[:, :20].mean(axis=1).argmin()])
    return _fill(state, chosen, count)


def badge(state: State, count: int) -> Indices:
    """K-means++ on the outer products of texts' vectors and the loss's gradient of the scores (BADGE)."""
    free = state.free
    vectors = _text_vectors(state)[free]
    vectors = np.column_stack([vectors, np.full(len(vectors), 0.5)])
    gradient = softmax(state.round.combined[free], axis=1)
    gradient[np.arange(len(free)), gradient.argmax(axis=1)] -= 1
    norms = (gradient**2).sum(axis=1) * (vectors**2).sum(axis=1)
    chosen, nearest, index = [], norms.copy(), int(norms.argmax())
    for _ in range(count):
        chosen.append(index)
        distances = norms + norms[index] - 2 * (gradient @ gradient[index]) * (vectors @ vectors[index])
        nearest = np.minimum(nearest, np.maximum(distances, 0))
        nearest[chosen] = 0
        index = int(state.rng.choice(len(free), p=nearest / nearest.sum()))
    return free[chosen]


STRATEGIES: dict[str, Strategy] = {
    each.__name__: each
    for each in (random, suggest, margin, entropy, disagreement, stratified, balanced, clusters, typical, badge)
}


def _margin(state: State) -> NDArray[np.float64]:
    """One minus the difference of the two highest probabilities."""
    highest = np.sort(softmax(state.round.combined, axis=1), axis=1)[:, -2:]
    return np.asarray(1 - (highest[:, 1] - highest[:, 0]))


def _entropies(state: State) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The entropy of the members' mean probabilities, and how far it is above the mean of their entropies."""
    weights = np.array(state.round.weights) / (sum(state.round.weights) or 1)
    weights = weights if weights.any() else np.full(len(weights), 1 / len(weights))
    members = softmax(np.stack(state.round.scores).astype(np.float64), axis=-1)
    total = _entropy(np.tensordot(weights, members, axes=1))
    return total, np.maximum(total - weights @ _entropy(members), 0)


def _highest(state: State, values: NDArray[np.float64], count: int) -> Indices:
    return state.free[np.argsort(-values[state.free], kind="stable")[:count]]


def _balanced(state: State, values: Any, count: int, distances: bool) -> Indices:
    """The highest value times the distance to the chosen rows, of the predicted label with the fewest rows so far."""
    free, counts = state.free, state.label_counts.copy()
    labels, distance = state.round.combined[free].argmax(axis=1), np.ones(len(free))
    vectors, remaining, chosen = _tfidf(state)[free], np.ones(len(free), dtype=bool), []
    for _ in range(count):
        allowed = remaining & (counts[labels] == counts[labels[remaining]].min())
        index = int(np.where(allowed, (values[free] + 1e-9) * distance, -1).argmax())
        chosen.append(index)
        remaining[index] = False
        counts[labels[index]] += 1
        if distances:
            distance = np.minimum(distance, np.clip(1 - (vectors @ vectors[index].T).toarray().ravel(), 0, 1))
    return free[chosen]


def _groups(labels: NDArray[Any], count: int) -> list[NDArray[np.int64]]:
    return [members for group in range(count) if len(members := np.flatnonzero(labels == group))]


def _fill(state: State, chosen: list[Any], count: int) -> Indices:
    """The chosen rows and, where they are too few, those with the smallest margin."""
    rest = [row for row in _highest(state, _margin(state), len(state.free)) if row not in set(chosen)]
    return np.array([*chosen, *rest][:count], dtype=np.int64)


def _texts(state: State) -> list[str]:
    rows = state.candidates
    return [" ".join(parts)[:1000] for parts in zip(*(rows.texts(name) for name in rows.task.fields), strict=True)]


def _tfidf(state: State) -> Any:
    """TF-IDF vectors of character n-grams."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    if "tfidf" not in state.cache:
        vectorizer = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 5), sublinear_tf=True)
        state.cache["tfidf"] = vectorizer.fit_transform(_texts(state)).tocsr()
    return state.cache["tfidf"]


def _text_vectors(state: State) -> NDArray[np.float64]:
    """TF-IDF vectors of words, reduced to 100 dimensions and of length 1."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    if "vectors" not in state.cache:
        words = TfidfVectorizer(sublinear_tf=True, stop_words="english", min_df=2).fit_transform(_texts(state))
        vectors = TruncatedSVD(min(100, words.shape[1] - 1), random_state=0).fit_transform(words)
        state.cache["vectors"] = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    vectors_of_texts: NDArray[np.float64] = state.cache["vectors"]
    return vectors_of_texts
