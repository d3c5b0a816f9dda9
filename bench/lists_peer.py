"""The peer of bench.lists: a view as in the DRF tutorial, with ModelSerializers over model instances and the fields of
our list of jobs. Related rows are joined and prefetched, so that it pays for serialising, not for queries."""

import json
from typing import Any

from django.urls import path
from rest_framework.generics import ListAPIView
from rest_framework.pagination import CursorPagination
from rest_framework.renderers import JSONRenderer
from rest_framework.serializers import (
    BooleanField,
    CharField,
    FloatField,
    IntegerField,
    JSONField,
    ModelSerializer,
    SerializerMethodField,
)

from jobs.fields.declared import FIELDS
from jobs.models import Allocation, Job, Pod


class Pages(CursorPagination):
    """Keyset pages, as in our list."""

    ordering = "-submit_rank"
    page_size_query_param = "limit"
    max_page_size = 500


class DeviceSerializer(ModelSerializer[Allocation]):
    """A pod's share of a device."""

    index = IntegerField(source="device.index")
    share = FloatField(source="milli_gpus")

    class Meta:
        model = Allocation
        fields = ("index", "share")


class PodSerializer(ModelSerializer[Pod]):
    attempt = IntegerField(source="attempt.number")
    node = CharField(source="node.name")
    devices = DeviceSerializer(source="allocations", many=True)

    class Meta:
        model = Pod
        fields = (
            "name",
            "attempt",
            "rank",
            "role",
            "state",
            "reason",
            "message",
            "node",
            "devices",
            "exit_code",
            "started_at",
            "finished_at",
            "gpu_utilization",
            "gpu_memory_mib",
        )


class ReasonSerializer(ModelSerializer[Job]):
    """The reason of a job's state."""

    code = CharField(source="reason")

    class Meta:
        model = Job
        fields = ("code", "message", "details")


class StatusSerializer(ModelSerializer[Job]):
    is_reachable = BooleanField(source="project.cluster.is_reachable")
    reason = ReasonSerializer(source="*")
    allocated_gpus = FloatField(source="allocated_milli")
    workers = IntegerField(source="pods_started")
    start_estimate = SerializerMethodField()
    runtime_seconds = SerializerMethodField()
    service_urls = SerializerMethodField()
    pods = PodSerializer(many=True)

    class Meta:
        model = Job
        fields = (
            "state",
            "is_reachable",
            "reason",
            "attempt",
            "allocated_gpus",
            "workers",
            "queue_position",
            "start_estimate",
            "started_at",
            "finished_at",
            "runtime_seconds",
            "exit_code",
            "gpu_utilization",
            "service_urls",
            "progress",
            "pods",
        )

    def get_start_estimate(self, job: Job) -> None:
        return None

    def get_runtime_seconds(self, job: Job) -> int | None:
        return None if job.started_at is None else 0

    def get_service_urls(self, job: Job) -> list[str]:
        return []


class SpecSerializer(ModelSerializer[Job]):
    """All fields of a job's spec, in stored form."""

    locals().update({name: JSONField(source=f"spec.{name}") for name in FIELDS})

    class Meta:
        model = Job
        fields = tuple(FIELDS)


class JobSerializer(SpecSerializer):
    project = CharField(source="project.name")
    user = CharField(source="user.username")
    status = StatusSerializer(source="*")

    class Meta:
        model = Job
        fields = (*FIELDS, "id", "project", "user", "created_at", "status")


class PlainJobs(ListAPIView[Job]):
    serializer_class = JobSerializer
    pagination_class = Pages
    renderer_classes = (JSONRenderer,)
    queryset = Job.objects.select_related("project__cluster", "user").prefetch_related(
        "pods__attempt", "pods__node", "pods__allocations__device"
    )


urlpatterns = [path("peer", PlainJobs.as_view())]


def assert_same(ours: bytes, theirs: bytes) -> None:
    """Assert that both JSON answers contain the same jobs with the same field names at every level."""
    mine, peers = json.loads(ours)["results"], json.loads(theirs)["results"]
    assert [job["id"] for job in mine] == [job["id"] for job in peers]
    for one, other in zip(mine, peers, strict=True):
        assert shape(one, 0) == shape(other, 0), (one, other)


def shape(value: Any, depth: int) -> Any:
    """Return the field names of a JSON object, those of objects in it included, as nested dicts. `depth`: how deep
    `value` is in the answer's job, 0 for the job; objects below depth 1 are not entered. None for any other value."""
    if not isinstance(value, dict) or depth > 1:
        return None
    return {name: shape(item, depth + 1) for name, item in value.items()}
