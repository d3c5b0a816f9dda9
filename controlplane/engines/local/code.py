"""Write a job's code into the working directories of its pods."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from controlplane.engines.base import CODE_MISSING, CODE_NOT_PLACED, CodeSource, EngineRefused
from controlplane.engines.place_files import Folders, place
from datasets.code_manifest import Entry
from datasets.code_store import FOLDER, ContentCorrupt, ProjectCode


def place_code(code: CodeSource, state_dir: Path, target: Path) -> None:
    """Write the files of a job's code tree into `target`. Files that an earlier attempt changed are replaced; those
    that it added remain. Never writes through symbolic links. Raise EngineRefused: CODE_MISSING if the code store in
    `state_dir` lacks the tree or it is damaged, CODE_NOT_PLACED if another kind of file is in the place of one of its
    files."""
    store = ProjectCode(state_dir / FOLDER, code.project_id)
    try:
        entries = store.entries(code.tree)
    except FileNotFoundError as error:
        raise EngineRefused(
            CODE_MISSING, "The job's code is no longer stored; submit it again from its directory."
        ) from error
    try:
        place_entries(store, entries, target)
    except ContentCorrupt as error:
        # Removed, so that a new submission uploads the tree instead of finding it stored.
        store.remove([code.tree])
        raise EngineRefused(CODE_MISSING, str(error)) from error
    except (NotADirectoryError, IsADirectoryError, FileExistsError) as error:
        detail = f"{error.filename} is where a file of the job's code belongs; remove it from the working directory."
        raise EngineRefused(CODE_NOT_PLACED, detail) from error


def place_entries(store: ProjectCode, entries: Iterable[Entry], target: Path) -> None:
    """Write files of a project's code store into `target`, as `place_code` does. Raises ContentCorrupt for a damaged
    one, and what `place` raises."""
    folders = Folders(target)
    try:
        for entry in entries:
            place(entry.path, entry.kind, store.pieces(entry), folders)
    finally:
        folders.close()
