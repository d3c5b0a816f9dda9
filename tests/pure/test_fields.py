"""Every declared field: its default is one of its values, and its text is read back."""

from typing import Any

import pytest

from controlplane import notation
from jobs.fields.declaration import Field
from jobs.fields.declared import DECLARED, FIELDS

EXAMPLES: dict[str, Any] = {
    "env": {"A": "x=y", "B": ""},
    "secret_env": {"KEY": {"secret": "wandb", "key": "a.b"}},
    "image_pull_secrets": ["one", "two"],
    "gpus": 0.3333333,
    "gpu_memory_mib": 8192,
    "cpus": 12345.5,
    "extra_resources": {"vpc.amazonaws.com/efa": "4"},
    "preemptible": False,
    "large_shm": True,
    "max_runtime_seconds": 5400,
    "command": ["sh", "-c", "echo 'a b'"],
    "ports": [{"port": 8888, "service_type": "ingress"}],
    "volumes": [
        {"volume": "data", "mount_path": "/mnt", "read_only": True},
        {"host_path": "/data", "mount_path": "/host"},
        {"new": {"storage_class": "fast", "size": "10Gi", "name": "kept"}, "mount_path": "/new"},
    ],
    "datasets": [{"dataset": "xray", "version": "3", "cached": False, "mount_path": "/data"}],
    "snapshot_on": ["success", "epoch"],
    "worker_speeds": {"1": 6.5, "10000": 1234567.25},
    "artifacts": [{"path": "out", "when": "success"}, {"path": "a/b", "when": "success", "name": "model"}],
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_text_is_read_back(name: str) -> None:
    value, example = FIELDS[name].value, EXAMPLES[name]
    if value.pieces is None:
        assert value.parse(value.write(example)) == example
    else:
        assert value.gather([value.parse(value.write(piece)) for piece in value.pieces(example)]) == example


@pytest.mark.parametrize("field", DECLARED, ids=lambda field: field.name)
def test_a_field_describes_itself(field: Field) -> None:
    assert field.schema["description"].endswith(".")
    assert field.omitted is None or field.read(field.omitted) == field.default
    assert field.omitted is None or field.schema["default"] == field.omitted
    assert "maximum" not in field.value.answer


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("retries", "many"),
        ("gpu_memory_mib", "8 litres"),
        ("preemptible", "maybe"),
        ("max_runtime_seconds", ""),
        ("env", "=x"),
        ("secret_env", "A=secret"),
        ("ports", "http"),
        ("datasets", "xray"),
        ("volumes", "/host:/a:/b"),
        ("volumes", "fast:10Gi:relative"),
        ("command", "echo 'open"),
    ],
)
def test_other_text_is_refused(name: str, text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the text of it is no message
        FIELDS[name].value.parse(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("1h30m", 5400), ("1H 30 m", 5400), ("2d", 172800), ("45", 45)]
)
def test_durations(text: str, seconds: int) -> None:
    assert notation.parse_duration(text) == seconds
    assert notation.parse_duration(notation.write_duration(seconds)) == seconds


@pytest.mark.parametrize(("text", "mib"), [("512", 512), ("8Gi", 8192), ("1.5G", 1536), ("1 TiB", 1 << 20)])
def test_sizes(text: str, mib: int) -> None:
    assert notation.parse_size(text) == mib
