"""The exceptions by which a command handler ends its command."""


class CommandRefused(Exception):
    """The command cannot be carried out. `code`: the reason, for programs; `message`: the sentence for users. A
    temporary refusal (`is_passing`) is retried with back-off; any other fails the command at once."""

    def __init__(self, code: str, message: str, *, is_passing: bool = False) -> None:
        super().__init__(message)
        self.code, self.message, self.is_passing = code, message, is_passing


class Cancelled(Exception):
    """The command was cancelled, or its claim expired and another worker has the command. Raised by
    CommandRun; a handler may clean up, but must let it propagate."""
