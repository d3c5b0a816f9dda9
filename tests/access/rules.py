"""What each route answers to whom: one line per route and verb. A route, verb or topic without a line fails the matrix.

The columns are what somebody is to the project, user or token in the address: no one signed in, a stranger, its viewer,
member, owner, the site's admin, and a read-only token of an admin.
"""

from typing import NamedTuple

OK = 200  # any answer but a refusal of the person: a success, or a refusal of the body (400, 409)


class Rule(NamedTuple):
    """A status for each column. `self_`: for the user whom the address names, None where that is no case of its own."""

    anonymous: int
    stranger: int
    viewer: int
    member: int
    owner: int
    admin: int
    read_only: int = OK
    self_: int | None = None


# REST
ANYBODY = Rule(OK, OK, OK, OK, OK, OK, OK)
EVERYBODY = Rule(401, OK, OK, OK, OK, OK, OK)
EVERYBODY_WRITES = Rule(401, OK, OK, OK, OK, OK, 403)
ADMIN_READS = Rule(401, 403, 403, 403, 403, OK, OK)
ADMIN_WRITES = Rule(401, 403, 403, 403, 403, OK, 403)
VIEWERS_READ = Rule(401, 404, OK, OK, OK, OK, OK)
MEMBERS_WRITE = Rule(401, 404, 403, OK, OK, OK, 403)
OWNERS_WRITE = Rule(401, 404, 403, 403, OK, OK, 403)
ADMIN_WRITES_INSIDE = Rule(401, 404, 403, 403, 403, OK, 403)
BY_POD_TOKEN = Rule(
    404, 404, 404, 404, 404, 404, 404
)  # the token of an attempt of the job, which no person has
SELF_READS = Rule(401, 404, 404, 404, 404, OK, OK, self_=OK)
SELF_WRITES = Rule(401, 404, 404, 404, 404, OK, 403, self_=OK)

