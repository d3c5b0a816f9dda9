"""The directories of this machine's pods, below the state directory."""

from pathlib import Path


def job_directory(state_dir: Path, job_id: str) -> Path:
    """Return the directory below which the pods of a job write. It may not exist."""
    return state_dir / "work" / job_id


def work_directory(state_dir: Path, job_id: str, rank: int) -> Path:
    """Return the working directory of one rank of a job; all attempts use the same."""
    return job_directory(state_dir, job_id) / str(rank)


def checkpoint_directory(state_dir: Path, job_id: str) -> Path:
    """Return the directory of a job's checkpoints; all ranks and attempts use the same."""
    return job_directory(state_dir, job_id) / "checkpoints"
