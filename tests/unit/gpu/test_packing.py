"""The last feed-forward network of a padding-free batch runs at the positions that are read alone."""

import numpy as np
import pytest
import torch

from clozify.gpu.features import without
from clozify.gpu.packing import encode_packed, pack
from clozify.models.frozen_layers import last_attention
from clozify.prompts.encode import Batch


@pytest.mark.parametrize("architecture", ["bert", "roberta", "electra"])
def test_states_and_gradients_at_few_positions_are_those_of_all_positions(architecture, tiny):
    model = tiny(architecture)
    encoder = model.model.base_model.eval()
    ids = model.sample_ids(24).reshape(3, 8)
    batch = Batch(np.arange(3), ids, np.ones_like(ids), np.zeros_like(ids), np.zeros(3, np.int64))
    packed = pack(batch, model.tokenizer.pad_id)
    inputs = {name: torch.from_numpy(array) for name, array in packed.arrays.items()}
    positions = torch.tensor([17, 3, 3, 9])
    computed = []
    attention = last_attention(encoder)
    hook = encoder.encoder.layer[-1].intermediate.register_forward_hook(
        lambda _, __, out: computed.append(out.shape[1])
    )
    results = []
    for early in (None, attention):
        states = encode_packed(encoder, inputs, model.has_token_types, 8, positions, early)
        states.sin().sum().backward()
        results.append([states.detach(), *(p.grad.clone() for p in encoder.parameters() if p.grad is not None)])
        encoder.zero_grad()
    hook.remove()
    assert computed == [24, 4]
    assert not attention._forward_hooks
    assert len(results[0]) == len(results[1]) > 10
    for one, other in zip(*results, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_whether_the_last_layer_gathers_is_tried_with_the_model(tiny):
    model = tiny("roberta")
    assert model.supports_packing
    assert model._gathers_early
    other = type(model)(model.model, model.tokenizer.hf_tokenizer, "roberta")
    with without("gather_last_layer"):
        assert other.supports_packing
    assert not other._gathers_early
