"""Words of several tokens: scores at one mask or at several, against Transformers' full forward pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from clozify.config.recipe import Wording, load_recipe
from clozify.config.task import load_task
from clozify.data.in_memory import load_rows
from clozify.methods.finetune import finetune
from clozify.methods.score import score_rows
from clozify.methods.token_by_token import keep_masks, token_by_token_scores
from clozify.models.cloze import load_model
from clozify.models.task_prompts import compile_task
from clozify.prompts.encode import EncodedRows
from clozify.prompts.verbalizer import _mean_weights, label_tokens, word_ids
from clozify.training.loop import TrainingSetup, seed_everything

TASK = load_task(
    {
        "fields": ["text"],
        "patterns": ["It was {mask}. {text}"],
        "labels": {"short": "good", "long": ["unfathomable", "bad"], "longest": "terrible all okay"},
    }
)
AT_ONE_MASK = Wording()
TEXTS = ["Just a screen saver", "a library for sound , all in all", "World"]


def rows():
    return load_rows(TEXTS, TASK)


def scores_of(model, wording):
    prompts = compile_task(model, TASK, wording=wording)
    ((_, scores),) = score_rows(model, prompts, rows())
    return scores[0], prompts


def full_logits(model, batch):
    """Transformers' own forward pass: (batch, width, vocabulary)."""
    inputs = {"input_ids": torch.from_numpy(batch.input_ids), "attention_mask": torch.from_numpy(batch.attention_mask)}
    with torch.no_grad():
        return model.model(**inputs).logits


def encoded(model, prompts):
    columns = prompts.tokenize(model, rows(), 0, len(TEXTS))
    return EncodedRows(prompts.patterns[0].template, columns, 64)


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_at_one_mask_a_word_s_score_is_the_rescaled_mean_of_its_tokens_scores(kind, tiny):
    model = tiny(kind)
    scores, prompts = scores_of(model, Wording())
    template = prompts.patterns[0].template
    batch = encoded(model, prompts).batch(np.arange(3))
    logits = full_logits(model, batch)[torch.arange(3), torch.from_numpy(batch.mask_positions)]  # (rows, vocabulary)
    words = {
        name: word_ids(model.tokenizer, template, name)
        for label in TASK.pairs[0].verbalizer.words.values()
        for name in label
    }
    mean = {name: logits[:, ids].mean(dim=1) for name, ids in words.items()}
    plain = torch.stack([mean["good"], (mean["unfathomable"] + mean["bad"]) / 2, mean["terrible all okay"]], dim=1)
    centre = plain.mean(dim=1)
    scaled = {name: centre + len(ids) ** 0.5 * (mean[name] - centre) for name, ids in words.items()}
    expected = torch.stack(
        [scaled["good"], (scaled["unfathomable"] + scaled["bad"]) / 2, scaled["terrible all okay"]], dim=1
    )
    np.testing.assert_allclose(scores, expected.numpy(), atol=1e-4)


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_at_several_masks_each_token_is_scored_at_its_own(kind, tiny):
    model = tiny(kind)
    scores, prompts = scores_of(model, Wording(several_tokens="masks"))
    template = prompts.patterns[0].template
    longest = max(len(word_ids(model.tokenizer, template, word)) for word in ("unfathomable", "terrible all okay"))
    batch = encoded(model, prompts).batch(np.arange(3))
    assert (batch.input_ids == model.tokenizer.mask_id).sum(axis=1).tolist() == [longest] * 3
    logits = full_logits(model, batch)

    def score(word):
        tokens = word_ids(model.tokenizer, template, word)
        first = torch.from_numpy(batch.mask_positions)
        return torch.stack([logits[torch.arange(3), first + i, token] for i, token in enumerate(tokens)]).mean(dim=0)

    expected = [score("good"), (score("unfathomable") + score("bad")) / 2, score("terrible all okay")]
    np.testing.assert_allclose(scores, torch.stack(expected, dim=1).numpy(), atol=1e-4)


