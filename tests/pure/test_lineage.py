"""The graph of what a model was made of, and where its nodes are on a page."""

import pytest

from datasets.lineage import ARTIFACT, RUN, VERSION, Builder, ingredients, node, parameters, seed_of
from datasets.lineage_layout import GAP_X, WIDTH, draw


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
    for line in picture.lines:
        assert places[line.edge.source][0] < places[line.edge.target][0]
    assert places["job:2"][0] - places["version:c2"][0] == WIDTH + GAP_X
    assert max(x for x, _ in places.values()) + WIDTH < picture.width


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
