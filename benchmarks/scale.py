"""Do time and memory of a whole run grow with the number of unlabelled rows?

A very small model runs PET and iPET's draw on short rows: reading, hashing, overlap, two members that are trained and
score the unlabelled rows, the draw, the soft labels, a classifier trained on them. Each number of rows has its own
process. Printed are each stage's CPU seconds (of all threads) and its peak memory above that of the loaded model.
Batches are larger than usual, since with such a small model the overhead per batch would dominate.

Memory is the process' anonymous memory (RssAnon in /proc/self/status, read a hundred times per second). Pages of
memory-mapped files, such as the rows, the tokens and the scores, are not counted, since the system can evict them;
`mapped` is their peak.

    python benchmarks/scale.py [--rows 10000,100000,1000000,10000000] [--members 1] [--scores float16] [--folder DIR]
"""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

TASK = """
name = "short"
fields = ["text"]
patterns = [PATTERNS]
[labels]
good = "good"
bad = "bad"
"""
PATTERNS = ["it was {mask} {text}", "{text} it was {mask}"]  # a member each
SETTINGS = [
    "repetitions=1",
    "finetune.max_steps=20",
    "distill.max_steps=200",
    "max_seq_length=32",
    "ipet.generations=1",
]
WORDS = [first + last for first in ("bo", "ka", "li", "mu", "ne", "ro", "sa", "ti") for last in ("ba", "dek", "fin")]
SHARD = 250_000  # rows a file


def make_model(folder: Path) -> Path:
    """A model with one layer, hidden size 16, and a vocabulary of the rows' words only."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    transformers.utils.logging.disable_progress_bar()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = specials + WORDS + ["it", "was", "good", "bad"]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocabulary.index("[CLS]")), ("[SEP]", vocabulary.index("[SEP]"))],
    )
    named = dict(zip(["pad_token", "unk_token", "cls_token", "sep_token", "mask_token"], specials, strict=True))
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=16,
        max_position_embeddings=64,
    )
    transformers.BertForMaskedLM(config).save_pretrained(folder)
    return folder


def make_rows(folder: Path, rows: int) -> Path:
    """A folder of Parquet files with short rows, written a file at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    rng, words = np.random.default_rng(0), np.array(WORDS)
    for start in range(0, rows, SHARD):
        count = min(SHARD, rows - start)
        lengths = rng.integers(3, 10, count)
        drawn = words[rng.integers(0, len(WORDS), int(lengths.sum()))].tolist()
        ends = np.cumsum(lengths).tolist()
        texts = [" ".join(drawn[first:last]) for first, last in zip([0, *ends], ends, strict=False)]
        pq.write_table(pa.table({"text": texts}), folder / f"{start // SHARD:05}.parquet")
    return folder


