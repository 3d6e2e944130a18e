"""The paper's figures 3 to 6: their lines (rows), the ticks of their x-axis (columns), the cells behind every point.

In: what is asked for. Out: an `Exhibit`, which is filled like a table; `draw.py` draws it.
"""

from __future__ import annotations

from clozify.reproduce import paper
from clozify.reproduce.cells import Cell
from clozify.reproduce.layout import Entry, Exhibit, Row, TableRequest, one_size, one_task, part_of, title_of

LEGEND = ("yelp", "agnews", "mnli", "yahoo")  # the order of the figures' legends
NEWS = ("agnews", "yahoo")  # where figure 4 skips generations


def figure3(request: TableRequest) -> Exhibit:
    """The auxiliary task."""
    rows = []
    sizes = request.rows(paper.SIZES)
    for task in request.columns(LEGEND):
        entries = []
        for size in sizes:
            both = [Cell(task, size, "pet", (f"language_modeling={asked}",)) for asked in ("true", "false")]
            known = paper.FIGURE3.get(task, {}).get(size)
            entries.append(request.entry(*both, part=part_of(task), paper=known, how="difference"))
        rows.append(Row("", title_of(task), tuple(entries)))
    return Exhibit(
        "figure3",
        "Accuracy improvements for PET due to adding L_MLM during training",
        "roberta-large",
        tuple(str(size) for size in sizes),
        tuple(rows),
        ("", "Training set size"),
        metric="accuracy improvement",
        remarks=("The final classifiers are compared; MNLI is the matched development set.",),
    )


def figure4(request: TableRequest) -> Exhibit:
    """Generations, with skipped ones."""
    rows = []
    tasks = request.columns(LEGEND)
    for task in tasks:
        cell = Cell(task, 0, "ipet")
        entries = [request.entry(cell, measure=f"generation {number}", part=part_of(task)) for number in range(5)]
        rows.append(Row("", title_of(task), tuple(entries)))
    for task in [task for task in tasks if task in NEWS or task not in paper.ENGLISH]:
        cell = Cell(task, 0, "ipet", ("ipet.skip_generations=true",))
        known = paper.FIGURE4_SKIPPED.get(task, {})
        skipping = [
            request.entry(cell, measure=f"generation {number}", part=part_of(task), paper=known.get(number))
            if number in (1, 4)
            else Entry()
            for number in range(5)
        ]
        rows.append(Row("", f"{title_of(task)}, skipping 2 and 3", tuple(skipping)))
    return Exhibit(
        "figure4",
        "Average accuracy for each generation of models with iPET in a zero-shot setting. Accuracy when skipping "
        "generation 2 and 3 is indicated through dashed lines",
        "roberta-large",
        ("M^0", "M^1", "M^2", "M^3", "M^4"),
        tuple(rows),
        ("", "Model generation"),
        remarks=("The values of the paper's solid lines are not in its text.",),
    )


def figure5(request: TableRequest) -> Exhibit:
    """In-domain pretraining."""
    task = one_task(request)
    sizes = request.rows(paper.SIZES)
    rows = []
    for name in paper.FIGURE5:
        method = "pet" if name.startswith("PET") else "supervised"
        known = paper.FIGURE5[name] if task == "yelp" else {}
        cells = {size: Cell(task, size, method, pretrained=name.endswith("PT")) for size in sizes}
        entries = [request.entry(cell, part=part_of(task), paper=known.get(size)) for size, cell in cells.items()]
        rows.append(Row("", name, tuple(entries)))
    return Exhibit(
        "figure5",
        f"Accuracy of supervised learning (sup.) and PET both with and without pretraining (PT) on {title_of(task)}",
        "roberta-large",
        tuple(str(size) for size in sizes),
        tuple(rows),
        ("", "Training set size"),
        remarks=("The model is pretrained on the first 10,000 rows of every label, without their labels.",),
    )


def figure6(request: TableRequest) -> Exhibit:
    """Learning rate and steps."""
    task, size = one_task(request), one_size(request, 100)
    rows = []
    for rate, name in paper.FIGURE6:
        method, section = ("supervised", "supervised") if name == "sup." else ("pet", "finetune_without_lm")
        known = paper.FIGURE6[rate, name] if (task, size) == ("yelp", 100) else {}
        entries = []
        for steps in paper.STEPS:
            settings = (f"{section}.learning_rate={rate}", f"{section}.max_steps={steps}")
            more = ("language_modeling=false",) if method == "pet" else ()
            cell = Cell(task, size, method, (*more, *settings))
            entries.append(request.entry(cell, part=part_of(task), paper=known.get(steps)))
        rows.append(Row(f"LR = {rate}", name, tuple(entries)))
    return Exhibit(
        "figure6",
        "Performance of supervised learning and PET (weighted, without auxiliary language modeling) for various "
        f"learning rates and training steps on {title_of(task)} with {size} training examples",
        "roberta-large",
        tuple(str(steps) for steps in paper.STEPS),
        tuple(rows),
        ("", "Training steps"),
        remarks=("For PET the learning rate and the steps are the members'; the final classifier is trained as ever.",),
    )
