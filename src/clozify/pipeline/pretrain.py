"""Implements `clozify pretrain` and `clozify.pretrain`: in-domain pretraining of a model on texts (section 5).

The result is a folder that `--model` takes: the model with its head, its tokenizer, and `pretrain.json` with the inputs
and the masked-LM loss on held-out texts before and after. Until it is complete, everything is in its subfolder `work/`,
from which a killed process resumes.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from clozify import __version__
from clozify.config.recipe import Recipe, load_recipe
from clozify.config.task import Task, TaskSource, Verbalizer, load_task
from clozify.data.in_memory import RowSource, load_rows
from clozify.data.readers import open_data
from clozify.data.rows import Rows
from clozify.errors import DataError, RunError, quoted
from clozify.methods.pretrain import SAVE_EVERY
from clozify.methods.pretrain import pretrain as train
from clozify.models.cloze import ClozeModel, load_model
from clozify.models.loading import load_config
from clozify.prompts.tokenizer import PromptTokenizer
from clozify.runs.folder import RunFolder
from clozify.runs.keys import model_key
from clozify.runs.tracking import flatten
from clozify.utils.checked_files import naming_damaged, read_json, read_record

RECORD_FILE = "pretrain.json"  # moved into the folder last: with it the folder is complete
WORK = "work"
CHECKPOINTS = "checkpoints"
HELD_OUT_FRACTION = 0.05  # of the blocks is evaluated on and not trained on
HELD_OUT_LIMIT = 128  # blocks
DROPOUT_SETTINGS = ("attention_probs_dropout_prob", "attention_dropout")


class PretrainResult(BaseModel):
    """What `pretrain.json` holds; losses are masked-LM losses, `before` and `after` those on held-out blocks."""

    model_config = ConfigDict(frozen=True)

    clozify: str  # the version
    model: str  # the model that training started from
    source: str  # the texts
    inputs: dict[str, Any]
    tokens: int
    blocks: int
    held_out: int  # blocks
    block_size: int
    steps: int
    before: float
    after: float
    course: list[tuple[int, float]]  # (step, mean training loss since the last entry)
    seconds: float


def pretrain(
    data: RowSource,
    output: str | Path,
    task: TaskSource | None = None,
    fields: Sequence[str] = (),
    model: str | Path = "builtin",
    recipe: str | Path | Recipe = "auto",
    settings: Sequence[str] = (),
    save_every: int = SAVE_EVERY,
    log: Callable[[str], None] = lambda line: None,
) -> PretrainResult:
    """Continue the pretraining of a masked language model on these texts; `output` becomes a model folder.

    A row's text is its `fields`, or the fields of its `task`, joined by a space; without either, the only text column.
    A checkpoint is written every `save_every` steps, and the same call resumes from the last one. `log` is called with
    progress messages.
    """
    started = time.monotonic()
    loaded_recipe = load_recipe(recipe, settings)
    rows = _load_rows(data, task, fields, loaded_recipe)
    folder = Path(output)
    inputs = {
        "data": _data_key(rows),
        "model": model_key(str(model)),
        "pretrain": loaded_recipe.pretrain.model_dump(),
        "seed": loaded_recipe.seed,
        "attention_dropout": loaded_recipe.attention_dropout,
    }
    if (result := _finished_result(folder, inputs)) is not None:
        log(f"already done: {folder} holds the model pretrained on these texts with these settings")
        shutil.rmtree(folder / WORK, ignore_errors=True)  # of a process that was killed while cleaning up
        return result
    cloze = load_model(model, attention_dropout=loaded_recipe.attention_dropout)
    with RunFolder(folder / WORK) as work:
        if _finished_result(folder, inputs) is None:  # another process may have finished since
            _claim(folder, work, inputs)
            with (work.path / "log.txt").open("a", encoding="utf-8") as log_file:

                def log_both(line: str) -> None:
                    log_file.write(f"{datetime.now().isoformat(timespec='seconds')} {line}\n")
                    log_file.flush()
                    log(line)

                complete = work.job_path("result", "model")
                if not complete.is_dir():
                    trained = _train(cloze, rows, loaded_recipe, work, save_every, log_both)
                    origin = {"clozify": __version__, "model": str(model), "source": rows.source, "inputs": inputs}
                    result = PretrainResult(**origin, **trained, seconds=time.monotonic() - started)
                    with work.writing("result", "model") as tmp_path:
                        _save(cloze, model, loaded_recipe, tmp_path)
                        (tmp_path / RECORD_FILE).write_text(result.model_dump_json(indent=2) + "\n", encoding="utf-8")
            _move_files(complete, folder)
        shutil.rmtree(work.path, ignore_errors=True)
    log(f"done in {time.monotonic() - started:,.0f} s; the model is in {folder}")
    return _read_result(folder)


def _train(
    cloze: ClozeModel, rows: Rows, recipe: Recipe, work: RunFolder, save_every: int, log: Callable[[str], None]
) -> dict[str, Any]:
    """Pack the texts into blocks, hold some out, train on the others; returns the entries of `PretrainResult`."""
    settings = recipe.pretrain
    size = min(settings.block_size, cloze.max_length)
    if size < settings.block_size:
        log(f"note: the model reads {size} tokens at most, so blocks have {size} instead of {settings.block_size}.")
    blocks, tokens = pack(cloze.tokenizer, _texts(rows), size, work.path / "blocks.int32")
    if len(blocks) < 2:
        raise DataError(
            f"The texts of '{rows.source}' are {tokens:,} tokens, less than two blocks of {size} (one to train on, "
            "one to evaluate on); give more texts, or shorter blocks with --set pretrain.block_size=64 or less."
        )
    count = min(HELD_OUT_LIMIT, max(1, round(len(blocks) * HELD_OUT_FRACTION)))
    held_out = np.sort(np.random.default_rng(recipe.seed % 2**32).choice(len(blocks), count, replace=False))
    log(f"{len(rows):,} texts are {tokens:,} tokens: {len(blocks):,} blocks of {size}, {count:,} of them held out")
    result = train(cloze, blocks, held_out, settings, recipe.seed, work.path / CHECKPOINTS, log, save_every)
    return {
        "tokens": tokens,
        "blocks": len(blocks),
        "held_out": count,
        "block_size": size,
        "steps": result.steps,
        "before": result.before,
        "after": result.after,
        "course": result.losses,
    }


def pack(
    tokenizer: PromptTokenizer, texts: Iterable[list[str]], size: int, path: Path
) -> tuple[NDArray[np.int32], int]:
    """Concatenates texts and cuts them into blocks of `size` tokens: (blocks, size), and the number of text tokens.

    A block begins and ends with the model's special tokens, and the last one also separates two texts:
    `[CLS] ...end of a text [SEP] a text [SEP] beginning of a... [SEP]`. Tokens that do not fill a last block are left
    out. The blocks are a memory-mapped file at `path`.
    """
    first, last = (np.array(ids, dtype=np.int32) for ids in tokenizer.special_tokens(1).specials)
    inner_size = size - len(first) - len(last)
    pending, total = np.empty(0, dtype=np.int32), 0  # tokens that did not fill a block yet
    with path.open("wb") as file:
        for chunk in texts:
            tokens = tokenizer.encode_batch([text for text in chunk if text])
            total += len(tokens.ids)
            ends = tokens.offsets[1:][tokens.lengths > 0]
            stream = np.insert(tokens.ids, np.repeat(ends, len(last)), np.tile(last, len(ends)))
            stream = np.concatenate([pending, stream])
            count = len(stream) // inner_size
            inner = stream[: count * inner_size].reshape(count, inner_size)
            before, after = (np.broadcast_to(ids, (count, len(ids))) for ids in (first, last))
            np.concatenate([before, inner, after], axis=1).tofile(file)
            pending = stream[count * inner_size :]
    if path.stat().st_size == 0:
        return np.empty((0, size), dtype=np.int32), total
    return np.memmap(path, dtype=np.int32, mode="r").reshape(-1, size), total


def _load_rows(data: RowSource, task: TaskSource | None, fields: Sequence[str], recipe: Recipe) -> Rows:
    if isinstance(data, Rows):
        return data
    if task is not None and fields:
        raise DataError("There are both --task and --field; a task names its fields itself, so give one of the two.")
    extra_breaks = ["\\"] if recipe.backslashes_to_spaces else []
    if task is not None:
        loaded = load_task(task)
        return load_rows(data, loaded.with_changes(line_breaks=[*loaded.line_breaks, *extra_breaks]))
    dataset = open_data(data, None, list(fields)) if isinstance(data, (str, Path)) else None
    names = list(fields) or (["text"] if dataset is None else [_only_text_column(dataset, str(data))])
    words = Verbalizer(words={"yes": ("yes",), "no": ("no",)})  # not used: `Rows` needs a task for its fields
    text_task = Task(name="texts", fields=names, patterns=["{mask}"], verbalizers=[words], line_breaks=extra_breaks)
    return load_rows(data, text_task) if dataset is None else Rows(dataset, text_task, str(data))


def _only_text_column(dataset: Any, source: str) -> str:
    dtypes: dict[str, str] = {name: str(getattr(feature, "dtype", "")) for name, feature in dataset.features.items()}
    columns = [
        name for name, dtype in dtypes.items() if dtype in ("string", "large_string") and not _is_numeric(dataset, name)
    ]
    if len(columns) == 1:
        return columns[0]
    content = f"the text columns {quoted(columns)}" if columns else f"no text column among {quoted(dtypes)}"
    raise DataError(
        f"The data '{source}' has {content}; name what to read with --field COLUMN (once for each of several), or give "
        "the --task whose fields it holds."
    )


def _is_numeric(dataset: Any, name: str) -> bool:
    """Whether the first values of a column are numbers; CSV and JSON files have them as text."""
    try:
        return len([float(value) for value in dataset[:100][name] if value]) > 0
    except ValueError:
        return False


def _texts(rows: Rows) -> Iterator[list[str]]:
    """The rows' texts a chunk at a time: the fields that are not empty, joined by a space."""
    for start, stop in rows.chunks():
        columns = [rows.texts(field, start, stop) for field in rows.task.fields]
        yield [" ".join(filter(None, texts)) for texts in zip(*columns, strict=True)]