REST: dict[str, dict[str, Rule]] = {
    "login": {"POST": ANYBODY},
    "whoami": {"GET": EVERYBODY},
    "tokens": {"GET": EVERYBODY, "POST": EVERYBODY_WRITES},
    "tokens/<str:token_id>": {"GET": SELF_READS, "DELETE": SELF_WRITES},
    "users": {"GET": ADMIN_READS, "POST": ADMIN_WRITES},
    "users/<str:username>": {"GET": SELF_READS, "PATCH": SELF_WRITES},
    "clusters": {"GET": EVERYBODY, "POST": ADMIN_WRITES},
    "clusters/<str:name>": {"GET": EVERYBODY, "PATCH": ADMIN_WRITES, "DELETE": ADMIN_WRITES},
    "clusters/<str:name>/view": {"GET": ADMIN_READS},
    "clusters/<str:name>/check": {"POST": ADMIN_WRITES},
    "node-pools": {"GET": EVERYBODY, "POST": ADMIN_WRITES},
    "nodes": {"GET": EVERYBODY},
    "nodes/<str:name>": {"GET": EVERYBODY, "PATCH": ADMIN_WRITES},
    "nodes/<str:name>/cordon": {"POST": ADMIN_WRITES},
    "nodes/<str:name>/uncordon": {"POST": ADMIN_WRITES},
    "nodes/<str:name>/drain": {"POST": ADMIN_WRITES},
    "nodes/<str:name>/confirm-dead": {"POST": ADMIN_WRITES},
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
    "projects/<str:name>/jobs": {"GET": VIEWERS_READ, "POST": MEMBERS_WRITE},
    "projects/<str:name>/jobs/batch": {"POST": MEMBERS_WRITE},
    "projects/<str:name>/jobs/plan": {"POST": MEMBERS_WRITE},
    "projects/<str:name>/what-if": {"POST": OWNERS_WRITE},
    "projects/<str:name>/code": {"GET": VIEWERS_READ, "POST": MEMBERS_WRITE},
    "projects/<str:name>/code/<str:tree>": {"GET": VIEWERS_READ},
    "projects/<str:name>/code-imports": {"POST": MEMBERS_WRITE},
    "projects/<str:name>/code-imports/<str:import_id>": {"GET": VIEWERS_READ},
    "projects/<str:name>/code/<str:tree>/content": {"PUT": MEMBERS_WRITE},
    "projects/<str:name>/code/<str:tree>/commit": {"POST": MEMBERS_WRITE},
    "pod-code/<str:job_id>/<str:attempt>": {"GET": BY_POD_TOKEN},
    "projects/<str:name>/code/<str:tree>/archive": {"GET": VIEWERS_READ},
    "images": {"GET": EVERYBODY},
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
    "datasets": {"GET": EVERYBODY},
    "datasets/<str:dataset_id>": {"GET": VIEWERS_READ, "PATCH": MEMBERS_WRITE, "DELETE": OWNERS_WRITE},
    "datasets/<str:dataset_id>/versions": {"GET": VIEWERS_READ, "POST": MEMBERS_WRITE},
    "datasets/<str:dataset_id>/versions/<str:version>": {"GET": VIEWERS_READ},
    "datasets/<str:dataset_id>/tags": {"POST": MEMBERS_WRITE},
    "datasets/<str:dataset_id>/tags/<str:tag>": {"DELETE": MEMBERS_WRITE},
    "datasets/<str:dataset_id>/content/lacking": {"POST": MEMBERS_WRITE},
    "datasets/<str:dataset_id>/content/packs": {"PUT": MEMBERS_WRITE},
    "datasets/<str:dataset_id>/content/parts/<str:sha256>": {"GET": MEMBERS_WRITE, "PUT": MEMBERS_WRITE},
    "datasets/<str:dataset_id>/content/manifests": {"PUT": MEMBERS_WRITE},
    "projects/<str:name>/datasets": {"GET": VIEWERS_READ, "POST": MEMBERS_WRITE},
    "versions/<str:version_id>": {"GET": VIEWERS_READ},
    "versions/<str:version_id>/files": {"GET": VIEWERS_READ},
    "versions/<str:version_id>/diff": {"GET": VIEWERS_READ},
    "versions/<str:version_id>/content": {"GET": VIEWERS_READ},
    "versions/<str:version_id>/manifest": {"GET": VIEWERS_READ},
    "versions/<str:version_id>/pack": {"GET": VIEWERS_READ},
    "versions/<str:version_id>/verify": {"POST": MEMBERS_WRITE},
    "storage-classes": {"GET": EVERYBODY},
    "volumes": {"GET": EVERYBODY, "POST": EVERYBODY_WRITES},
    "volumes/<str:volume_id>": {"GET": VIEWERS_READ, "PATCH": OWNERS_WRITE, "DELETE": OWNERS_WRITE},
    "volumes/<str:volume_id>/resize": {"POST": MEMBERS_WRITE},
    "volumes/<str:volume_id>/clone": {"POST": MEMBERS_WRITE},
    "volumes/<str:volume_id>/access-mode": {"POST": MEMBERS_WRITE},
    "volumes/<str:volume_id>/service-tier": {"POST": MEMBERS_WRITE},
    "volumes/<str:volume_id>/files": {"GET": VIEWERS_READ},
    "volumes/<str:volume_id>/content": {"GET": VIEWERS_READ},
    "snapshots": {"GET": EVERYBODY, "POST": EVERYBODY_WRITES},
    "snapshots/<str:snapshot_id>": {"GET": VIEWERS_READ, "DELETE": OWNERS_WRITE},
    "snapshots/<str:snapshot_id>/restore": {"POST": MEMBERS_WRITE},
    "artifacts": {"GET": EVERYBODY},
    "artifacts/<str:artifact_id>": {"GET": VIEWERS_READ, "DELETE": OWNERS_WRITE},
    "artifacts/<str:artifact_id>/files": {"GET": VIEWERS_READ},
    "artifacts/<str:artifact_id>/content": {"GET": VIEWERS_READ},
    "artifacts/<str:artifact_id>/manifest": {"GET": VIEWERS_READ},
    "artifacts/<str:artifact_id>/pack": {"GET": VIEWERS_READ},
    "artifacts/<str:artifact_id>/archive": {"GET": VIEWERS_READ},
    "jobs/<str:job_id>/artifacts": {"GET": VIEWERS_READ},
    "artifacts/<str:artifact_id>/lineage": {"GET": VIEWERS_READ},
    "jobs/<str:job_id>/lineage": {"GET": VIEWERS_READ},
    "versions/<str:version_id>/lineage": {"GET": VIEWERS_READ},
    "snapshots/<str:snapshot_id>/lineage": {"GET": VIEWERS_READ},
    "caches": {"GET": EVERYBODY, "POST": EVERYBODY_WRITES},
    "caches/<str:cache_id>": {"GET": VIEWERS_READ, "DELETE": MEMBERS_WRITE},
    "caches/<str:cache_id>/pin": {"POST": MEMBERS_WRITE},
    "caches/<str:cache_id>/unpin": {"POST": MEMBERS_WRITE},
    "cache-locations": {"GET": EVERYBODY},
    "cache-locations/<str:name>": {"GET": EVERYBODY, "PATCH": ADMIN_WRITES},
    "events": {"GET": EVERYBODY},
    "audit": {"GET": ADMIN_READS},
    "telemetry/overview": {"GET": EVERYBODY},
    "telemetry/series": {"GET": EVERYBODY},
    "openapi.json": {"GET": EVERYBODY},
}

