"""`PetClassifier` as scikit-learn's users and tools handle it, with a tiny model."""

import copy
import gc
import os
import pickle
import shutil

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_predict, cross_val_score, cross_validate
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import check_is_fitted, validate_data

from clozify import PetClassifier, Recipe, train
from clozify.config.task import parse_task
from clozify.errors import ClozifyError, RunError
from clozify.estimator import encode_labels, extract_columns, make_rows
from clozify.inference.finished_run import FinishedRun, predict

TASK = parse_task("""
name = "stars"
fields = ["text"]
aliases = [["zwei", "eins", "drei"], ["20", "10", "30"]]
patterns = ["It was {mask}. {text}", "Just {mask}! || {text}"]
[labels]
2 = "okay"
1 = "bad"
3 = "great"
""")
TWO_FIELDS = parse_task("""
name = "two"
fields = ["title", "text"]
optional = ["title"]
patterns = ["It was {mask}. {title} {text}"]
[labels]
no = "bad"
yes = "great"
""")
STEPS = ("repetitions=1", "max_seq_length=24", "finetune.max_steps=2", "finetune_without_lm.max_steps=2")
STEPS += (
    "distill.max_steps=2",
    "supervised.max_steps=2",
    "distill.learning_rate=1e-2",
    "supervised.learning_rate=1e-2",
)
WORDS = ["a fine game", "a slow tool", "mail for all", "fonts and more", "the music player", "data base"]
TEXTS = [f"{WORDS[n % 6]} number {n}" for n in range(12)]
LABELS = [1 + n % 3 for n in range(12)]
PILE = [f"{WORDS[n % 6]} or {n}" for n in range(8)]


@pytest.fixture(scope="module")
def make(tiny_folder):
    """A function that makes an estimator with the tiny model; the supervised baseline is the quickest."""

    def estimator(task=TASK, **changes):
        inputs = {"model": str(tiny_folder("bert")), "settings": STEPS, "method": "supervised"}
        return PetClassifier(task, **(inputs | changes))

    return estimator


@pytest.fixture(scope="module")
def fitted(make):
    """One that was distilled from unlabelled data, with labels that are numbers."""
    return make(method="pet", unlabeled=PILE).fit(TEXTS, LABELS)


@pytest.fixture(scope="module")
def ensemble(make):
    """One without unlabelled data: the members themselves predict."""
    return make(method="pet").fit(TEXTS, LABELS)


# What it predicts


def test_the_columns_of_predict_proba_are_those_of_classes_and_classes_are_sorted(fitted):
    """scikit-learn's scorers take the columns in sorted order; the task lists 2 before 1."""
    direct = FinishedRun(fitted.run_)
    rows = pd.DataFrame({"text": PILE})
    expected = direct.probabilities(make_rows(extract_columns(rows, TASK, "X"), TASK, "X"))
    result = fitted.predict_proba(PILE)
    assert fitted.classes_.tolist() == [1, 2, 3]
    assert np.array_equal(result, expected[:, [1, 0, 2]])
    assert np.allclose(result.sum(axis=1), 1)
    assert np.array_equal(fitted.predict(PILE), fitted.classes_[result.argmax(axis=1)])


