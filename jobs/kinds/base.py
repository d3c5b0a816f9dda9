"""What a kind of job answers. Pure; nothing outside this package switches on a kind's name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from jobs.kinds.fields import FieldError


@dataclass(frozen=True, slots=True)
class PodShape:
    """One pod that a job wants: its rank and what it is for.

    `is_launcher`: its command starts ranks in all pods of the attempt. `is_host`: it runs nothing of its own and
    waits for the launcher to start a rank in it.
    """

    rank: int
    role: str
    is_launcher: bool = False
    is_host: bool = False


@dataclass(frozen=True, slots=True)
class PodEnd:
    """How one pod stands: its rank, state (jobs.models.Pod.state) and exit code."""

    rank: int
    state: str
    exit_code: int | None


class Kind(Protocol):
    """The questions that the platform asks every kind."""

    @property
    def name(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def is_preemptible(self) -> bool:
        """Default of `preemptible`."""
        ...

    @property
    def priority(self) -> int:
        """Default of `priority`."""
        ...

    @property
    def has_interactive_limits(self) -> bool:
        """True when the project's interactive time and idle limits apply."""
        ...

    @property
    def has_stable_names(self) -> bool:
        """True when the pods of an attempt have names by which programs reach them, even if there is only one."""
        ...

    def fill(self, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the fields with kind-specific defaults."""
        ...

    def check(self, spec: Mapping[str, Any], body: Mapping[str, Any]) -> list[FieldError]:
        """Return what this kind refuses in a spec whose single fields are fine."""
        ...

    def pods(self, spec: Mapping[str, Any]) -> tuple[PodShape, ...]:
        """Return the pods of one attempt, by rank; together they are the gang. An attempt of a kind with `bounds` may
        have only the first of them."""
        ...

    def bounds(self, spec: Mapping[str, Any]) -> tuple[int, int] | None:
        """Return (fewest, most) workers that an attempt may have; None when all start together or none."""
        ...

    def environment(self, spec: Mapping[str, Any], pods: int) -> Mapping[str, str]:
        """Return environment variables for an attempt of `pods` pods; a job's own variables do not override them."""
        ...

    def outcome(self, ends: Sequence[PodEnd]) -> str | None:
        """Return `succeeded` or `failed` once the attempt is decided, else None."""
        ...


@dataclass(frozen=True, slots=True)
class Batch:
    """What most kinds answer: equal pods that start together, run to their end, may borrow, and may be preempted."""

    name: str = ""
    label: str = ""
    is_preemptible: bool = True
    priority: int = 50
    has_interactive_limits: bool = False
    has_stable_names: bool = False

    def fill(self, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        return {}

    def check(self, spec: Mapping[str, Any], body: Mapping[str, Any]) -> list[FieldError]:
        return refuse_worker_bounds(spec)

    def pods(self, spec: Mapping[str, Any]) -> tuple[PodShape, ...]:
        return tuple(PodShape(rank, "worker") for rank in range(spec["workers"]))

    def bounds(self, spec: Mapping[str, Any]) -> tuple[int, int] | None:
        return None

    def environment(self, spec: Mapping[str, Any], pods: int) -> Mapping[str, str]:
        return {}

    def outcome(self, ends: Sequence[PodEnd]) -> str | None:
        return all_must_succeed(ends)


def refuse_worker_bounds(spec: Mapping[str, Any]) -> list[FieldError]:
    """Refuse the fields that only an elastic job has."""
    return [
        FieldError(f"/{name}", "only_elastic", "Only an elastic job has this; leave it out.")
        for name in ("min_workers", "max_workers")
        if spec[name] is not None
    ]


def all_must_succeed(ends: Sequence[PodEnd]) -> str | None:
    """One failure decides; success needs every pod."""
    if any(end.state == "failed" for end in ends):
        return "failed"
    return "succeeded" if ends and all(end.state == "succeeded" for end in ends) else None
