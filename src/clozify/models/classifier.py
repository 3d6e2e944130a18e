"""The classifier C of section 3.3, step 3: an ordinary sequence classifier on the task's fields.

It is saved as a Hugging Face folder that `transformers.pipeline("text-classification")` loads. A single field is the
text; the last of several fields is the `text_pair`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clozify.config.pattern import Pattern, Segment, Slot
from clozify.config.recipe import Recipe
from clozify.config.task import Task
from clozify.data.rows import Rows
from clozify.errors import ModelError
from clozify.gpu.cuda_graphs import CapturableStep
from clozify.gpu.fallback import warn_fallback
from clozify.gpu.options import DEFAULT_OPTIONS, GpuOptions
from clozify.gpu.packing import pack
from clozify.models import int8_linear
from clozify.models.classifier_folder import ONNX_FILE, TASK_FILE, check_labels, load_classifier_task
from clozify.models.encoder import Encoder, encoder_without_autocast, head_of, max_positions
from clozify.models.loading import (
    load_config,
    load_pretrained,
    load_tokenizer,
    make_readable,
    set_attention_dropout,
)
from clozify.models.onnx import OnnxModel
from clozify.models.steps import StepInputs, StepLoss
from clozify.prompts.encode import Batch, EncodedRows, Template, compile_segments
from clozify.prompts.tokenizer import PromptTokenizer
from clozify.utils import libraries
from clozify.utils.atomic import atomic_write
from clozify.utils.process_group import current_group

SAMPLE_ROWS, SAMPLE_TOKENS = 8, 32  # that int8 is compared with float32 on
NO_MAX_LENGTH = 10**9  # Transformers has a larger number where a tokenizer has no maximum length


def field_segments(task: Task) -> list[Segment]:
    """The classifier's input: all fields but the last, and the last; or the only one."""
    *first, last = task.fields
    if not first:
        return [(Slot(last),)]
    segment: list[str | Slot] = []
    for field in first:
        segment += [" ", Slot(field)] if segment else [Slot(field)]
    return [tuple(segment), (Slot(last),)]


def classifier_template(task: Task, tokenizer: PromptTokenizer) -> Template:
    """The classifier's input in a model's tokens."""
    return compile_segments(Pattern("the fields"), field_segments(task), tokenizer)


