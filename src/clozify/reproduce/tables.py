"""The paper's tables 1, 2, 3, 4, 7 and 8: rows, columns, and the experiments of every entry."""

from __future__ import annotations

from typing import Literal

from clozify.config.task import load_task
from clozify.reproduce import paper
from clozify.reproduce.data_locations import TASK_FILES, TITLES
from clozify.reproduce.experiments import METHOD_NAMES, Experiment
from clozify.reproduce.specs import Entry, RowSpec, TableRequest, TableSpec, main_test_set

TABLE2_FRACTION = 0.5  # appendix B.4: table 2 uses half of the unlabelled rows


def table1(request: TableRequest) -> TableSpec:
    """Table 1: accuracy by task, training-set size and method."""
    columns = [
        (task, test_set)
        for task in request.all_tasks()
        for test_set in (("m", "mm") if task == "mnli" else (main_test_set(task),))
    ]
    rows = []
    for size in request.all_sizes((0, *paper.SIZES)):
        lines = [
            ("supervised", "supervised", "classifier"),
            ("PET", "pet", "classifier"),
            ("iPET", "ipet", "classifier"),
        ]
        if size == 0:
            avg, best = ("unsupervised (avg)", "unsupervised", "avg"), ("unsupervised (max)", "unsupervised", "max")
            lines = [avg, best, lines[-1]]
        elif size >= 1000:
            lines = lines[:2]  # iPET trains until there are 1000 examples: here it is PET
        for name, method, measure in lines:
            paper_values = paper.TABLE1.get((size, name), {})
            entries = [
                request.entry(
                    Experiment(task, size, method),
                    measure=measure,
                    test_set=test_set,
                    paper=paper_values.get("mnli-mm" if test_set == "mm" else task),
                )
                for task, test_set in columns
            ]
            rows.append(RowSpec(f"|T| = {size}", name, tuple(entries)))
    return TableSpec(
        "table1",
        "Average accuracy and standard deviation for RoBERTa (large) on Yelp, AG's News, Yahoo and MNLI (m: matched, "
        "mm: mismatched) for five training set sizes |T|",
        "roberta-large",
        tuple(TITLES[task] + (f" ({test_set})" if task == "mnli" else "") for task, test_set in columns),
        tuple(rows),
        ("Examples", "Method"),
        notes=(
            "± is the standard deviation: over the pairs for unsupervised (avg), over the repetitions elsewhere.",
            "The paper excludes one of its three supervised MNLI runs with 1000 examples, because it underfitted; here "
            "all runs count.",
        ),
    )


def table2(request: TableRequest) -> TableSpec:
    """Table 2: PET and iPET against UDA and MixText, on base models."""
    rows = []
    for size in request.all_sizes((10, 50)):
        for method in ("uda", "mixtext", "pet", "ipet"):
            paper_values = paper.TABLE2.get((size, METHOD_NAMES[method]), {})
            settings = ("augment.share=1",) if method in ("uda", "mixtext") else ()  # of the half of D
            experiments = {
                task: Experiment(task, size, method, settings, unlabeled_fraction=TABLE2_FRACTION)
                for task in request.all_tasks()
            }
            entries = [
                request.entry(experiment, paper=paper_values.get(task)) for task, experiment in experiments.items()
            ]
            rows.append(RowSpec(f"|T| = {size}", METHOD_NAMES[method], tuple(entries)))
    return TableSpec(
        "table2",
        "Comparison of PET with two state-of-the-art semi-supervised methods using RoBERTa (base)",
        "roberta-base",
        tuple(TITLES[task] for task in request.all_tasks()),
        tuple(rows),
        ("Ex.", "Method"),
        notes=(
            "For all methods, D has half as many rows per label as in the other tables (appendix B.4).",
            "For UDA and MixText the paper reports the best of several numbers of training steps, chosen on the test "
            "set; here it is the recipe's number of steps, or the best of uda.steps_to_try and mixtext.steps_to_try if "
            "--set gives them.",
            "MNLI is the matched development set.",
        ),
    )


