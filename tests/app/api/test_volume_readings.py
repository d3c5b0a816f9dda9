"""Files of volumes that pods alone see: read by a pod, shown for a minute, and refused with a reason."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client

from controlplane.commands.dispatch import carry_out_due
from controlplane.engines.base import EngineUnreachable
from controlplane.models import Cluster, Command
from datasets.actions.volume_readings import (
    HELD_MOST,
    PENDING_LONGEST,
    PENDING_MOST,
    READ_VOLUME,
    forget_readings,
)
from datasets.models import Volume, VolumeReading
from datasets.queries.volume_files import FRESH, file_response
from datasets.storage.base import Blocked, Budget, ContentMissing, DeadlineExceeded
from datasets.storage.claims import ReadTask
from datasets.storage.volume_files import Child
from tests.cast import Cast
from tests.volumes import make_volume
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_volumes")]


class Engine:
    """Answers a look, or raises."""

    def __init__(self) -> None:
        self.tasks: list[ReadTask] = []
        self.fails: Exception | None = None

    def files_of(self, project: str) -> "Engine":
        return self

    def read(self, task: ReadTask, budget: Budget) -> tuple[list[Child], bytes, bool]:
        self.tasks.append(task)
        if self.fails is not None:
            raise self.fails
        children = [Child(b".trainyard", "directory", 0, 1.0), Child(b"model", "file", 4, 1e9)]
        return ([], b"best", False) if task.is_file else (children, b"", False)


@pytest.fixture
def volume(cast: Cast) -> Volume:
    return make_volume(cast.project)


@pytest.fixture
def engine(cast: Cast, volume: Volume, monkeypatch: pytest.MonkeyPatch) -> Engine:
    Cluster.objects.filter(pk=cast.project.cluster_id).update(engine="kubernetes")
    engine = Engine()
    monkeypatch.setattr("datasets.command_handlers.volume_readings.engine_for", lambda cluster: engine)
    return engine


def work() -> None:
    commands = Command.objects.of_kinds([READ_VOLUME])
    wait_until(lambda: not (carry_out_due() or commands.unfinished().exists()), what="the look")


def test_a_directory_and_a_file_are_read_once_by_a_pod_and_shown(api: Any, engine: Engine, volume: Volume):
    path = f"volumes/{volume.pk}/files"
    for _ in range(2):
        waits = api("vera").get(path)
        assert (waits.status, waits.body["code"], waits.headers["Retry-After"]) == (409, "being_read", "1")
    work()
    assert [row["name"] for row in api("vera").get(path).body["results"]] == ["model"]
    content = f"volumes/{volume.pk}/content?path=model"
    assert api("vera").get(content).body["code"] == "being_read"
    work()
    assert api("vera").get(content).status == 200
    assert b"".join(file_response(Volume.objects.get(), "model").streaming_content) == b"best"
    assert [(task.path, task.is_file) for task in engine.tasks] == [(b"", False), (b"model", True)]
    assert api("chi").get(path).status == 404


@pytest.mark.parametrize(
    ("fails", "status", "code"),
    [
        (Blocked("pod_not_started", "The pod did not start: no node."), 409, "pod_not_started"),
        (Blocked("too_large", "It has 9 bytes.", is_passing=False), 409, "too_large"),
        (ContentMissing("There is no such path in the volume."), 404, "not_found"),
        (DeadlineExceeded(), 409, "reading_timeout"),
        (EngineUnreachable("No answer."), 409, "engine_unreachable"),
    ],
)
def test_what_a_pod_cannot_read_is_said_and_not_tried_without_end(
    api: Any, engine: Engine, volume: Volume, fails: Exception, status: int, code: str
):
    engine.fails = fails
    path = f"volumes/{volume.pk}/files?directory=sub"
    assert api("vera").get(path).body["code"] == "being_read"
    work()
    refused = api("vera").get(path)
    assert (refused.status, refused.body["code"]) == (status, code)
    assert len(engine.tasks) == 1


@pytest.mark.parametrize("asked", ["files?directory=", "files?after=", "content?path="])
def test_a_path_that_no_volume_has_is_missing_and_the_longest_is_read(
    api: Any, engine: Engine, volume: Volume, asked: str
):
    most = 1024 if "after" in asked else 4096
    path = f"volumes/{volume.pk}/{asked}"
    assert api("vera").get(path + "x" * (most + 1)).status == 404
    assert api("vera").get(path + "x%00y").status in (400, 404)
    assert not VolumeReading.objects.exists()
    api("vera").get(path + "x" * most)
    work()
    assert api("vera").get(path + "x" * most).status == 200


@pytest.mark.parametrize("state", ["creating", "deleting"])
def test_a_volume_that_is_not_ready_is_not_read(api: Any, engine: Engine, volume: Volume, state: str):
    Volume.objects.update(state=state)
    for asked in ("files", "content?path=model"):
        refused = api("vera").get(f"volumes/{volume.pk}/{asked}")
        assert (refused.status, refused.body["code"]) == (409, "not_ready")
    assert not VolumeReading.objects.exists()


def test_a_look_that_nobody_carries_out_fails_after_minutes(api: Any, engine: Engine, volume: Volume):
    path = f"volumes/{volume.pk}/files"
    api("vera").get(path)
    asked_at = VolumeReading.objects.get().created_at
    forget_readings(asked_at + PENDING_LONGEST)
    assert VolumeReading.objects.get().state == "pending"
    forget_readings(asked_at + PENDING_LONGEST + timedelta(seconds=1))
    refused = api("vera").get(path)
    assert (refused.status, refused.body["code"]) == (409, "reading_timeout")
    work()
    assert engine.tasks == []


def test_what_was_read_of_a_project_holds_little(api: Any, engine: Engine, volume: Volume):
    content = f"volumes/{volume.pk}/content?path="
    api("vera").get(content + "a")
    assert VolumeReading.objects.get().held_bytes == 4 << 20
    work()
    assert VolumeReading.objects.get().held_bytes == len(b"best") + len("[]")
    VolumeReading.objects.update(held_bytes=HELD_MOST - (4 << 20) + 1)
    many = api("vera").get(content + "b")
    assert (many.status, many.body["code"]) == (409, "many_readings")
    assert api("vera").get(content + "a").status == 200
    VolumeReading.objects.update(held_bytes=HELD_MOST - (4 << 20))
    api("vera").get(content + "b")
    assert VolumeReading.objects.filter(state="pending").exists()


def test_pods_that_read_in_one_cluster_are_few_and_what_they_found_is_forgotten(
    api: Any, engine: Engine, volume: Volume
):
    for number in range(PENDING_MOST):
        waits = api("vera").get(f"volumes/{volume.pk}/files?directory={number}")
        assert waits.body["code"] == "being_read"
    other = Volume.objects.get()
    other.pk, other.name = uuid4(), "other"
    other.save(force_insert=True)
    many = api("vera").get(f"volumes/{other.pk}/files")
    assert (many.status, many.body["code"]) == (409, "many_readings")
    work()
    last = VolumeReading.objects.latest("finished_at").finished_at
    assert last is not None
    forget_readings(last + FRESH)
    assert VolumeReading.objects.filter(finished_at=last).exists()
    forget_readings(last + 2 * FRESH)
    assert not VolumeReading.objects.exists()


def test_the_page_asks_again_until_the_pod_has_read(cast: Cast, engine: Engine, volume: Volume):
    browser = Client()
    browser.force_login(cast.vera)
    page = browser.get(f"/volumes/{volume.pk}")
    # only the files are drawn again: what is typed elsewhere on the page stays
    assert (page.status_code, "Refresh" in page) == (200, False)
    assert '<section class="panel col-8" id="files" data-again="2">' in page.content.decode()
    assert "A pod in the cluster is reading it" in page.content.decode()
    work()
    page = browser.get(f"/volumes/{volume.pk}")
    assert "data-again" not in page.content.decode()
    assert ">model</a>" in page.content.decode()
    file = f"/volumes/{volume.pk}/file?path=model"
    waits = browser.get(file)
    assert (waits.status_code, waits["Refresh"]) == (202, "2")
    work()
    read = browser.get(file)
    assert (read.status_code, b"".join(read.streaming_content)) == (200, b"best")
    engine.fails = Blocked("too_large", "It has 9 bytes.")
    browser.get(f"/volumes/{volume.pk}/file?path=large")
    work()
    assert browser.get(f"/volumes/{volume.pk}/file?path=large").status_code == 409
