"""The graph of what a model was made of, and where its nodes are on a page."""

import re

import pytest

from datasets.lineage import (
    ARTIFACT,
    RUN,
    SNAPSHOT,
    VERSION,
    VOLUME,
    Builder,
    ingredients,
    node,
    parameters,
    seed_of,
)
from datasets.lineage_layout import GAP_X, HEIGHT, WIDTH, draw


def chain() -> Builder:
    """data -> run1 -> state -> run2 -> model, each run with code; run1 also made a log."""
    builder = Builder()
    data, state, model = (
        node(VERSION, "d", "data@1"),
        node(ARTIFACT, "s", "state"),
        node(ARTIFACT, "m", "model"),
    )
    run1, run2 = node(RUN, "1", "run1"), node(RUN, "2", "run2")
    for source, target in ((data, run1), (run1, state), (state, run2), (run2, model)):
        builder.link(source, target)
    builder.link(node(VERSION, "c1", "code1"), run1)
    builder.link(node(VERSION, "c2", "code2"), run2)
    builder.link(run1, node(ARTIFACT, "l", "log"))
    return builder


@pytest.mark.parametrize(
    ("start", "names"),
    [
        ("artifact:m", {"model", "run2", "state", "code2", "run1", "data@1", "code1"}),
        ("artifact:l", {"log", "run1", "data@1", "code1"}),
        ("version:d", {"data@1", "run1", "state", "log", "run2", "model", "code1", "code2"}),
        ("version:c2", {"code2", "run2", "model", "state"}),
    ],
)
def test_a_graph_has_what_led_to_a_thing_and_what_followed_with_all_that_went_into_it(start, names):
    graph = chain().graph(start)
    assert {one.name for one in graph.nodes} == names
    assert not graph.is_cut


def test_a_graph_that_is_too_large_keeps_what_is_nearest_and_says_so():
    graph = chain().graph("artifact:m", most=3)
    assert [one.name for one in graph.nodes] == ["model", "run2", "state"]
    assert graph.is_cut
    assert len(graph.edges) == 2


def test_circles_of_broken_rows_end():
    builder, one, two = Builder(), node(RUN, "1", "a"), node(RUN, "2", "b")
    builder.link(one, two)
    builder.link(two, one)
    assert len(draw(builder.graph("job:1")).boxes) == 2


def test_edges_lead_to_the_right_boxes_do_not_overlap_and_ingredients_stand_before_their_first_use():
    picture = draw(chain().graph("version:d"))
    places = {box.node.key: (box.x, box.y) for box in picture.boxes}
    assert len(set(places.values())) == len(places)
    for edge, _path in picture.lines:
        assert places[edge.source][0] < places[edge.target][0]
    assert places["job:2"][0] - places["version:c2"][0] == WIDTH + GAP_X
    assert max(x for x, _ in places.values()) + WIDTH < picture.width


def restored() -> Builder:
    """run1 -> snapshot -> volume -> run2 -> model; both runs have the same data, code and image."""
    builder, run1, run2 = Builder(), node(RUN, "1", "run1"), node(RUN, "2", "run2")
    snapshot, volume = node(SNAPSHOT, "s", "run1@1"), node(VOLUME, "v", "run1-back")
    for source, target in ((run1, snapshot), (snapshot, volume), (volume, run2)):
        builder.link(source, target)
    builder.link(run2, node(ARTIFACT, "m", "model"))
    for key in ("data@1", "code", "image"):
        builder.link(node(VERSION, key, key), run1)
        builder.link(node(VERSION, key, key), run2)
    for run in (run1, run2):
        builder.link(node(VERSION, f"p{run.id}", f"parameters of {run.name}"), run)
    return builder


