"""What a command handler raises to say how its command ends."""


class CommandRefused(Exception):
    """The effect was refused. Passing refusals are retried with backoff, others fail the command at once."""

    def __init__(self, code: str, message: str, *, is_passing: bool = False) -> None:
        super().__init__(message)
        self.code, self.message, self.is_passing = code, message, is_passing


class Cancelled(Exception):
    """The command was cancelled, or its claim expired and another worker has it. Raised by CommandRun: a handler cleans
    up what is its own and lets it pass."""
