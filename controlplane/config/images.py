"""Images for engines that run processes without containers: a name is mapped to a command and an environment.

Entries come from workloads/catalogue.toml and from the admins' STATE_DIR/images.toml, in the same format.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BUILT_IN = Path(__file__).resolve().parents[2] / "workloads" / "catalogue.toml"
# The file in the state directory with the admins' entries.
ADDED = "images.toml"


class ImageUnknown(LookupError):
    """There is no command to run: the job has none, and its image is unknown or has none. The message lists the known
    images."""


@dataclass(frozen=True, slots=True)
class Image:
    """One entry of the catalogue. `files` are copied into a pod's new working directory, like the files of a
    container image. `preload`: modules that Python programs of this image import first; the local engine forks such a
    program from a process that has imported them. `port`: the one on which it serves, None if it serves none."""

    name: str
    aliases: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    working_dir: str | None = None
    files: tuple[Path, ...] = ()
    preload: tuple[str, ...] = ()
    port: int | None = None


@dataclass(frozen=True, slots=True)
class Catalogue:
    """A catalogue of images, with look-up by a job's image reference."""

    images: tuple[Image, ...]

    def find(self, reference: str) -> Image | None:
        """Return the image whose name or alias is `reference`, with or without its tag, digest, registry and path;
        None if there is none."""
        bare = _without_tag(reference)
        for candidate in (reference, bare, bare.rpartition("/")[2]):
            for image in self.images:
                if candidate and candidate in (image.name, *image.aliases):
                    return image
        return None

    def command_line(
        self, reference: str, command: tuple[str, ...], args: tuple[str, ...]
    ) -> tuple[str, ...]:
        """Return the command line by Kubernetes' rules: `command` replaces the image's command and args, `args`
        replaces the image's args. Raise ImageUnknown if there is nothing to run."""
        if command:
            return (*command, *args)
        image = self.find(reference)
        line = () if image is None else (*image.command, *(args or image.args))
        if line:
            return line
        names = ", ".join(image.name for image in self.images if image.command or image.args)
        known = "is not in the image catalogue" if image is None else "has no command of its own"
        shown = f"The image {reference!r} {known}" if reference else "There is no image"
        raise ImageUnknown(f"{shown}. Give a command, or one of the images: {names}.")


def load_catalogue(*paths: Path) -> Catalogue:
    """Return the images in those files that exist; an entry of a later file replaces one of the same name. Raise
    ValueError with the file's name if it is malformed, OSError if it cannot be read."""
    images: dict[str, Image] = {}
    for path in paths:
        if path.exists():
            try:
                entries = _table(tomllib.loads(path.read_text()), "images")
                images |= {name: _image(name, _table(entries, name), path.parent) for name in entries}
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error
    return Catalogue(tuple(images.values()))


def _image(name: str, entry: Mapping[str, Any], folder: Path) -> Image:
    working_dir = entry.get("working_dir")
    if not isinstance(working_dir, str | None):
        raise ValueError(f"working_dir of {name} is not a text")
    port = entry.get("port")
    if not isinstance(port, int | None):
        raise ValueError(f"port of {name} is not a number")
    return Image(
        name=name,
        aliases=_texts(entry, "aliases"),
        command=_texts(entry, "command"),
        args=_texts(entry, "args"),
        env={key: str(value) for key, value in _table(entry, "env").items()},
        working_dir=working_dir,
        files=tuple(folder / file for file in _texts(entry, "files")),
        preload=_texts(entry, "preload"),
        port=port,
    )


def _table(parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = parent.get(key, {})
    if not isinstance(value, dict):
        raise ValueError(f"{key} is not a table")
    return value


def _texts(entry: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = entry.get(key, [])
    if not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
        raise ValueError(f"{key} is not a list of texts")
    return tuple(value)


def _without_tag(reference: str) -> str:
    bare = reference.partition("@")[0]
    head, slash, last = bare.rpartition("/")
    return head + slash + last.partition(":")[0]
