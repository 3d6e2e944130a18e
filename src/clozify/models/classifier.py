"""C of the paper: an ordinary sequence classifier on the rows' fields (section 3.3, step 3).

In: a name or folder of a model and a task. Out: a `Classifier` that trains, scores rows, and is saved as a Hugging
Face folder that `transformers.pipeline("text-classification")` loads. One field is the text, the last of several is
its `text_pair`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clozify.config.pattern import Pattern, Segment, Slot
from clozify.config.recipe import Recipe
from clozify.config.task import Task, load_task
from clozify.data.rows import Rows
from clozify.errors import ModelError
from clozify.gpu.attention_mask import accepts_additive_mask, additive_mask
from clozify.gpu.cuda_graphs import CapturableStep, pad_last_axis, padded_width
from clozify.gpu.packing import encode_packed, pack, supports_packing
from clozify.models.cloze import BUILTIN, PrecomputedEncoder, max_positions_of, set_attention_dropout
from clozify.models.onnx import ONNX_FILE, OnnxModel
from clozify.prompts.encode import Batch, EncodedRows, compile_segments, forward_batches
from clozify.prompts.tokenizer import PromptTokenizer
from clozify.utils import libraries
from clozify.utils.process_group import current_group

TASK_FILE = "task.toml"


def field_segments(task: Task) -> list[Segment]:
    """The classifier's input: all fields but the last, and the last; or the only one."""
    *first, last = task.fields
    if not first:
        return [(Slot(last),)]
    parts: list[str | Slot] = []
    for field in first:
        parts += [" ", Slot(field)] if parts else [Slot(field)]
    return [tuple(parts), (Slot(last),)]