def test_what_is_learned_is_as_clozify_train_learns_it(make, tmp_path):
    """A label that changes places between here and training would be learned wrongly without a word."""
    frame = pd.DataFrame({"text": TEXTS, "label": LABELS})
    frame.to_csv(tmp_path / "labeled.csv", index=False)
    estimator = make(random_state=5).fit(TEXTS, LABELS)
    changes = {"settings": [*STEPS, "seed=5"], "method": "supervised", "model": estimator.model}
    train(TASK, tmp_path / "labeled.csv", tmp_path / "run", **changes)
    expected = predict(tmp_path / "run", tmp_path / "labeled.csv").probabilities
    assert np.array_equal(estimator.predict_proba(TEXTS), expected[:, [1, 0, 2]])


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        (LABELS, [1, 2, 3]),
        (np.array(LABELS, dtype=np.int8), [1, 2, 3]),
        (pd.Series(LABELS, dtype="Int64"), [1, 2, 3]),
        (np.array(LABELS, dtype=object), [1, 2, 3]),
        (np.array(LABELS, dtype=float), [1.0, 2.0, 3.0]),
        ([str(label) for label in LABELS], ["1", "2", "3"]),
        (pd.Series([str(label) for label in LABELS], dtype="category"), ["1", "2", "3"]),
        ([["eins", "zwei", "drei"][label - 1] for label in LABELS], ["drei", "eins", "zwei"]),
        ([10 * label for label in LABELS], [10, 20, 30]),
        ([1, 3] * 6, [1, 2, 3]),  # PET may predict a label that no labelled row has
    ],
    ids="int int8 Int64 object float str category alias number-alias two-of-three".split(),
)
def test_predictions_are_of_the_kind_that_y_had(y, classes):
    """Numbers that come back as text never equal the truth: an accuracy of 0."""
    names, result, paths = encode_labels(y, TASK)
    assert result.tolist() == classes
    assert [type(value) for value in result.tolist()] == [type(value) for value in classes]
    by_place = dict(zip(np.array(TASK.labels)[paths], result.tolist(), strict=True))
    assert [by_place[name] for name in names] == list(y)


def test_true_and_false_are_labels_too():
    task = TASK.model_copy(update={"aliases": []})
    words = task.verbalizers[0].model_copy(update={"words": {"True": ("great",), "False": ("bad",)}})
    assert encode_labels([True, False], task.model_copy(update={"verbalizers": [words]}))[1].tolist() == [False, True]


def test_labels_that_fit_two_namings_are_told():
    twisted = TASK.model_copy(update={"aliases": [["1", "2", "3"]]})
    with pytest.warns(UserWarning, match="fit '2', '1' and '3' as well as '1', '2' and '3'"):
        encode_labels([1, 2], twisted)


def test_score_is_accuracy_and_refuses_other_labels_than_in_fit(fitted):
    """Another name for the same label would count as wrong everywhere."""
    assert fitted.score(TEXTS, LABELS) == np.mean(fitted.predict(TEXTS) == LABELS)
    with pytest.raises(ValueError, match="y holds 'eins', but the labels in fit were '1', '2' and '3'"):
        fitted.score(TEXTS[:1], ["eins"])


def test_fitting_again_with_the_same_seed_gives_the_same_and_another_seed_something_else(make):
    def result(seed):
        return make(random_state=seed).fit(TEXTS, LABELS).predict_proba(PILE)

    assert np.array_equal(result(3), result(np.int64(3)))
    assert not np.array_equal(result(3), result(4))
    assert np.array_equal(result(np.random.RandomState(1)), result(np.random.RandomState(1)))


# What it takes


@pytest.mark.parametrize(
    "rows",
    [TEXTS, tuple(TEXTS), np.array(TEXTS), np.array(TEXTS, dtype=object), pd.Series(TEXTS, index=range(5, 17)),
     pd.DataFrame({"n": 1, "text": TEXTS}), [{"text": text} for text in TEXTS], [[text] for text in TEXTS],
     np.array(TEXTS)[:, None], pd.Series(TEXTS, dtype="category")],
    ids=lambda rows: f"{type(rows).__name__} of {type(rows[0] if isinstance(rows, list) else rows).__name__}",
)  # fmt: skip
def test_texts_may_come_as_anything_that_holds_them(rows):
    assert extract_columns(rows, TASK, "X") == {"text": TEXTS}


def test_a_task_with_several_fields_takes_frames_dicts_and_columns(make):
    title, text = [f"no {n}" for n in range(6)], TEXTS[:6]
    frame = pd.DataFrame({"text": text, "title": title})
    estimator = make(TWO_FIELDS).fit(frame, ["no", "yes"] * 3)
    expected = estimator.predict_proba(frame)
    assert estimator.n_features_in_ == 2
    pairs = list(zip(title, text, strict=True))
    for rows in (frame.to_dict("records"), pairs, np.array(pairs), np.array(pairs, dtype=object)):
        assert np.array_equal(estimator.predict_proba(rows), expected)
    untitled = estimator.predict_proba(frame[["text"]])
    assert not np.array_equal(untitled, expected)
    assert np.array_equal(estimator.predict_proba(frame.assign(title=None)), untitled)


