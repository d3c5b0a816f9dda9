"""The requests that use the simulating process, or take as long, and therefore run on separate threads. No I/O.

tests/app/test_simulation_routes.py fails for a view that uses it but is not listed.
"""

import re

_ROUTES = {
    "GET": re.compile(
        r"/jobs/[^/]+/outlook"  # a part of the job's page
        r"|/api/v1/jobs/[^/]+/explain"
        r"|/api/v1/clusters/[^/]+/view"  # reads a whole cluster
    ),
    "POST": re.compile(
        r"/new/job/plan|/projects/[^/]+/what-if"  # pages
        r"|/api/v1/projects/[^/]+/(?:jobs/plan|what-if)"
    ),
}


def asks_simulation(method: str, path: str) -> bool:
    """Return whether a request may use the simulating process."""
    route = _ROUTES.get("GET" if method == "HEAD" else method)
    return route is not None and route.fullmatch(path.removesuffix("/")) is not None
