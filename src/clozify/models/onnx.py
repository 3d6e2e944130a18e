"""A classifier that `clozify export` wrote, run by ONNX Runtime.

`OnnxModel` is called like a sequence classification model of Transformers, so that `Classifier` takes either.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from clozify.errors import ModelError, require_package
from clozify.models.classifier_folder import ONNX_FILE

OUTPUT = "logits"


class OnnxModel:
    """An ONNX graph from token ids to logits."""

    device = torch.device("cpu")
    training = False

    def __init__(self, folder: Path) -> None:
        require_package("onnxruntime", "onnx", "A model in ONNX")
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.enable_mem_pattern = False  # it would keep a plan for every shape of batch
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # leaves the cores to other threads
        try:
            self.session = onnxruntime.InferenceSession(
                str(folder / ONNX_FILE), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # any fault of the file becomes a message that names the folder
            reason = " ".join(str(error).split())[:300]
            raise ModelError(
                f"The model in '{folder}' cannot be loaded: {reason}; export it again with clozify export."
            ) from error
        has_token_types = "token_type_ids" in [node.name for node in self.session.get_inputs()]
        self.config = SimpleNamespace(type_vocab_size=2 if has_token_types else 0)

    @property
    def base_model(self) -> OnnxModel:
        """Self: encoder and head are one graph."""
        return self

    def eval(self) -> OnnxModel:
        """Return self: a graph has no training mode."""
        return self

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Any:
        """Run the graph; `.logits` of the result is (batch, labels)."""
        tensors = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        arrays = {name: tensor.numpy() for name, tensor in tensors.items() if tensor is not None}
        (logits,) = self.session.run([OUTPUT], arrays)
        return SimpleNamespace(logits=torch.from_numpy(logits))

    __call__ = forward