BAD_ROWS = {
    "one text": ("a text", "X is one text, not rows"),
    "nothing": (None, "X is of the type NoneType"),
    "no rows": ([], "X has 0 rows"),
    "a missing text": (["a", None], "Row 1 of X has no text in the field 'text' .None."),
    "nan": (pd.Series(["a", np.nan]), "Row 1 of X has no text"),
    "not available": (["a", pd.NA], "Row 1 of X has no text"),
    "a number": (["a", 3], "Row 1 of X holds 3 in the field 'text', which is of the type int"),
    "bytes": ([b"a"], "of the type bytes"),
    "numbers": (np.ones((2, 1)), "Row 0 of X holds 1.0"),
    "many columns": (np.array([["a", "b"]]), "Row 0 of X has 2 columns, but the task has 1 fields: 'text'"),
    "ragged": ([["a"], ["a", "b"]], "Row 1 of X has 2 columns"),
    "mixed": (["a", {"text": "b"}], "Row 1 of X is a dict, row 0 a str"),
    "another column": (pd.DataFrame({"texts": ["a"]}), "X has 0 columns 'text' .did you mean 'texts'"),
    "a column twice": (pd.DataFrame([["a", "b"]], columns=["text", "text"]), "X has 2 columns 'text'"),
    "another key": ([{"txt": "a"}], "Row 0 of X lacks the field 'text'; it has 'txt'"),
    "half a character": (["\ud800", "a"], "no valid Unicode"),
    "a single value": (np.array("a"), "X is "),
}


