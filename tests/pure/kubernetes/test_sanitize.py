"""What tenants and nodes can write, at the border."""

import json

import pytest

from controlplane.engines.kubernetes import api_errors, inventory, kai, names
from controlplane.engines.kubernetes.config import ClusterProfile
from controlplane.engines.kubernetes.sanitize import LARGEST, LARGEST_SMALL, count, line
from controlplane.kubernetes_api.errors import ApiError
from tests.pure.kubernetes.test_inventory import node
from tests.pure.kubernetes.test_reports import recorded, report

NASTY = "a\x00b\x1b[31m\u202ec\u2028d\x85e\x7f" + 2000 * "x"


def is_fit(text: str) -> bool:
    return len(text) <= 500 and all(one.isprintable() for one in text) and "\u202e" not in text


def test_words_are_on_one_line_that_every_database_takes():
    assert line("  a\x00b\r\n\tc  ") == "a b c"
    assert is_fit(line(NASTY))
    assert line("Übung 訓練 …") == "Übung 訓練 …"


def test_a_termination_message_is_cleaned():
    raw = recorded("exit-3")
    raw["status"]["containerStatuses"][0]["state"]["terminated"]["message"] = NASTY
    found = report(raw)
    assert is_fit(found.message)
    assert "a b [31m c" in found.message


def test_the_words_of_refusals_and_schedulers_are_cleaned():
    body = {"reason": "Forbidden", "message": f'admission webhook "w" denied the request: {NASTY}'}
    assert is_fit(api_errors.refusal_of(ApiError(403, json.dumps(body).encode())).message)
    group = {"status": {"schedulingConditions": [{"status": "True", "message": "a\x00b"}]}}
    verdict = kai.verdict(group, ClusterProfile())
    assert verdict is not None
    assert verdict.message == "a b"


@pytest.mark.parametrize(("text", "number"), [("80", 80), ("", 0), ("-1", 0), ("9" * 60, LARGEST), ("٣", 0)])
def test_numbers_of_labels_fit_their_columns(text, number):
    assert count(text) == number


def test_what_a_node_tells_fits_its_columns():
    labels = {names.GPU_MEMORY: "10000000000", names.GPU_REPLICAS: "40000", "said": "a\x00b"}
    huge = {"cpu": "9E", "memory": "9E", "nvidia.com/gpu": "200000"}
    said = [{"type": "Ready", "status": "False", "message": NASTY}]
    raw = node(labels=labels, allocatable=huge, capacity=huge, conditions=said)
    (found,) = inventory.node_reports([raw], [], ClusterProfile())
    assert (found.milli_cpus, found.memory_mib, found.device_parts) == (LARGEST, LARGEST, LARGEST_SMALL)
    assert [device.memory_mib for device in found.devices] == [LARGEST] * 6
    assert is_fit(found.message)
    assert "\\u0000" not in json.dumps(found.labels)


def test_a_node_has_no_more_devices_than_can_be():
    huge = {"nvidia.com/gpu": str(10**12)}
    (found,) = inventory.node_reports([node(allocatable=huge, capacity=huge)], [], ClusterProfile())
    assert len(found.devices) == inventory.MOST_DEVICES
