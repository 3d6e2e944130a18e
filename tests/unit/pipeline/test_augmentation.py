"""Augmented text: rewriting by the masked language model, translation there and back, paraphrases from a file."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from clozify.config.recipe import Augment, load_recipe
from clozify.config.task import parse_task
from clozify.data.rows import read_rows
from clozify.errors import ClozifyError
from clozify.methods import backtranslation
from clozify.methods.backtranslation import Sampling, Translator, backtranslate
from clozify.methods.rewriting import Vocabulary, rewrite
from clozify.pipeline import augmentation
from clozify.pipeline.augmentation import join_paraphrases, make_augmenter, read_paraphrases
from tests.tiny import byte_bpe

SAMPLING = Sampling(temperature=0.9, samples=2)
TEXTS = ["A game for children, a GAME!", "", "日本 mail 🙂 server", "x", "utility for analysis of data. " * 20]


@pytest.mark.parametrize("architecture", ["bert", "roberta", "xlm-roberta"])
def test_rewriting_touches_the_masked_tokens_and_no_other_letter(architecture, tiny):
    """Decoding whole rows would lower their case, drop what the tokenizer does not know, and move spaces."""
    model = tiny(architecture)
    result = rewrite(model, TEXTS, Augment(mask_share=0.3), 40, seed=1)
    assert result == rewrite(model, TEXTS, Augment(mask_share=0.3), 40, seed=1)
    assert result != rewrite(model, TEXTS, Augment(mask_share=0.3), 40, seed=2)
    assert result[1] == ""
    assert result[0] != TEXTS[0]
    assert result[4] != TEXTS[4]
    assert "🙂" in result[2]
    assert not any("[UNK]" in text or "<unk>" in text for text in result)
    assert result[4].endswith(TEXTS[4][-60:])  # beyond what the model reads


def test_a_share_of_the_tokens_is_rewritten_and_at_least_one(tiny, monkeypatch):
    from clozify.methods import rewriting

    model, masked = tiny("bert"), []
    masked_scores = rewriting._masked_scores
    monkeypatch.setattr(
        rewriting,
        "_masked_scores",
        lambda m, b, rows, columns: masked.append(rows) or masked_scores(m, b, rows, columns),
    )
    texts = ["good bad okay great " * 5, "good"]
    rewrite(model, texts, Augment(mask_share=0.25), 64, seed=0)
    assert np.bincount(masked[0]).tolist() == [5, 1]


def test_words_are_drawn_as_often_as_the_model_likes_them(tiny):
    """Sampling that forgot the temperature, or drew from words that may not stand there, would still look random."""
    model = tiny("bert")
    vocabulary = Vocabulary.from_model(model)
    ids = torch.tensor(
        [
            [
                *model.tokenizer.special_tokens(1).specials[0],
                model.tokenizer.mask_id,
                *model.tokenizer.special_tokens(1).specials[1],
            ]
        ]
    )
    with torch.no_grad():
        scores = model.model(ids).logits[0, 1] / 0.9
    may = vocabulary.usable & vocabulary.starts
    expected = torch.softmax(scores.masked_fill(~torch.from_numpy(may), -torch.inf), -1).numpy()
    result = rewrite(model, ["good"] * 4000, Augment(mask_share=0.9), 16, seed=0)
    best = int(expected.argmax())
    share = np.mean([text == vocabulary.surface[best] for text in result])
    assert share == pytest.approx(float(expected[best]), abs=4 * float(expected[best] / 4000) ** 0.5)
    assert set(result) <= {vocabulary.surface[n] for n in np.flatnonzero(may)}


@pytest.fixture(scope="session")
def marian(tmp_path_factory):
    """A tiny translation model, as a folder."""
    from transformers import MarianConfig, MarianMTModel

    folder, tokenizer = tmp_path_factory.mktemp("marian"), byte_bpe()
    torch.manual_seed(0)
    size = {f"{part}_{name}": 2 for part in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    config = MarianConfig(
        vocab_size=len(tokenizer), d_model=16, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=48,
        pad_token_id=1, eos_token_id=2, bos_token_id=0, decoder_start_token_id=1, num_beams=4, **size,
    )  # fmt: skip
    MarianMTModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_a_text_goes_there_and_back_the_same_way_for_the_same_seed(marian):
    model = Translator(marian, "cpu")
    result = backtranslate(model, model, TEXTS, SAMPLING, seed=3)
    assert result == backtranslate(model, model, TEXTS, SAMPLING, seed=3)
    assert result != backtranslate(model, model, TEXTS, SAMPLING, seed=4)
    assert result[1] == ""
    assert all(result[row] for row in (0, 2, 3, 4))
    assert result[0] != TEXTS[0]


def mean_log_probability(model, text_ids, ids, temperature):
    """One sequence by itself: each token's probability, up to the first end token."""
    end, pad = model.config.eos_token_id, model.config.pad_token_id
    tokens = ids.tolist()
    tokens = tokens[: tokens.index(end) + 1] if end in tokens else tokens
    with torch.no_grad():
        scores = model(input_ids=text_ids[None], decoder_input_ids=torch.tensor([tokens[:-1]])).logits[0] / temperature
    scores[:, pad] = -torch.inf
    logs = torch.log_softmax(scores, -1)
    return float(np.mean([logs[step, token].item() for step, token in enumerate(tokens[1:])]))


