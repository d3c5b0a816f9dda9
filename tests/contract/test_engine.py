"""The contract of every engine. `engines/base.py` says it in words."""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.engines import base
from controlplane.engines.base import DeviceShare, EngineRefused
from controlplane.engines.kinds import engine_kinds
from controlplane.engines.registry import open_engine
from tests.contract.harness import PROJECT, SETTINGS, EngineCase, kubernetes_settings, make_case
from tests.kube import KubeCluster
from tests.waiting import wait_until

FOREVER = ("sleep", "1000")
ON_A_CLUSTER = "kubernetes"
KINDS = [
    pytest.param(kind, marks=[pytest.mark.real_node] if kind == ON_A_CLUSTER else [])
    for kind in engine_kinds()
]


def kube_of(request: pytest.FixtureRequest, kind: str) -> KubeCluster | None:
    """A real cluster for the engine that needs one."""
    return request.getfixturevalue("kube_node") if kind == ON_A_CLUSTER else None


@pytest.fixture(params=KINDS)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EngineCase]:
    case = make_case(request.param, tmp_path, kube_of(request, request.param))
    yield case
    case.close()


@pytest.mark.parametrize("kind", KINDS)
def test_the_registry_opens_every_kind(kind: str, tmp_path: Path, request: pytest.FixtureRequest):
    kube = kube_of(request, kind)
    engine = open_engine(kind, kubernetes_settings(kube) if kube else SETTINGS, tmp_path)
    assert [node.name for node in engine.nodes()] == ["node-a", "node-b"]
    engine.close()


def test_nodes_are_as_the_settings_say(case: EngineCase):
    node_a, node_b = case.engine.nodes()
    assert (node_a.pool, node_b.pool) == ("train", "default")
    assert [device.index for device in node_a.devices] == list(range(8))
    assert {device.memory_mib for device in node_b.devices} == {16384}
    assert len({device.uuid for node in case.engine.nodes() for device in node.devices}) == 10
    assert node_a.is_ready
    assert node_a.milli_cpus > 0
    assert node_a.memory_mib > 0


def test_a_pod_runs_until_it_ends_by_itself(case: EngineCase):
    spec = case.start("sleep", "0.2")
    running = case.report(spec)
    assert running is not None
    assert running.state in {base.STARTING, base.RUNNING}
    assert not running.is_proven_gone
    report = case.wait_end(spec)
    assert (report.state, report.reason, report.exit_code) == (base.SUCCEEDED, base.COMPLETED, 0)
    assert report.started_at is not None
    assert report.finished_at is not None
    assert 0 <= (report.finished_at - report.started_at).total_seconds() < 10


def test_an_end_is_final_and_reported_until_forgotten(case: EngineCase):
    spec = case.start("sleep", "0")
    first = case.wait_end(spec)
    case.engine.stop(spec.name, 0)
    case.engine.start(spec)
    assert case.report(spec) == first
    case.engine.forget(spec.name)
    assert case.report(spec) is None
    case.engine.forget(spec.name)


def test_one_pod_is_looked_for_with_certainty(case: EngineCase):
    spec = case.start(*FOREVER)
    found = case.engine.find(spec.name, spec.project)
    assert found is not None
    assert (found.name, found.state in (base.STARTING, base.RUNNING)) == (spec.name, True)
    assert case.engine.find(case.spec(*FOREVER).name, spec.project) is None


def test_starting_again_starts_nothing(case: EngineCase):
    spec = case.start(*FOREVER)
    first = case.wait_running(spec)
    case.engine.start(spec)
    case.engine.start(replace(spec, command=("sleep", "0")))
    assert [report.name for report in case.engine.pods()] == [spec.name]
    assert case.report(spec) == first


