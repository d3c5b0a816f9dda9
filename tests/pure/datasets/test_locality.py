"""Where nodes read cached data from, and to which location a job's data is brought."""

from datasets.locality import Candidate, Found, Location, choose, choose_other, find, location_of

DEFAULT = Location("local")
EAST = Location("east", ("a100",))
WEST = Location("west", (), {"zone": "west", "disk": "nvme"})
LOCATIONS = (DEFAULT, WEST, EAST)


def test_a_node_reads_from_the_location_of_its_pool_or_of_all_its_labels():
    assert location_of("a100", {}, LOCATIONS) == "east"
    assert location_of("t4", {"zone": "west", "disk": "nvme", "more": "x"}, LOCATIONS) == "west"
    assert location_of("t4", {"zone": "west"}, LOCATIONS) == "local"
    # of several the first by name, whatever their order
    assert location_of("a100", {"zone": "west", "disk": "nvme"}, LOCATIONS) == "east"
    assert location_of("t4", {}, (EAST, WEST)) == ""


def test_data_goes_where_it_is_then_where_there_is_room_then_where_little_is_missing():
    there = Candidate("there", 0, 0, 8000, 1)
    roomy, full = Candidate("roomy", 100, 4000, 8000, 1), Candidate("full", 10, 1000, 8000, 1)
    assert choose((roomy, there, full), 2000) == "there"
    assert choose((roomy, full), 2000) == "roomy"
    assert choose((roomy, full), 1000) == "full"
    assert choose((roomy, full), 8000) == "full"
    assert choose((), 1000) == ""


def test_a_place_that_can_never_run_the_job_comes_last():
    small, empty = Candidate("small", 0, 1000, 1000, 1), Candidate("empty", 0, 0, 0, 0)
    large = Candidate("large", 100, 0, 8000, 1)
    assert choose((small, empty, large), 8000) == "large"
    assert choose((empty, large), 0) == "large"


def test_data_goes_to_where_it_fits_and_no_fill_of_it_failed_if_there_is_such_a_place():
    small, failed = Candidate("a", 100, 8000, 8000, 1, 99), Candidate("b", 100, 8000, 8000, 1, None, True)
    full, none = Candidate("c", 100, 0, 8000, 1, 100), Candidate("d", 0, 0, 0, 0)
    assert choose((small, failed, full), 8000) == "c"
    assert choose((small, failed), 8000) == "b"
    assert choose((small, none), 8000) == "a"
    assert choose_other((small, failed, full, none), 8000) == "c"
    assert choose_other((small, failed, none), 8000) == ""


def test_a_job_may_start_where_all_of_its_versions_are_ready():
    states = {("east", 1): "ready", ("east", 2): "ready", ("west", 1): "ready", ("west", 2): "filling"}
    assert find((1, 2), ("west", "east", "local"), states) == Found(("east",), ("local", "west"))
    assert find((1,), ("west", "east"), states) == Found(("east", "west"), ())
    failed = {**states, ("local", 1): "failed"}
    assert find((1, 2), ("west", "east", "local"), failed) == Found(("east",), ("west",))