@pytest.mark.parametrize(("rows", "sentence"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_rows_that_cannot_be_used_end_in_a_sentence_that_is_a_value_error(fitted, make, rows, sentence):
    for use in (fitted.predict, lambda rows: make().fit(rows, [1, 2])):
        with pytest.raises(ValueError, match=sentence) as error:
            use(rows)
        assert isinstance(error.value, ClozifyError)


def test_a_task_with_two_fields_refuses_plain_texts(make):
    with pytest.raises(ValueError, match="has 1 columns, but the task has 2 fields: 'title' and 'text'"):
        make(TWO_FIELDS).fit(["a", "b"], ["no", "yes"])


BAD_LABELS = {
    "none": (None, "requires y to be passed"),
    "too few": ([1], "X has 2 rows, but y has 1 labels"),
    "unknown": (["1", "4"], "y holds the label '4', which the task does not know"),
    "numbered by scikit-learn": ([0, 1], "If scikit-learn numbered the labels itself"),
    "missing": ([1, np.nan], "Input y contains NaN: row 1 has no label"),
    "also missing": (["1", None], "Input y contains NaN: row 1 has no label"),
    "no label": ([1, -1], "y holds the label '-1'"),
    "measured": ([1.5, 2.5], "Unknown label type"),
    "two a row": ([[1, 2], [2, 1]], "y should be a 1d array"),
}


@pytest.mark.parametrize(("labels", "sentence"), BAD_LABELS.values(), ids=BAD_LABELS)
def test_labels_that_cannot_be_used_end_in_a_sentence(make, labels, sentence):
    """A row marked -1 that was left out quietly would be a label lost."""
    with pytest.raises(ValueError, match=sentence):
        make().fit(["a", "b"], labels)


def test_numbers_for_labels_that_are_words_are_refused(make):
    task = parse_task(TASK.to_toml().replace('3 = "great"', 'many = "great"').replace('"30"', '"viele"'))
    with pytest.raises(ValueError, match="y holds int64 values, which not all of the labels '2', '1' and 'many' are"):
        make(task).fit(["a", "b"], [1, 2])


def test_unlabelled_data_of_labelled_rows_alone_and_a_bad_seed_are_value_errors(make):
    with pytest.raises(ValueError, match="No unlabelled row is left"):
        make(method="pet").fit(TEXTS, LABELS, unlabeled=TEXTS)
    with pytest.raises(ValueError, match="unlabeled has 0 rows"):
        make(method="pet").fit(TEXTS, LABELS, unlabeled=[])
    with pytest.raises(ValueError, match="seed"):
        make(random_state="x").fit(TEXTS, LABELS)


def test_the_unlabelled_data_may_be_given_to_fit_or_to_the_constructor_as_rows_or_as_a_file(make, fitted, tmp_path):
    pd.DataFrame({"text": PILE}).to_csv(tmp_path / "unlabeled.csv", index=False)
    expected = fitted.predict_proba(TEXTS)
    for inputs, late in ((None, pd.Series(PILE)), (["another"], PILE), (tmp_path / "unlabeled.csv", None)):
        estimator = make(method="pet", unlabeled=inputs).fit(TEXTS, LABELS, unlabeled=late)
        assert np.array_equal(estimator.predict_proba(TEXTS), expected)
    assert fitted.metrics_.rows == {"labeled": 12, "unlabeled": 8}


# What scikit-learn's tools do with it


def test_cross_validation_scores_every_fold_and_leaves_the_unlabelled_data_whole(make):
    """cross_val_score slices what fit is handed, and hides errors as nan."""
    unlabeled_rows = [f"{text} too" for text in TEXTS]  # as many as there are labelled rows
    estimator = make(method="pet", unlabeled=unlabeled_rows)
    result = cross_validate(estimator, TEXTS, LABELS, cv=2, return_estimator=True)
    assert np.isfinite(result["test_score"]).all()
    assert [fold.metrics_.rows for fold in result["estimator"]] == [{"labeled": 6, "unlabeled": 12}] * 2


def test_scorers_that_read_probabilities_read_them_in_the_right_order(make):
    scores = cross_val_score(make(), TEXTS, LABELS, cv=2, scoring="neg_log_loss", error_score="raise")
    for (rest, test), score in zip(StratifiedKFold(2).split(TEXTS, LABELS), scores, strict=True):
        estimator = make().fit([TEXTS[n] for n in rest], [LABELS[n] for n in rest])
        result = pd.DataFrame(estimator.predict_proba([TEXTS[n] for n in test]), columns=estimator.classes_)
        assert np.mean([np.log(result.loc[i, LABELS[n]]) for i, n in enumerate(test)]) == pytest.approx(score)


def test_where_scikit_learn_numbers_the_labels_aliases_say_what_the_numbers_mean(make):
    """cross_val_predict hands 0, 1, 2 to fit when it is asked for probabilities."""
    with pytest.raises(ValueError, match="If scikit-learn numbered the labels itself"):
        cross_val_predict(make(), TEXTS, LABELS, cv=2, method="predict_proba")
    words = dict(zip("abc", [("bad",), ("okay",), ("great",)], strict=True))
    verbalizer = TASK.verbalizers[0].model_copy(update={"words": words})
    task = TASK.model_copy(update={"verbalizers": [verbalizer], "aliases": [["0", "1", "2"]]})
    result = cross_val_predict(make(task), TEXTS, ["abc"[label - 1] for label in LABELS], cv=2, method="predict_proba")
    assert result.shape == (12, 3)


def test_a_grid_is_searched_over_settings_and_the_best_is_fitted(make):
    grid = {"settings": [STEPS, [*STEPS, "supervised.max_steps=0"]]}
    search = GridSearchCV(make(), grid, cv=2, error_score="raise").fit(pd.Series(TEXTS), LABELS)
    assert search.predict(TEXTS[:2]).shape == (2,)
    assert search.best_estimator_.classes_.tolist() == [1, 2, 3]


def test_it_can_be_calibrated(make):
    calibrated = CalibratedClassifierCV(make(), cv=2).fit(TEXTS, LABELS)
    assert calibrated.predict_proba(TEXTS).shape == (12, 3)


def test_it_ends_a_pipeline_which_hands_on_the_unlabelled_data(make):
    lower = FunctionTransformer(lambda texts: [text.lower() for text in texts])
    pipeline = Pipeline([("lower", lower), ("pet", make(method="pet"))])
    pipeline.fit([text.upper() for text in TEXTS], LABELS, pet__unlabeled=PILE)
    assert pipeline.named_steps["pet"].metrics_.rows["unlabeled"] == 8
    assert np.array_equal(pipeline.predict(["A GAME"]), pipeline.named_steps["pet"].predict(["a game"]))
    assert pipeline.score(TEXTS, LABELS) >= 0


def test_it_is_cloned_shown_and_reconfigured(fitted):
    twin = clone(fitted)
    assert twin.get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        twin.predict(TEXTS)
    with pytest.raises(NotFittedError):
        twin.save("nowhere")
    assert "PetClassifier" in fitted._repr_html_()
    assert "method='pet'" not in repr(twin)  # it is the default
    assert twin.set_params(recipe="quick").recipe == "quick"


# What is kept, and where


def test_without_an_output_nothing_stays_behind(make, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    estimator = make().fit(TEXTS, LABELS)
    assert [path for path in tmp_path.iterdir() if "clozify" in path.name] == [estimator.run_]
    del estimator
    gc.collect()
    assert not [path for path in tmp_path.iterdir() if "clozify" in path.name]


def test_a_forked_process_does_not_take_the_folder_away(make):
    estimator = make().fit(TEXTS, LABELS)
    if not (child := os.fork()):
        del estimator
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    assert estimator.run_.exists()


def test_two_fits_into_one_output_each_keep_what_they_learned(make, tmp_path):
    """Folds that share an output would all predict with the last one's classifier."""
    first = make(output=tmp_path / "run").fit(TEXTS, LABELS)
    before = first.predict_proba(PILE)
    second = make(output=tmp_path / "run").fit(TEXTS, LABELS[::-1])
    alone = make().fit(TEXTS, LABELS[::-1])
    third = make(output=tmp_path / "run", method="pet").fit(TEXTS, LABELS)  # an ensemble where a classifier lies
    assert np.array_equal(first.predict_proba(PILE), before)
    assert np.array_equal(second.predict_proba(PILE), alone.predict_proba(PILE))
    assert (third.run_ / "ensemble.json").exists()
    assert not (third.run_ / "classifier").exists()


def test_with_an_output_a_run_resumes(make, tmp_path, capsys):
    for _ in range(2):
        make(output=tmp_path / "run", verbose=True).fit(TEXTS, LABELS)
    assert "already done" in capsys.readouterr().out
    assert "the run is in" not in (make(verbose=True).fit(TEXTS, LABELS) and capsys.readouterr().out)


@pytest.mark.parametrize("kind", ["fitted", "ensemble"])
def test_copies_and_pickles_outlive_the_original(make, request, kind):
    """A worker process sends its fitted estimator back and ends; its folder goes with it."""
    original = copy.deepcopy(request.getfixturevalue(kind))
    expected = original.predict_proba(PILE)
    sent = pickle.dumps(original)
    shallow = copy.copy(original)
    del original
    gc.collect()
    assert np.array_equal(shallow.predict_proba(PILE), expected)
    assert np.array_equal(pickle.loads(sent).predict_proba(PILE), expected)


@pytest.mark.parametrize("kind", ["fitted", "ensemble"])
def test_a_saved_estimator_is_a_plain_folder_that_loads_and_predicts_the_same(request, tmp_path, kind):
    estimator = request.getfixturevalue(kind)
    estimator.save(tmp_path / "deep" / "saved")
    loaded = PetClassifier.load(tmp_path / "deep" / "saved")
    files = {path.suffix for path in (tmp_path / "deep" / "saved").rglob("*") if path.is_file()}
    assert files <= {".json", ".safetensors", ".toml", ".txt", ".npy", ".md"}
    assert np.array_equal(loaded.predict_proba(PILE), estimator.predict_proba(PILE))
    assert np.array_equal(loaded.predict(PILE), estimator.predict(PILE))
    assert loaded.classes_.dtype == estimator.classes_.dtype
    assert loaded.metrics_ == estimator.metrics_
    same = set(estimator.get_params()) - {"unlabeled", "settings"}
    assert all(loaded.get_params()[name] == estimator.get_params()[name] for name in same)
    loaded.save(tmp_path / "deep" / "saved")  # where it came from
    assert np.array_equal(PetClassifier.load(tmp_path / "deep" / "saved").predict(PILE), estimator.predict(PILE))


def test_a_loaded_estimator_can_be_fitted_again_also_with_a_recipe_of_its_own(make, tmp_path):
    recipe = Recipe().with_settings(STEPS)
    make(recipe=recipe, settings=(), random_state=np.int64(3)).fit(TEXTS, LABELS).save(tmp_path / "saved")
    loaded = PetClassifier.load(tmp_path / "saved")
    assert loaded.recipe == recipe
    before = loaded.predict_proba(PILE)
    assert np.array_equal(clone(loaded).fit(TEXTS, LABELS).predict_proba(PILE), before)


def test_saving_over_something_else_is_refused(fitted, tmp_path):
    (tmp_path / "thesis.txt").write_text("do not lose")
    for folder in (tmp_path, tmp_path / "thesis.txt"):
        with pytest.raises(RunError, match="holds no estimator; name a new or an empty folder"):
            fitted.save(folder)
    assert (tmp_path / "thesis.txt").read_text() == "do not lose"
    with pytest.raises(RunError, match="holds no estimator; name one that save wrote"):
        PetClassifier.load(tmp_path)


# scikit-learn's own checks. They deal in numbers, so rows of numbers are written down as texts; all else is real.

DIGITS = parse_task("""
name = "digits"
fields = ["text"]
patterns = ["It was {mask}. {text}"]
[labels]
0 = "bad"
1 = "okay"
2 = "good"
3 = "great"
""")


class OfNumbers(PetClassifier):
    """The estimator for rows of numbers."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.one_d_array = True, False
        return tags

    def fit(self, X, y, unlabeled=None):  # noqa: N803
        X = validate_data(self, X)  # noqa: N806
        super().fit(written(X), y, unlabeled)
        self.n_features_in_ = X.shape[1]
        return self

    def predict_proba(self, X):  # noqa: N803
        check_is_fitted(self)
        return super().predict_proba(written(validate_data(self, X, reset=False)))


def written(X):  # noqa: N803
    return [" ".join(f"{number:.2g}" for number in row) for row in X]


EXPECTED = {
    "check_classifiers_classes": "it invents labels; here the task says which there are",
    "check_classifiers_train": "it wants classes_ to be those of y alone, and numbers to be learned",
}


@pytest.fixture(params=["one training", pytest.param("every training", marks=pytest.mark.slow)])
def of_numbers(request, tiny_folder, monkeypatch):
    """An estimator that trains once, and whose other fits copy that run; or one that trains in every fit.

    Comes with the checks that are expected to fail.
    """
    expected = dict(EXPECTED)
    estimator = OfNumbers(DIGITS, model=str(tiny_folder("bert")), settings=STEPS, method="supervised")
    if request.param == "one training":
        trained = clone(estimator).fit(np.arange(8).reshape(4, 2), [0, 1, 2, 3])

        def copy_run(task, labeled, output, **settings):
            assert len(labeled.labels) == len(labeled)  # every label is one of the task's
            shutil.copytree(trained.run_, output, dirs_exist_ok=True)

        monkeypatch.setattr("clozify.estimator.train", copy_run)
        expected["check_classifiers_one_label"] = "it wants the label of y to be learned"
    return estimator, expected


def test_scikit_learn_s_own_checks_pass(of_numbers):
    """Among them: fit alters no parameter, predict alters nothing, rows are scored each for itself, pickles work."""
    estimator, expected = of_numbers
    done = check_estimator(estimator, expected_failed_checks=expected, on_skip=None, on_fail=None)
    assert not [(check["check_name"], check["exception"]) for check in done if check["status"] == "failed"]
    assert {check["check_name"] for check in done if check["status"] == "xfail"} == set(expected)
    assert sum(check["status"] == "passed" for check in done) > 40


def test_texts_are_cleaned_in_predict_as_they_were_in_fit(make):
    """A recipe may turn backslashes into spaces; to predict without that is to read other texts than were learned."""
    estimator = make(recipe="original-code").fit(TEXTS, LABELS)
    assert np.array_equal(estimator.predict_proba(["a\\fine\\game"]), estimator.predict_proba(["a fine game"]))


def test_a_task_without_labels_takes_those_of_y(make):
    task = {"fields": ["text"], "patterns": ["It was {mask}. {text}"]}
    classifier = make(task).fit(TEXTS, ["very_bad" if label == 1 else "great" for label in LABELS])
    assert classifier.task_.verbalizers[0].words == {"great": ("great",), "very_bad": ("very bad",)}
    assert classifier.classes_.tolist() == ["great", "very_bad"]
    numbers = make(task | {"labels": ["1", "2", "3"]}).fit(TEXTS, LABELS)
    assert numbers.classes_.tolist() == [1, 2, 3]
