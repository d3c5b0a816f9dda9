"""One whole cycle over the four-team cluster on SQLite: lease, reconcile, observe, decide, record.

The cluster is in the scenario's last state, with sixteen GPUs in use and jobs waiting, and there is no change to make:
this is the cost that the loop has every second. Run: python -m bench.cycle
"""

import tempfile
from pathlib import Path

from bench.harness import Row, report, time_ms
from bench.lists import django_on

REPEATS = 200


def main() -> None:
    """Run the scenario to its end, then time cycles."""
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as directory, django_on(Path(directory)):
        from controlplane.access import Actor
        from controlplane.loop.cycle import run_cycle
        from jobs.actions import delete_job, submit_job
        from jobs.models import Job
        from tests.builders import make_project, make_user
        from tests.loop.plant import Plant
        from tests.scenarios.four_teams.script import TEAMS, steps

        plant = Plant()
        projects = {team: make_project(team, quota) for team, quota in TEAMS.items()}
        actor = Actor(user=make_user())
        for step in steps():
            for name in step.jobs:
                if step.action == "delete":
                    delete_job(Job.objects.get(name=name), actor=actor)
                else:
                    body = {
                        "name": name,
                        "kind": step.kind,
                        "gpus": step.gpus,
                        "command": ["sleep", "infinity"],
                    }
                    submit_job(projects[step.project], body, actor=actor)
            plant.settle()
        # the cycle alone: commands are carried out by other threads
        samples = time_ms(lambda: run_cycle(plant.clock()), REPEATS, warm_up=20)
        states = list(plant.states().values())
        plant.close()
    note = f"{states.count('running')} running, {states.count('queued')} queued"
    report(
        "cycle",
        [Row("one cycle over the four teams, through SQLite", "<= 5 ms", "ms", samples, limit=5, note=note)],
    )


if __name__ == "__main__":
    main()
