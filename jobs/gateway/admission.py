"""Authorise connections into pods, on the gateway's database thread, repeatedly while a connection lasts."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

from django.db import DatabaseError

from controlplane.access import Actor, Forbidden, NotVisible
from controlplane.engines.base import REACHES_PORTS, Engine, EngineRefused, EngineUnreachable
from controlplane.live.asgi import Scope, client_address
from controlplane.live.identity import Credential, identify
from controlplane.loop.engine_pool import attached_clusters, close_engines, engine_for
from controlplane.models import Role
from jobs.access import job_for
from jobs.gateway.limits import TooManyRequests, connect_on_thread
from jobs.gateway.turns import in_thread, in_turn_of, note_user
from jobs.lifecycle import ACTIVE_STATES, QUEUED
from jobs.models import Job, Pod

logger = logging.getLogger(__name__)

T = TypeVar("T")
# A revoked token or a lost role ends open connections within this time.
RECHECK_SECONDS = 1.0
# Bounds memory. All are dropped at once beyond it: each is valid for RECHECK_SECONDS only.
MOST_REMEMBERED = 5_000

CONNECT_SECONDS = 5.0
TIDY_SECONDS = 60.0
# Concurrent engine calls, because each holds a thread until the engine answers; further ones wait.
MOST_ENGINE_CALLS = 32

_engine_threads = ThreadPoolExecutor(MOST_ENGINE_CALLS, thread_name_prefix="gateway-engine")
_tidied_at = float("-inf")
_remembered: dict[tuple[Credential, str, int], tuple[float, Service]] = {}
_lookups: dict[tuple[Credential, str, int], asyncio.Task[Service]] = {}
_rechecks: dict[tuple[Credential, str], asyncio.Task[bool]] = {}


class NotSignedIn(Exception):
    """The credential is missing, wrong, revoked or expired."""


class NoAnswer(Exception):
    """No usable answer from the pod's server: it cannot be reached, or does not speak HTTP. `status`: 503 if
    a retry may help, 502 if the connection to the pod is broken, 504 if there was no answer in time."""

    def __init__(self, message: str, status: int = 503) -> None:
        super().__init__(message)
        self.status = status


def connection_failure(error: OSError, otherwise: str) -> NoAnswer:
    """Return the NoAnswer for a connection error, with its own message for a timeout (504) or an unreachable node
    (502); for any other error with the message `otherwise` (503)."""
    if isinstance(error, TimeoutError):
        return NoAnswer("the connection to it timed out", 504)
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN):
        return NoAnswer(f"its node cannot be reached: {error.strerror}", 502)
    return NoAnswer(otherwise)


class NotRunning(Exception):
    """The job has no running pod; the message gives the reason. `may_come`: retrying may help."""

    def __init__(self, message: str, *, may_come: bool) -> None:
        super().__init__(message)
        self.may_come = may_come


@dataclass(frozen=True, slots=True)
class Service:
    """One declared port of a job, with the pod and engine that serve it now."""

    job_id: str
    port: int
    pod_name: str
    engine: Engine
    project_id: int

    @property
    def key(self) -> tuple[str, int]:
        """Return the key under which the port's limits are counted: (job id, port)."""
        return self.job_id, self.port

    async def connect(self) -> socket.socket:
        """Return a non-blocking stream to the port. Raises NoAnswer if the pod or its cluster does not accept the
        connection, TooManyRequests if the port or its project has too many."""
        opening: asyncio.Future[socket.socket] | None = None
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                opening = await connect_on_thread(
                    self.engine.open_port, self.pod_name, self.port, project=self.project_id, port=self.key
                )
                # Shielded: the connecting thread cannot be cancelled, and its socket must be closed when it
                # arrives.
                stream = await asyncio.shield(opening)
        except EngineRefused as refusal:
            raise NoAnswer(refusal.message.rstrip(".")) from refusal
        except EngineUnreachable as error:
            raise NoAnswer(f"its cluster does not answer: {error}") from error
        except OSError as error:
            raise connection_failure(error, "nothing listens on the port yet") from error
        finally:
            if opening is not None:
                opening.add_done_callback(_close_unless(opening.done()))
        stream.setblocking(False)
        return stream


def _close_unless(is_taken: bool) -> Callable[[asyncio.Future[socket.socket]], None]:
    """Return a callback for a finished connect. Unless `is_taken`, the client left first, and the callback closes
    the stream."""

    def close(opening: asyncio.Future[socket.socket]) -> None:
        if not is_taken and not opening.cancelled() and opening.exception() is None:
            opening.result().close()

    return close


async def in_engine(work: Callable[..., T], *arguments: object) -> T:
    """Run an engine call, which may wait for the network, on a thread of its own pool, off the event loop and the
    database thread. Return its result."""
    return await asyncio.get_running_loop().run_in_executor(_engine_threads, work, *arguments)


