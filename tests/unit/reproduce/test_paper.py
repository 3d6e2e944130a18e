"""The paper's own values: where it prints a number twice, both transcriptions must agree."""

from clozify.reproduce import paper


def means(row):
    return {column: value.mean for column, value in row.items()}


def test_table_4_and_table_7_repeat_rows_of_table_1():
    """A slip of the pen in one table would make every difference of that row wrong."""
    without_mismatched = {name: of for name, of in paper.TABLE1[10, "PET"].items() if name != "mnli-mm"}
    assert means(paper.TABLE4["PET weighted"]) == means(without_mismatched)
    for name in ("supervised", "PET"):
        of_50 = {task: value for task, value in means(paper.TABLE1[50, name]).items() if task != "mnli-mm"}
        assert means(paper.TABLE7[name]) == of_50


def test_figure_5_repeats_the_yelp_column_of_table_1():
    for line, method in (("PET", "PET"), ("sup.", "supervised")):
        for size, value in paper.FIGURE5[line].items():
            assert value.mean == paper.TABLE1[size, method]["yelp"].mean


def test_figure_6_repeats_supervised_training_on_yelp_with_100_examples():
    assert paper.FIGURE6["1e-5", "sup."][250].mean == paper.TABLE1[100, "supervised"]["yelp"].mean


def test_every_table_is_whole():
    assert (len(paper.TABLE1), len(paper.TABLE2), len(paper.TABLE3)) == (14, 8, 11)
    assert (len(paper.TABLE4), len(paper.TABLE7), len(paper.TABLE8)) == (5, 3, 5)
    assert all(value.std is not None for row in paper.TABLE1.values() for value in row.values())
    assert len(paper.FIGURE6) == 6
    assert paper.FIGURE3["yelp"][10].mean == 14.116
    assert paper.FIGURE4_SKIPPED["agnews"][4].mean == 81.3
