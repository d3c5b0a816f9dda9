"""Expected HTTP statuses of a route by the user's role.

The columns are what a user is to the project, user or token in the URL: anonymous, a stranger, its viewer,
member, owner, the site's admin, and a read-only token of an admin."""

from typing import NamedTuple

OK = 200  # any answer but a refusal of the person: a success, or a refusal of the body (400, 409)


class Rule(NamedTuple):
    """An expected status for each column. `self_`: for the user whom the URL names, None if that user has no
    status of its own."""

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
# The token of an attempt of the job, which no person has.
BY_POD_TOKEN = Rule(404, 404, 404, 404, 404, 404, 404)
SELF_READS = Rule(401, 404, 404, 404, 404, OK, OK, self_=OK)
SELF_WRITES = Rule(401, 404, 404, 404, 404, OK, 403, self_=OK)


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


# Live topics: who may follow them
FEED_EVERYBODY = Rule(401, OK, OK, OK, OK, OK, OK)
FEED_VIEWERS = Rule(401, 403, OK, OK, OK, OK, OK)
