"""`yard completion SHELL`: a short shell script that calls `yard` for completions."""

from __future__ import annotations

import itertools
import sys
from argparse import Namespace

from controlplane.cli import registry
from controlplane.cli.errors import DONE, CliError
from controlplane.cli.parsing import Parser
from controlplane.cli.session import Session

SCRIPTS = {
    "bash": """\
_yard() {
  local IFS=$'\\n'
  COMPREPLY=($(yard __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _yard yard
""",
    "zsh": """\
#compdef yard
_yard() {
  local -a found
  found=("${(@f)$(yard __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  compadd -a found
}
compdef _yard yard
""",
    "fish": """\
complete -c yard -f -a '(yard __complete (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)'
""",
}
INSTALL = {
    "bash": 'eval "$(yard completion bash)"',
    "zsh": 'eval "$(yard completion zsh)"',
    "fish": "yard completion fish > ~/.config/fish/completions/yard.fish",
}
_JOB_COMMANDS = (
    "describe job",
    "explain",
    "logs",
    "attach",
    "bash",
    "exec",
    "port-forward",
    "stop",
    "suspend",
    "resume",
    "delete",
    "wait",
    "clone",
    "scale",
    "scaleout",
    "scalein",
)
_PROJECT_COMMANDS = (
    "describe project",
    "project edit",
    "project delete",
    "project members",
    "config project",
)
_NODE_COMMANDS = ("describe node", "node cordon", "node uncordon", "node drain")
# A user who pressed Tab waits no longer for names.
_LOOKUP_SECONDS = 1.0


def completion_arguments(parser: Parser) -> None:
    parser.examples = list(INSTALL.values())
    parser.add_argument("shell", metavar="SHELL", choices=sorted(SCRIPTS), help="bash, zsh or fish")


def completion(args: Namespace, session: Session) -> None:
    """Print the shell script that adds completion to a shell."""
    session.output.stream.write(SCRIPTS[args.shell])


def complete(words: list[str]) -> int:
    """Print the possible completions of the last word, one per line. Errors of the server are ignored."""
    typed, last = words[:-1], words[-1] if words else ""
    for candidate in sorted(set(candidates(typed))):
        if candidate.startswith(last) and (last.startswith("-") or not candidate.startswith("-")):
            sys.stdout.write(f"{candidate}\n")
    return DONE


def candidates(typed: list[str]) -> list[str]:
    """Return the possible next words after `typed`: commands, flags, and names from the server."""
    from controlplane.cli.__main__ import build_parser, split_leading

    if typed and typed[-1] in ("-p", "--project"):
        return _listed("projects", None)
    if typed and typed[-1] in ("-i", "--image"):
        return _listed("images", None)
    words = split_leading(typed)[1]
    found = registry.resolve(words)
    if found is None:
        paths = [path.split() for path in registry.COMMANDS]
        depth = len(words)
        return [path[depth] for path in paths if len(path) > depth and path[:depth] == words]
    return [*build_parser(found[0]).flags(), *_names(found[0].path, typed)]


def _names(path: str, typed: list[str]) -> list[str]:
    """Return the names from the server that may follow the command `path`; [] for a command that takes no such names,
    and if the server does not answer within a second."""
    if path in _JOB_COMMANDS:
        return _listed("jobs", _project(typed))
    if path in _PROJECT_COMMANDS:
        return _listed("projects", None)
    return _listed("nodes", None) if path in _NODE_COMMANDS else []


def _listed(noun: str, project: str | None) -> list[str]:
    import os

    from controlplane.cli.client import Client
    from controlplane.cli.config import Config
    from controlplane.cli.lookup import project_path

    try:
        config = Config(dict(os.environ))
        project = project or (config.project if noun == "jobs" else None)
        path = f"{project_path(project)}/jobs" if project else noun
        with Client(config.url, config.token, timeout=_LOOKUP_SECONDS, sleep=lambda seconds: None) as client:
            # The image catalogue is one short page without query fields.
            page = client.get(path, {} if noun == "images" else {"limit": 100, "fields": "name"})
    except CliError:
        # Completion cannot show errors; the command itself will.
        return []
    return [str(row["name"]) for row in page["results"]]


def _project(typed: list[str]) -> str | None:
    for flag, value in itertools.pairwise(typed):
        if flag in ("-p", "--project"):
            return value
    return None
