"""The SetFit part of `setfit_comparison.py`; runs in SetFit's own environment, without clozify.

Reads a JSON file that describes the job, and writes one with the accuracy, the seconds of training, the rows per second
of prediction and the peak memory. The Sentence-Transformers model has the same encoder as clozify's, with mean pooling;
everything else is SetFit's default unless the job says otherwise.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

FEW = 16  # rows predicted to warm up, and to take the cost of any call off the cost of a row


def seconds_of(work: Callable[[], Any]) -> float:
    """The seconds that a function takes; its result is on the CPU, so a GPU's work is included."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def rows_per_second(predict: Callable[[int], Any], rows: int) -> float:
    """Rows per second of prediction, without the fixed costs of a call, such as loading."""
    few = min(FEW, rows // 2)
    predict(few)
    some, all_of_them = seconds_of(lambda: predict(few)), seconds_of(lambda: predict(rows))
    return (rows - few) / max(all_of_them - some, 1e-9)


def peak_mib() -> dict[str, float]:
    """The peak memory of this process, and on a GPU the peak of its tensors there."""
    import torch

    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss would count the parent's memory too, from before this program replaced it
        (line,) = [line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM")]
        result = {"mib": int(line.split()[1]) / 1024}
    else:
        unit = 2**20 if sys.platform == "darwin" else 2**10
        result = {"mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit}
    if torch.cuda.is_available():
        result["gpu_mib"] = torch.cuda.max_memory_allocated() / 2**20
    return result


def read_rows(path: str) -> dict[str, list[Any]]:
    """A file of JSON lines as columns."""
    rows = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
    return {name: [row[name] for row in rows] for name in ("text", "label")}


def make_body(model: str, max_length: int, folder: Path) -> None:
    """A Sentence-Transformers model of a masked LM's encoder with mean pooling, in float32 as clozify loads it."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    encoder = Transformer(model)
    body = SentenceTransformer(modules=[encoder, Pooling(encoder.get_embedding_dimension(), pooling_mode="mean")])
    body.max_seq_length = min(max_length, body.max_seq_length or max_length)
    body.float().save_pretrained(str(folder))


def epochs_for(labels: list[int], batch_size: int, least_steps: int) -> int:
    """The epochs for at least `least_steps` steps: SetFit draws as many pairs of equal labels as of different ones."""
    count = Counter(labels)
    alike = sum(n * (n - 1) // 2 for n in count.values())
    unlike = len(labels) * (len(labels) - 1) // 2 - alike
    steps = -(-2 * max(alike, unlike) // batch_size)
    return max(1, -(-least_steps // steps))


def f1(truth: list[list[int]], predicted: list[list[int]], name: str) -> float:
    """Micro- or macro-F1 of several labels a row."""
    from sklearn.metrics import f1_score

    return float(f1_score(truth, predicted, average=name.removesuffix("_f1"), zero_division=0))


def main(job: dict[str, Any]) -> dict[str, Any]:
    """Train on the job's rows and measure on its test rows."""
    import sentence_transformers
    import setfit
    import torch
    import transformers
    from datasets import Dataset

    work, settings = Path(job["folder"]), dict(job["settings"])
    train, test = read_rows(job["labeled"]), read_rows(job["test"])
    if job["least_steps"]:  # of one label a row
        settings["num_epochs"] = epochs_for(train["label"], settings.get("batch_size", 16), job["least_steps"])
    arguments = setfit.TrainingArguments(
        output_dir=str(work / "checkpoints"),
        seed=job["seed"],
        save_strategy="no",
        report_to="none",
        show_progress_bar=False,
        **settings,
    )
    began = time.perf_counter()
    make_body(job["model"], job["max_length"], work / "body")
    strategy = job.get("multi_target_strategy")  # for several labels a row, each row's labels being 0 and 1
    model = setfit.SetFitModel.from_pretrained(
        str(work / "body"), **({"multi_target_strategy": strategy} if strategy else {})
    )
    trainer = setfit.Trainer(model=model, args=arguments, train_dataset=Dataset.from_dict(train))
    trainer.train()
    model.save_pretrained(str(work / "model"))
    seconds = time.perf_counter() - began

    def predict(count: int) -> list[Any]:
        return [label.tolist() for label in model.predict(test["text"][:count], show_progress_bar=False)]

    speed = rows_per_second(predict, len(test["text"]))
    predicted = predict(len(test["text"]))
    if job.get("probabilities"):  # a file for each test row's, (rows, labels)
        import numpy as np

        values = model.predict_proba(test["text"], as_numpy=True, show_progress_bar=False)
        np.save(job["probabilities"], np.asarray(values, dtype=np.float32))
    right = [result == label for result, label in zip(predicted, test["label"], strict=True)]
    return {
        "accuracy": sum(right) / len(right),
        **({name: f1(test["label"], predicted, name) for name in ("micro_f1", "macro_f1")} if strategy else {}),
        "training_seconds": seconds,
        "rows_per_second": speed,
        **peak_mib(),
        "steps": trainer.st_trainer.state.global_step,
        "dtype": str(next(model.model_body.parameters()).dtype),
        "threads": torch.get_num_threads(),
        "versions": {
            library.__name__: library.__version__ for library in (setfit, sentence_transformers, transformers, torch)
        },
    }


if __name__ == "__main__":
    options = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    Path(options["result"]).write_text(json.dumps(main(options), indent=2), encoding="utf-8")
