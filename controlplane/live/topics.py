"""The names of live topics and their access rules. Unlisted topics are refused."""

import re
import uuid
from dataclasses import dataclass

OVERVIEW, QUEUE, PROJECT, JOB, LOGS = KINDS = ("overview", "queue", "project", "job", "logs")
ACTIVITY = "activity"
SHARED = (OVERVIEW, QUEUE, ACTIVITY)  # topics of the whole instance, for everyone who is signed in
LONGEST_NAME = 200
_PROJECT = re.compile(r"project:(?P<name>[a-z0-9]([-a-z0-9]{0,48}[a-z0-9])?)")
_JOB = re.compile(r"job:(?P<job>[0-9a-fA-F-]{32,36})(?P<logs>:logs:(?P<rank>\d{1,5}))?")

FORBIDDEN, UNKNOWN, GONE, UNREADABLE = "forbidden", "unknown_topic", "gone", "unreadable"


@dataclass(frozen=True, slots=True)
class Topic:
    """A parsed topic. `subject`: the project's name or the job's id."""

    name: str
    kind: str
    subject: str = ""
    rank: int = 0


def parse_topic(name: object) -> Topic | None:
    """Return the topic of that name, None for an unknown kind of topic."""
    if not isinstance(name, str) or len(name) > LONGEST_NAME:
        return None
    if name in SHARED:
        return Topic(str(name), str(name))
    if match := _PROJECT.fullmatch(name):
        return Topic(name, PROJECT, match["name"])
    if match := _JOB.fullmatch(name):
        return _job_topic(name, match["job"], match["rank"])
    return None


def may_listen(topic: Topic, project_ids: frozenset[int] | None, project_id: int | None) -> bool:
    """Return whether a user who may view `project_ids` (None: all) may subscribe to a topic of project `project_id`.

    A topic without a project of its own shows each reader what that reader may see; for the others, project None
    means that the subject does not exist.
    """
    if topic.kind in SHARED:
        return True
    if project_id is None:
        return False
    return project_ids is None or project_id in project_ids


def _job_topic(name: str, job: str, rank: str | None) -> Topic | None:
    try:
        job_id = str(uuid.UUID(job))
    except ValueError:
        return None
    return Topic(name, JOB, job_id) if rank is None else Topic(name, LOGS, job_id, int(rank))
