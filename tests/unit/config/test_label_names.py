import pytest

from clozify.config.label_names import name_to_words, words_of_names


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("card_arrival", "card arrival"),
        ("lost-or-stolen_card", "lost or stolen card"),
        ("CardPaymentFee", "card payment fee"),
        ("cardPaymentFee", "card payment fee"),
        ("Refund_not_showing_up", "refund not showing up"),
        ("GET_DIRECTIONS", "get directions"),
        ("ATMSupport", "ATM support"),
        ("getHTTPResponse", "get HTTP response"),
        ("transfer_to_ATM", "transfer to ATM"),
        ("FAQs", "FAQs"),
        ("iPhone", "iPhone"),
        ("top10Cards", "top10 cards"),
        ("5GPlan", "5G plan"),
        ("2nd_card", "2nd card"),
        ("ÜberweisungFehlt", "überweisung fehlt"),
        ("_private_", "private"),
    ],
)
def test_a_name_is_read_as_words(name, words):
    assert name_to_words(name) == words


@pytest.mark.parametrize("name", ["sports", "Sports", "NASA", "Society & Culture", "Sci-Fi and fantasy", "7", "___"])
def test_a_single_word_and_words_with_spaces_stay_as_they_are(name):
    assert name_to_words(name) == name


def test_numbers_and_truth_values_are_names():
    assert words_of_names([1, 2, True]) == ({"1": "1", "2": "2", "true": "true"}, [])


def test_all_faults_of_a_list_are_told():
    words, problems = words_of_names(["a", "", "b", 1.5, "a", "  "])
    assert list(words) == ["a", "b"]
    assert problems == [
        "Name 2 of the list 'labels' is empty; write a label's name there, or remove it.",
        "Name 4 of the list 'labels' is 1.5, not text; write a label's name there, or remove it.",
        "Name 6 of the list 'labels' is empty; write a label's name there, or remove it.",
        "'a' stands twice in 'labels'; remove one.",
    ]
