"""Rows that are inserted by one statement are those that Django would insert."""

from datetime import UTC, datetime
from uuid import uuid4

import pytest
from django.db import DataError, IntegrityError, connection, transaction
from django.db.models.functions import Now

from controlplane.models import Command, Event
from controlplane.models.bulk_insert import insert_rows
from jobs.models import Job
from tests.builders import make_job, make_project

pytestmark = pytest.mark.django_db

AT = datetime(2026, 3, 1, 12, 30, 59, 123456, tzinfo=UTC)
TEXT = "a 'quote', a \"second\", a \\ and an \u00e9\n\U0001f686"


def event(seq, **columns):
    return Event(seq=seq, at=AT, kind="job.submitted", **columns)


def row_of(event):
    return {field.name: getattr(event, field.name) for field in Event._meta.concrete_fields}


def test_every_kind_of_column_arrives_as_it_was_given(django_assert_num_queries):
    data = {TEXT: [1, -2.5, None, True, {"deep": [TEXT]}], "": {}}
    given = [
        event(1, job_id=uuid4(), project_id=2**62, message=TEXT, data=data),
        event(2, job_id=None, project_id=None, message="", data={}),
    ]
    with django_assert_num_queries(1):
        insert_rows(given)
    assert list(map(row_of, Event.objects.filter(seq__in=(1, 2)).order_by("seq"))) == list(map(row_of, given))


def test_generated_keys_are_set_in_the_order_of_the_rows():
    orders = insert_rows(Command(kind="stop_pod", subject_id=f"pod-{number}") for number in range(300))
    assert dict(Command.objects.values_list("pk", "subject_id")) == {
        order.pk: order.subject_id for order in orders
    }
    assert not any(order._state.adding for order in orders)


def test_nothing_is_written_for_no_rows(django_assert_num_queries):
    with django_assert_num_queries(0):
        assert insert_rows([]) == []


@pytest.mark.parametrize("value", [2**80, {1: "a key that is no text"}])
def test_what_orjson_does_not_write_goes_the_way_of_django(value):
    insert_rows([event(1, data={"value": value})])
    [stored] = Event.objects.values_list("data__value", flat=True)
    assert stored in (value, {"1": "a key that is no text"})


def test_an_expression_is_computed_by_the_database():
    insert_rows([Event(seq=1, at=Now(), kind="job.submitted")])
    assert Event.objects.get(seq=1).at is not None


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has no limit, and stores a NUL")
@pytest.mark.parametrize("columns", [{"message": "a" * 501}, {"message": "a\0"}, {"data": {"a": "b\0"}}])
def test_what_a_column_refuses_is_an_error_and_is_not_cut(columns):
    with pytest.raises((DataError, ValueError)), transaction.atomic():
        insert_rows([event(1, **columns)])
    assert not Event.objects.exists()


def test_a_broken_constraint_is_an_error():
    job = make_job(make_project(), "job")
    twin = Job(project=job.project, user=job.user, name=job.name, kind="train", spec=job.spec, milli_gpus=0)
    with pytest.raises(IntegrityError), transaction.atomic():
        insert_rows([twin])
