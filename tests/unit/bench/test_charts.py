"""Charts of made-up points: where names, markers and ticks are."""

import itertools
import math
import re

import pytest

from clozify.bench import charts
from clozify.bench.chart_axes import Scale, accuracy_scale, accuracy_ticks, logarithmic_ticks
from clozify.bench.chart_labels import Box, NamedPoint, place_labels, text_width

AREA = Box(40, 20, 740, 340)


def series(count, sizes=(8,), name="method {}"):
    return [
        charts.Series(name.format(n), n, tuple(charts.Point(size, 0.5, 0.45, 0.55) for size in sizes))
        for n in range(count)
    ]


def crowd(count):
    """Points of which many are close together, with long names; every third is on the frontier."""
    return [
        NamedPoint(120 + 71 * n % 500, 60 + 37 * n % 240, f"embeddings (builtin:{n})", n % 3 == 0) for n in range(count)
    ]


def test_every_method_has_a_marker_a_colour_and_a_dash_pattern_of_its_own():
    assert len({charts.marker(index, 0, 0) for index in range(40)}) == 40
    drawn = str(charts.line_chart(series(8, (8, 64)), "data"))
    assert len(set(re.findall(r'stroke-dasharray="([^"]*)"', drawn))) == len(charts.DASHES) - 1


@pytest.mark.parametrize("count", [3, 5, 11, 19])
def test_names_are_inside_the_plot_near_their_markers_and_off_everything_else(count):
    points = crowd(count)
    labels = place_labels(points, AREA)
    assert labels
    for number, label in enumerate(labels):
        assert AREA.contains(label.box)
        assert not any(label.box.overlaps(point.box) for point in points)
        assert not any(label.box.overlaps(other.box) for other in labels[:number])
        if label.leader is None:
            assert label.box.distance(label.point.position) <= 22
            distances = {point: label.box.distance(point.position) for point in points}
            assert min(distances, key=distances.get) == label.point
        else:
            others = [point for point in points if point is not label.point]
            assert not any(point.box.is_crossed(label.leader) for point in others)


def test_a_few_points_all_have_names_off_the_frontier():
    points = [NamedPoint(100 + 60 * n, 250 - 40 * n, f"method {n}", True) for n in range(5)]
    lines = [(a.position, b.position) for a, b in itertools.pairwise(points)]
    labels = place_labels(points, Box(34, 24, 400, 300), lines)
    assert {label.point for label in labels} == set(points)
    assert not any(label.box.is_crossed(line) for label in labels for line in lines)
    assert all(label.leader is None for label in labels)


def test_a_name_without_a_free_position_is_left_out():
    points = [NamedPoint(60 + 18 * across, 40 + 18 * down, "embeddings") for across in range(9) for down in range(9)]
    labels = place_labels(points, Box(34, 24, 234, 214))
    assert len(labels) < len(points)
    hidden = [NamedPoint(30, 30, "a name longer than the plot")]
    assert place_labels(hidden, Box(0, 0, 60, 60)) == []


def test_a_name_that_does_not_fit_beside_its_marker_is_wrapped():
    (label,) = place_labels([NamedPoint(80, 80, "embeddings (builtin:mini)")], Box(0, 0, 160, 160))
    assert label.lines == ("embeddings", "(builtin:mini)")


def test_bold_and_wide_letters_take_more_width():
    assert text_width("PET", is_bold=True) > text_width("PET")
    assert text_width("mmm") > text_width("nnn") > text_width("iii")
    assert text_width("日本") == 24


@pytest.mark.parametrize(
    ("line", "expected"),
    [(((0, 5), (20, 5)), True), (((0, 0), (4, 20)), False), (((6, 6), (7, 7)), True), (((0, 30), (20, 30)), False)],
)
def test_a_line_crosses_a_box(line, expected):
    assert Box(5, 0, 15, 10).is_crossed(line) is expected


def test_a_scatter_has_all_names_of_its_points_in_its_text_and_the_name_of_both_axes():
    points = [charts.Series(f"method {n}", n, (charts.Point(10.0**n, 0.5 + n / 10),), n > 2) for n in range(4)]
    drawn = str(charts.scatter(points, "Training", "seconds of training"))
    assert drawn.count("method ") == 8  # the names and the text alternative
    assert "accuracy, %" in drawn
    assert drawn.count('class="ring"') == 1


def test_methods_of_a_line_chart_are_side_by_side_without_touching_the_next_size():
    for count in (2, 5, 8, 19):
        drawn = str(charts.line_chart(series(count, (8, 16, 64)), "data"))
        lines = [
            [float(pair.split(",")[0]) for pair in points.split()]
            for points in re.findall(r'<polyline class="line[^>]* points="([^"]*)"', drawn)
        ]
        steps = [b[0] - a[0] for a, b in itertools.pairwise(lines)]
        assert min(steps) >= 6
        assert max(line[0] for line in lines) + 6 < min(line[1] for line in lines)
        right = float(re.search(r'viewBox="0 0 (\d+)', drawn).group(1))
        assert all(charts.LEFT < x < right for line in lines for x in line)


def test_a_dot_plot_has_a_line_with_a_name_for_each_method():
    drawn = str(charts.dot_plot(series(7, name="embeddings (a-rather-long-model-{})"), "data"))
    shown = re.sub(r"<svg[^>]*>", "", drawn)
    for number in range(7):
        assert f"long-model-{number})" in shown
    heights = [float(y) for y in re.findall(r'class="range[^>]* y1="([\d.]+)"', drawn)]
    assert len(heights) == 7
    assert min(b - a for a, b in itertools.pairwise(heights)) >= 14


def test_ticks_are_few_and_cover_the_values():
    for low, high in ((0.003, 0.004), (0.2, 900), (7, 7), (1, 10**9), (150, 10_000)):
        ticks = logarithmic_ticks(low, high)
        assert 2 <= len(ticks) <= 6
        assert all(math.log10(value) % 1 < 0.7 for value, _ in ticks)
    assert [text for _, text in logarithmic_ticks(150, 900)] == ["100", "200", "500", "1,000"]


def test_a_scale_of_accuracy_covers_the_values_and_stays_within_0_and_100():
    for values in ([0.0], [1.0], [0.712], [0.3, 0.98], [0.701, 0.702]):
        scale = accuracy_scale(values, 0, 100)
        assert 0 <= scale.low <= min(values) <= max(values) <= scale.high <= 1
        assert 2 <= len(accuracy_ticks(scale)) <= 7
    assert Scale(5, 5, 0, 100, logarithmic=True)(5) == 50
