"""The directories of this machine's pods, below the state directory."""

from pathlib import Path


def job_directory(state_dir: Path, job_id: str) -> Path:
    """Return the directory that holds what the pods of a job write."""
    return state_dir / "work" / job_id


def work_directory(state_dir: Path, job_id: str, rank: int) -> Path:
    """Return the working directory of a rank, shared by all attempts."""
    return job_directory(state_dir, job_id) / str(rank)


def checkpoint_directory(state_dir: Path, job_id: str) -> Path:
    """Return the directory of a job's checkpoints, shared by its ranks."""
    return job_directory(state_dir, job_id) / "checkpoints"
