"""A job's code as files of its pods' working directories."""

from __future__ import annotations

from pathlib import Path

from controlplane.engines.base import CODE_MISSING, CODE_NOT_PLACED, CodeSource, EngineRefused
from controlplane.engines.place_files import Folders, place
from datasets.code_store import FOLDER, ContentCorrupt, ProjectCode


def place_code(code: CodeSource, state_dir: Path, target: Path) -> None:
    """Write the tree's files into a directory. What an earlier attempt changed of them is written anew, what it made
    beside them stays. Never writes through a link that it left. Raises EngineRefused(CODE_MISSING, CODE_NOT_PLACED)."""
    store = ProjectCode(state_dir / FOLDER, code.project_id)
    try:
        entries = store.entries(code.tree)
    except FileNotFoundError as error:
        raise EngineRefused(
            CODE_MISSING, "The job's code is kept no more; submit it again from its directory."
        ) from error
    folders = Folders(target)
    try:
        for entry in entries:
            place(entry.path, entry.kind, store.pieces(entry), folders)
    except ContentCorrupt as error:
        store.remove([code.tree])
        raise EngineRefused(CODE_MISSING, str(error)) from error
    except (NotADirectoryError, IsADirectoryError, FileExistsError) as error:
        detail = f"{error.filename} is in the place of a file of the job's code; remove it from the working directory."
        raise EngineRefused(CODE_NOT_PLACED, detail) from error
    finally:
        folders.close()
