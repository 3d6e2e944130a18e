"""The losses on plain tensors: L_CE, L_MLM and their sum (sections 3.1 and 3.2), distillation (3.3), UDA's, MixText's.

A step's loss is the mean of its micro-batches' losses. The rows of all micro-batches go through the model in one
forward pass, so what was a mean within a micro-batch is a weighted sum here.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def cross_entropy(scores: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """L_CE: the mean over rows of -log q(l | x); `weights` (labels,) makes rare labels count more."""
    if weights is None:
        return functional.cross_entropy(scores, labels)
    each = functional.cross_entropy(scores, labels, reduction="none")  # (rows,)
    return (each * weights[labels]).mean()


def masked_lm_loss(
    scores: Tensor, tokens: Tensor, micro: Tensor, micro_batches: int, counts: Tensor | None = None
) -> Tensor:
    """L_MLM: within each micro-batch the mean of -log M(token | z) over its masked tokens, then their mean.

    `scores` is (masked, vocabulary); `micro` (masked,) says which micro-batch a token belongs to. A micro-batch
    without a masked token counts as 0. `counts` says how many masked tokens each has, where not all of them are here.
    """
    if len(tokens) == 0:
        return scores.new_zeros(())
    each = functional.cross_entropy(scores, tokens, reduction="none")  # (masked,)
    found = torch.bincount(micro, minlength=micro_batches) if counts is None else counts
    counts = found.to(each.dtype)  # (micro_batches,)
    return (each / counts[micro]).sum() / micro_batches


def joint_loss(ce: Tensor, mlm: Tensor, alpha: float) -> Tensor:
    """L = (1 - alpha) L_CE + alpha L_MLM."""
    return (1 - alpha) * ce + alpha * mlm


def distillation_loss(scores: Tensor, targets: Tensor, temperature: float = 1.0) -> Tensor:
    """The cross-entropy between soft labels and the classifier's distribution, its scores divided by `temperature`."""
    return -(targets * torch.log_softmax(scores / temperature, dim=-1)).sum(dim=-1).mean()


def kl_divergence(target: Tensor, scores: Tensor) -> Tensor:
    """KL(target || softmax(scores)) of each row: (rows, labels) twice -> (rows,)."""
    return functional.kl_div(torch.log_softmax(scores, dim=-1), target, reduction="none").sum(dim=-1)


def annealed_cross_entropy(scores: Tensor, labels: Tensor, most: float, weights: Tensor | None = None) -> Tensor:
    """L_CE of the rows whose label has a probability of at most `most`: training-signal annealing (UDA)."""
    each = functional.cross_entropy(scores, labels, reduction="none")  # (rows,)
    kept = (torch.exp(-each.detach()) <= most).to(each.dtype)
    weighted = each if weights is None else each * weights[labels]
    return (weighted * kept).sum() / kept.sum().clamp(min=1)


def sharpened(probabilities: Tensor, temperature: float) -> Tensor:
    """p^(1/T), normalised: sharper below T = 1, flatter above (MixText)."""
    raised = probabilities ** (1 / temperature)
    return raised / raised.sum(dim=-1, keepdim=True)


def entropy_above_margin(scores: Tensor, margin: float) -> Tensor:
    """The mean over rows of max(0, H(softmax(scores)) - margin), in nats (MixText's hinge)."""
    logs = torch.log_softmax(scores, dim=-1)
    return (-(logs.exp() * logs).sum(dim=-1) - margin).clamp(min=0).mean()
