"""Changes between states, and the window that brings returning clients up."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.live import topics
from controlplane.live.changes import Change, apply, diff, without_empty
from controlplane.live.frames import WINDOW_FRAMES, Window, change_frame
from controlplane.live.topics import may_listen, parse_topic

records = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3), lambda inner: st.lists(inner, max_size=2)
)
states = st.dictionaries(st.sampled_from("abc"), st.dictionaries(st.sampled_from("xyz"), records))


@given(states, states)
def test_a_state_after_the_change_is_the_new_state(old, new):
    assert without_empty(apply(old, diff(old, new))) == without_empty(new)


@given(states)
def test_nothing_changes_between_equal_states(state):
    assert not diff(state, {name: dict(records) for name, records in state.items()})


@given(states, states)
def test_a_change_holds_only_what_differs(old, new):
    change = diff(old, new)
    for collection, upserts in change.upserts.items():
        for key, record in upserts.items():
            assert key not in old.get(collection, {}) or old[collection][key] != record
    for collection, key in change.deletes:
        assert key in old[collection]
        assert key not in new.get(collection, {})


def test_applying_leaves_the_old_state_alone():
    old = {"a": {"x": 1}}
    assert apply(old, Change({"a": {"x": 2}}, ())) == {"a": {"x": 2}}
    assert old == {"a": {"x": 1}}


@given(st.lists(st.tuples(st.integers(1, 3), states), min_size=1, max_size=12), st.data())
def test_a_window_brings_a_client_up_from_every_number_that_it_gave_out(steps, data):
    seq, state = 10, {}
    window, seen = Window({seq: None}), [(10, {})]
    for by, new in steps:
        seq += by
        change = diff(state, new)
        if change:
            window.add(seq, change_frame("t", seq, change, ""))
        else:
            window.pass_by(seq)
        state = new
        seen.append((seq, state))
    changes = dict(
        zip(
            [at for at, _ in seen[1:]],
            [diff(a, b) for (_, a), (_, b) in pairwise(seen)],
            strict=True,
        )
    )
    start, held = data.draw(st.sampled_from(seen))
    frames = window.since(start)
    assert frames is not None
    for frame in frames:
        held = apply(held, changes[frame.seq])
    assert without_empty(held) == without_empty(state)


def test_a_window_refuses_numbers_that_it_never_gave_out():
    window = Window({10: None})
    window.add(12, change_frame("t", 12, Change({"a": {"x": 1}}, ()), ""))
    assert window.since(11) is None
    assert window.since(9) is None
    assert window.since(13) is None
    assert window.since(12) == []


def test_a_window_forgets_and_then_refuses_what_it_forgot():
    window = Window({0: None})
    for seq in range(1, WINDOW_FRAMES + 3):
        window.add(seq, change_frame("t", seq, Change({"a": {"x": seq}}, ()), ""))
    assert window.since(0) is None
    assert window.since(1) is None
    frames = window.since(2)
    assert frames is not None
    assert len(frames) == WINDOW_FRAMES


@pytest.mark.parametrize(
    "name",
    ["", "overviews", "project:", "project:Team", "project:a/b", "job:1", "job:" + "0" * 40, "dataset:1", "flow-run:1",
     None, 5, "job:0f0f0f0f-0f0f-0f0f-0f0f-0f0f0f0f0f0f:logs:", "job:0f0f0f0f-0f0f-0f0f-0f0f-0f0f0f0f0f0f:shell:0"],
)  # fmt: skip
def test_what_is_no_topic_is_no_topic(name):
    assert parse_topic(name) is None


def test_topics_of_a_project_are_for_those_who_see_it():
    for name in (
        "project:team-a",
        "job:0f0f0f0f-0f0f-0f0f-0f0f-0f0f0f0f0f0f",
        "job:0f0f0f0f-0f0f-0f0f-0f0f-0f0f0f0f0f0f:logs:3",
    ):
        topic = parse_topic(name)
        assert topic is not None
        assert may_listen(topic, frozenset({1}), 1)
        assert may_listen(topic, None, 1)
        assert not may_listen(topic, frozenset({1}), 2)
        assert not may_listen(topic, frozenset(), None)
        assert not may_listen(topic, None, None)
    for name in (topics.OVERVIEW, topics.QUEUE):
        topic = parse_topic(name)
        assert topic is not None
        assert may_listen(topic, frozenset(), None)