# Pages: 302 for `anonymous` is the way to the login page
P_EVERYBODY = Rule(302, OK, OK, OK, OK, OK)
P_ADMIN = Rule(302, 403, 403, 403, 403, OK)
P_VIEWERS = Rule(302, 404, OK, OK, OK, OK)
P_MEMBERS = Rule(302, 404, 403, OK, OK, OK)
P_OWNERS = Rule(302, 404, 403, 403, OK, OK)
P_ADMIN_INSIDE = Rule(302, 404, 403, 403, 403, OK)
P_FELLOWS = Rule(302, 404, OK, OK, OK, OK, self_=OK)
P_ADMIN_OF_USER = Rule(302, 404, 403, 403, 403, OK, self_=403)
P_PASSWORD = Rule(302, 404, 403, 403, 403, OK, self_=OK)
P_OWN_TOKEN = Rule(302, 404, 404, 404, 404, 404, self_=OK)
P_POST_ONLY = Rule(405, 405, 405, 405, 405, 405)
P_DOOR = Rule(OK, OK, OK, OK, OK, OK)
P_SETUP = Rule(404, 404, 404, 404, 404, 404)  # an admin exists
P_EDIT_LOCAL = Rule(302, 403, 403, 403, 403, 404)  # a cluster of the memory engine has no such form