def test_masks_are_filled_from_the_most_to_the_least_probable_token(tiny):
    model = tiny("bert")
    prompts = compile_task(model, TASK, wording=Wording(several_tokens="masks", token_by_token=True))
    batch = encoded(model, prompts).batch(np.arange(3))
    template = prompts.patterns[0].template
    with torch.no_grad():
        words = label_tokens(model.tokenizer, template, TASK.pairs[0].verbalizer)
        scores = token_by_token_scores(model, words, batch)
    tokens = word_ids(model.tokenizer, template, "terrible all okay")
    for row in range(3):
        ids = batch.input_ids[row, : batch.attention_mask[row].sum()].tolist()
        first = ids.index(model.tokenizer.mask_id)
        ids = ids[: first + len(tokens)] + ids[first + batch.masks :]
        missing, total = set(range(len(tokens))), 0.0
        while missing:
            with torch.no_grad():
                logits = model.model(input_ids=torch.tensor([ids])).logits[0].log_softmax(dim=-1)
            best = max(missing, key=lambda i: float(logits[first + i, tokens[i]]))
            total += float(logits[first + best, tokens[best]])
            ids[first + best] = tokens[best]
            missing.remove(best)
        assert scores[row, 2].item() == pytest.approx(total / len(tokens), abs=1e-4)


def test_keep_masks_leaves_out_the_last_masks_of_every_row(tiny):
    model = tiny("bert")
    _, prompts = scores_of(model, Wording(several_tokens="masks"))
    batch = encoded(model, prompts).batch(np.arange(3))
    fewer = keep_masks(batch, 1)
    one_mask = encoded(model, compile_task(model, TASK)).batch(np.arange(3))
    np.testing.assert_array_equal(fewer.input_ids, one_mask.input_ids)
    np.testing.assert_array_equal(fewer.attention_mask, one_mask.attention_mask)


def test_long_words_are_neither_favoured_nor_punished():
    """Made-up labels of 1 to 5 random tokens: each length wins its share of rows with random scores."""
    rng = np.random.default_rng(0)
    lengths = np.repeat([1, 2, 3, 4, 5], 20)
    tokens = iter(range(int(lengths.sum())))
    label_words = [[[next(tokens) for _ in range(length)]] for length in lengths]
    raw = rng.normal(size=(4000, int(lengths.sum()))).astype(np.float32)  # independent scores of all tokens

    def shares(rescale):
        winners = lengths[(raw @ _mean_weights(label_words, raw.shape[1], rescale).T).argmax(axis=1)]
        return np.bincount(winners, minlength=6)[1:] / len(raw)

    assert shares(False)[0] > 0.6  # without rescaling, words of one token win most rows
    np.testing.assert_allclose(shares(True), 0.2, atol=0.04)


def test_one_token_words_have_the_plain_mean_as_before():
    weights = _mean_weights([[[0], [1]], [[2]]], 3, rescale=True)
    np.testing.assert_array_equal(weights, np.array([[0.5, 0.5, 0], [0, 0, 1]], dtype=np.float32))


def train_briefly(model, settings, wording=AT_ONE_MASK, labels=(0, 1, 2)):
    from accelerate import Accelerator

    section = load_recipe("quick", ["finetune_without_lm.max_steps=6", *settings]).finetune_without_lm
    prompts = compile_task(model, TASK, wording=wording)
    setup = TrainingSetup(section, seed_everything(0), Accelerator(cpu=True))
    inputs = encoded(model, prompts), np.array(labels, dtype=np.int16)
    losses = finetune(model, prompts.patterns[0].words[0], *inputs, None, setup)
    ((_, scores),) = score_rows(model, prompts, rows())
    return losses, scores[0]


@pytest.mark.parametrize("wording", [Wording(), Wording(several_tokens="masks")])
def test_training_lowers_the_loss_of_words_of_several_tokens(wording, tiny):
    model = tiny("bert")
    ((_, scores),) = score_rows(model, compile_task(model, TASK, wording=wording), rows())
    unlikely = scores[0].argmin(axis=1)  # the loss of the labels that the model prefers is small by chance
    gentle = ["finetune_without_lm.max_steps=75", "finetune_without_lm.learning_rate=1e-3"]
    losses, _ = train_briefly(model, gentle, wording, unlikely)  # means of 25 steps
    assert losses[-1] < losses[0]


def test_label_offsets_are_learned_kept_with_the_model_and_removed(tiny, tmp_path):
    model = tiny("bert")
    untrained, _ = scores_of(model, Wording())
    settings = ["finetune_without_lm.label_learning_rate=0.1", "finetune_without_lm.learning_rate=1e-12"]
    _, trained = train_briefly(model, settings)
    assert np.abs(trained - untrained).max() > 0.1  # only the offsets were trained
    model.save(tmp_path / "model")
    again, _ = scores_of(load_model(tmp_path / "model", "cpu"), Wording())
    np.testing.assert_allclose(again, trained, atol=1e-5)
    model.remove_label_offsets()
    without, _ = scores_of(model, Wording())
    np.testing.assert_allclose(without, untrained, atol=1e-4)
