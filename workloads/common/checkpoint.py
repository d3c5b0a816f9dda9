"""Checkpoints that are either complete or absent, each with a manifest for verification.

A checkpoint is a directory step-<n> with state.pt and manifest.json (model, step, bytes, sha256). It is
written under another name and renamed, so that a kill at any moment leaves the previous one.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from workloads.common.progress import report_checkpoint
from workloads.common.quiesce import writing
from workloads.common.rank_info import RankInfo

# If the newest checkpoint is damaged, training resumes from the one before.
KEEP = 2


class CheckpointRefused(Exception):
    """A checkpoint must not be loaded: it is damaged, or belongs to another model. The message says which."""


class OtherModel(CheckpointRefused):
    """The checkpoint is intact, but belongs to another model."""


def checkpoint_dir() -> Path:
    """Return the directory of this pod's checkpoints: TRAINYARD_CHECKPOINT_DIR, else `checkpoints` below the
    working directory; in a job of several pods a subdirectory per rank.

    Trainyard keeps the directory over all attempts of a job, so that a preempted job can resume."""
    folder = shared_dir()
    is_gang = int(os.environ.get("TRAINYARD_WORLD_SIZE", "1")) > 1
    return folder / f"rank-{os.environ.get('TRAINYARD_RANK', '0')}" if is_gang else folder


def shared_dir() -> Path:
    """Return the job's directory of checkpoints, for programs in which one worker writes them and all read them."""
    return Path(os.environ.get("TRAINYARD_CHECKPOINT_DIR", "checkpoints"))


def save(folder: Path, step: int, state: dict[str, Any], model: str = "") -> Path:
    """Write a checkpoint of `state` after `step` completed steps, report it in the job's output, and remove all
    but the newest few. Return its directory. `model`: a name that `load` compares."""
    with writing():
        target = _write(folder, step, state, model)
    report_checkpoint(step, time.time())
    return target


def load(path: Path, model: str = "") -> tuple[int, dict[str, Any]]:
    """Return (step, state) of one checkpoint. Raises CheckpointRefused if it is missing or damaged, and
    OtherModel if it was saved with another `model`, before the state is unpickled."""
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        step, expected = int(manifest["step"]), (manifest["sha256"], manifest["bytes"])
        found = _digest(path / "state.pt")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointRefused(f"Checkpoint {path} cannot be read: {error!r}") from error
    if found != expected:
        raise CheckpointRefused(
            f"Checkpoint {path} is damaged: {found[1]} bytes of {expected[1]}, or other content than was saved."
        )
    saved = str(manifest.get("model", ""))
    # Earlier versions of these programs stored no model name; their checkpoints must stay usable after an
    # upgrade.
    if saved and saved != model:
        other = model or "a program that names none"
        raise OtherModel(f"Checkpoint {path} is of {saved}, not of {other}; use another directory.")
    # Load to the CPU: the checkpoint may have been written on another device.
    return step, torch.load(path / "state.pt", weights_only=True, map_location="cpu")


def load_latest(folder: Path, model: str = "") -> tuple[int, dict[str, Any]] | None:
    """Return (step, state) of the newest intact checkpoint, None if there is none. Prints why damaged ones are
    skipped. Raises OtherModel if the newest intact one is of another `model`."""
    for path in reversed(_steps(folder)):
        try:
            found = load(path, model)
            report_checkpoint(found[0], (path / "manifest.json").stat().st_mtime)
            return found
        # An older checkpoint is not used instead: new ones would replace those of the other model.
        except OtherModel:
            raise
        except CheckpointRefused as refusal:
            print(f"{refusal} The one before it is used.", flush=True)
    return None


def load_for_all(folder: Path, model: str, rank_info: RankInfo) -> tuple[int, dict[str, Any]] | None:
    """Return on every rank of the process group what `load_latest` returns on rank 0, the only one that reads. Raises
    on every rank what it raises: ranks that wait for one that has left fail with an error of the group."""
    read: list[Any] = [None]
    if rank_info.is_first:
        try:
            read = [load_latest(folder, model)]
        except OtherModel as error:
            read = [error]
    distributed.broadcast_object_list(read, 0)
    if isinstance(read[0], OtherModel):
        raise read[0]
    found: tuple[int, dict[str, Any]] | None = read[0]
    return found


def _write(folder: Path, step: int, state: dict[str, Any], model: str) -> Path:
    # Left by a killed writer.
    for leftover in folder.glob(".step-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    target, fresh = folder / f"step-{step:09d}", folder / f".step-{step:09d}.{secrets.token_hex(4)}"
    fresh.mkdir(parents=True)
    torch.save(state, fresh / "state.pt")
    digest, size = _digest(fresh / "state.pt")
    manifest = {"model": model, "step": step, "bytes": size, "sha256": digest}
    (fresh / "manifest.json").write_text(json.dumps(manifest))
    # Flush before the rename: after a power cut, a name without its content would look complete.
    for path in (fresh / "state.pt", fresh / "manifest.json", fresh):
        _sync(path)
    if target.exists():
        shutil.rmtree(target)
    fresh.rename(target)
    _sync(folder)
    for old in _steps(folder)[:-KEEP]:
        shutil.rmtree(old)
    return target


def _steps(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*"))


def _digest(path: Path) -> tuple[str, int]:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest(), os.fstat(file.fileno()).st_size


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