async def admit_service(credential: Credential | None, job_id: str, port: int, address: str = "") -> Service:
    """Return the service, for members of the job's project. Concurrent requests share one database look-up, which
    is cached for RECHECK_SECONDS. `address`: the client's, to share the database thread fairly.

    Raises NotSignedIn, NotVisible and Forbidden as `find_port`, NotRunning if no pod can serve the port now,
    TooManyRequests if too many look-ups wait."""
    if credential is None:
        raise NotSignedIn
    key = (credential, job_id, port)
    found = _remembered.get(key)
    if found is not None and time.monotonic() - found[0] <= RECHECK_SECONDS:
        return found[1]
    lookup = _lookups.get(key)
    if lookup is None:
        lookup = _lookups[key] = asyncio.create_task(_look_up(credential, job_id, port, address))
        lookup.add_done_callback(lambda _done: _lookups.pop(key, None))
    # Other requests wait for the same look-up: a client that leaves must not cancel it for them.
    return await asyncio.shield(lookup)


async def _look_up(credential: Credential, job_id: str, port: int, address: str) -> Service:
    key, now = (credential, job_id, port), time.monotonic()
    _remembered.pop(key, None)
    service = await in_thread(credential, address, find_service, credential, job_id, port)
    if len(_remembered) >= MOST_REMEMBERED:
        _remembered.clear()
    _remembered[key] = (now, service)
    return service


async def until_refused(credential: Credential, job_id: str) -> None:
    """Wait until the credential gives no more access to the job: the token was revoked, the session ended, or the
    role was lost. Connections with the same credential and job share one query per second."""
    key = (credential, job_id)
    while True:
        recheck = _rechecks.get(key)
        if recheck is None or recheck.done():
            recheck = _rechecks[key] = asyncio.create_task(_recheck(credential, job_id))
            recheck.add_done_callback(lambda _done: _rechecks.pop(key, None))
        # Other connections wait for the same check: one that ends must not cancel it for them.
        if not await asyncio.shield(recheck):
            return


async def _recheck(credential: Credential, job_id: str) -> bool:
    await asyncio.sleep(RECHECK_SECONDS)
    try:
        # In its own queue: otherwise the user's other requests could delay the check and extend access.
        await in_turn_of(f"rights {hash((credential, job_id))}", admit, credential, job_id)
    except (NotSignedIn, NotVisible, Forbidden):
        return False
    except (DatabaseError, TooManyRequests) as error:
        # A database that is briefly unavailable ends no access; the next look-up decides.
        logger.warning(
            "access to a job could not be checked, its connections stay open until the next check: %s", error
        )
    return True


def admit(credential: Credential | None, job_id: str, scope: Scope | None = None) -> tuple[Actor, Job]:
    """Return the actor and the job if the actor is a member of its project. `scope`: the request, whose client address
    the actor carries into the audit log. Raises NotSignedIn for an invalid credential, NotVisible if the actor may not
    view the job, Forbidden if they may only view it."""
    identity = identify(credential) if credential else None
    if credential is not None:
        note_user(credential, identity.user.pk if identity else None)
    if identity is None:
        raise NotSignedIn
    address = client_address(scope) if scope else ""
    actor = replace(identity.actor, address=address[:64], request_id=uuid.uuid4().hex)
    return actor, job_for(actor, job_id, needed=Role.MEMBER)


def find_port(credential: Credential | None, job_id: str, port: int) -> Job:
    """Return the job if it declares the port, for members of its project. Raises as `admit`, and NotVisible for
    an undeclared port."""
    _, job = admit(credential, job_id)
    if port not in [declared["port"] for declared in job.spec["ports"]]:
        raise NotVisible(f"The job declares no port {port}.")
    return job


def find_service(credential: Credential, job_id: str, port: int) -> Service:
    """Return the service at a port of a job, read from the database, with its opened engine. Blocks: run it on
    the gateway's thread. Raises as `find_port`, and NotRunning if no pod of rank 0 runs or the cluster cannot
    reach ports."""
    job = find_port(credential, job_id, port)
    pod = running_pod(job, 0)
    engine = _engine(pod)
    if REACHES_PORTS not in engine.capabilities:
        raise NotRunning(
            f"Cluster {pod.node.cluster.name} does not support connections to its pods' ports.",
            may_come=False,
        )
    return Service(str(job.pk), port, pod.name, engine, job.project_id)


def engine_of(pod: Pod) -> Engine:
    """Return the engine of the pod's cluster. Also closes the engines of detached clusters once per TIDY_SECONDS,
    since this process opened them. Raises EngineUnreachable if the engine cannot be opened."""
    global _tidied_at
    if time.monotonic() - _tidied_at > TIDY_SECONDS:
        _tidied_at = time.monotonic()
        close_engines(keep={cluster.pk for cluster in attached_clusters()})
    return engine_for(pod.node.cluster)


def _engine(pod: Pod) -> Engine:
    """Return the engine of the pod's cluster. Raises NotRunning if it cannot be opened now."""
    try:
        return engine_of(pod)
    except EngineUnreachable as error:
        raise NotRunning(str(error), may_come=True) from error


def running_pod(job: Job, rank: int) -> Pod:
    """Return the job's running pod of that rank, with its node and cluster. Raises NotRunning if there is none;
    its `may_come` is true while the job is queued or active."""
    pods = Pod.objects.select_related("node__cluster")
    pod = pods.filter(job=job, rank=rank, state="running", released_at=None).first()
    if pod is None:
        may_come = job.state in (QUEUED, *ACTIVE_STATES)
        raise NotRunning(
            f"{job.name} has no running pod of rank {rank}; its state is {job.state}.", may_come=may_come
        )
    return pod
