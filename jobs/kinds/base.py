"""The interface of a job kind. Pure; no code outside this package branches on a kind's name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from controlplane.fields import FieldError


@dataclass(frozen=True, slots=True)
class PodShape:
    """One pod that a job wants.

    `is_launcher`: its command starts ranks in all pods of the attempt. `is_host`: it has no command of its
    own and waits for the launcher to start a rank in it.
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
        """Return the default of the field `preemptible`."""
        ...

    @property
    def priority(self) -> int:
        """Return the default of the field `priority`."""
        ...

    @property
    def has_interactive_limits(self) -> bool:
        """Return whether the project's interactive time and idle limits apply."""
        ...

    @property
    def has_stable_names(self) -> bool:
        """Return whether programs address the attempt's pods by name, even if there is only one pod."""
        ...

    @property
    def is_elastic(self) -> bool:
        """Return whether pods may be added to or removed from a running attempt; `bounds` gives the limits."""
        ...

    @property
    def reports_progress(self) -> bool:
        """Return whether programs of this kind usually print progress; if so, pages reserve space for the curves."""
        ...

    @property
    def pools_label(self) -> str:
        """Return the label of this kind's node pools in the project form; "" if the form does not ask for
        them."""
        ...

    @property
    def command(self) -> str:
        """Return the `yard` command that submits this kind."""
        ...

    @property
    def command_flags(self) -> tuple[str, ...]:
        """Return the options with which `command` submits this kind."""
        ...

    def fill(self, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the spec with kind-specific defaults filled in."""
        ...

    def check(self, spec: Mapping[str, Any], body: Mapping[str, Any]) -> list[FieldError]:
        """Return the kind's errors for a spec whose single fields are valid. `body`: the submission as sent, which
        shows which fields were given."""
        ...

    def pods(self, spec: Mapping[str, Any]) -> tuple[PodShape, ...]:
        """Return the pods of one attempt, by rank; together they are the gang. For a kind with `bounds`, an attempt
        may start with only the first ones."""
        ...

    def bounds(self, spec: Mapping[str, Any]) -> tuple[int, int] | None:
        """Return the (minimum, maximum) number of workers of an attempt; None if its pods start all together
        or not at all."""
        ...

    def sizes(self, spec: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the allowed numbers of workers, ascending; () if all within `bounds` are allowed."""
        ...

    def speeds(self, spec: Mapping[str, Any]) -> tuple[tuple[int, float], ...]:
        """Return the declared ((workers, measured speed in any unit), ...), ascending by workers; () if none are
        declared."""
        ...

    def environment(self, spec: Mapping[str, Any], pods: int) -> Mapping[str, str]:
        """Return environment variables for an attempt of `pods` pods; a job's own variables do not override them."""
        ...

    def outcome(self, ends: Sequence[PodEnd]) -> str | None:
        """Return `succeeded` or `failed` once the ended pods decide the attempt, else None."""
        ...


@dataclass(frozen=True, slots=True)
class Batch:
    """Defaults of most kinds: equal pods that start together and run to completion; preemptible, may exceed
    the quota."""

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

    def speeds(self, spec: Mapping[str, Any]) -> tuple[tuple[int, float], ...]:
        return ()

    def environment(self, spec: Mapping[str, Any], pods: int) -> Mapping[str, str]:
        return {}

    def outcome(self, ends: Sequence[PodEnd]) -> str | None:
        return all_must_succeed(ends)


def is_share(spec: Mapping[str, Any]) -> bool:
    """Return whether each pod of the job requests less than one GPU: by a fraction, or by GPU memory."""
    return spec["gpu_memory_mib"] is not None or 0 < spec["gpus"] < 1000


def refuse_worker_bounds(spec: Mapping[str, Any]) -> list[FieldError]:
    """Return an error for each field given in `spec` that only elastic jobs may have; [] if there is none."""
    return [
        FieldError(f"/{name}", "only_elastic", "Only an elastic job has this; leave it out.")
        for name in ("min_workers", "max_workers", "worker_sizes", "worker_step", "worker_speeds")
        if spec.get(name)
    ]


def all_must_succeed(ends: Sequence[PodEnd]) -> str | None:
    """Return `succeeded` when every pod has succeeded, `failed` as soon as one has failed, else None."""
    if any(end.state == "failed" for end in ends):
        return "failed"
    return "succeeded" if ends and all(end.state == "succeeded" for end in ends) else None
