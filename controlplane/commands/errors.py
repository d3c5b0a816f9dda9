"""The exceptions by which a command handler ends its command."""


class CommandRefused(Exception):
    """The effect was refused. Temporary refusals (`is_passing`) are retried with back-off, others fail the command
    at once."""

    def __init__(self, code: str, message: str, *, is_passing: bool = False) -> None:
        super().__init__(message)
        self.code, self.message, self.is_passing = code, message, is_passing


class Cancelled(Exception):
    """The command was cancelled, or its claim expired and another worker has taken it. Raised by CommandRun; a
    handler may clean up after itself, but must let it propagate."""
