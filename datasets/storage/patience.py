"""How long a storage system may take."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a storage system may take: to accept a connection, to answer a request, to end a job. `pause_seconds`:
    between two looks at a job, the first and the longest."""

    connect_seconds: float = 5.0
    answer_seconds: float = 30.0
    job_seconds: float = 300.0
    pause_seconds: tuple[float, float] = (0.1, 2.0)


USUAL = Patience()
