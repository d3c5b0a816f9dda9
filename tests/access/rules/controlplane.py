"""Rules for accounts, clusters, the list of nodes, and projects."""

from tests.access.roles import (
    ADMIN_READS,
    ADMIN_WRITES,
    ADMIN_WRITES_INSIDE,
    ANYBODY,
    EVERYBODY,
    EVERYBODY_WRITES,
    FEED_EVERYBODY,
    FEED_VIEWERS,
    OWNERS_WRITE,
    SELF_READS,
    SELF_WRITES,
    VIEWERS_READ,
    Rule,
)

REST: dict[str, dict[str, Rule]] = {
    "login": {"POST": ANYBODY},
    "whoami": {"GET": EVERYBODY},
    "tokens": {"GET": EVERYBODY, "POST": EVERYBODY_WRITES},
    "tokens/<str:token_id>": {"GET": SELF_READS, "DELETE": SELF_WRITES},
    "users": {"GET": ADMIN_READS, "POST": ADMIN_WRITES},
    "users/<str:username>": {"GET": SELF_READS, "PATCH": SELF_WRITES},
    "clusters": {"GET": EVERYBODY, "POST": ADMIN_WRITES},
    "clusters/<str:name>": {"GET": EVERYBODY, "PATCH": ADMIN_WRITES, "DELETE": ADMIN_WRITES},
    "clusters/<str:name>/check": {"POST": ADMIN_WRITES},
    "clusters/<str:name>/view": {"GET": ADMIN_READS},
    "node-pools": {"GET": EVERYBODY, "POST": ADMIN_WRITES},
    "node-pools/<str:name>": {"PATCH": ADMIN_WRITES, "DELETE": ADMIN_WRITES},
    "nodes": {"GET": EVERYBODY},
    "departments": {"GET": EVERYBODY, "POST": ADMIN_WRITES},
    "departments/<str:name>": {"GET": EVERYBODY, "PATCH": ADMIN_WRITES, "DELETE": ADMIN_WRITES},
    "projects": {"GET": EVERYBODY, "POST": ADMIN_WRITES},
    "projects/<str:name>": {"GET": VIEWERS_READ, "PATCH": OWNERS_WRITE, "DELETE": ADMIN_WRITES_INSIDE},
    "projects/<str:name>/members": {"GET": VIEWERS_READ, "POST": OWNERS_WRITE},
    "projects/<str:name>/members/<str:username>": {
        "GET": VIEWERS_READ,
        "PATCH": OWNERS_WRITE,
        "DELETE": OWNERS_WRITE,
    },
    "events": {"GET": EVERYBODY},
    "audit": {"GET": ADMIN_READS},
    "openapi.json": {"GET": EVERYBODY},
}

TOPICS: dict[str, Rule] = {
    "overview": FEED_EVERYBODY,
    "project:{project}": FEED_VIEWERS,
}