PAGES: dict[str, dict[str, Rule]] = {
    "": {"GET": P_EVERYBODY},
    "jobs": {"GET": P_EVERYBODY},
    "new/job": {"GET": P_EVERYBODY, "POST": P_EVERYBODY},
    "new/job?clone=<str:job_id>": {"GET": P_VIEWERS},
    "new/job/preview.json": {"POST": P_EVERYBODY},
    "new/job/plan": {"POST": P_EVERYBODY},
    "jobs/selected": {
        "GET": P_EVERYBODY,
        "POST": P_EVERYBODY,
    },  # what somebody may not see is counted, not named
    "jobs/selected?verb=stop&row=<str:job_id>": {"GET": P_EVERYBODY},
    "volumes": {"GET": P_EVERYBODY},
    "new/volume": {"GET": P_EVERYBODY, "POST": P_EVERYBODY},
    "volumes/<str:volume_id>": {"GET": P_VIEWERS},
    "volumes/<str:volume_id>/file?path=file": {"GET": P_VIEWERS},
    "volumes/<str:volume_id>/do/snapshot": {"POST": P_MEMBERS},
    "volumes/<str:volume_id>/do/resize": {"POST": P_MEMBERS},
    "volumes/<str:volume_id>/do/access-mode": {"POST": P_MEMBERS},
    "volumes/<str:volume_id>/do/tier": {"POST": P_MEMBERS},
    "volumes/<str:volume_id>/do/keep": {"POST": P_OWNERS},
    "volumes/<str:volume_id>/do/clone": {"POST": P_MEMBERS},
    "volumes/<str:volume_id>/delete": {"GET": P_OWNERS, "POST": P_OWNERS},
    "snapshots/<str:snapshot_id>/restore": {"GET": P_MEMBERS, "POST": P_MEMBERS},
    "snapshots/<str:snapshot_id>/delete": {"GET": P_OWNERS, "POST": P_OWNERS},
    "artifacts/<str:artifact_id>": {"GET": P_VIEWERS},
    "artifacts/<str:artifact_id>/delete": {"GET": P_OWNERS, "POST": P_OWNERS},
    "lineage/<str:kind>/<str:key>": {"GET": P_VIEWERS},
    "jobs/<str:job_id>": {"GET": P_VIEWERS},
    "jobs/<str:job_id>/outlook": {"GET": P_VIEWERS},
    "jobs/<str:job_id>/log.txt": {"GET": P_VIEWERS},
    "jobs/<str:job_id>/log-index.json": {"GET": P_VIEWERS},
    "jobs/<str:job_id>/do/stop": {"POST": P_MEMBERS},
    "jobs/<str:job_id>/do/suspend": {"POST": P_MEMBERS},
    "jobs/<str:job_id>/do/resume": {"POST": P_MEMBERS},
    "jobs/<str:job_id>/do/delete": {"POST": P_MEMBERS},
    "jobs/<str:job_id>/do/retry": {"POST": P_MEMBERS},
    "jobs/<str:job_id>/scale": {"GET": P_MEMBERS, "POST": P_MEMBERS},
    "jobs/<str:job_id>/terminal": {"GET": P_MEMBERS},
    "jobs/<str:job_id>/<str:tab>": {"GET": P_VIEWERS},
    "projects": {"GET": P_EVERYBODY},
    "new/project": {"GET": P_ADMIN, "POST": P_ADMIN},
    "projects/<str:name>": {"GET": P_VIEWERS},
    "projects/<str:name>/edit": {"GET": P_OWNERS, "POST": P_OWNERS},
    "projects/<str:name>/what-if": {"POST": P_OWNERS},
    "projects/<str:name>/delete": {"GET": P_ADMIN_INSIDE, "POST": P_ADMIN_INSIDE},
    "projects/<str:name>/members/set": {"GET": P_OWNERS, "POST": P_OWNERS},
    "projects/<str:name>/members/remove": {"GET": P_OWNERS, "POST": P_OWNERS},
    "projects/<str:name>/members/suggest.json": {"GET": P_OWNERS},
    "nodes": {"GET": P_EVERYBODY},
    "nodes/<str:name>": {"GET": P_EVERYBODY},
    "nodes/<str:name>/card": {"GET": P_EVERYBODY},
    "nodes/<str:name>/do/cordon": {"POST": P_ADMIN},
    "nodes/<str:name>/do/uncordon": {"POST": P_ADMIN},
    "nodes/<str:name>/do/drain": {"POST": P_ADMIN},
    "nodes/<str:name>/do/confirm-dead": {"POST": P_ADMIN},
    "clusters": {"GET": P_ADMIN},
    "new/cluster": {"GET": P_ADMIN, "POST": P_ADMIN},
    "clusters/<str:name>": {"GET": P_ADMIN},
    "clusters/<str:name>/edit": {"GET": P_EDIT_LOCAL, "POST": P_EDIT_LOCAL},
    "clusters/<str:name>/do/check": {"POST": P_ADMIN},
    "clusters/<str:name>/do/detach": {"POST": P_ADMIN},
    "users": {"GET": P_ADMIN, "POST": P_ADMIN},
    "users/<str:username>": {"GET": P_FELLOWS},
    "users/<str:username>/do/lock": {"GET": P_ADMIN_OF_USER, "POST": P_ADMIN_OF_USER},
    "users/<str:username>/do/unlock": {"POST": P_ADMIN_OF_USER},
    "users/<str:username>/do/promote": {"GET": P_ADMIN_OF_USER, "POST": P_ADMIN_OF_USER},
    "users/<str:username>/do/demote": {"GET": P_ADMIN_OF_USER, "POST": P_ADMIN_OF_USER},
    "users/<str:username>/do/password": {"GET": P_FELLOWS, "POST": P_PASSWORD},
    "datasets": {"GET": P_EVERYBODY},
    "datasets/<str:dataset_id>": {"GET": P_VIEWERS},
    "datasets/<str:dataset_id>/files": {"GET": P_VIEWERS},
    "datasets/<str:dataset_id>/diff": {"GET": P_VIEWERS},
    "datasets/<str:dataset_id>/cache": {"POST": P_MEMBERS},
    "datasets/<str:dataset_id>/delete": {"GET": P_OWNERS, "POST": P_OWNERS},
    "caches/<str:cache_id>/do/pin": {"POST": P_MEMBERS},
    "caches/<str:cache_id>/do/unpin": {"POST": P_MEMBERS},
    "caches/<str:cache_id>/clear": {"GET": P_MEMBERS, "POST": P_MEMBERS},
    "tokens": {"GET": P_EVERYBODY, "POST": P_EVERYBODY},
    "tokens/<int:token_id>/revoke": {"GET": P_OWN_TOKEN, "POST": P_OWN_TOKEN},
    "analytics": {"GET": P_EVERYBODY},
    "analytics.csv": {"GET": P_EVERYBODY},
    "scaling-reports": {"GET": P_EVERYBODY},
    "charts/scaling/<str:name>.json": {"GET": P_EVERYBODY},
    "charts/utilisation.json": {"GET": P_EVERYBODY},
    "charts/allocation.json": {"GET": P_EVERYBODY},
    "charts/projects/<str:name>/allocation.json": {"GET": P_VIEWERS},
    "charts/nodes/<str:name>/utilisation.json": {"GET": P_EVERYBODY},
    "charts/nodes/<str:name>/memory.json": {"GET": P_EVERYBODY},
    "charts/jobs/<str:job_id>/<str:name>.json": {"GET": P_VIEWERS},
    "charts/analytics/<str:name>.json": {"GET": P_EVERYBODY},
    "charts/template/light.json": {"GET": P_EVERYBODY},
    "charts/template/dark.json": {"GET": P_EVERYBODY},
    "counts.json": {"GET": P_EVERYBODY},
    "search.json": {"GET": P_EVERYBODY},
    "login": {"GET": P_DOOR, "POST": P_DOOR},
    "logout": {"POST": P_DOOR},
    "setup/<str:secret>": {"GET": P_SETUP, "POST": P_SETUP},
}

# Live topics: whether somebody may follow them
FEED_EVERYBODY = Rule(401, OK, OK, OK, OK, OK, OK)
FEED_VIEWERS = Rule(401, 403, OK, OK, OK, OK, OK)
TOPICS: dict[str, Rule] = {
    "overview": FEED_EVERYBODY,
    "queue": FEED_EVERYBODY,
    "project:{project}": FEED_VIEWERS,
    "job:{job}": FEED_VIEWERS,
    "job:{job}:logs:0": FEED_VIEWERS,
    "dataset:{dataset}": FEED_VIEWERS,
    "volume:{volume}": FEED_VIEWERS,
}
