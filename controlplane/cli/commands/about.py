"""`yard version` and `yard help`."""

from __future__ import annotations

from argparse import Namespace

from controlplane.cli import registry
from controlplane.cli.errors import MEANINGS, USAGE, CliError
from controlplane.cli.groups import group_commands, group_help, nearest_command
from controlplane.cli.parsing import Parser
from controlplane.cli.session import Session
from controlplane.cli.version import VERSION

_FIRST_STEPS = (
    "yard login http://127.0.0.1:8000",
    "yard config project team-a",
    "yard submit hyper1 -i quickstart -g 1",
    "yard logs hyper1 -f",
)


def version_arguments(parser: Parser) -> None:
    parser.examples = ["yard version"]


def version(args: Namespace, session: Session) -> None:
    """Print the version of this program."""
    session.output.object({"version": VERSION}, f"yard {VERSION}")


def help_arguments(parser: Parser) -> None:
    parser.examples = [
        "yard help",
        "yard help submit",
        "yard help list jobs",
        "yard help dataset",
        "yard help aliases",
    ]
    parser.add_argument(
        "topic",
        metavar="COMMAND",
        nargs="*",
        help="a command, a group of commands such as `dataset`, `aliases` or `exit-codes`",
    )


def help_(args: Namespace, session: Session) -> None:
    """Print the overview, or the help on one command, group or topic."""
    session.output.stream.write(_topic(args.topic))


def overview() -> str:
    """Return the overview of all commands, which fits on one screen; examples first."""
    width = max(map(len, registry.COMMANDS))
    lines = ["Trainyard's command line.", "", "first steps:", *(f"  {step}" for step in _FIRST_STEPS)]
    for group in registry.GROUPS:
        lines += ["", f"{group.title.lower()}:"]
        lines += [f"  {command.path:<{width}}  {command.summary}" for command in group.commands]
    lines += ["", "More: yard help COMMAND, yard help aliases, yard help exit-codes"]
    return "\n".join(lines) + "\n"


def aliases_text() -> str:
    """Return all accepted command lines of other systems, with their meanings."""
    from controlplane.cli.aliases import ALIASES

    width = max(len(alias.spelling) for alias in ALIASES)
    lines = (f"  yard {alias.spelling:<{width}}  =  yard {alias.meaning}" for alias in ALIASES)
    return "Command lines of other systems that yard accepts:\n\n" + "\n".join(lines) + "\n"


def exit_codes_text() -> str:
    lines = (f"  {code:>3}  {meaning}" for code, meaning in MEANINGS.items())
    return (
        "Exit codes:\n\n"
        + "\n".join(lines)
        + "\n\n`submit --wait` and `submit --logs` exit with the job's own.\n"
    )


def _topic(words: list[str]) -> str:
    if not words:
        return overview()
    if words == ["aliases"]:
        return aliases_text()
    if words == ["exit-codes"]:
        return exit_codes_text()
    return _command_help(words)


def _command_help(words: list[str]) -> str:
    from controlplane.cli.__main__ import build_parser
    from controlplane.cli.aliases import rewrite

    found = registry.resolve(words)
    commands = group_commands(words[0]) if found is None and len(words) == 1 else []
    if commands:
        return group_help(commands)
    found = found or registry.resolve(rewrite(words))
    if found is None:
        near = nearest_command(words)
        raise CliError(
            f"no command {' '.join(words)!r}", USAGE, f"did you mean: yard help {near}" if near else ""
        )
    return build_parser(found[0]).format_help()
