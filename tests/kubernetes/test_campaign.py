"""The whole loop on a real API server behind a faulty network, while people and saboteurs are at work.

After quiet rows, engine and server agree: nothing is lost, doubled or left over. A failure shows what was done;
TRAINYARD_CAMPAIGN_SEED draws another one, TRAINYARD_CAMPAIGN_SECONDS makes it longer.
"""

from __future__ import annotations

import logging
import os
import random
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connections

from controlplane.engines.kubernetes import reports, tenancy_sync
from controlplane.loop.cluster_context import forget_contexts
from controlplane.models import Cluster, Project
from jobs import lifecycle
from jobs.actions import delete_job
from jobs.models import Job
from tests.builders import make_counters, make_project
from tests.kube import STORAGE_CLASS, KubeCluster
from tests.kubernetes.campaign import (
    CLAIMS,
    LABEL,
    Campaign,
    Plant,
    Witness,
    faults_of_rest,
    found,
    free_claims,
    hurry,
    let_names_go,
    pods_of,
    rest,
)
from tests.kubernetes.proxy import Faults, fault_proxy
from tests.waiting import wait_until

logger = logging.getLogger(__name__)

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]
SEEDS = [int(seed) for seed in os.environ.get("TRAINYARD_CAMPAIGN_SEED", "4").split(",")]
SECONDS = float(os.environ.get("TRAINYARD_CAMPAIGN_SECONDS", "15"))
LEFT_OVER = ("pods", "configmaps", "services", "secrets", "persistentvolumeclaims")
ENDS = (lifecycle.SUCCEEDED, lifecycle.FAILED, lifecycle.STOPPED)


@pytest.fixture(params=SEEDS)
def seed(request: pytest.FixtureRequest) -> int:
    seed: int = request.param
    return seed


@pytest.fixture
def plant(
    seed: int, kube: KubeCluster, tmp_path: Path, transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Plant]:
    forget_contexts()
    monkeypatch.setattr(reports, "NODE_GONE_SECONDS", 3)  # no node is that new here
    monkeypatch.setattr(reports, "BIND_SECONDS", 10)
    make_counters()
    kube.apply(STORAGE_CLASS)
    own = secrets.token_hex(3)
    settings = {
        "installation": f"campaign-{own}",
        "namespace_prefix": f"c{own}-",
        "node_selector": {LABEL: own},
        "default_image": "nobody/runs:it",
        "work_storage_class": "fast",
    }
    cluster = Cluster.objects.create(name=f"campaign-{own}", engine="kubernetes", settings=settings)
    with fault_proxy(kube, seed) as proxy:
        plant = Plant(kube, proxy, cluster, tmp_path)
        plant.start()
        yield plant
        plant.close()


@pytest.fixture
def campaign(plant: Plant, seed: int) -> Iterator[Campaign]:
    witness = Witness(plant.kube, plant.cluster.settings["installation"])
    projects = [
        make_project(f"team-{name}", quota, cluster=plant.cluster)
        for name, quota in zip("abc", (2, 2, 4), strict=True)
    ]
    campaign = Campaign(plant, witness, random.Random(seed), projects)
    yield campaign
    witness.close()
    campaign.remove_nodes()


def is_settled(job: Job) -> bool:
    return job.is_final or job.state in (lifecycle.RUNNING, lifecycle.SUSPENDED)


def unsettled() -> list[str]:
    return [
        f"{job.name} {job.state} {job.reason} {job.message}"
        for job in Job.objects.all()
        if not is_settled(job)
    ]


def test_nothing_is_lost_doubled_or_left_over(
    campaign: Campaign, plant: Plant, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = time.monotonic()
    removed_at = SECONDS * campaign.dice.uniform(0.2, 0.6)
    while (spent := time.monotonic() - began) < SECONDS:
        if spent > removed_at:
            removed_at = float("inf")
            campaign.schedule.append(campaign.remove_a_node())
        campaign.deed()
        rest(campaign.dice.uniform(0, 0.2))
    logger.warning("seed %d: %s", seed, dict(plant.proxy.done))
    try:
        judge(campaign, plant)
        clear_up(campaign, plant, monkeypatch)
    except AssertionError:
        logger.error("seed %d:\n%s", seed, "\n".join(campaign.schedule))
        raise
    finally:
        connections.close_all()


def judge(campaign: Campaign, plant: Plant) -> None:
    plant.proxy.faults = Faults()
    for is_shared in (False, True):
        campaign.add_node(128, is_shared=is_shared)  # room for all that a long campaign submits
    Project.objects.update(gpu_quota_milli=256_000)

    def is_quiet() -> bool:
        hurry()
        free_claims(plant)
        return not unsettled() and not list(faults_of_rest(plant))

    try:
        wait_until(is_quiet, 90, "quiet")
    except AssertionError as error:
        claims = [one for one in found(plant, CLAIMS) if one["status"].get("phase") != "Bound"]
        raise AssertionError(f"{error}: {unsettled()} {list(faults_of_rest(plant))} {claims}") from error
    assert not campaign.witness.broken, "\n".join(campaign.witness.broken[:5])
    wrong = [
        f"{job.name} ({job.pk}) {job.state}: {job.reason} {job.message}"
        for job in Job.objects.filter(state__in=lifecycle.FINAL_STATES)
        if job.state not in campaign.expected[str(job.pk)]
    ]
    assert not wrong, "\n".join(wrong)


def clear_up(campaign: Campaign, plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    for job in Job.objects.all():
        delete_job(job, actor=campaign.actor)

    def is_over() -> bool:
        hurry()
        let_names_go()
        return not (Job.objects.exists() or pods_of(plant))

    wait_until(is_over, 90, "the end of all jobs")
    plant.restart()  # what it remembers of its last starts keeps it from sweeping for half a minute
    monkeypatch.setattr(tenancy_sync, "GRACE_SECONDS", 1)
    monkeypatch.setattr(tenancy_sync, "SWEEP_SECONDS", 1)

    def left() -> list[str]:
        hurry()  # the second order to forget a job comes a minute after the first
        return [
            f"{kind} {one['metadata']['name']}"
            for kind in LEFT_OVER
            for one in found(plant, f"/api/v1/{kind}")
        ]

    try:
        wait_until(lambda: not left(), 60, "the end of all that jobs leave")
    except AssertionError as error:
        raise AssertionError(f"{error}: {left()}") from error
