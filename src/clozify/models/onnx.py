"""A classifier that was exported to ONNX, in the place of the PyTorch model.

In: a folder that `clozify export` wrote. Out: an object that a `Classifier` calls as it calls a model of Transformers;
ONNX Runtime does the work.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from clozify.errors import ModelError, require_package

ONNX_FILE = "model.onnx"
EXPORT_FILE = "export.json"
OUTPUT = "logits"


class OnnxModel:
    """An ONNX graph from token ids to scores."""

    device = torch.device("cpu")

    def __init__(self, folder: Path) -> None:
        require_package("onnxruntime", "onnx", "A model in ONNX")
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.enable_mem_pattern = False  # it keeps a plan for every shape it meets, and ours are all shapes
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # others want the cores too
        try:
            self.session = onnxruntime.InferenceSession(
                str(folder / ONNX_FILE), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # whatever is wrong with the file, a person sees what and where
            reason = " ".join(str(error).split())[:300]
            raise ModelError(
                f"The model in '{folder}' cannot be loaded: {reason}; export it again with clozify export."
            ) from error
        self.input_names = [given.name for given in self.session.get_inputs()]
        self.config = SimpleNamespace(type_vocab_size=2 if "token_type_ids" in self.input_names else 0)

    def eval(self) -> OnnxModel:
        """A graph has no training mode."""
        return self

    def __call__(self, **inputs: Tensor) -> Any:
        """Scores as `.logits`, (batch, labels)."""
        (scores,) = self.session.run([OUTPUT], {name: tensor.numpy() for name, tensor in inputs.items()})
        return SimpleNamespace(logits=torch.from_numpy(scores))