class Classifier:
    """A sequence classifier for one task."""

    def __init__(self, model: Any, tokenizer: Any, task: Task, max_length: int) -> None:
        libraries.stable_kernels()
        self.model = model.eval()
        self.task = task
        self.tokenizer = PromptTokenizer(tokenizer)
        self.max_length = max_length
        segments = field_segments(task)
        self.template = compile_segments(Pattern("the fields"), segments, self.tokenizer)
        self._typed = getattr(model.config, "type_vocab_size", 0) > 1

    @property
    def input_names(self) -> list[str]:
        """What the model reads of a batch."""
        return ["input_ids", "attention_mask"] + (["token_type_ids"] if self._typed else [])

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = self.model.device
        return device

    def encode(self, rows: Rows, start: int = 0, stop: int | None = None) -> EncodedRows:
        """Rows as the classifier reads them."""
        return self.encode_texts({field: rows.texts(field, start, stop) for field in self.task.fields})

    def encode_texts(self, texts: Mapping[str, list[str]]) -> EncodedRows:
        """Each field's texts, cleaned as `Rows` cleans them."""
        columns = {c: c.tokenize(self.tokenizer, texts[c.slot.field]) for c in self.template.fields}
        return EncodedRows(self.template, columns, self.max_length)

    def scores(self, batch: Batch, together: bool = False) -> Tensor:
        """Raw scores of the labels: (batch, labels); `together`, all rows go through the model in one forward pass."""
        lengths = batch.attention_mask.sum(axis=1)
        groups, parts = [], []
        device = "cuda" if together else self.device.type  # a GPU takes all rows at once
        for group, inputs in forward_batches(batch, lengths, device, self.tokenizer.pad_id, self._typed):
            given = {name: torch.from_numpy(array).to(self.device) for name, array in inputs.items()}
            with libraries.without_cudnn_attention():
                parts.append(self.model(**given).logits)
            groups.append(group)
        order = torch.from_numpy(np.argsort(np.concatenate(groups))).to(self.device)
        return torch.cat(parts)[order]

    def capturable_step(
        self,
        drawn: Callable[[], tuple[Batch, dict[str, NDArray[Any]]]],
        loss: Callable[[Tensor, Any], Tensor],
        in_line: bool = False,
    ) -> CapturableStep:
        """A training step in shapes that come again and again; `loss` takes the scores and what `drawn` gave beside.

        Rows are padded to a few widths, or lie in one line, padded to a few lengths.
        """
        names, adds_mask = self.input_names, accepts_additive_mask(self.model.base_model, self.tokenizer.pad_id)

        def arrays() -> dict[str, NDArray[Any]]:
            batch, beside = drawn()
            if in_line:
                packed = pack(batch, self.tokenizer.pad_id, pad_length=True)
                return packed.arrays | {"start": packed.start} | beside
            width = padded_width(batch.input_ids.shape[1], self.max_length)
            fill = {"input_ids": self.tokenizer.pad_id}
            return {name: pad_last_axis(getattr(batch, name), width, fill.get(name, 0)) for name in names} | beside

        def loss_of(inputs: Mapping[str, Tensor]) -> Tensor:
            if in_line:
                return loss(self._scores_of_packed(inputs), inputs)
            given = {name: inputs[name] for name in names}
            if adds_mask:
                given["attention_mask"] = additive_mask(given["attention_mask"], self.model.base_model)
            return loss(self.model(**given).logits, inputs)

        return CapturableStep(arrays, loss_of)

    def _scores_of_packed(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """The head reads each row's first state, wherever it lies in the line: (rows, labels)."""
        hidden = encode_packed(self.model.base_model, inputs, self._typed, self.max_length)
        first = hidden[inputs["start"]][:, None]  # (rows, 1, hidden)
        scores: Tensor = self._head(inputs_embeds=first).logits
        return scores

    @cached_property
    def _head(self) -> Any:
        """The model with its encoder replaced by states computed before."""
        head = copy.copy(self.model)
        head._modules = dict(self.model._modules)
        head._modules[self.model.base_model_prefix] = PrecomputedEncoder(self.model.base_model)
        return head

    @cached_property
    def supports_packing(self) -> bool:
        """Whether the model scores rows in a line as it scores them by themselves."""
        if not supports_packing(self.model.base_model, self._typed, self.tokenizer.pad_id):
            return False
        ids = np.arange(16, dtype=np.int64).reshape(2, 8) + self.tokenizer.pad_id + 1
        batch = Batch(np.arange(2), ids, np.ones_like(ids), np.zeros_like(ids), np.zeros(2, dtype=np.int64))
        packed = pack(batch, self.tokenizer.pad_id)
        arrays = packed.arrays | {"start": packed.start}
        inputs = {name: torch.from_numpy(array).to(self.device) for name, array in arrays.items()}
        try:
            with torch.inference_mode():
                return torch.allclose(self._scores_of_packed(inputs), self.scores(batch), atol=1e-3)
        except (AttributeError, RuntimeError, ValueError, IndexError, TypeError):
            return False

    @torch.inference_mode()
    def score_rows(
        self, rows: Rows, token_budget: int, advance: Callable[[int], None] = lambda count: None
    ) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield `(start, scores)` for consecutive stretches of rows; scores are (rows, labels)."""
        self.model.eval()
        for start, stop in rows.chunks():
            encoded = self.encode(rows, start, stop)
            scores = np.zeros((stop - start, len(self.task.labels)), dtype=np.float32)
            for number, batch in enumerate(encoded.batches(token_budget)):
                if current_group().owns_batch(number):
                    scores[batch.rows] = self.scores(batch).float().cpu().numpy()
                advance(len(batch.rows))
            yield start, current_group().sum_arrays(scores)

    @libraries.quiet_transformers()
    def save(self, folder: Path) -> None:
        """An ordinary Hugging Face folder, with the task beside it; the tokenizer remembers the length."""
        self.model.save_pretrained(folder)
        tokenizer = self.tokenizer.hf_tokenizer
        tokenizer.model_max_length = self.max_length
        if self._typed and "token_type_ids" not in tokenizer.model_input_names:  # else a pipeline would not make them
            names = [*tokenizer.model_input_names, "token_type_ids"]
            tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = names
        tokenizer.save_pretrained(folder)
        self.task.save(folder / TASK_FILE)


@libraries.quiet_transformers()
def new_classifier(name: str | Path, task: Task, recipe: Recipe, device: str) -> Classifier:
    """A pretrained encoder with a fresh classification head (drawn from torch's present seed)."""
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    place = str(BUILTIN if str(name) == "builtin" else name)
    offline = Path(place).is_dir() or not libraries.hub_reachable()
    numbers = dict(enumerate(task.labels))
    try:
        config = AutoConfig.from_pretrained(
            place,
            num_labels=len(task.labels),
            id2label=numbers,
            label2id={label: number for number, label in numbers.items()},
            local_files_only=offline,
        )
        set_attention_dropout(config, recipe.attention_dropout)
        model = AutoModelForSequenceClassification.from_pretrained(
            place, config=config, dtype=torch.float32, local_files_only=offline
        )
        tokenizer = AutoTokenizer.from_pretrained(place, local_files_only=offline)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"The model '{name}' cannot be loaded as a classifier: {' '.join(str(error).split())}"
        ) from error
    return Classifier(model.to(device), tokenizer, task, min(recipe.max_seq_length, max_positions_of(model, tokenizer)))


@libraries.quiet_transformers()
def load_classifier(folder: Path, device: str) -> Classifier:
    """A classifier that `save` wrote, or one that was exported to ONNX."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    task = load_task(folder / TASK_FILE)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if (folder / ONNX_FILE).is_file():
        return Classifier(OnnxModel(folder), tokenizer, task, tokenizer.model_max_length)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    return Classifier(model.to(device), tokenizer, task, tokenizer.model_max_length)
