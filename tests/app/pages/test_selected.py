"""Several jobs at once: one question that says what will happen, and what became of each."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from controlplane.actions.errors import Conflict
from controlplane.models import Membership, User
from dashboards.pages import selected
from jobs.models import Job
from tests.app.pages.conftest import Yard
from tests.builders import make_job

Visit = Callable[[User | None], Client]


def address(verb: str, *jobs: Job) -> str:
    return f"/jobs/selected?verb={verb}" + "".join(f"&row={job.pk}" for job in jobs)


def answer(client: Client, verb: str, *jobs: Job, back: str = "/jobs") -> Any:
    return client.post("/jobs/selected", {"verb": verb, "row": [str(job.pk) for job in jobs], "back": back})


def states() -> dict[str, str]:
    return dict(Job.objects.values_list("name", "state"))


def test_the_question_says_what_will_happen_and_to_what(yard: Yard, visit: Visit):
    client = visit(yard.cast.ben)
    page = client.get(address("stop", yard.running, yard.queued, yard.finished))
    text = page.content.decode()
    assert "Stop 2 jobs?" in text
    assert "The GPUs that they hold (2 GPUs) go to the next in the queue." in text
    assert "These stay as they are" in text
    assert "It is stopped already." in text
    sent = [value for name, value in page.context["question"].fields if name == "row"]
    assert sent == [str(yard.running.pk), str(yard.queued.pk)]
    assert states()["running"] == "running"  # it only asks


def test_all_of_it_is_done_and_leads_back_to_the_list_as_it_was(yard: Yard, visit: Visit):
    client, here = visit(yard.cast.ben), "/jobs?state=unfinished&sort=-gpus"
    done = answer(client, "stop", yard.running, yard.queued, back=here)
    assert (done.status_code, done["Location"]) == (302, here)
    assert states() == {"running": "stopping", "queued": "stopped", "finished": "stopped"}
    assert "2 jobs are stopping." in client.get(here).content.decode()


def test_suspend_and_delete(yard: Yard, visit: Visit):
    client = visit(yard.cast.ben)
    assert answer(client, "suspend", yard.queued).status_code == 302
    assert states()["queued"] == "suspended"
    assert "Delete 2 jobs?" in client.get(address("delete", yard.queued, yard.finished)).content.decode()
    assert answer(client, "delete", yard.queued, yard.finished).status_code == 302
    assert set(states()) == {"running"}


def test_a_refusal_is_said_of_its_job_and_the_others_are_done(yard: Yard, visit: Visit, monkeypatch: Any):
    def refuse(job: Job, *, actor: Any) -> None:
        if job.pk == yard.running.pk:
            raise Conflict("busy", "It cannot be stopped now.")
        stop(job, actor=actor)

    stop = selected.VERBS["stop"].carry_out
    refusing = selected.VERBS["stop"]
    values = {name: getattr(refusing, name) for name in refusing.__slots__} | {"carry_out": refuse}
    monkeypatch.setitem(selected.VERBS, "stop", selected.Verb(**values))
    page = answer(visit(yard.cast.ben), "stop", yard.running, yard.queued)
    text = page.content.decode()
    assert page.status_code == 200
    assert "1 job is stopping." in text
    assert "Not stopped" in text
    assert 'team-a/running</a> <span class="second">It cannot be stopped now.' in text
    assert states()["queued"] == "stopped"


def test_what_one_may_only_look_at_stays(yard: Yard, visit: Visit):
    Membership.objects.create(project=yard.cast.project, user=yard.cast.chi, role="viewer")
    own = make_job(yard.cast.other, "own", yard.cast.chi)
    client = visit(yard.cast.chi)
    page = client.get(address("delete", own, yard.running)).content.decode()
    assert "Delete 1 job?" in page
    assert "You can only view team-a." in page
    answer(client, "delete", own, yard.running)
    assert "own" not in states()
    assert states()["running"] == "running"


def test_jobs_of_others_are_not_there(yard: Yard, visit: Visit):
    client = visit(yard.cast.chi)
    page = client.get(address("stop", yard.running)).content.decode()
    assert "1 selected job no longer exists." in page
    assert "running" not in page.partition('id="ask"')[2].partition("</form>")[0]
    answer(client, "stop", yard.running)
    assert states()["running"] == "running"


def test_a_viewer_is_offered_no_selection(yard: Yard, visit: Visit):
    for person, offered in (("ben", True), ("vera", False)):
        page = visit(getattr(yard.cast, person)).get("/jobs").content.decode()
        assert ('type="checkbox"' in page, "jobs/selected" in page) == (offered, offered), person


@pytest.mark.parametrize("query", ["", "?verb=eat", "?verb=stop&row=1", "?verb=stop" + "&row=x" * 201])
def test_what_no_list_sends_is_refused(yard: Yard, visit: Visit, query: str):
    assert visit(yard.cast.ben).get(f"/jobs/selected{query}").status_code == 400


@pytest.mark.parametrize(
    "back", ["https://elsewhere.example/jobs", "//elsewhere.example", "/jobs.evil", "/logout"]
)
def test_back_leads_to_the_list_only(yard: Yard, visit: Visit, back: str):
    assert answer(visit(yard.cast.ben), "stop", yard.queued, back=back)["Location"] == "/jobs"


def test_nothing_selected_is_said(yard: Yard, visit: Visit):
    assert "No job is selected." in visit(yard.cast.ben).get("/jobs/selected?verb=stop").content.decode()