def test_starts_at_the_same_time_start_one(case: EngineCase):
    spec = case.spec(*FOREVER)
    threads = [threading.Thread(target=case.engine.start, args=(spec,)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    case.wait_running(spec)
    assert [report.name for report in case.engine.pods()] == [spec.name]


def test_stop_ends_a_pod_and_proves_it(case: EngineCase):
    spec = case.start(*FOREVER)
    case.wait_running(spec)
    case.engine.stop(spec.name, 10)
    report = case.wait_end(spec)
    assert (report.state, report.reason, report.exit_code) == (base.FAILED, base.STOPPED, 143)


def test_stopping_again_is_harmless(case: EngineCase):
    spec = case.start(*FOREVER)
    for grace_seconds in (10, 10, 0, 5):
        case.engine.stop(spec.name, grace_seconds)
    case.wait_end(spec)
    case.engine.stop(spec.name, 10)


def test_a_pod_stopped_before_its_start_never_runs(case: EngineCase):
    spec = case.spec(*FOREVER)
    case.engine.stop(spec.name, 10, PROJECT)
    case.engine.start(spec)
    report = case.wait_end(spec)
    assert (report.state, report.reason, report.exit_code) == (base.FAILED, base.STOPPED, None)
    assert report.started_at is None
    case.engine.forget(spec.name)


def test_a_living_pod_is_not_forgotten(case: EngineCase):
    spec = case.start(*FOREVER)
    with pytest.raises(EngineRefused) as refusal:
        case.engine.forget(spec.name)
    assert refusal.value.code == base.POD_NOT_GONE
    assert case.report(spec) is not None


def test_many_pods_share_a_device_where_the_engine_says_so(case: EngineCase):
    if base.FRACTIONS not in case.engine.capabilities:
        with pytest.raises(EngineRefused) as refusal:
            case.start(*FOREVER, devices=(DeviceShare(3, 125, 4096),))
        assert refusal.value.code == base.CANNOT_SHARE
        return
    shares = [case.start(*FOREVER, devices=(DeviceShare(3, 125, 4096),), rank=rank) for rank in range(8)]
    for spec in shares:
        case.wait_running(spec)
    usage = next(report for report in case.engine.usage() if report.device_index == 3)
    assert {pod.pod_name for pod in usage.pods} == {spec.name for spec in shares}


def idle(case: EngineCase) -> float | None:
    """What an engine says of a device that does nothing: one that cannot see its devices does not guess."""
    return 0.0 if base.USAGE in case.engine.capabilities else None


def test_usage_names_every_device_once(case: EngineCase):
    places = [(report.node, report.device_index) for report in case.engine.usage()]
    assert places == [("node-a", index) for index in range(8)] + [("node-b", 0), ("node-b", 1)]
    assert {report.utilization for report in case.engine.usage()} == {idle(case)}


def test_usage_of_a_silent_pod_is_zero_and_not_invented(case: EngineCase):
    case.wait_running(case.start(*FOREVER, devices=(DeviceShare(1, 1000, 32768),)))
    assert [report.utilization for report in case.engine.usage()] == [idle(case)] * 10
    assert [report.memory_used_mib for report in case.engine.usage()] == [idle(case)] * 10


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"node": "nowhere"}, base.NO_SUCH_NODE),
        ({"devices": (DeviceShare(8, 1000, 1),)}, base.NO_SUCH_DEVICE),
        ({"node": "node-b", "devices": (DeviceShare(2, 1000, 1),)}, base.NO_SUCH_DEVICE),
        ({"devices": (DeviceShare(1, 500, 1), DeviceShare(1, 500, 1))}, base.INVALID_POD),
    ],
)
def test_an_impossible_pod_is_refused_and_leaves_nothing(case: EngineCase, fields: dict, code: str):
    with pytest.raises(EngineRefused) as refusal:
        case.start(*FOREVER, **fields)
    assert refusal.value.code == code
    assert case.engine.pods() == ()


@pytest.mark.parametrize("name", ["", "../etc", "A", "a/b", ".hidden", "a" * 254, "a\0", "a\n"])
def test_a_name_that_is_no_name_is_refused_everywhere(case: EngineCase, name: str):
    spec = replace(case.spec(*FOREVER), name=name)
    for call in (lambda: case.engine.start(spec), lambda: case.engine.stop(name, 0)):
        with pytest.raises(EngineRefused) as refusal:
            call()
        assert refusal.value.code == base.INVALID_POD


def test_an_unknown_image_of_a_catalogue_runs_the_command_it_is_given(case: EngineCase):
    spec = case.start("sleep", "0", image="registry.example/nobody/knows:7")
    if base.HAS_CATALOGUE in case.engine.capabilities:
        assert case.wait_end(spec).state == base.SUCCEEDED
        return

    def reason() -> str:
        report = case.report(spec)
        return report.reason if report else ""

    wait_until(lambda: reason() == base.IMAGE_PULL_FAILED, 60, "the image to be missed")


def test_an_unknown_image_of_a_catalogue_without_a_command_is_refused_with_the_list(case: EngineCase):
    if base.HAS_CATALOGUE not in case.engine.capabilities:
        return  # the registry knows whether there is such an image, and what it runs
    with pytest.raises(EngineRefused) as refusal:
        case.start(image="nobody/knows")
    assert refusal.value.code == base.IMAGE_UNKNOWN
    assert "nobody/knows" in refusal.value.message
    assert "quickstart" in refusal.value.message
    assert case.engine.pods() == ()


