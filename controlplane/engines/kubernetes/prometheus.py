"""Query a Prometheus server, at its own address or through the cluster's API server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import orjson
import urllib3

from controlplane.engines.base import EngineUnreachable
from controlplane.engines.kubernetes.dcgm import Get
from controlplane.kubernetes_api.client import Client
from controlplane.kubernetes_api.errors import ApiError

# Short, because Prometheus is queried every second and a missed second does no harm.
TIMEOUT_SECONDS = 3.0
MOST_BYTES = 32 * 1024 * 1024


def prometheus_at(url: str) -> Get:
    """Return a function `get(path, query)` that sends a GET below `url` and returns the JSON response. It raises
    EngineUnreachable if the server does not answer, or not with JSON of a bounded size."""
    pool = urllib3.PoolManager(timeout=TIMEOUT_SECONDS, retries=False, maxsize=2)

    def get(path: str, query: Mapping[str, str]) -> Any:
        try:
            answer = pool.request("GET", f"{url.rstrip('/')}{path}?{urlencode(query)}", preload_content=False)
            # One byte more than allowed, to detect a response that is too long.
            body = answer.read(MOST_BYTES + 1)
            answer.release_conn()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise EngineUnreachable(f"Prometheus does not answer: {error}") from error
        if answer.status != 200 or len(body) > MOST_BYTES:
            raise EngineUnreachable(f"Prometheus answers {answer.status} with {len(body)} bytes.")
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise EngineUnreachable("What answers at Prometheus' address is not Prometheus.") from error

    return get


def prometheus_behind(client: Client, namespace: str, service: str, port: int) -> Get:
    """Return a function `get(path, query)` that sends a GET to a service in the cluster, through the API server, and
    returns the JSON data. It raises EngineUnreachable if the request fails."""
    root = f"/api/v1/namespaces/{namespace}/services/{service}:{port}/proxy"

    def get(path: str, query: Mapping[str, str]) -> Any:
        try:
            # Two tries, in case a pooled connection was closed meanwhile; further retries are left to the next
            # call.
            return client.get(root + path, query, timeout_seconds=TIMEOUT_SECONDS, tries=2)
        except ApiError as error:
            raise EngineUnreachable(f"Prometheus does not answer: {error}") from error

    return get


def prometheus_of(settings: Mapping[str, Any] | None, client: Client) -> Get | None:
    """Return the function that queries the Prometheus in a cluster's settings; None if they have none."""
    if settings is None:
        return None
    return prometheus_at(settings["url"]) if "url" in settings else prometheus_behind(client, **settings)
