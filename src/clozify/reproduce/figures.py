"""The paper's figures 3 to 6 as tables: a row is a line, a column a tick of the x-axis; `draw.py` draws them."""

from __future__ import annotations

from clozify.reproduce import paper
from clozify.reproduce.data_locations import TITLES
from clozify.reproduce.experiments import Experiment
from clozify.reproduce.specs import Entry, RowSpec, TableRequest, TableSpec

LEGEND_ORDER = ("yelp", "agnews", "mnli", "yahoo")
SKIPPING_TASKS = ("agnews", "yahoo")  # of figure 4's dashed lines


def figure3(request: TableRequest) -> TableSpec:
    """Figure 3: improvement by auxiliary language modelling."""
    rows = []
    sizes = request.all_sizes(paper.SIZES)
    for task in request.all_tasks(LEGEND_ORDER):
        entries = []
        for size in sizes:
            both = [Experiment(task, size, "pet", (f"language_modeling={value}",)) for value in ("true", "false")]
            paper_value = paper.FIGURE3.get(task, {}).get(size)
            entries.append(request.entry(*both, paper=paper_value, combine="difference"))
        rows.append(RowSpec("", TITLES[task], tuple(entries)))
    return TableSpec(
        "figure3",
        "Accuracy improvements for PET due to adding L_MLM during training",
        "roberta-large",
        tuple(str(size) for size in sizes),
        tuple(rows),
        ("", "Training set size"),
        metric="accuracy improvement",
        notes=("The final classifiers are compared; MNLI is the matched development set.",),
    )


def figure4(request: TableRequest) -> TableSpec:
    """Figure 4: accuracy of each generation of zero-shot iPET."""
    rows = []
    tasks = request.all_tasks(LEGEND_ORDER)
    for task in tasks:
        experiment = Experiment(task, 0, "ipet")
        entries = [request.entry(experiment, measure=f"generation {generation}") for generation in range(5)]
        rows.append(RowSpec("", TITLES[task], tuple(entries)))
    for task in [task for task in tasks if task in SKIPPING_TASKS or task not in paper.ENGLISH]:
        experiment = Experiment(task, 0, "ipet", ("ipet.skip_generations=true",))
        paper_values = paper.FIGURE4_SKIPPED.get(task, {})
        skipping = [
            request.entry(experiment, measure=f"generation {generation}", paper=paper_values.get(generation))
            if generation in (1, 4)
            else Entry()
            for generation in range(5)
        ]
        rows.append(RowSpec("", f"{TITLES[task]}, skipping 2 and 3", tuple(skipping)))
    return TableSpec(
        "figure4",
        "Average accuracy for each generation of models with iPET in a zero-shot setting. Accuracy when skipping "
        "generation 2 and 3 is indicated through dashed lines",
        "roberta-large",
        ("M^0", "M^1", "M^2", "M^3", "M^4"),
        tuple(rows),
        ("", "Model generation"),
        notes=("The paper's text does not give the values of its solid lines.",),
    )


def figure5(request: TableRequest) -> TableSpec:
    """Figure 5: with and without in-domain pretraining."""
    task = request.single_task()
    sizes = request.all_sizes(paper.SIZES)
    rows = []
    for name in paper.FIGURE5:
        method = "pet" if name.startswith("PET") else "supervised"
        paper_values = paper.FIGURE5[name] if task == "yelp" else {}
        experiments = {size: Experiment(task, size, method, pretrained=name.endswith("PT")) for size in sizes}
        entries = [request.entry(experiment, paper=paper_values.get(size)) for size, experiment in experiments.items()]
        rows.append(RowSpec("", name, tuple(entries)))
    return TableSpec(
        "figure5",
        f"Accuracy of supervised learning (sup.) and PET both with and without pretraining (PT) on {TITLES[task]}",
        "roberta-large",
        tuple(str(size) for size in sizes),
        tuple(rows),
        ("", "Training set size"),
        notes=("The model is pretrained on the texts of the first 10,000 rows of each label.",),
    )


def figure6(request: TableRequest) -> TableSpec:
    """Figure 6: learning rates and numbers of training steps."""
    task, size = request.single_task(), request.single_size(100)
    rows = []
    for rate, name in paper.FIGURE6:
        method, section = ("supervised", "supervised") if name == "sup." else ("pet", "finetune_without_lm")
        paper_values = paper.FIGURE6[rate, name] if (task, size) == ("yelp", 100) else {}
        entries = []
        for steps in paper.STEPS:
            settings = (f"{section}.learning_rate={rate}", f"{section}.max_steps={steps}")
            without_lm = ("language_modeling=false",) if method == "pet" else ()
            experiment = Experiment(task, size, method, (*without_lm, *settings))
            entries.append(request.entry(experiment, paper=paper_values.get(steps)))
        rows.append(RowSpec(f"LR = {rate}", name, tuple(entries)))
    return TableSpec(
        "figure6",
        "Performance of supervised learning and PET (weighted, without auxiliary language modeling) for various "
        f"learning rates and training steps on {TITLES[task]} with {size} training examples",
        "roberta-large",
        tuple(str(steps) for steps in paper.STEPS),
        tuple(rows),
        ("", "Training steps"),
        notes=("For PET, learning rate and steps are the members'; the final classifier is trained by the recipe.",),
    )
