"""In-domain pretraining, from a file to a model folder: the room behind `clozify pretrain` (section 5).

In: texts, and a masked language model to go on from. Out: a folder that `--model` takes, of safetensors and JSON only:
the model with its head, its tokenizer, and `pretrain.json`, which tells what went in and the masked-LM loss on held-out
texts before and after. Until it is whole, everything is in its folder `work/`; a killed process goes on from there.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozify import __version__
from clozify.config.recipe import Recipe, load_recipe
from clozify.config.task import Task, Verbalizer, load_task
from clozify.data.readers import open_data
from clozify.data.rows import Rows, read_rows
from clozify.errors import DataError, RunError, quoted
from clozify.methods.pretrain import SAVE_EVERY
from clozify.methods.pretrain import pretrain as train
from clozify.models.cloze import ClozeModel, load_model
from clozify.models.loading import BUILTIN
from clozify.prompts.tokenizer import PromptTokenizer
from clozify.runs.folder import RunFolder
from clozify.runs.keys import model_key
from clozify.runs.tracking import flatten

RECORD = "pretrain.json"  # it comes last: with it the folder is whole
WORK = "work"
CHECKPOINTS = "checkpoints"
HELD_OUT = 0.05  # of the blocks are measured on and not learned from,
HELD_OUT_MOST = 128  # but not more than so many
DROPOUTS = ("attention_probs_dropout_prob", "attention_dropout")


def pretrain(
    data: str | Path | Rows,
    output: str | Path,
    task: str | Path | Task | None = None,
    fields: Sequence[str] = (),
    model: str | Path = "builtin",
    recipe: str | Path | Recipe = "paper",
    settings: Sequence[str] = (),
    save_every: int = SAVE_EVERY,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Let a masked language model go on reading these texts, and return what `pretrain.json` holds.

    A row's text is its `fields`, or the fields of its `task`, joined by a space; without either, the only text column.
    `output` becomes a model folder; given again, the command goes on where it was, or says that all is there.
    """
    began = time.monotonic()
    how = load_recipe(recipe, settings)
    rows = _rows(data, task, fields, how)
    place = Path(output)
    inputs = {
        "data": _known(rows),
        "model": model_key(str(model)),
        "pretrain": how.pretrain.model_dump(),
        "seed": how.seed,
        "attention_dropout": how.attention_dropout,
    }
    if (found := _finished(place, inputs)) is not None:
        say(f"already there: {place} holds the model pretrained on these texts with these settings")
        shutil.rmtree(place / WORK, ignore_errors=True)  # where a process was killed while it cleaned up
        return found
    cloze = load_model(model, attention_dropout=how.attention_dropout)
    with RunFolder(place / WORK) as work:
        if _finished(place, inputs) is None:  # another process may have ended in between
            _claim(place, work, inputs)
            with (work.path / "log.txt").open("a", encoding="utf-8") as log:

                def tell(line: str) -> None:
                    log.write(f"{datetime.now().isoformat(timespec='seconds')} {line}\n")
                    log.flush()
                    say(line)

                whole = work.job_path("result", "model")
                if not whole.is_dir():
                    record: dict[str, Any] = {"clozify": __version__, "model": str(model), "source": rows.source}
                    record |= {"inputs": inputs} | _work(cloze, rows, how, work, save_every, tell)
                    record["seconds"] = time.monotonic() - began
                    with work.writing("result", "model") as beside:
                        _save(cloze, model, how, beside)
                        (beside / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
            _place(whole, place)
        shutil.rmtree(work.path, ignore_errors=True)
    say(f"done in {time.monotonic() - began:,.0f} s; the model is in {place}")
    finished: dict[str, Any] = json.loads((place / RECORD).read_text(encoding="utf-8"))
    return finished


def _work(
    cloze: ClozeModel, rows: Rows, how: Recipe, work: RunFolder, save_every: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Pack, hold some blocks out, train."""
    size = min(how.pretrain.block_size, cloze.max_length)
    if size < how.pretrain.block_size:
        say(f"note: the model reads {size} tokens at most, so blocks have {size} instead of {how.pretrain.block_size}.")
    blocks, tokens = pack(cloze.tokenizer, _texts(rows), size, work.path / "blocks.int32")
    if len(blocks) < 2:
        raise DataError(
            f"The texts of '{rows.source}' are {tokens:,} tokens, less than two blocks of {size} (one to learn from, "
            "one to measure on); give more texts, or shorter blocks with --set pretrain.block_size=64 or less."
        )
    count = min(HELD_OUT_MOST, max(1, round(len(blocks) * HELD_OUT)))
    held_out = np.sort(np.random.default_rng(how.seed % 2**32).choice(len(blocks), count, replace=False))
    say(f"{len(rows):,} texts are {tokens:,} tokens: {len(blocks):,} blocks of {size}, {count:,} of them held out")
    result = train(cloze, blocks, held_out, how.pretrain, how.seed, work.path / CHECKPOINTS, say, save_every)
    return {"tokens": tokens, "blocks": len(blocks), "held_out": count, "block_size": size} | {
        "steps": result.steps,
        "before": result.before,
        "after": result.after,
        "course": result.losses,
    }


def pack(
    tokenizer: PromptTokenizer, texts: Iterable[list[str]], size: int, path: Path
) -> tuple[NDArray[np.int32], int]:
    """Texts end to end in blocks of exactly `size` tokens, and how many tokens the texts have.

    A block has the model's own first and last special tokens, and between two texts stands the last one again:
    `[CLS] ...end of a text [SEP] a text [SEP] beginning of a... [SEP]`. What does not fill a block is left out. The
    blocks (blocks, size) are a file at `path`, mapped into memory, so they may be more than fit there.
    """
    first, last = (np.array(ids, dtype=np.int32) for ids in tokenizer.special_tokens(1).specials)
    room = size - len(first) - len(last)
    waiting, total = np.empty(0, dtype=np.int32), 0
    with path.open("wb") as file:
        for stretch in texts:
            ragged = tokenizer.encode_batch([text for text in stretch if text])
            total += len(ragged.ids)
            ends = ragged.offsets[1:][ragged.lengths > 0]
            stream = np.insert(ragged.ids, np.repeat(ends, len(last)), np.tile(last, len(ends)))
            stream = np.concatenate([waiting, stream])
            count = len(stream) // room
            inner = stream[: count * room].reshape(count, room)
            around = [np.broadcast_to(ids, (count, len(ids))) for ids in (first, last)]
            np.concatenate([around[0], inner, around[1]], axis=1).tofile(file)
            waiting = stream[count * room :]
    if path.stat().st_size == 0:
        return np.empty((0, size), dtype=np.int32), total
    return np.memmap(path, dtype=np.int32, mode="r").reshape(-1, size), total


def _rows(data: str | Path | Rows, task: str | Path | Task | None, fields: Sequence[str], how: Recipe) -> Rows:
    if isinstance(data, Rows):
        return data
    if task is not None and fields:
        raise DataError("There are both --task and --field; a task names its fields itself, so give one of the two.")
    more = ["\\"] if how.backslashes_to_spaces else []
    if task is not None:
        loaded = load_task(task)
        return read_rows(data, loaded.with_changes(line_breaks=[*loaded.line_breaks, *more]))
    dataset = open_data(data, None, list(fields))
    names = list(fields) or [_only_text(dataset, str(data))]
    words = Verbalizer(words={"yes": ("yes",), "no": ("no",)})  # only the fields of this task count
    asked = Task(name="texts", fields=names, patterns=["{mask}"], verbalizers=[words], line_breaks=more)
    return Rows(dataset, asked, str(data))


def _only_text(dataset: Any, source: str) -> str:
    kinds: dict[str, str] = {name: str(getattr(feature, "dtype", "")) for name, feature in dataset.features.items()}
    found = [name for name, kind in kinds.items() if kind in ("string", "large_string")]
    if len(found) == 1:
        return found[0]
    what = f"has the text columns {quoted(found)}" if found else f"has no text column among {quoted(kinds)}"
    raise DataError(
        f"The data '{source}' {what}; name what to read with --field COLUMN (once for each of several), or give the "
        "--task whose fields it holds."
    )


def _texts(rows: Rows) -> Iterator[list[str]]:
    for start, stop in rows.chunks():
        columns = [rows.texts(field, start, stop) for field in rows.task.fields]
        yield [" ".join(filter(None, parts)) for parts in zip(*columns, strict=True)]


def _known(rows: Rows) -> dict[str, Any]:
    """What the texts are, to know them again."""
    digest = hashlib.sha256()
    for stretch in _texts(rows):
        digest.update("\0".join([*stretch, ""]).encode())
    return {"rows": len(rows), "texts": digest.hexdigest()[:16]}


def _finished(place: Path, inputs: dict[str, Any]) -> dict[str, Any] | None:
    """What is told of a finished model of the same inputs; anything else that may not be touched is an error."""
    if place.is_file():
        raise RunError(f"The model cannot go to '{place}': that is a file; name a folder.")
    if (place / RECORD).is_file():
        found: dict[str, Any] = json.loads((place / RECORD).read_text(encoding="utf-8"))
        if found["inputs"] != inputs:
            raise RunError(
                f"The folder '{place}' holds a model that was pretrained otherwise ({_differences(found, inputs)}); "
                "name another folder."
            )
        return found
    strangers = [path.name for path in place.iterdir() if path.name != WORK] if place.is_dir() else []
    if strangers and not (place / WORK / "run.json").is_file():
        raise RunError(f"The folder '{place}' holds '{strangers[0]}'; name an empty or a new folder.")
    return None


def _claim(place: Path, work: RunFolder, inputs: dict[str, Any]) -> None:
    """Make the working folder these inputs': a training of others that has a checkpoint is not thrown away."""
    file = work.path / "run.json"
    if file.is_file():
        found = json.loads(file.read_text(encoding="utf-8"))
        if found["inputs"] == inputs:
            return
        if any((work.path / CHECKPOINTS).glob("checkpoint-*")) or work.job_path("result", "model").is_dir():
            raise RunError(
                f"The folder '{place}' holds an unfinished pretraining of another kind "
                f"({_differences(found, inputs)}); name another folder, or remove '{work.path}'."
            )
    work.write_json("run.json", {"clozify": __version__, "inputs": inputs})


def _differences(found: dict[str, Any], inputs: dict[str, Any]) -> str:
    was, now = flatten(found["inputs"]), flatten(inputs)
    names = [name for name in {**was, **now} if was.get(name) != now.get(name)]
    return f"other: {quoted(names, 4)}"


def _save(cloze: ClozeModel, name: str | Path, how: Recipe, folder: Path) -> None:
    """The model and its tokenizer as Transformers write them; a recipe's attention dropout was for training only."""
    if how.attention_dropout is not None:
        from transformers import AutoConfig

        own = AutoConfig.from_pretrained(BUILTIN if str(name) == "builtin" else name, local_files_only=True)
        for setting in DROPOUTS:
            if hasattr(own, setting):
                setattr(cloze.model.config, setting, getattr(own, setting))
    cloze.save(folder)


def _place(whole: Path, place: Path) -> None:
    """Move the files to their place, what makes the folder a model last; what a killed process moved is there."""
    late = ["config.json", RECORD]
    for file in sorted(whole.iterdir(), key=lambda file: late.index(file.name) + 1 if file.name in late else 0):
        file.replace(place / file.name)
