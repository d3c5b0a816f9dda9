"""Parts of pages that the scheduler is asked for: a job's outlook, a submission's plan, a quota's effects."""

import pytest

from controlplane.models import Node
from dashboards.reads import what_if
from jobs import outlook
from jobs.models import Job
from tests.datasets import make_dataset, make_version

pytestmark = pytest.mark.django_db


def test_the_outlook_of_a_queued_job_is_a_range(yard, visit):
    text = visit(yard.cast.vera).get(f"/jobs/{yard.queued.pk}/outlook").content.decode()
    assert "Expected start" in text
    assert "being estimated" not in text
    assert "<time" in text


def test_an_outlook_that_is_not_known_says_why(yard, visit):
    Node.objects.update(is_cordoned=True)
    text = visit(yard.cast.vera).get(f"/jobs/{yard.queued.pk}/outlook").content.decode()
    assert "not known" in text
    assert "All nodes that it could use are cordoned or not ready." in text
    assert "not before" not in text


def test_readers_of_one_outlook_share_one_simulation_until_the_cluster_changes(yard, visit, monkeypatch):
    asked, ask = [], outlook.simulator.ask
    monkeypatch.setattr(
        outlook.simulator, "ask", lambda *given, **more: asked.append(given[0]) or ask(*given, **more)
    )
    for reader in (yard.cast.vera, yard.cast.root, yard.cast.vera):
        assert "Expected start" in visit(reader).get(f"/jobs/{yard.queued.pk}/outlook").content.decode()
    assert asked == ["outlook"]
    Job.objects.filter(pk=yard.queued.pk).update(priority=yard.queued.priority + 1)
    assert "Expected start" in visit(yard.cast.vera).get(f"/jobs/{yard.queued.pk}/outlook").content.decode()
    assert asked == ["outlook"] * 2


def test_a_plan_says_where_a_submission_would_start_and_submits_nothing(yard, visit):
    before = Job.objects.count()
    form = {"project": "team-a", "name": "new", "gpus": "1", "image": "quickstart", "kind": "train"}
    text = visit(yard.cast.ben).post("/new/job/plan", form).content.decode()
    assert "at once" in text
    assert "/nodes/" in text
    assert Job.objects.count() == before


def test_the_form_and_its_plan_say_that_data_is_copied_first(yard, visit):
    make_version(make_dataset(yard.cast.project), {"a": "one"})
    form = {"project": "team-a", "name": "new", "gpus": "1", "image": "quickstart", "kind": "train"}
    form |= {"datasets": "xray@1:/data"}
    plan = visit(yard.cast.ben).post("/new/job/plan", form).content.decode()
    assert "not known" in plan
    assert "How fast its dataset is copied is not known yet." in plan
    assert "Its dataset xray@1 is still to be brought to the cluster." in plan
    check = visit(yard.cast.ben).post("/new/job/preview.json", form).json()
    assert check["hint"].endswith("Copied to the cluster before it starts: xray@1.")


def test_a_plan_of_a_form_with_mistakes_names_the_first(yard, visit):
    form = {"project": "team-a", "name": "new", "gpus": "99", "image": "quickstart", "kind": "train"}
    text = visit(yard.cast.ben).post("/new/job/plan", form).content.decode()
    assert "Starts" not in text
    assert "GPU" in text


def test_a_plan_of_a_project_of_others_is_refused(yard, visit):
    text = visit(yard.cast.chi).post("/new/job/plan", {"project": "team-a", "name": "new"}).content.decode()
    assert "Starts" not in text


def test_the_preview_of_a_quota_shows_shares_before_and_after(yard, visit):
    admin = visit(yard.cast.root)
    assert b'data-foresee="/projects/team-a/what-if"' in admin.get("/projects/team-a/edit").content
    form = {"gpu_quota_milli": "0", "priority": "0"}
    text = admin.post("/projects/team-a/what-if", form).content.decode()
    assert "team-b" in text
    assert "→" in text
    yard.cast.project.refresh_from_db()
    assert yard.cast.project.gpu_quota_milli > 0


def test_the_replay_of_the_last_week_shows_what_was_recorded(yard, visit):
    admin = visit(yard.cast.root)
    assert b'data-foresee="/projects/team-a/what-if?last_week"' in admin.get("/projects/team-a/edit").content
    form = {"gpu_quota_milli": "0", "priority": "0"}
    text = admin.post("/projects/team-a/what-if?last_week", form).content.decode()
    assert "As recorded" in text
    assert "submissions of the last days, 7\xa0d" in text


def test_the_preview_of_a_form_with_mistakes_names_the_first(yard, visit):
    form = {"gpu_quota_milli": "many", "priority": "0"}
    text = visit(yard.cast.root).post("/projects/team-a/what-if", form).content.decode()
    assert 'class="bad"' in text
    assert visit(yard.cast.ben).post("/projects/team-a/what-if", form).status_code == 403


def test_a_preview_counts_starts_at_once_only_where_it_has_all_jobs():
    sooner = [{"wait_seconds": {"before": 600, "after": 0}}] * 50
    counts = {"preempted": 0, "spared": 0, "sooner": 50, "later": 0}
    assert what_if._summary({"counts": counts, "sooner": sooner}) == "50 jobs start at once."
    cut = {"counts": counts | {"sooner": 70}, "sooner": sooner}
    assert what_if._summary(cut) == "70 start sooner."
