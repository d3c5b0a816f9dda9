"""Aliases: command lines of systems that Trainyard replaces, rewritten to `yard`'s own commands by a table.

Words after `--` are not changed.
"""

from __future__ import annotations

from typing import NamedTuple


class Alias(NamedTuple):
    """A command line of another system that is accepted, and what it means in `yard`, both as a user would type
    them."""

    spelling: str
    meaning: str


# Leading words -> the command's own words. The longest match is used.
_COMMANDS = {
    ("list",): ("list", "jobs"),
    ("project", "set"): ("config", "project"),
    ("data", "init"): ("dataset", "init"),
    ("data", "sync"): ("dataset", "sync"),
    ("data", "clone"): ("dataset", "clone"),
    ("list", "datasets"): ("dataset", "list"),
    ("list", "cache-locations"): ("cache-location", "list"),
    ("get",): ("describe", "job"),
    ("describe",): ("describe", "job"),
    ("submit", "etjob"): ("submit-elastic",),
    ("submit", "et"): ("submit-elastic",),
    ("submit", "mpijob"): ("submit-mpi",),
    ("submit", "mpi"): ("submit-mpi",),
    ("scaleout", "etjob"): ("scaleout",),
    ("scalein", "etjob"): ("scalein",),
    ("submit-mpijob",): ("submit-mpi",),
}

# Verbs accepted before or after a noun, in singular or plural: `list job`, `job list`, `describe jobs NAME`.
_NOUN_VERBS = ("list", "describe", "top")
_JOB_WORDS = ("job", "jobs")
# One-word commands that take job names, and therefore also accept `delete job NAME`.
_JOB_VERBS = (
    "attach", "bash", "clone", "delete", "exec", "explain", "get", "logs", "port-forward", "resume", "stop", "suspend",
    "wait",
)  # fmt: skip
_SUBMITS = ("submit", "submit-mpi", "submit-elastic")
_NAMED = (*_SUBMITS, "scale", "scaleout", "scalein")
_RENAMED_FLAGS = {"--gpu": "--gpus"}
_DROPPED_FLAGS = ("--local-image",)

ALIASES = (
    Alias("project set NAME", "config project NAME"),
    Alias("data init NAME", "dataset init NAME"),
    Alias("data sync", "dataset sync"),
    Alias("data clone NAME DIR", "dataset clone NAME DIR"),
    Alias("list datasets", "dataset list"),
    Alias("list cache-locations", "cache-location list"),
    Alias("list job, job list", "list jobs, list jobs"),
    Alias("list project, node list", "list projects, list nodes"),
    Alias("describe jobs NAME, cluster describe NAME", "describe job NAME, describe cluster NAME"),
    Alias("delete job NAME, logs job NAME", "delete NAME, logs NAME"),
    Alias("list", "list jobs"),
    Alias("get NAME", "describe job NAME"),
    Alias("describe NAME", "describe job NAME"),
    Alias("submit --name NAME ...", "submit NAME ..."),
    Alias("submit ... --gpu 1", "submit ... --gpus 1"),
    Alias("submit ... --local-image", "submit ..."),
    Alias("submit-mpi --name NAME --processes=3 --gpu 1", "submit-mpi NAME --processes=3 --gpus 1"),
    Alias("submit mpijob --name=NAME --workers=3 ...", "submit-mpi NAME --processes=3 ..."),
    Alias(
        'submit etjob --name=NAME --workers=3 ... "COMMAND"',
        "submit-elastic NAME --workers=3 ... -- sh -c COMMAND",
    ),
    Alias("scaleout etjob --name=NAME --count=1 --timeout=10m", "scaleout NAME --count=1 --timeout=10m"),
    Alias("scalein etjob --name=NAME --count=1", "scalein NAME --count=1"),
    Alias("top node, node top", "top nodes, top nodes"),
)


