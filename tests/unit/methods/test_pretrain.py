"""In-domain pretraining on hand-made blocks: how texts are packed, what is masked, what a step learns from."""

import numpy as np
import pytest
import torch

from clozify.config.recipe import Pretrain
from clozify.errors import TrainingError
from clozify.methods import pretrain as step
from clozify.models.cloze import load_model
from clozify.pipeline.pretrain import pack

TEXTS = [["a game for children", "", "mail server"], ["utility for analysis of data"] * 9]
KINDS = ["bert", "roberta", "xlm-roberta"]


@pytest.fixture(autouse=True)
def _one_thread():
    """Models this small only wait for their threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def settings(**changes):
    return Pretrain(**({"max_steps": 4, "block_size": 24} | changes))


def some_blocks(model, count=12, size=24):
    inner = np.random.default_rng(0).integers(10, 500, (count, size - 2)).astype(np.int32)
    first, last = model.tokenizer.special_tokens(1).specials
    ends = [np.full((count, 1), ids[0], dtype=np.int32) for ids in (first, last)]
    return np.concatenate([ends[0], inner, ends[1]], axis=1)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_full_and_hold_the_texts_end_to_end_with_a_separator_between(kind, tiny, tmp_path):
    """Padding or a lost stretch of text would go unseen: the loss would only be a little worse."""
    tokenizer = tiny(kind).tokenizer
    blocks, total = pack(tokenizer, TEXTS, 12, tmp_path / "blocks")
    first, last = tokenizer.special_tokens(1).specials
    assert blocks.shape[1] == 12
    assert (blocks[:, 0] == first[0]).all()
    assert (blocks[:, -1] == last[0]).all()
    texts = [tokenizer.encode(text) for stretch in TEXTS for text in stretch if text]
    assert total == sum(map(len, texts))
    stream = [token for text in texts for token in [*text, *last]]
    result = blocks[:, 1:-1].ravel().tolist()
    assert result == stream[: len(result)]
    assert len(stream) - len(result) < 10


def test_packing_does_not_depend_on_how_many_texts_are_read_at_a_time(tiny, tmp_path):
    tokenizer = tiny().tokenizer
    together, _ = pack(tokenizer, [[text for stretch in TEXTS for text in stretch]], 12, tmp_path / "a")
    assert np.array_equal(together, pack(tokenizer, TEXTS, 12, tmp_path / "b")[0])


def test_special_tokens_are_never_masked_and_a_share_of_the_others_is(tiny):
    """A model that learns to predict separators looks better than it is."""
    model = tiny()
    blocks = some_blocks(model, 200)
    items = step._MaskedBlocks(blocks, np.arange(200), model.tokenizer, 0.15, (42, 0))
    labels = torch.stack([items[number]["labels"] for number in range(200)])
    options = labels != step.IGNORED
    assert not options[:, [0, -1]].any()
    assert 0.12 < options[:, 1:-1].float().mean() < 0.18
    assert torch.equal(labels[options], torch.from_numpy(blocks.astype(np.int64))[options])


def test_a_mask_depends_on_the_seed_and_the_draw_alone(tiny):
    """Else a resumed training would mask other tokens than one that was never stopped."""
    model = tiny()
    blocks = some_blocks(model)
    order = np.array([3, 1, 3])
    items = step._MaskedBlocks(blocks, order, model.tokenizer, 0.5, (42, 0))
    seen = [items[number]["input_ids"] for number in (0, 1, 2)]
    torch.manual_seed(7)
    assert torch.equal(items[2]["input_ids"], seen[2])
    assert not torch.equal(seen[0], seen[2])  # the same block, another draw
    other = step._MaskedBlocks(blocks, order, model.tokenizer, 0.5, (43, 0))
    assert not torch.equal(other[0]["input_ids"], seen[0])


@pytest.mark.parametrize("kind", KINDS)
def test_the_held_out_loss_is_the_models_own_loss(kind, tiny_folder, tmp_path):
    """The head reads only the masked tokens; it must score them as the whole model would."""
    model = load_model(tiny_folder(kind))
    blocks, held_out = some_blocks(model), np.array([2, 5])
    result = step.pretrain(model, blocks, held_out, settings(max_steps=0), 42, tmp_path)
    assert result.before == result.after
    items = step._MaskedBlocks(blocks, held_out, model.tokenizer, 0.15, (42, 1))
    batch = {name: torch.stack([items[0][name], items[1][name]]) for name in ("input_ids", "labels")}
    with torch.no_grad():
        assert model.model(**batch).loss.item() == pytest.approx(result.before, abs=1e-4)


def test_two_micro_batches_make_the_same_step_as_their_blocks_in_one(tiny_folder, tmp_path):
    """The Trainer leaves the division to models that take any keyword: gradients would be twice as large."""
    weights = []
    for number, (size, accumulated) in enumerate([(4, 1), (1, 4)]):
        model = load_model(tiny_folder("bert"), attention_dropout=0.0)
        for module in model.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        how = settings(
            max_steps=1,
            per_gpu_train_batch_size=size,
            gradient_accumulation_steps=accumulated,
            mlm_probability=0.999,  # so that every block has as many tokens to predict
            max_grad_norm=1e9,
            adam_epsilon=1e6,  # so that a step is in proportion to its gradient
            learning_rate=1e6,
        )
        step.pretrain(model, some_blocks(model), np.array([0]), how, 42, tmp_path / str(number))
        weights.append(torch.cat([parameter.detach().ravel() for parameter in model.model.parameters()]))
    before = torch.cat([parameter.detach().ravel() for parameter in load_model(tiny_folder("bert")).model.parameters()])
    moved = [after - before for after in weights]
    assert moved[0].abs().max() > 1e-3
    assert torch.allclose(*moved, atol=5e-2 * moved[0].abs().max().item())


def test_training_learns_and_never_reads_the_held_out_blocks(tiny_folder, tmp_path, monkeypatch):
    seen = []
    get = step._MaskedBlocks.__getitem__

    def spy(self, number):
        if self.seed[-1] == 0:
            seen.append(int(self.order[number]))
        return get(self, number)

    monkeypatch.setattr(step._MaskedBlocks, "__getitem__", spy)
    model = load_model(tiny_folder("bert"))
    lines = []
    how = settings(max_steps=30, learning_rate=3e-3)
    result = step.pretrain(model, some_blocks(model), np.array([2, 5]), how, 42, tmp_path, lines.append)
    assert result.losses[-1][1] < result.losses[0][1]
    assert [number for number, _ in result.losses] == [25, 30]
    assert set(seen) == set(range(12)) - {2, 5}
    assert len(seen) == 30 * how.rows_per_step  # however few blocks there are
    assert any(line.startswith("step 30 of 30  loss ") for line in lines)


def test_a_block_without_a_masked_token_is_no_loss_that_is_no_number(tiny_folder, tmp_path):
    model = load_model(tiny_folder("bert"))
    how = settings(mlm_probability=0.01, per_gpu_train_batch_size=1)
    result = step.pretrain(model, some_blocks(model, size=8), np.array([2]), how, 42, tmp_path)
    assert np.isfinite(result.after)


def test_a_loss_that_is_no_number_ends_with_a_sentence_and_leaves_no_checkpoint(tiny_folder, tmp_path):
    """The Trainer itself hides such a loss behind the mean of earlier ones."""
    model = load_model(tiny_folder("bert"))
    how = settings(learning_rate=1e30, max_steps=6, max_grad_norm=1e9)
    with pytest.raises(TrainingError, match="pretrain.learning_rate"):
        step.pretrain(model, some_blocks(model), np.array([2]), how, 42, tmp_path, save_every=3)
    assert not list(tmp_path.glob("checkpoint-*"))
