"""The exceptions by which a command handler ends its command."""


class CommandRefused(Exception):
    """A handler cannot carry out its command. `code`: the reason, for programs; `message`: for users. `is_passing`:
    the cause may disappear, so the command is retried with back-off; otherwise it fails at once."""

    def __init__(self, code: str, message: str, *, is_passing: bool = False) -> None:
        super().__init__(message)
        self.code, self.message, self.is_passing = code, message, is_passing


class Cancelled(Exception):
    """The command was cancelled, or its claim expired and another worker took it over. CommandRun raises it; a
    handler may clean up, but must let it propagate."""


class GivesWay(Exception):
    """A handler that only waited for something outside has ended its try, because other commands wait for its thread.
    CommandRun raises it. The command is pending again, and the try does not count. `since`: when the wait began, in
    seconds since the epoch."""

    def __init__(self, since: float) -> None:
        super().__init__("Other commands wait for the thread.")
        self.since = since