class Classifier(Encoder):
    """A sequence classifier for one task."""

    def __init__(
        self, model: Any, tokenizer: Any, task: Task, max_length: int, options: GpuOptions = DEFAULT_OPTIONS
    ) -> None:
        super().__init__(model, tokenizer, max_length, options)
        self.task = task
        self.precision: Literal["float32", "int8"] = "float32"  # of the encoder's linear layers
        self.template = classifier_template(task, self.tokenizer)

    @property
    def head_modules(self) -> list[nn.Module]:
        """The parts of the model that are not the encoder."""
        return [child for name, child in self.model.named_children() if name != self.model.base_model_prefix]

    def encode(self, rows: Rows, start: int = 0, stop: int | None = None) -> EncodedRows:
        """Rows as the classifier reads them."""
        return self.encode_texts({field: rows.texts(field, start, stop) for field in self.task.fields})

    def encode_texts(self, texts: Mapping[str, list[str]]) -> EncodedRows:
        """The texts of each field, cleaned as `Rows` cleans them, as the classifier reads them."""
        columns = {c: c.tokenize(self.tokenizer, texts[c.slot.field]) for c in self.template.fields}
        return EncodedRows(self.template, columns, self.max_length)

    def scores(self, batch: Batch, one_pass: bool = False) -> Tensor:
        """Raw scores of the labels: (batch, labels); with `one_pass`, all rows run in one forward pass."""
        grouped = self.device.type == "cpu" and not one_pass
        groups, logits = [], []
        lengths, read = batch.attention_mask.sum(axis=1), None
        if self.reads_one_position and self._reads_first_state:
            read = np.zeros(len(batch.rows), dtype=np.int64)
        for group, output in self.forward_passes(self.model, batch, lengths, grouped, read):
            groups.append(group)
            logits.append(output.logits)
        order = torch.from_numpy(np.argsort(np.concatenate(groups))).to(self.device)
        return torch.cat(logits)[order]

    def scores_and_states(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Raw scores, (batch, labels), and the first and the mean of each row's last states, (batch, 2, hidden)."""
        groups, logits, states, hidden = list[NDArray[np.int64]](), list[Tensor](), list[Tensor](), list[Tensor]()
        lengths = batch.attention_mask.sum(axis=1)
        hook = self.model.base_model.register_forward_hook(lambda _, __, output: hidden.append(output[0]))
        try:
            for group, output in self.forward_passes(self.model, batch, lengths, self.device.type == "cpu"):
                groups.append(group)
                logits.append(output.logits)
                last = hidden.pop().float()  # (group, width, hidden)
                in_text = torch.arange(last.shape[1]) < torch.from_numpy(lengths[group])[:, None]
                weights = in_text.to(last.device).float() / in_text.sum(dim=1, keepdim=True).to(last.device)
                states.append(torch.stack([last[:, 0], torch.einsum("rwh,rw->rh", last, weights)], dim=1))
        finally:
            hook.remove()
        order = torch.from_numpy(np.argsort(np.concatenate(groups))).to(self.device)
        return torch.cat(logits)[order], torch.cat(states)[order]

    def start_from(self, probabilities: NDArray[Any]) -> None:
        """Let a new head answer with these probabilities, (labels,), of several labels a row: its bias is their logit.

        From a probability of 0.5 for each label, rare ones would take hundreds of steps to get there.
        """
        if self.output_layer is not None and (layer := self.model.get_submodule(self.output_layer)).bias is not None:
            layer.bias.data.copy_(torch.logit(torch.as_tensor(probabilities, dtype=torch.float32), eps=1e-3))

    @property
    def output_layer(self) -> str | None:
        """The name of the linear layer that computes the labels' scores; None where the model has none."""
        labels = len(self.task.labels)
        layers = [name for name, layer in self.model.named_modules() if _is_linear(layer, labels)]
        return layers[-1] if layers else None

    def capturable_step(
        self, next_inputs: Callable[[], StepInputs], loss: StepLoss, packed: bool = False
    ) -> CapturableStep:
        """A training step for a CUDA graph, on padded or on `packed` batches.

        `loss` takes a function that computes a batch's scores, and the arrays that come with the batches.
        """

        def arrays() -> dict[str, NDArray[Any]]:
            step = next_inputs()
            result = dict(step.arrays)
            for name, batch in step.batches.items():
                inputs, starts = self.fixed_shape_inputs(batch, packed)
                inputs |= {} if starts is None else {"start": starts}
                result |= {f"{name}.{key}": array for key, array in inputs.items()}
            return result

        def loss_of_inputs(inputs: Mapping[str, Tensor]) -> Tensor:
            def scores(name: str, one_pass: bool = True) -> Tensor:  # noqa: ARG001  # always in one pass
                prefix = f"{name}."
                of_batch = {key.removeprefix(prefix): inputs[key] for key in inputs if key.startswith(prefix)}
                return self._packed_scores(of_batch) if packed else self._padded_scores(of_batch)

            return loss(scores, inputs)

        return CapturableStep(arrays, loss_of_inputs)

    def _packed_scores(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """The scores of a padding-free batch, whose head reads each row's first state: (rows, labels)."""
        hidden = self.encode_packed(inputs, self.max_length)  # (tokens, hidden)
        scores: Tensor = self._head(inputs_embeds=hidden[inputs["start"]][:, None]).logits
        return scores

    def _padded_scores(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """The scores of a padded batch of a fixed shape: (rows, labels)."""
        scores: Tensor = self._without_autocast(**self.padded_inputs(inputs)).logits
        return scores

    @property
    def scoring_model(self) -> nn.Module:
        """The model, whose last layer runs at the first token alone where the head reads no other."""
        if self._last_layer is None or not self._reads_first_state:
            return self.model  # type: ignore[no-any-return]
        return self._last_layer.reading(self.model, 0, f"{self.model.base_model_prefix}.")

    @cached_property
    def _without_autocast(self) -> Any:
        return encoder_without_autocast(self.model)

    @cached_property
    def _head(self) -> Any:
        return head_of(self.model)

    @cached_property
    def _reads_first_state(self) -> bool:
        """Whether the head reads each row's first state alone."""
        size = int(self.model.config.hidden_size)
        hidden = torch.linspace(-1, 1, 6 * size, device=self.device).view(2, 3, size)
        training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                scores, of_first = (self._head(inputs_embeds=states).logits for states in (hidden, hidden[:, :1]))
            return torch.allclose(scores, of_first, atol=1e-4)
        except (AttributeError, RuntimeError, ValueError, IndexError, TypeError):
            return False
        finally:
            self.model.train(training)

    def _supports_packing(self) -> bool:
        """Whether padding-free batches give the same scores as padded ones: the head may read one state only."""
        if not super()._supports_packing():
            return False
        ids = self.sample_ids(16).reshape(2, 8)
        batch = Batch(np.arange(2), ids, np.ones_like(ids), np.zeros_like(ids), np.zeros(2, dtype=np.int64))
        packed = pack(batch, self.tokenizer.pad_id)
        inputs = {name: self.to_device(array) for name, array in (packed.arrays | {"start": packed.start}).items()}
        try:
            with torch.inference_mode():
                same = torch.allclose(self._packed_scores(inputs), self.scores(batch), atol=1e-3)
                reason = "" if same else "its head reads more than a row's first state"
        except (AttributeError, RuntimeError, ValueError, IndexError, TypeError) as error:
            reason = f"its head fails with: {error}"
        if reason and self.device.type == "cuda":
            warn_fallback("padding-free batches for the classifier", f"{type(self.model).__name__}: {reason}")
        return not reason

    @torch.inference_mode()
    def score_rows(
        self, rows: Rows, token_budget: int, advance: Callable[[int], None] = lambda count: None
    ) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield `(start, scores)` of consecutive chunks of rows; scores are (rows, labels)."""
        self.model.eval()
        for start, stop in rows.chunks():
            encoded = self.encode(rows, start, stop)
            scores = np.zeros((stop - start, len(self.task.labels)), dtype=np.float32)
            for index, batch in enumerate(self.batches(encoded, token_budget)):
                if current_group().owns_batch(index):
                    scores[batch.rows] = self.scores(batch).float().cpu().numpy()
                advance(len(batch.rows))
            yield start, current_group().sum_arrays(scores)

    @torch.inference_mode()
    def embed_rows(
        self, rows: Rows, token_budget: int, advance: Callable[[int], None] = lambda count: None
    ) -> Iterator[tuple[int, NDArray[np.float32], NDArray[np.float32]]]:
        """Yield `(start, scores, states)` of consecutive chunks of rows, as `scores_and_states` has them."""
        self.model.eval()
        for start, stop in rows.chunks():
            encoded = self.encode(rows, start, stop)
            scores = np.zeros((stop - start, len(self.task.labels)), dtype=np.float32)
            states = np.zeros((stop - start, 2, int(self.model.config.hidden_size)), dtype=np.float32)
            for batch in self.batches(encoded, token_budget):
                batch_scores, batch_states = self.scores_and_states(batch)
                scores[batch.rows] = batch_scores.float().cpu().numpy()
                states[batch.rows] = batch_states.cpu().numpy()
                advance(len(batch.rows))
            yield start, scores, states

    def batches(self, encoded: EncodedRows, token_budget: int) -> Iterator[Batch]:
        """All rows, sorted by length, in batches of at most `token_budget` tokens; in int8, small ones are faster."""
        return encoded.batches(min(token_budget, int8_linear.MAX_TOKENS) if self.precision == "int8" else token_budget)

    def use_precision(self, requested: str) -> None:
        """Score in int8 from now on if that is requested, or with "auto" where it is faster and close to float32.

        The float32 weights are dropped, so this is for finished classifiers.
        """
        if requested == "float32":
            return
        if isinstance(self.model, OnnxModel) or self.device.type != "cpu":
            problem = "only PyTorch models on a CPU do"
        else:
            batch = self._sample_batch()
            problem = int8_linear.use_int8(self.encoder, lambda: self.scores(batch), requested == "int8")
        if not problem:
            self.precision = "int8"
        elif requested == "int8":
            raise ModelError(f"This classifier cannot run in int8 here: {problem}; choose the precision 'float32'.")

    def _sample_batch(self) -> Batch:
        """Rows of random tokens, the same ones each time."""
        rng = np.random.default_rng(0)
        size = (SAMPLE_ROWS, min(SAMPLE_TOKENS, self.max_length))
        ids = rng.choice(np.flatnonzero(~self.tokenizer.is_special), size)
        return Batch(np.arange(len(ids)), ids, np.ones_like(ids), np.zeros_like(ids), np.zeros(len(ids), np.int64))

    @libraries.quiet_transformers()
    def save(self, folder: Path) -> None:
        """Write a Hugging Face folder with the task file; the tokenizer remembers the maximum length."""
        self.model.save_pretrained(folder)
        make_readable(folder)
        tokenizer = self.tokenizer.hf_tokenizer
        tokenizer.model_max_length = self.max_length
        if self.has_token_types and "token_type_ids" not in tokenizer.model_input_names:  # for Transformers' pipeline
            names = [*tokenizer.model_input_names, "token_type_ids"]
            tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = names
        tokenizer.save_pretrained(folder)
        self.task.save(folder / TASK_FILE)


def _is_linear(module: nn.Module, outputs: int) -> bool:
    return isinstance(module, nn.Linear) and module.out_features == outputs


def new_classifier(name: str | Path, task: Task, recipe: Recipe, device: str) -> Classifier:
    """A pretrained encoder with a fresh classification head, drawn from torch's generator."""
    label_names = dict(enumerate(task.labels))
    several_labels: dict[str, Any] = {"problem_type": "multi_label_classification"} if task.multilabel else {}
    pretrained = load_pretrained(
        name,
        "new classifier",
        lambda config: set_attention_dropout(config, recipe.attention_dropout),
        num_labels=len(task.labels),
        id2label=label_names,
        label2id={label: index for index, label in label_names.items()},
        **several_labels,
    )
    max_length = min(recipe.max_seq_length, max_positions(pretrained.model, pretrained.tokenizer))
    options = GpuOptions.from_recipe(recipe)
    return Classifier(pretrained.model.to(device), pretrained.tokenizer, task, max_length, options)


def scale_logits(folder: Path, output_layer: str, factor: float) -> None:
    """Multiply the output layer of a classifier's folder; the file is replaced, since others may link to it."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    names = {f"{output_layer}.weight", f"{output_layer}.bias"}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            if not names & set(file.keys()):
                continue
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata()
        scaled = {name: tensor * factor if name in names else tensor for name, tensor in tensors.items()}
        with atomic_write(path) as tmp_path:
            save_file(scaled, tmp_path, metadata)


@libraries.quiet_transformers()
def load_classifier(folder: Path, device: str, precision: str = "float32") -> Classifier:
    """A classifier that `save` wrote, or one that was exported to ONNX; raises an error that names a faulty file."""
    task = load_classifier_task(folder)
    if (folder / ONNX_FILE).is_file():
        config, tokenizer = load_config(folder), load_tokenizer(folder)
        model: Any = OnnxModel(folder)
    else:
        pretrained = load_pretrained(folder, "classifier", safetensors_only=True)
        config, tokenizer, model = pretrained.model.config, pretrained.tokenizer, pretrained.model.to(device)
    check_labels(folder, [str(config.id2label.get(index)) for index in range(config.num_labels)], task)
    max_length = tokenizer.model_max_length
    if not isinstance(max_length, int) or not 0 < max_length < NO_MAX_LENGTH:
        raise ModelError(
            f"The file '{folder / 'tokenizer_config.json'}' is missing or damaged: it has no model_max_length, the "
            "length that the classifier was trained with; copy the folder again, or train again."
        )
    classifier = Classifier(model, tokenizer, task, max_length)
    classifier.use_precision(precision)
    return classifier