def test_the_most_probable_of_the_sampled_translations_is_taken(marian, monkeypatch):
    """Samples end at different lengths; what stands behind the end, whose score is -inf, must not count."""
    translator, sampled = Translator(marian, "cpu"), []
    model = translator.model
    model.final_logits_bias[0, model.config.eos_token_id] = 5.0  # or random weights never end a text
    model.generation_config.bad_words_ids = [[model.config.pad_token_id]]  # as Marian's models have it
    generate = model.generate
    monkeypatch.setattr(model, "generate", lambda **kw: sampled.append(generate(**kw)) or sampled[-1])
    texts = ["a game for children", "mail server"]
    result = translator.translate(texts, Sampling(0.9, 6), seed=1)
    assert sampled[0].shape[0] == 12
    assert len({(row != model.config.pad_token_id).sum().item() for row in sampled[0]}) > 1
    for row, text in enumerate(texts):  # a single batch, the longer text first
        candidates = sampled[0][6 * row : 6 * row + 6]
        text_ids = torch.tensor(translator.tokenizer(text)["input_ids"])
        means = [mean_log_probability(model, text_ids, ids, 0.9) for ids in candidates]
        best = translator.tokenizer.decode(candidates[int(np.argmax(means))], skip_special_tokens=True)
        assert result[row] == best.strip()


def test_texts_are_translated_in_batches_of_like_length_and_come_back_in_their_order(marian, monkeypatch):
    """Padding to the longest of all would cost most of the time; an order that is lost would pair rows at random."""
    model, widths, done = Translator(marian, "cpu"), [], []
    texts = [" ".join(["game"] * count) for count in (3, 30, 1, 0, 12, 2, 29, 11, 1)]
    lengths = [len(ids) for ids in model.tokenizer(texts)["input_ids"]]
    monkeypatch.setitem(backtranslation.TOKENS_PER_BATCH, "cpu", 64)

    def echo(input_ids, logits_processor, **_):
        widths.append(tuple(input_ids.shape))
        logits_processor[0](input_ids, torch.zeros(len(input_ids), model.model.config.vocab_size))
        return input_ids

    monkeypatch.setattr(model.model, "generate", echo)
    assert model.translate(texts, Sampling(0.9, 1), seed=0, advance=done.append) == texts
    assert all(rows * width <= 64 or rows == 1 for rows, width in widths)
    assert [width for _, width in widths] == sorted((width for _, width in widths), reverse=True)
    assert widths[0][1] == max(lengths)
    assert sum(rows for rows, _ in widths) == len(texts) - 1  # the empty one is left out
    assert sum(done) == len(texts)
    assert sum(rows * width for rows, width in widths) < 0.7 * len(texts) * max(lengths)


@pytest.mark.parametrize(
    ("device", "settings", "dtype"),
    [
        ("cpu", [], torch.float32),
        ("cuda", [], torch.bfloat16),
        ("cuda", ["precision=float32"], torch.float32),
        ("cpu", ["precision=bf16"], torch.bfloat16),
    ],
)
def test_translation_models_compute_in_the_recipe_s_precision(marian, monkeypatch, device, settings, dtype):
    loaded = []
    monkeypatch.setattr(augmentation, "Translator", lambda name, *rest: loaded.append((name, *rest)) or name)
    monkeypatch.setattr(augmentation, "backtranslate", lambda forward, back, texts, *_: [f"{forward} {back}", *texts])
    pairs = f"augment.backtranslation=[['{marian}', 'b'], ['c', '{marian}']]"
    monkeypatch.setattr(augmentation, "model_key", lambda name: name)
    plan = SimpleNamespace(recipe=load_recipe("paper", [pairs, *settings]))
    augmenter = make_augmenter(plan, device)
    assert loaded == []
    assert augmenter.augment(1, ["x"], 0, lambda count: None) == [f"c {marian}", "x"]
    # all at once: a pair that cannot be loaded must not be discovered after hours of translation by the first
    assert loaded == [(name, device, dtype) for name in (marian, "b", "c", marian)]
    assert ("precision" in augmenter.key) == (dtype == torch.bfloat16)


def test_a_model_in_bf16_translates(marian):
    model = Translator(marian, "cpu", torch.bfloat16)
    assert model.model.dtype == torch.bfloat16
    result = backtranslate(model, model, TEXTS, SAMPLING, seed=3)
    assert result[1] == ""
    assert all(result[row] for row in (0, 2, 3, 4))


