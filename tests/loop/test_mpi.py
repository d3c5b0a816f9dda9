"""An MPI job through the loop: a gang of which one pod launches, and whose end decides."""

from controlplane.models import Command
from jobs.command_kinds import START_POD
from jobs.models import Job, Pod
from tests.builders import make_job, make_project


def start_mpi(plant, workers: int = 3) -> Job:
    job = make_job(make_project(), kind="mpi", workers=workers, gpus=2, command=["mpirun", "train"])
    plant.settle()
    job.refresh_from_db()
    return job


def rank(job: Job, number: int) -> Pod:
    return Pod.objects.get(job=job, attempt__number=job.attempt, rank=number)


def test_a_gang_of_equal_pods_starts_and_the_launcher_knows_them(plant):
    job = start_mpi(plant)
    assert (job.state, job.allocated_milli) == ("running", 6000)
    assert list(Pod.objects.filter(job=job).order_by("rank").values_list("role", flat=True)) == [
        "launcher",
        "worker",
        "worker",
    ]
    launcher, *hosts = Command.objects.filter(kind=START_POD).order_by("pk")
    told = [(member[0], member[1], len(member[3])) for member in launcher.payload["launches"]]
    assert told == [(number, rank(job, number).name, 2) for number in range(3)]
    assert [host.payload["launches"] for host in hosts] == [[], []]
    assert [host.payload["is_host"] for host in hosts] == [True, True]


def test_the_launchers_end_ends_the_job_and_stops_the_hosts(plant):
    job = start_mpi(plant)
    plant.engine.finish(rank(job, 0).name, 0)
    plant.settle()
    job.refresh_from_db()
    assert (job.state, job.exit_code, job.allocated_milli) == ("succeeded", 0, 0)
    assert plant.engine.pods() == ()


def test_a_failed_host_fails_the_job_with_its_reason(plant):
    job = start_mpi(plant)
    plant.engine.finish(rank(job, 2).name, 1, "out_of_memory", "Killed: out of memory.")
    plant.settle()
    job.refresh_from_db()
    assert (job.state, job.reason) == ("failed", "out_of_memory")
    assert plant.allocated() == {}