def table3(request: TableRequest) -> TableSpec:
    """Table 3: x-stance in three languages."""
    rows = []
    sizes: list[int | str] = [*request.all_sizes((1000, 2000, 4000)), "full", "joint"]
    names = {"full": "T_De, T_Fr", "joint": "T_De + T_Fr"}
    for size in sizes:
        group = names.get(str(size), f"|T| = {size}")
        if size == "joint":
            quoted = paper.TABLE3["joint", "sup. (*)"]
            rows.append(RowSpec(group, "sup. (*)", tuple(Entry(paper=quoted[column]) for column in paper.LANGUAGES)))
        for method in ("supervised", "pet"):
            paper_values = paper.TABLE3.get((size, METHOD_NAMES[method]), {})
            examples: int | Literal["full"] = "full" if isinstance(size, str) else size
            each = {language: Experiment(f"xstance-{language}", examples, method) for language in ("de", "fr")}
            experiments: dict[str, tuple[Experiment, ...]] = {
                "de": (each["de"],),
                "fr": (each["fr"],),
                "it": (each["de"], each["fr"]),
            }
            if size == "joint":
                experiments = dict.fromkeys(paper.LANGUAGES, (Experiment("xstance", "full", method),))
            entries = [
                request.entry(*trained, size=size, test_set=language, paper=paper_values.get(language))
                for language, trained in experiments.items()
            ]
            rows.append(RowSpec(group, METHOD_NAMES[method], tuple(entries)))
    return TableSpec(
        "table3",
        "Results on x-stance intra-target for XLM-R (base) trained on subsets of T_De and T_Fr and for joint training "
        "on all data (T_De + T_Fr). (*): best results for mBERT reported by Vamvas and Sennrich (2020)",
        "xlm-roberta-base",
        ("De", "Fr", "It"),
        tuple(rows),
        ("Examples", "Method"),
        metric="macro-F1",
        notes=(
            "It, except for joint training: the mean score of the German and the French models on Italian rows, "
            "none of which they were trained on.",
            "Every training has three epochs; if T is a whole training set, D = T.",
        ),
    )


def table4(request: TableRequest) -> TableSpec:
    """Table 4: single pairs, the ensemble, and the distilled classifier."""
    size = request.single_size(10)
    weighted, uniform = ("weighting=weighted",), ("weighting=uniform",)
    lines = [
        ("min", weighted, "min"),
        ("max", weighted, "max"),
        ("PET (no distillation)", weighted, "ensemble"),
        ("PET uniform", uniform, "classifier"),
        ("PET weighted", weighted, "classifier"),
    ]
    rows = []
    for name, settings, measure in lines:
        paper_values = paper.TABLE4[name] if size == 10 else {}
        experiments = {task: Experiment(task, size, "pet", settings) for task in request.all_tasks()}
        rows.append(
            RowSpec(
                "",
                name,
                tuple(
                    request.entry(experiment, measure=measure, paper=paper_values.get(task))
                    for task, experiment in experiments.items()
                ),
            )
        )
    return TableSpec(
        "table4",
        "Minimum (min) and maximum (max) accuracy of models based on individual pairs as well as PET with and without "
        f"knowledge distillation (|T| = {size})",
        "roberta-large",
        tuple(TITLES[task] for task in request.all_tasks()),
        tuple(rows),
        ("", "Method"),
        notes=("All five rows share the same members.",),
    )


def table7(request: TableRequest) -> TableSpec:
    """Table 7: PET with automatic verbalizer search."""
    size = request.single_size(50)
    rows = []
    for name, method, searched in (
        ("supervised", "supervised", False),
        ("PET", "pet", False),
        ("PET + AVS", "pet", True),
    ):
        paper_values = paper.TABLE7[name] if size == 50 else {}
        experiments = {task: Experiment(task, size, method, searched_words=searched) for task in request.all_tasks()}
        entries = [request.entry(experiment, paper=paper_values.get(task)) for task, experiment in experiments.items()]
        rows.append(RowSpec("", name, tuple(entries)))
    return TableSpec(
        "table7",
        "Results for supervised learning, PET and PET with automatic verbalizer search (PET + AVS) after training on "
        f"{size} examples",
        "roberta-large",
        tuple(TITLES[task] for task in request.all_tasks()),
        tuple(rows),
    )


def table8(request: TableRequest) -> TableSpec:
    """Table 8: the words of the verbalizer search."""
    task, size = request.single_task(), request.single_size(50)
    paper_values = paper.TABLE8 if (task, size) == ("yelp", 50) else {}
    experiment = Experiment(task, size, "words")
    rows = [
        RowSpec("", label, (request.entry(experiment, measure=f"words {label}", paper=paper_values.get(label)),))
        for label in load_task(TASK_FILES[task]).labels
    ]
    return TableSpec(
        "table8",
        f"Most probable verbalizers according to AVS for {TITLES[task]} with {size} training examples",
        "roberta-large",
        ("Top verbalizers",),
        tuple(rows),
        ("", "y"),
    )
