"""Rules for jobs, the nodes that run them, and telemetry."""

from tests.access.roles import (
    ADMIN_WRITES,
    EVERYBODY,
    FEED_EVERYBODY,
    FEED_VIEWERS,
    MEMBERS_WRITE,
    OWNERS_WRITE,
    VIEWERS_READ,
    Rule,
)

REST: dict[str, dict[str, Rule]] = {
    "projects/<str:name>/jobs": {"GET": VIEWERS_READ, "POST": MEMBERS_WRITE},
    "projects/<str:name>/jobs/batch": {"POST": MEMBERS_WRITE},
    "projects/<str:name>/jobs/plan": {"POST": MEMBERS_WRITE},
    "projects/<str:name>/what-if": {"POST": OWNERS_WRITE},
    "images": {"GET": EVERYBODY},
    "nodes/<str:name>": {"GET": EVERYBODY, "PATCH": ADMIN_WRITES},
    "nodes/<str:name>/cordon": {"POST": ADMIN_WRITES},
    "nodes/<str:name>/uncordon": {"POST": ADMIN_WRITES},
    "nodes/<str:name>/drain": {"POST": ADMIN_WRITES},
    "nodes/<str:name>/interruption-notice": {"POST": ADMIN_WRITES},
    "nodes/<str:name>/confirm-dead": {"POST": ADMIN_WRITES},
    "telemetry/overview": {"GET": EVERYBODY},
    "telemetry/series": {"GET": EVERYBODY},
    "jobs": {"GET": EVERYBODY},
    "jobs/<str:job_id>": {"GET": VIEWERS_READ, "PATCH": MEMBERS_WRITE, "DELETE": MEMBERS_WRITE},
    "jobs/<str:job_id>/stop": {"POST": MEMBERS_WRITE},
    "jobs/<str:job_id>/suspend": {"POST": MEMBERS_WRITE},
    "jobs/<str:job_id>/resume": {"POST": MEMBERS_WRITE},
    "jobs/<str:job_id>/clone": {"POST": MEMBERS_WRITE},
    "jobs/<str:job_id>/scale": {"POST": MEMBERS_WRITE},
    "jobs/<str:job_id>/scale-operations": {"GET": VIEWERS_READ},
    "jobs/<str:job_id>/pods": {"GET": VIEWERS_READ},
    "jobs/<str:job_id>/events": {"GET": VIEWERS_READ},
    "jobs/<str:job_id>/logs": {"GET": VIEWERS_READ},
    "jobs/<str:job_id>/metrics": {"GET": VIEWERS_READ},
    "jobs/<str:job_id>/explain": {"GET": VIEWERS_READ},
    "jobs/<str:job_id>/spec": {"GET": VIEWERS_READ},
}

TOPICS: dict[str, Rule] = {
    "queue": FEED_EVERYBODY,
    "job:{job}": FEED_VIEWERS,
    "job:{job}:logs:0": FEED_VIEWERS,
}
