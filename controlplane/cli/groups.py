"""Groups: commands of one noun, as `dataset`, or of one verb, as `list`. Their help lists the commands."""

from __future__ import annotations

from controlplane.cli.registry import COMMANDS, Command

# Verbs that precede the noun: `describe node` belongs to `node` as well as to `describe`.
_VERBS = ("list", "describe", "top")


def group_commands(word: str) -> list[Command]:
    """Return the commands of the group with this name in singular or plural, those that begin with it first; [] if
    there is no such group."""
    pairs = [(command, path.split()) for path, command in COMMANDS.items() if " " in path]
    own = [command for command, (first, _second) in pairs if first == word]
    noun = word if own else word.removesuffix("s")
    own = own or [command for command, (first, _second) in pairs if first == noun]
    nouns = (noun, f"{noun}s")
    return own + [command for command, (first, second) in pairs if first in _VERBS and second in nouns]


def group_help(commands: list[Command]) -> str:
    """Return the help of a group: an example of each command, then a line on each."""
    from controlplane.cli.__main__ import build_parser

    width = max(len(command.path) for command in commands)
    examples = [f"  {example}" for command in commands for example in build_parser(command).examples[:1]]
    lines = [f"  {command.path:<{width}}  {command.summary}" for command in commands]
    more = f"More: yard help {commands[0].path}"
    return "\n".join(["examples:", *examples, "", "commands:", *lines, "", more]) + "\n"


def nearest_command(words: list[str]) -> str:
    """Return the command or group most similar to the words of an unknown command; "" if none is similar. After a
    group's name only commands of that group are considered."""
    from controlplane.cli.parsing import nearest

    if len(words) > 1 and (members := group_commands(words[0])):
        seconds = {
            command.path.split()[1]: command.path for command in members if command.path.startswith(words[0])
        }
        return seconds.get(nearest(words[1], list(seconds)), "")
    first_words = list(dict.fromkeys(path.split()[0] for path in COMMANDS))
    return nearest(" ".join(words), list(COMMANDS) if len(words) > 1 else first_words) or nearest(
        words[0], first_words
    )
