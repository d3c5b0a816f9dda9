"""Generate docs/reference/cli.md from the parsers: `python -m controlplane.cli.reference >
docs/reference/cli.md`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from controlplane.cli import registry
from controlplane.cli.__main__ import build_parser
from controlplane.cli.aliases import ALIASES
from controlplane.cli.errors import MEANINGS

# Fixed width of help, so that the document does not depend on the terminal.
COLUMNS = "100"

_INTRODUCTION = """\
# `yard`, the command line

*Made from the program by `python -m controlplane.cli.reference`; a test holds the two together.*

`yard` speaks HTTP to the control plane and nothing else. Data goes to standard output, messages to standard
error; colour appears on a terminal alone and never with `NO_COLOR`. A command is named by one or two words;
options may stand before or after it. A job is named by its name, which means the newest job of that name in the
project, or by its id.

## Settings

| environment | means |
|---|---|
| `TRAINYARD_URL` | the server; before the config file, which `yard login` writes |
| `TRAINYARD_TOKEN` | an API token; before the config file's |
| `TRAINYARD_PROJECT` | the project meant when `-p` names none; before `yard config project` |
| `TRAINYARD_CONFIG` | where the config file is (default `~/.config/trainyard/config.json`, mode 0600) |
| `NO_COLOR` | no colour |

A token and a project in the config file belong to the server that they were stored for and are used with no other:
with `TRAINYARD_URL` set, the context of that address is the one in use, if there is one.

## Output

`-o table` (the default), `-o wide` with more columns, `-o json` and `-o yaml` with exactly the object that REST
answers, `-o jsonpath=PATH` with a part of it: `{.status.state}`, `{.results[*].name}`,
`{.status.pods[?(@.rank==0)].node}`, text around braces, `{"\\n"}`. `--watch` stays and shows the answer again
whenever something changes.
"""


def pages() -> Iterator[str]:
    """Yield the parts of the document: introduction, exit codes, aliases, common options, then every command with its
    help."""
    yield _INTRODUCTION
    yield from ("\n## Exit codes\n\n| code | means |\n|---|---|\n", *_exit_codes())
    yield "\n`submit --wait` and `submit --logs` exit with the job's own; of several names the worst code counts.\n"
    yield from ("\n## Other spellings\n\n", _ALIASES_INTRODUCTION, *_aliases())
    yield f"\n## Options of every command\n\n```text\n{_common_options()}```\n"
    for group in registry.GROUPS:
        yield f"\n## {group.title}\n"
        for command in group.commands:
            yield f"\n### yard {command.path}\n\n{command.summary}.\n\n```text\n{_help(command)}```\n"


_ALIASES_INTRODUCTION = """\
Command lines of the systems that Trainyard replaces work with the program's name changed.
`yard help aliases` lists them.

| written | means |
|---|---|
"""


def document() -> str:
    """Return the text of docs/reference/cli.md."""
    before = os.environ.get("COLUMNS")
    # argparse wraps help at COLUMNS.
    os.environ["COLUMNS"] = COLUMNS
    try:
        return "".join(pages())
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


def _exit_codes() -> Iterator[str]:
    return (f"| {code} | {meaning} |\n" for code, meaning in MEANINGS.items())


def _aliases() -> Iterator[str]:
    return (f"| `yard {alias.spelling}` | `yard {alias.meaning}` |\n" for alias in ALIASES)


def _common_options() -> str:
    return _split_help(registry.COMMANDS["version"])[1]


def _help(command: registry.Command) -> str:
    return _split_help(command)[0].replace(f"{command.summary}\n\n", "", 1).rstrip() + "\n"


def _split_help(command: registry.Command) -> tuple[str, str]:
    """Return a command's help in two parts: without the common options, and these options."""
    own, _, common = build_parser(command).format_help().partition("common options:\n")
    return own, common


if __name__ == "__main__":
    sys.stdout.write(document())
