"""Run `yard`: find the command, import only its module, run it, and translate errors into exit codes."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, TextIO

from controlplane.cli import registry
from controlplane.cli.errors import DONE, INTERRUPTED, USAGE, CliError, error_lines

if TYPE_CHECKING:
    from controlplane.cli.parsing import Parser

_HELP = ("-h", "--help")
_LEADING_WITH_VALUE = ("-p", "--project", "-o", "--output", "--context")
# What a shell reports for a program ended by SIGPIPE.
_CLOSED_PIPE = 141


def main(argv: list[str] | None = None) -> int:
    """Run one command line (None: that of this process) and return the exit code. Errors of users and servers are
    printed, not raised."""
    try:
        _interrupt_by_exception()
        code = run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return code
    except CliError as error:
        _report(error)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes at exit and would print a second error because of the closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _CLOSED_PIPE


def run(argv: list[str]) -> int:
    """Run the command that a command line names, and return the exit code. Raise CliError if there is no such command
    or it fails."""
    # Imported here, as in the functions below, so that a command loads only the modules that it uses.
    from controlplane.cli.aliases import rewrite

    if argv[:1] == ["__complete"]:
        from controlplane.cli.commands.completion import complete

        return complete(argv[1:])
    leading, words = split_leading(argv)
    if not words:
        return _help_only(leading)
    options, others = split_leading(words[1:])
    is_help = any(option in _HELP for option in (*leading, *options))
    if is_help and not others and words[0] not in registry.COMMANDS and _print_group(words[0], sys.stdout):
        return DONE
    found = registry.resolve(rewrite(words))
    if found is None and not others and _print_group(words[0], sys.stderr):
        return USAGE
    if found is None:
        raise _unknown(words)
    command, rest = found
    words, trailing = _split_trailing(rest)
    return execute(command, [*leading, *words], trailing)


def execute(command: registry.Command, words: list[str], trailing: list[str] | None) -> int:
    """Parse the words of a command and run it; return the exit code. `trailing`: the words after `--`, None without
    `--`."""
    module = load(command)
    parser = build_parser(command)
    if trailing is not None and not command.takes_command:
        parser.error("takes no command after --")
    prepare = getattr(module, "prepare_words", None)
    try:
        args = parser.parse(prepare(words) if prepare else words)
    except SystemExit:
        # Raised by argparse after printing help, which is a success.
        return DONE
    args.trailing = trailing or []
    if args.watch and not command.is_watchable:
        parser.error("has nothing to --watch")
    return _call(module, command, args)


def load(command: registry.Command) -> ModuleType:
    """Import and return the module with the command's function."""
    return importlib.import_module(f"controlplane.cli.commands.{command.target.partition(':')[0]}")


def build_parser(command: registry.Command) -> Parser:
    """Return the command's argument parser, with the options that all commands have."""
    from controlplane.cli.parsing import Parser

    parser = Parser(f"yard {command.path}", command.summary, command.takes_command)
    # Functions such as `list_` end with _ to leave the builtin's name free; those of their arguments do not.
    getattr(load(command), f"{command.target.partition(':')[2].rstrip('_')}_arguments")(parser)
    parser.add_common()
    return parser


def _interrupt_by_exception() -> None:
    """Make Ctrl-C raise KeyboardInterrupt, unless the caller ignores it. The script `yard` (tools/install.py) lets it
    end the process until here."""
    import signal

    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _call(module: ModuleType, command: registry.Command, args: object) -> int:
    from argparse import Namespace

    from controlplane.cli.session import start_session

    assert isinstance(args, Namespace)
    function = getattr(module, command.target.partition(":")[2])
    session = start_session(args)
    try:
        if args.watch:
            from controlplane.cli.watch import watch_command

            return watch_command(function, args, session)
        # A command returns None after success.
        return int(function(args, session) or DONE)
    finally:
        session.close()


def split_leading(argv: list[str]) -> tuple[list[str], list[str]]:
    """Return a command line as the options before the command (as in `yard -p team-a list jobs`) and the rest."""
    position = 0
    while position < len(argv) and argv[position].startswith("-") and argv[position] != "--":
        position += 2 if argv[position] in _LEADING_WITH_VALUE else 1
    return argv[:position], argv[position:]


def _split_trailing(words: list[str]) -> tuple[list[str], list[str] | None]:
    if "--" not in words:
        return words, None
    position = words.index("--")
    return words[:position], words[position + 1 :]


def _help_only(leading: list[str]) -> int:
    from controlplane.cli.commands.about import overview
    from controlplane.cli.version import VERSION

    if "--version" in leading:
        print(f"yard {VERSION}")
        return DONE
    if not leading or leading[-1] in _HELP:
        print(overview(), end="")
        return DONE
    raise CliError(f"no command after {' '.join(leading)}", USAGE, "see: yard help")


def _print_group(word: str, stream: TextIO) -> bool:
    """Print the help of the group with this name, after an error message if the stream is standard error. Return
    False if there is no such group."""
    from controlplane.cli.groups import group_commands, group_help

    if not (commands := group_commands(word)):
        return False
    missing = f"yard: {word} needs a command\n\n" if stream is sys.stderr else ""
    stream.write(missing + group_help(commands))
    return True


def _unknown(words: list[str]) -> CliError:
    from controlplane.cli.groups import group_commands, nearest_command

    typed = [word for word in words[:2] if not word.startswith("-")]
    is_in_group = bool(group_commands(words[0]))
    near = nearest_command(typed)
    hint = (
        f"did you mean: yard {near}"
        if near
        else f"see: yard help {words[0]}"
        if is_in_group
        else "see: yard help"
    )
    name = " ".join(typed) if is_in_group else words[0]
    return CliError(f"unknown command {name!r}", USAGE, hint)


def _report(error: CliError) -> None:
    from controlplane.unsafe_text import visible

    for line in error_lines(error):
        # A server's text may contain control sequences of terminals.
        print(visible(line), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