def rewrite(argv: list[str]) -> list[str]:
    """Return a command line with an alias replaced by `yard`'s own command; unchanged if it has none. Words after
    `--` are kept."""
    end = argv.index("--") if "--" in argv else len(argv)
    words, trailing = argv[:end], argv[end:]
    renamed = _renamed_command(words)
    command, arguments = renamed[0] if renamed else "", renamed[1:]
    if command in _NAMED:
        arguments = _name_first(arguments)
    if command in _SUBMITS:
        arguments = _own_flags(arguments)
    if command == "submit-mpi":
        arguments = [_renamed_flag(word, {"--workers": "--processes"}) for word in arguments]
    if (
        words[:2] in (["submit", "etjob"], ["submit", "et"], ["submit", "mpijob"], ["submit", "mpi"])
        and not trailing
    ):
        arguments, trailing = _shell_line_last(arguments)
    return [command, *arguments, *trailing] if command else argv


def _renamed_command(words: list[str]) -> list[str]:
    words = _own_nouns(words)
    for length in (2, 1):
        own = _COMMANDS.get(tuple(words[:length]))
        if own is not None and not _is_command_already(words, length):
            return [*own, *words[length:]]
    return words


def _own_nouns(words: list[str]) -> list[str]:
    """Put the verb before the noun, and the noun in the number that the command uses: `job list` becomes `list jobs`.
    Other words are returned unchanged."""
    from controlplane.cli.registry import COMMANDS

    if len(words) < 2:
        return words
    if words[0] in _JOB_VERBS and words[1] in _JOB_WORDS and _is_lone_name(words[2:3]):
        return [words[0], *words[2:]]
    pairs = [(words[0], words[1]), (words[1], words[0])]
    for verb, noun in pairs:
        for spelling in (noun, f"{noun}s", noun.removesuffix("s")):
            if verb in _NOUN_VERBS and f"{verb} {spelling}" in COMMANDS:
                return [verb, spelling, *words[2:]]
    return words


def _is_command_already(words: list[str], length: int) -> bool:
    """Return whether the words must not be rewritten by an alias of `length` words, because they are a command of
    `yard`. Also True for `list TYPO`, which would become `list jobs TYPO`."""
    from controlplane.cli.registry import COMMANDS

    if words[0] == "describe" and not _is_lone_name(words[1:]):
        return True
    if length > 1 or len(words) < 2 or words[1].startswith("-"):
        return False
    # Otherwise `list TYPO` would be read as `list jobs TYPO`.
    is_noun_missing = words[0] == "list"
    return is_noun_missing or " ".join(words[:2]) in COMMANDS


def _is_lone_name(words: list[str]) -> bool:
    """Return whether the words are one name, perhaps followed by options. Two names, as in `describe jbo hyper1`, are
    a misspelt command."""
    return bool(words) and not words[0].startswith("-") and (len(words) == 1 or words[1].startswith("-"))


def _name_first(arguments: list[str]) -> list[str]:
    """Return the arguments with the value of `--name N` or `--name=N` moved to the front, where `yard`'s commands
    expect the name."""
    for position, word in enumerate(arguments):
        if word == "--name" and position + 1 < len(arguments):
            return [arguments[position + 1], *arguments[:position], *arguments[position + 2 :]]
        if word.startswith("--name="):
            return [word.removeprefix("--name="), *arguments[:position], *arguments[position + 1 :]]
    return arguments


def _own_flags(arguments: list[str]) -> list[str]:
    return [_renamed_flag(word, _RENAMED_FLAGS) for word in arguments if word not in _DROPPED_FLAGS]


def _renamed_flag(word: str, names: dict[str, str]) -> str:
    flag, equals, value = word.partition("=")
    return f"{names.get(flag, flag)}{equals}{value}" if flag.startswith("--") else word


def _shell_line_last(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return (other words, command words): a last positional word such as `"python train.py"` becomes the command `--
    sh -c` with it; [] without one. After a flag without `=` the word could be the flag's value, so there it must
    contain a blank."""
    if len(arguments) < 2 or arguments[-1].startswith("-"):
        return arguments, []
    before = arguments[-2]
    could_be_a_value = before.startswith("-") and "=" not in before
    if could_be_a_value and " " not in arguments[-1]:
        return arguments, []
    return arguments[:-1], ["--", "sh", "-c", arguments[-1]]