def test_a_log_is_complete_when_the_pod_has_ended(case: EngineCase):
    spec = case.start("sleep", "0.2")
    assert not case.engine.read_logs(spec.name, 0, 10).complete
    case.wait_end(spec)
    page = case.engine.read_logs(spec.name, 0, 10)
    assert page.complete
    assert case.engine.read_logs(spec.name, page.next_offset, 10).lines == ()


def test_logs_of_no_pod_are_refused(case: EngineCase):
    with pytest.raises(EngineRefused) as refusal:
        case.engine.read_logs("nobody-1-0", 0, 10)
    assert refusal.value.code == base.NO_SUCH_POD


def test_a_waiting_caller_hears_of_an_end(case: EngineCase):
    case.engine.wait_for_change(0)
    heard = threading.Event()

    def listen() -> None:
        while not case.engine.wait_for_change(10):
            pass
        heard.set()

    listener = threading.Thread(target=listen)
    listener.start()
    spec = case.start(*FOREVER)
    wait_until(heard.is_set, what="the start to be heard")
    listener.join()
    assert case.report(spec) is not None


def test_a_command_runs_beside_the_pods_own(case: EngineCase):
    spec = case.start(*FOREVER)
    case.wait_running(spec)
    if base.SHELL not in case.engine.capabilities:
        with pytest.raises(EngineRefused) as refusal:
            case.engine.run_command(spec.name, ["true"])
        assert refusal.value.code == base.NOT_SUPPORTED
        return
    words = ["sh", "-c", 'cat; echo "$1" $TRAINYARD_RANK; echo bad >&2; exit 3', "sh", "a  b"]
    assert _ran(case.engine.run_command(spec.name, words), b"in\n") == (b"in\na  b 0\n", b"bad\n", 3)
    assert _ran(case.engine.run_command(spec.name, []), b"echo $((6*7))\n") == (b"42\n", b"", 0)
    out, errors, code = _ran(case.engine.run_command(spec.name, ["no-such-program"]), b"")
    assert (out, code) == (b"", 127)
    assert b"no-such-program" in errors


def test_a_command_that_is_left_ends_with_all_that_it_started(case: EngineCase):
    if base.SHELL not in case.engine.capabilities:
        pytest.skip("the memory engine runs no commands")
    spec = case.start(*FOREVER)
    case.wait_running(spec)
    process = case.engine.run_command(spec.name, ["sh", "-c", "sleep 54321 & echo $!; wait"])
    pid = b""
    while not pid.endswith(b"\n"):
        select.select([process.fileno()], [], [], 60)
        pid += process.read()[1]
    shown = ["grep", "-c", "54321", f"/proc/{int(pid)}/cmdline"]

    def is_running() -> bool:
        return _ran(case.engine.run_command(spec.name, shown), b"")[2] == 0

    # While a process becomes another program, its command line is empty for a moment.
    wait_until(is_running, 20, "the program")
    assert process.close() is None
    assert process.close() is None
    # A signal takes effect only when its process gets a CPU.
    wait_until(lambda: not is_running(), 20, "the program's end")


def _ran(process: base.Process, given: bytes) -> tuple[bytes, bytes, int | None]:
    """Standard output, error output and exit code of a command, which gets `given` as its input."""
    printed = {base.STDOUT: b"", base.STDERR: b""}
    try:
        assert process.write(given) == len(given)
        process.close_input()
        while True:
            select.select([process.fileno()], [], [], 60)
            output, data = process.read()
            printed[output] += data
    except EOFError:
        return printed[base.STDOUT], printed[base.STDERR], process.close()
    finally:
        process.close()


def test_a_shell_exists_where_the_engine_says_so(case: EngineCase):
    spec = case.start(*FOREVER)
    case.wait_running(spec)
    if base.SHELL not in case.engine.capabilities:
        with pytest.raises(EngineRefused) as refusal:
            case.engine.open_shell(spec.name, 80, 24)
        assert refusal.value.code == base.NOT_SUPPORTED
        return
    shell = case.engine.open_shell(spec.name, 80, 24)
    try:
        shell.write(b"echo $((6*7))-$TRAINYARD_RANK\nexit 3\n")
        output = b""
        while data := shell.read():
            output += data
        assert b"42-0" in output
    finally:
        assert shell.close() == 3