def test_a_translation_model_that_is_not_there_is_one_sentence_with_the_ways_out(tiny_folder):
    for name in ("Helsinki-NLP/opus-mt-en-de", str(tiny_folder("bert"))):
        with pytest.raises(
            ClozifyError, match="translation model .* cannot be loaded .*augment.method=rewriting"
        ) as error:
            Translator(name, "cpu")
        assert len(error.value.problems) == 1


TASK = """
name = "t"
fields = ["title", "text"]
patterns = ["It was {mask}. {text}"]
[labels]
1 = "bad"
2 = "good"
"""


@pytest.fixture
def plan(tmp_path):
    """A plan with ten unlabelled rows of which the first was taken out, and paraphrases as given."""
    pd.DataFrame({"key": list("abcdefghij"), "title": "t", "text": [f"row {n}" for n in range(10)]}).to_csv(
        tmp_path / "unlabeled.csv", index=False
    )

    def make(paraphrases, task_id="", share=1.0):
        task = parse_task(task_id + TASK)
        pd.DataFrame(paraphrases).to_csv(tmp_path / "other.csv", index=False)
        unlabeled_rows = read_rows(tmp_path / "unlabeled.csv", task).select(np.arange(1, 10))
        recipe = load_recipe("paper", [f"augment.share={share}"])
        result = read_paraphrases(tmp_path / "other.csv", task)
        warned: list[str] = []
        return SimpleNamespace(
            task=task, recipe=recipe, unlabeled=unlabeled_rows, paraphrases=result, warnings=warned, warn=warned.append
        )

    return make


def join(plan):
    return join_paraphrases(plan, plan.paraphrases, plan)


def messages(result):
    return list(
        zip(result.unlabeled.texts("text"), *(version.texts("text") for version in result.versions), strict=True)
    )


def test_paraphrases_by_order_follow_the_unlabelled_data_s_file_also_where_rows_were_taken_out(plan):
    """Counted among the rows that are left, every paraphrase would belong to its neighbour."""
    other = {"title": "t", "text": [f"other {n}" for n in range(10)] + [f"third {n}" for n in range(10)]}
    result = join(plan(other))
    assert messages(result) == [(f"row {n}", f"other {n}", f"third {n}") for n in range(1, 10)]
    assert "other.csv" in result.description


def test_paraphrases_by_id_may_be_several_a_row_and_lack_rows(plan):
    other = {"key": ["d", "b", "d", "zz"], "title": "t", "text": ["D", "B", "D2", "-"]}
    inputs = plan(other, 'id = "key"\n')
    assert messages(join(inputs)) == [("row 1", "B", "B"), ("row 3", "D", "D2")]
    assert inputs.warnings == ["7 unlabelled rows have no paraphrase and are left out."]
    numbered = {"id": [5, 2], "title": "t", "text": ["F", "C"]}  # the row's number in the file, from 0
    assert messages(join(plan(numbered))) == [("row 2", "C"), ("row 5", "F")]


def test_half_of_the_unlabelled_data_is_used_where_the_paper_halves_it(plan):
    other = {"title": "t", "text": [f"other {n}" for n in range(10)]}
    result = messages(join(plan(other, share=0.5)))
    assert len(result) == 4
    assert all(new == f"other {old[4:]}" for old, new in result)
    assert result == messages(join(plan(other, share=0.5)))


@pytest.mark.parametrize(
    ("other", "task_id", "part"),
    [
        ({"title": "t", "text": ["a"] * 9}, "", "has 9 paraphrases for 10 rows"),
        ({"key": ["y", "z"], "title": "t", "text": ["a", "b"]}, 'id = "key"\n', "No unlabelled row has a paraphrase"),
        ({"title": "", "text": ["a"] * 4 + [""] + ["a"] * 5}, "", "The paraphrase in row 5 of .* is empty"),
        ({"title": "t", "txt": ["a"] * 10, "more": 1}, "", "lacks the column 'text'"),
    ],
)
def test_paraphrases_that_do_not_fit_are_one_sentence(plan, other, task_id, part):
    with pytest.raises(ClozifyError, match=part) as error:
        join(plan(other, task_id))
    assert len(error.value.problems) == 1


def test_every_way_has_a_name_for_the_result(plan):
    inputs = plan({"title": "t", "text": ["a"] * 10})
    inputs.model = "builtin"
    assert "'Helsinki-NLP/opus-mt-en-ru' and 'Helsinki-NLP/opus-mt-ru-en'" in make_augmenter(inputs, "cpu").description
    inputs.recipe = load_recipe("quick")
    assert (
        make_augmenter(inputs, "cpu").description
        == "rewriting 15% of the tokens by the masked language model 'builtin'"
    )