class Memory:
    """Samples the process' memory in a thread and records the peak of every stage."""

    def __init__(self) -> None:
        self.peak = self.mapped = 0.0
        self.stages: dict[str, tuple[float, float]] = {}  # name -> (seconds, peak in MiB)
        threading.Thread(target=self._watch, daemon=True).start()
        self.before, _ = self.now()

    @staticmethod
    def now() -> tuple[float, float]:
        """(of the process alone, of mapped files), in MiB."""
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        alone, files = (int(status.split(f"{name}:")[1].split()[0]) / 1024 for name in ("RssAnon", "RssFile"))
        return alone, files

    def _watch(self) -> None:
        while True:
            alone, files = self.now()
            self.peak, self.mapped = max(self.peak, alone), max(self.mapped, files)
            time.sleep(0.01)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Record the time and the peak memory of a block."""
        self.peak = self.now()[0]
        began = time.process_time()
        yield
        self.stages[name] = time.process_time() - began, max(self.peak, self.now()[0]) - self.before


def run(data: Path, model: Path, folder: Path, scores: str, count: int) -> dict[str, Any]:
    """Each stage's seconds and MiB, for one number of rows."""
    import datasets

    datasets.config.HF_DATASETS_CACHE = str(folder / "cache")
    from clozify.config.task import parse_task
    from clozify.data.decision import Decision
    from clozify.executors.local import LocalExecutor
    from clozify.methods import score
    from clozify.methods.ipet import counts_to_draw, select_training_rows
    from clozify.pipeline.final_classifier import Distillation, train_classifier
    from clozify.pipeline.members import first_generation, train_members
    from clozify.pipeline.prepare import TrainInputs, prepare
    from clozify.pipeline.run import Run
    from clozify.pipeline.soft_labels import write_soft_labels
    from clozify.runs.context import RunContext
    from clozify.runs.folder import RunFolder
    from clozify.runs.keys import prompt_inputs
    from clozify.runs.plan import Plan
    from clozify.runs.worker import Worker

    task = parse_task(TASK.replace("PATTERNS", ", ".join(f'"{pattern}"' for pattern in PATTERNS[:count])))
    few = [{"text": f"{word} {word}", "label": name} for word in WORDS[:10] for name in ("good", "bad")]
    (folder / "few.jsonl").write_text("".join(json.dumps(row) + "\n" for row in few))
    settings = [*SETTINGS, f"scores_dtype={scores}"]
    inputs: dict[str, Any] = {"labeled": folder / "few.jsonl", "model": model, "settings": settings}
    score.TOKENS_PER_BATCH["cpu"] = 16_384

    def start(plan: Plan, run_folder: RunFolder) -> Run:
        run = Run(Worker(plan, run_folder, RunContext("cpu")), LocalExecutor())
        run.executor.start(run.worker, 0)
        return run

    warm_up = TrainInputs(task, unlabeled=folder / "few.jsonl", allow_overlap=True, **inputs)
    warm = start(prepare(warm_up, "cpu"), RunFolder(folder / "warm"))
    train_members(warm, first_generation(warm.plan, [1.0] * count))  # the model and all libraries are loaded
    memory, began = Memory(), time.monotonic()
    with memory.stage("read"):
        plan = prepare(TrainInputs(task, unlabeled=data, **inputs), "cpu")
    with memory.stage("keys"):
        prompt_inputs(plan, "cpu")
    with RunFolder(folder / "run") as run_folder:
        bench = start(plan, run_folder)
        with memory.stage("members"):
            members = train_members(bench, first_generation(plan, [1.0] * count))
        weights, decision = [1.0] * len(members), Decision(plan.task.labels)
        with memory.stage("draw"):
            unlabeled_rows = {n: member.unlabeled_scores() for n, member in enumerate(members)}
            wanted, _ = counts_to_draw(np.array([10, 10]), 3, len(plan.unlabeled or []), plan.recipe.ipet)
            select_training_rows(
                unlabeled_rows, weights, wanted, plan.recipe.ipet, np.arange(count), np.random.default_rng(0), False
            )
        with memory.stage("labels"):
            soft = write_soft_labels(bench, members, weights, decision, plan.recipe.distill.temperature)
        with memory.stage("classifier"):
            train_classifier(bench, Distillation(soft), decision)
        disk = sum(file.stat().st_size for file in (folder / "run").rglob("*") if file.is_file()) / 2**20
    return {"stages": memory.stages, "passed": time.monotonic() - began, "mapped": memory.mapped, "disk": disk}


def main(
    rows: Annotated[str, typer.Option(help="Sizes, with commas between them.")] = "10000,100000,1000000",
    scores: Annotated[str, typer.Option(help="float32 or float16.")] = "float32",
    members: Annotated[int, typer.Option(min=1, max=2, help="Models that score the pile.")] = 2,
    folder: Annotated[Path | None, typer.Option(help="Where the files go for the time of the run.")] = None,
) -> None:
    """Print each stage's seconds and MiB for each number of rows."""
    context = multiprocessing.get_context("spawn")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    for path, count in enumerate(map(int, rows.split(","))):
        with tempfile.TemporaryDirectory(dir=folder) as name, ProcessPoolExecutor(1, mp_context=context) as pool:
            data = make_rows(Path(name) / "rows", count)
            model = make_model(Path(name) / "model")
            results = pool.submit(run, data, model, Path(name), scores, members).result()
        stages = results["stages"]
        if not path:
            heads = ["rows", *stages, "computing s", "passed s", "MiB beyond the model", "mapped MiB", "disk MiB"]
            print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
        cells = [f"{seconds:,.1f} s, {mib:,.0f} MiB" for seconds, mib in stages.values()]
        computing, peak = sum(s for s, _ in stages.values()), max(m for _, m in stages.values())
        numbers = [computing, results["passed"], peak, results["mapped"], results["disk"]]
        print(f"| {' | '.join([f'{count:,}', *cells, *(f'{number:,.0f}' for number in numbers)])} |", flush=True)


if __name__ == "__main__":
    typer.run(main)