def _data_key(rows: Rows) -> dict[str, Any]:
    """The number of texts and a hash of them."""
    digest = hashlib.sha256()
    for chunk in _texts(rows):
        digest.update("\0".join([*chunk, ""]).encode())
    return {"rows": len(rows), "texts": digest.hexdigest()[:16]}


def _read_result(folder: Path) -> PretrainResult:
    return read_record(folder / RECORD_FILE, PretrainResult)


def _finished_result(folder: Path, inputs: dict[str, Any]) -> PretrainResult | None:
    """The result of a complete model with the same inputs; an error where the folder holds anything else."""
    if folder.is_file():
        raise RunError(f"The model cannot go to '{folder}': that is a file; name a folder.")
    if (folder / RECORD_FILE).is_file():
        result = _read_result(folder)
        if result.inputs != inputs:
            raise RunError(
                f"The folder '{folder}' holds a model that was pretrained otherwise "
                f"({_differences(result.inputs, inputs)}); name another folder."
            )
        return result
    other_files = [path.name for path in folder.iterdir() if path.name != WORK] if folder.is_dir() else []
    if other_files and not (folder / WORK / "run.json").is_file():
        raise RunError(f"The folder '{folder}' holds '{other_files[0]}'; name an empty or a new folder.")
    return None


def _claim(folder: Path, work: RunFolder, inputs: dict[str, Any]) -> None:
    """Record the inputs in the working folder; an error where it holds checkpoints of a training with others."""
    file = work.path / "run.json"
    if file.is_file():
        with naming_damaged(file):
            previous = dict(read_json(file)["inputs"])
        if previous == inputs:
            return
        if any((work.path / CHECKPOINTS).glob("checkpoint-*")) or work.job_path("result", "model").is_dir():
            raise RunError(
                f"The folder '{folder}' holds an unfinished pretraining with other inputs "
                f"({_differences(previous, inputs)}); name another folder, or remove '{work.path}'."
            )
    work.write_json("run.json", {"clozify": __version__, "inputs": inputs})


def _differences(previous: dict[str, Any], inputs: dict[str, Any]) -> str:
    """The names of the inputs that differ."""
    before, now = flatten(previous), flatten(inputs)
    return f"other: {quoted([name for name in {**before, **now} if before.get(name) != now.get(name)], 4)}"


def _save(cloze: ClozeModel, name: str | Path, recipe: Recipe, folder: Path) -> None:
    """Save the model with the attention dropout of the original: the recipe's is for training only."""
    if recipe.attention_dropout is not None:
        original = load_config(name)
        for setting in DROPOUT_SETTINGS:
            if hasattr(original, setting):
                setattr(cloze.model.config, setting, getattr(original, setting))
    cloze.save(folder)


def _move_files(source: Path, target: Path) -> None:
    """Move a folder's files; those that make `target` a complete model come last, so a killed process can repeat it."""
    last = ["config.json", RECORD_FILE]
    for file in sorted(source.iterdir(), key=lambda file: last.index(file.name) + 1 if file.name in last else 0):
        file.replace(target / file.name)
