"""The paper's tables 1, 2, 3, 4, 7 and 8: their rows and columns, and the cell behind every number.

In: what is asked for. Out: an `Exhibit`.
"""

from __future__ import annotations

from typing import Literal

from clozify.config.task import load_task
from clozify.reproduce import paper
from clozify.reproduce.cells import NAMES, Cell
from clozify.reproduce.data_locations import SHIPPED
from clozify.reproduce.layout import Entry, Exhibit, Row, TableRequest, one_size, one_task, part_of, title_of

HALF = 0.5  # appendix B.4: for table 2 the number of unlabelled rows is reduced by half


def table1(request: TableRequest) -> Exhibit:
    """Main results."""
    columns = [
        (task, part) for task in request.columns() for part in (("m", "mm") if task == "mnli" else (part_of(task),))
    ]
    rows = []
    for size in request.rows((0, *paper.SIZES)):
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
            known = paper.TABLE1.get((size, name), {})
            entries = [
                request.entry(
                    Cell(task, size, method),
                    measure=measure,
                    part=part,
                    paper=known.get("mnli-mm" if part == "mm" else task),
                )
                for task, part in columns
            ]
            rows.append(Row(f"|T| = {size}", name, tuple(entries)))
    return Exhibit(
        "table1",
        "Average accuracy and standard deviation for RoBERTa (large) on Yelp, AG's News, Yahoo and MNLI (m: matched, "
        "mm: mismatched) for five training set sizes |T|",
        "roberta-large",
        tuple(title_of(task) + (f" ({part})" if task == "mnli" else "") for task, part in columns),
        tuple(rows),
        ("Examples", "Method"),
        remarks=(
            "The spread of unsupervised (avg) is over the pairs, that of the others over the repetitions.",
            "The paper leaves one of its three supervised MNLI runs with 1000 examples out, which had underfitted; "
            "here none is left out.",
        ),
    )


def table2(request: TableRequest) -> Exhibit:
    """The comparison on base models."""
    rows = []
    for size in request.rows((10, 50)):
        for method in ("uda", "mixtext", "pet", "ipet"):
            known = paper.TABLE2.get((size, NAMES[method]), {})
            whole = ("augment.share=1",) if method in ("uda", "mixtext") else ()  # of the half
            cells = {task: Cell(task, size, method, whole, share=HALF) for task in request.columns()}
            entries = [request.entry(cell, part=part_of(task), paper=known.get(task)) for task, cell in cells.items()]
            rows.append(Row(f"|T| = {size}", NAMES[method], tuple(entries)))
    return Exhibit(
        "table2",
        "Comparison of PET with two state-of-the-art semi-supervised methods using RoBERTa (base)",
        "roberta-base",
        tuple(map(title_of, request.columns())),
        tuple(rows),
        ("Ex.", "Method"),
        remarks=(
            "D has half as many rows a label as elsewhere, where there are so many, for all methods (appendix B.4).",
            "For UDA and MixText the paper reports the best of several numbers of training steps, chosen on the test "
            "set; here the recipe's number of steps is taken, or the best of those that --set uda.steps_to_try and "
            "mixtext.steps_to_try list.",
            "MNLI is the matched development set.",
        ),
    )


def table3(request: TableRequest) -> Exhibit:
    """x-stance."""
    rows = []
    sizes: list[int | str] = [*request.rows((1000, 2000, 4000)), "full", "joint"]
    names = {"full": "T_De, T_Fr", "joint": "T_De + T_Fr"}
    for size in sizes:
        group = names.get(str(size), f"|T| = {size}")
        if size == "joint":
            quoted = paper.TABLE3["joint", "sup. (*)"]
            rows.append(Row(group, "sup. (*)", tuple(Entry(paper=quoted[column]) for column in paper.LANGUAGES)))
        for method in ("supervised", "pet"):
            known = paper.TABLE3.get((size, NAMES[method]), {})
            examples: int | Literal["full"] = "full" if isinstance(size, str) else size
            each = {language: Cell(f"xstance-{language}", examples, method) for language in ("de", "fr")}
            cells: dict[str, tuple[Cell, ...]] = {
                "de": (each["de"],),
                "fr": (each["fr"],),
                "it": (each["de"], each["fr"]),
            }
            if size == "joint":
                cells = dict.fromkeys(paper.LANGUAGES, (Cell("xstance", "full", method),))
            entries = [
                request.entry(*of_part, size=size, part=part, paper=known.get(part)) for part, of_part in cells.items()
            ]
            rows.append(Row(group, NAMES[method], tuple(entries)))
    return Exhibit(
        "table3",
        "Results on x-stance intra-target for XLM-R (base) trained on subsets of T_De and T_Fr and for joint training "
        "on all data (T_De + T_Fr). (*): best results for mBERT reported by Vamvas and Sennrich (2020)",
        "xlm-roberta-base",
        ("De", "Fr", "It"),
        tuple(rows),
        ("Examples", "Method"),
        metric="macro-F1",
        remarks=(
            "It, above the joint training: the mean of what the German and the French models reach on Italian rows, "
            "without having been trained on any.",
            "Every training is three epochs long; where T is a whole training set, D = T.",
        ),
    )


def table4(request: TableRequest) -> Exhibit:
    """Combining patterns."""
    size = one_size(request, 10)
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
        known = paper.TABLE4[name] if size == 10 else {}
        cells = {task: Cell(task, size, "pet", settings) for task in request.columns()}
        rows.append(
            Row(
                "",
                name,
                tuple(
                    request.entry(cell, measure=measure, part=part_of(task), paper=known.get(task))
                    for task, cell in cells.items()
                ),
            )
        )
    return Exhibit(
        "table4",
        "Minimum (min) and maximum (max) accuracy of models based on individual pairs as well as PET with and without "
        f"knowledge distillation (|T| = {size})",
        "roberta-large",
        tuple(map(title_of, request.columns())),
        tuple(rows),
        ("", "Method"),
        remarks=("All five rows share the same members.",),
    )


def table7(request: TableRequest) -> Exhibit:
    """Verbalizer search."""
    size = one_size(request, 50)
    rows = []
    for name, method, found in (("supervised", "supervised", False), ("PET", "pet", False), ("PET + AVS", "pet", True)):
        known = paper.TABLE7[name] if size == 50 else {}
        cells = {task: Cell(task, size, method, found_words=found) for task in request.columns()}
        entries = [request.entry(cell, part=part_of(task), paper=known.get(task)) for task, cell in cells.items()]
        rows.append(Row("", name, tuple(entries)))
    return Exhibit(
        "table7",
        "Results for supervised learning, PET and PET with automatic verbalizer search (PET + AVS) after training on "
        f"{size} examples",
        "roberta-large",
        tuple(map(title_of, request.columns())),
        tuple(rows),
    )


def table8(request: TableRequest) -> Exhibit:
    """The words that the verbalizer search finds."""
    task, size = one_task(request), one_size(request, 50)
    known = paper.TABLE8 if (task, size) == ("yelp", 50) else {}
    cell = Cell(task, size, "words")
    rows = [
        Row("", label, (request.entry(cell, measure=f"words {label}", paper=known.get(label)),))
        for label in load_task(SHIPPED[task]).labels
    ]
    return Exhibit(
        "table8",
        f"Most probable verbalizers according to AVS for {title_of(task)} with {size} training examples",
        "roberta-large",
        ("Top verbalizers",),
        tuple(rows),
        ("", "y"),
    )