def points(path: str) -> list[tuple[float, float]]:
    """Return points along an SVG path of M, C and H."""
    found = list[tuple[float, float]]()
    for letter, text in re.findall(r"([MCH])([^MCH]*)", path):
        numbers = [float(one) for one in text.split()]
        if letter == "M":
            found.append((numbers[0], numbers[1]))
            continue
        x, y = found[-1]
        ends = [(numbers[0], y)] * 3 if letter == "H" else list(zip(numbers[::2], numbers[1::2], strict=True))
        (x1, y1), (x2, y2), (x3, y3) = ends
        for step in range(1, 51):
            t = step / 50
            weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
            found.append(
                (
                    sum(weight * one for weight, one in zip(weights, (x, x1, x2, x3), strict=True)),
                    sum(weight * one for weight, one in zip(weights, (y, y1, y2, y3), strict=True)),
                )
            )
    return found


@pytest.mark.parametrize(("builder", "start"), [(restored(), "artifact:m"), (chain(), "version:d")])
def test_no_edge_passes_behind_a_box(builder, start):
    picture = draw(builder.graph(start))
    for _edge, path in picture.lines:
        inside = [
            (path, box.name)
            for x, y in points(path)
            for box in picture.boxes
            if box.x < x < box.x + WIDTH and box.y < y < box.y + HEIGHT
        ]
        assert inside == []
        assert all(0 < y < picture.height for _, y in points(path))


def test_edges_of_one_source_share_the_way_through_a_column():
    builder, last = Builder(), node(RUN, "9", "last")
    for number in range(4):
        builder.link(node(RUN, f"{number}", f"run{number}"), node(RUN, f"{number + 1}", f"run{number + 1}"))
        builder.link(node(VERSION, "d", "data"), node(RUN, f"{number}", f"run{number}"))
    builder.link(node(RUN, "4", "run4"), last)
    picture = draw(builder.graph("job:9"))
    found = [path for edge, path in picture.lines if edge.source == "version:d"]
    lanes = {lane for path in found for lane in re.findall(r"(\S+) H(\S+)", path)}
    assert len(lanes) == len({x for _, x in lanes}) == 3


@pytest.mark.parametrize(
    ("spec", "seed"),
    [
        ({"command": ["python", "t.py", "--seed", "7"]}, "7"),
        ({"args": ["--random-seed=12"]}, "12"),
        ({"env": {"SEED": "3"}}, "3"),
        ({"command": ["python", "--seed"]}, None),
        ({"command": ["--seedling=1"]}, None),
        ({}, None),
    ],
)
def test_a_seed_is_read_of_the_command_or_the_environment(spec, seed):
    assert seed_of(spec) == seed


def test_what_cannot_change_has_an_identity_and_what_can_has_none():
    tree, digest = "sha256:" + "1" * 64, "sha256:" + "2" * 64
    spec = {"code": {"tree": tree, "commit": "9c1f2ab", "is_dirty": True}, "image": f"x@{digest}"}
    found = {one.kind: one for one, _ in ingredients("j", spec, "sha256:3", [("uv.lock", "4" * 64)])}
    assert (found["code"].identity, found["code"].detail) == (tree, "with uncommitted changes")
    assert (found["image"].identity, found["environment"].identity) == (digest, f"sha256:{'4' * 64}")
    [image] = [one for one, _ in ingredients("j", {"image": "python"}, "h", ()) if one.kind == "image"]
    assert image.identity == ""


def test_an_edge_has_the_identity_of_what_went_in_or_of_what_a_run_made():
    builder, run = Builder(), node(RUN, "1", "run1")
    builder.link(node(VERSION, "d", "data@1", identity="sha256:1"), run)
    builder.link(run, node(ARTIFACT, "m", "model", identity="sha256:2"))
    assert [one.identity for one in builder.graph("job:1").edges] == ["sha256:1", "sha256:2"]


def test_parameters_leave_out_what_does_not_decide_the_result():
    assert parameters({"args": ["1"], "priority": 3}) == parameters({"args": ["1"], "priority": 9})
    assert parameters({"args": ["1"]}) != parameters({"args": ["2"]})
