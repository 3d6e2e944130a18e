"""The losses as functions of tensors: those of sections 3.1 to 3.3, of UDA, of MixText, and a contrastive one.

A step's loss is the mean of its micro-batches' losses. The rows of all micro-batches share one forward pass, so a mean
within a micro-batch becomes a weighted sum.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional


def cross_entropy(scores: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """L_CE: the mean over rows of -log q(l | x); `weights` (labels,) makes rare labels count more."""
    if weights is None:
        return functional.cross_entropy(scores, labels)
    row_losses = functional.cross_entropy(scores, labels, reduction="none")  # (rows,)
    return (row_losses * weights[labels]).mean()


def binary_cross_entropy(scores: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """The mean over rows of the sum over labels of -t log sigmoid(s) - (1 - t) log(1 - sigmoid(s)).

    For several labels a row; `targets` t, (rows, labels), are 0 and 1 or probabilities. `weights` are (labels,).
    """
    losses = functional.binary_cross_entropy_with_logits(scores, targets.to(scores.dtype), reduction="none")
    return (losses if weights is None else losses * weights).sum(dim=-1).mean()


def label_loss(scores: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """L_CE of label indices, (rows,), or the binary cross-entropy of a label matrix, (rows, labels)."""
    loss = cross_entropy if labels.ndim == 1 else binary_cross_entropy
    return loss(scores, labels, weights)


def label_targets(labels: NDArray[Any]) -> NDArray[Any]:
    """Label indices, or a label matrix, in the data type that `label_loss` takes."""
    return labels.astype(np.int64 if labels.ndim == 1 else np.float32)


def masked_lm_loss(scores: Tensor, tokens: Tensor, counts: Tensor, micro_batches: int) -> Tensor:
    """L_MLM: the mean over micro-batches of the mean of -log M(token | z) over a micro-batch's masked tokens.

    `scores` are (masked, vocabulary), `tokens` (masked,) the original tokens. `counts[i]` is the number of masked
    tokens in token i's micro-batch; `inf` drops a padding token. A micro-batch without a masked token contributes 0.
    """
    if len(tokens) == 0:
        return scores.sum()  # 0, with gradients
    token_losses = functional.cross_entropy(scores, tokens, reduction="none")  # (masked,)
    return (token_losses / counts.to(token_losses.dtype)).sum() / micro_batches


def joint_loss(ce: Tensor, mlm: Tensor, alpha: float) -> Tensor:
    """L = (1 - alpha) L_CE + alpha L_MLM."""
    return (1 - alpha) * ce + alpha * mlm


def contrastive_loss(states: Tensor, labels: Tensor, temperature: float = 0.1) -> Tensor:
    """Supervised contrastive loss (Khosla et al., 2020): the states of rows with the same label are drawn together.

    For each row i with others of its label, P(i): the mean over p in P(i) of -log softmax_a(z_i z_a / temperature)[p],
    where a are all other rows and z the states divided by their norm. `states` are (rows, hidden). With several labels
    a row, `labels` are (rows, labels), and the mean is weighted by the Jaccard index of the two rows' labels.
    """
    z = functional.normalize(states, dim=-1)
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    similarities = (z @ z.T / temperature).masked_fill(itself, -1e9)
    if labels.ndim == 2:
        return _weighted_contrastive_loss(similarities, labels.to(z.dtype))
    same = (labels[:, None] == labels[None]) & ~itself  # (rows, rows)
    log_probabilities = torch.log_softmax(similarities, dim=1).masked_fill(~same, 0)
    counts = same.sum(dim=1)
    row_losses = -log_probabilities.sum(dim=1) / counts.clamp(min=1)  # 0 for a row whose label no other row has
    return row_losses.sum() / (counts > 0).sum().clamp(min=1)


def _weighted_contrastive_loss(similarities: Tensor, labels: Tensor) -> Tensor:
    """The contrastive loss of rows with several labels: (rows, rows), (rows, labels) of 0 and 1."""
    shared = labels @ labels.T
    counts = labels.sum(dim=1)
    weights = shared / (counts[:, None] + counts[None] - shared).clamp(min=1)  # Jaccard; 0 for rows without labels
    weights = weights.masked_fill(torch.eye(len(labels), dtype=torch.bool, device=labels.device), 0)
    totals = weights.sum(dim=1)
    row_losses = -(weights * torch.log_softmax(similarities, dim=1)).sum(dim=1) / totals.clamp(min=1e-6)
    return row_losses.sum() / (totals > 0).sum().clamp(min=1)


def distillation_loss(scores: Tensor, targets: Tensor, temperature: float = 1.0) -> Tensor:
    """The cross-entropy between soft labels and the classifier's distribution, its scores divided by `temperature`."""
    return -(targets * torch.log_softmax(scores / temperature, dim=-1)).sum(dim=-1).mean()


def kl_divergence(target: Tensor, scores: Tensor) -> Tensor:
    """KL(target || softmax(scores)) of each row: (rows, labels) twice -> (rows,)."""
    return functional.kl_div(torch.log_softmax(scores, dim=-1), target, reduction="none").sum(dim=-1)


def annealed_cross_entropy(
    scores: Tensor, labels: Tensor, threshold: float | Tensor, weights: Tensor | None = None
) -> Tensor:
    """L_CE of the rows whose label has a probability of at most `threshold`: training-signal annealing (UDA)."""
    row_losses = functional.cross_entropy(scores, labels, reduction="none")  # (rows,)
    kept = (torch.exp(-row_losses.detach()) <= threshold).to(row_losses.dtype)
    weighted = row_losses if weights is None else row_losses * weights[labels]
    return (weighted * kept).sum() / kept.sum().clamp(min=1)


def sharpen(probabilities: Tensor, temperature: float) -> Tensor:
    """p^(1/T), normalised: sharper below T = 1, flatter above (MixText)."""
    raised = probabilities ** (1 / temperature)
    return raised / raised.sum(dim=-1, keepdim=True)


def entropy_above_margin(scores: Tensor, margin: float) -> Tensor:
    """The mean over rows of max(0, H(softmax(scores)) - margin), in nats (MixText's hinge)."""
    log_probabilities = torch.log_softmax(scores, dim=-1)
    return (-(log_probabilities.exp() * log_probabilities).sum(dim=-1) - margin).clamp(min=0).mean()
