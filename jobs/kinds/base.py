"""What a kind of job answers. Pure; nothing outside this package switches on a kind's name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from controlplane.fields import FieldError


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
    """The rank, state (jobs.models.Pod.state) and exit code of one pod."""

    rank: int
    state: str
    exit_code: int | None


class Kind(Protocol):
    """The methods that every kind implements."""

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
        """Return whether programs reach the attempt's pods by name, even if there is only one pod."""
        ...

    @property
    def is_elastic(self) -> bool:
        """Return whether an attempt may have more or fewer pods, also while it runs; `bounds` says how many."""
        ...

    @property
    def reports_progress(self) -> bool:
        """Return whether its programs usually print progress: pages then keep room for curves."""
        ...

    @property
    def pools_label(self) -> str:
        """Return what a project's form calls the node pools of this kind; "" when it does not ask for them."""
        ...

    @property
    def command(self) -> str:
        """Return the command of `yard` that submits one."""
        ...

    @property
    def command_flags(self) -> tuple[str, ...]:
        """Return the options that make that command submit this kind."""
        ...

    def fill(self, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the fields with kind-specific defaults."""
        ...

    def check(self, spec: Mapping[str, Any], body: Mapping[str, Any]) -> list[FieldError]:
        """Return what this kind refuses in a spec whose single fields are fine."""
        ...

    def pods(self, spec: Mapping[str, Any]) -> tuple[PodShape, ...]:
        """Return the pods of one attempt, by rank; together they are the gang. For a kind with `bounds`, an attempt
        may start with only the first ones.
        """
        ...

    def bounds(self, spec: Mapping[str, Any]) -> tuple[int, int] | None:
        """Return the (minimum, maximum) workers of an attempt; None if all pods start together or none."""
        ...

    def sizes(self, spec: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the numbers of workers that an attempt may have, ascending; () for all within `bounds`."""
        ...

    def environment(self, spec: Mapping[str, Any], pods: int) -> Mapping[str, str]:
        """Return environment variables for an attempt of `pods` pods; a job's own variables do not override them."""
        ...

    def outcome(self, ends: Sequence[PodEnd]) -> str | None:
        """Return `succeeded` or `failed` once the attempt is decided, else None."""
        ...


@dataclass(frozen=True, slots=True)
class Batch:
    """Defaults of most kinds: equal pods that start together and run to their end; preemptible, may borrow."""

    name: str = ""
    label: str = ""
    is_preemptible: bool = True
    priority: int = 50
    has_interactive_limits: bool = False
    has_stable_names: bool = False
    is_elastic: bool = False
    reports_progress: bool = True
    pools_label: str = ""
    command: str = "submit"
    command_flags: tuple[str, ...] = ()

    def fill(self, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        return {}

    def check(self, spec: Mapping[str, Any], body: Mapping[str, Any]) -> list[FieldError]:
        return refuse_worker_bounds(spec)

    def pods(self, spec: Mapping[str, Any]) -> tuple[PodShape, ...]:
        return tuple(PodShape(rank, "worker") for rank in range(spec["workers"]))

    def bounds(self, spec: Mapping[str, Any]) -> tuple[int, int] | None:
        return None

    def sizes(self, spec: Mapping[str, Any]) -> tuple[int, ...]:
        return ()

    def environment(self, spec: Mapping[str, Any], pods: int) -> Mapping[str, str]:
        return {}

    def outcome(self, ends: Sequence[PodEnd]) -> str | None:
        return all_must_succeed(ends)


def refuse_worker_bounds(spec: Mapping[str, Any]) -> list[FieldError]:
    """Refuse the fields that only an elastic job has."""
    return [
        FieldError(f"/{name}", "only_elastic", "Only an elastic job has this; leave it out.")
        for name in ("min_workers", "max_workers", "worker_sizes", "worker_step")
        if spec[name]
    ]


def all_must_succeed(ends: Sequence[PodEnd]) -> str | None:
    """Decide on success when every pod has succeeded, and on failure with the first that failed."""
    if any(end.state == "failed" for end in ends):
        return "failed"
    return "succeeded" if ends and all(end.state == "succeeded" for end in ends) else None
