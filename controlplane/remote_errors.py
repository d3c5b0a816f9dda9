"""Errors of remote systems: clusters, API servers, storage."""

from __future__ import annotations


class Unreachable(Exception):
    """The system did not answer. Its state is unknown: retry later and release nothing."""


class Refused(Exception):
    """The system refuses the request. `code` is a constant, `message` says what to do.

    `is_passing`: the cause may be gone soon, such as an exceeded quota, and a few retries are worth it. Any other
    refusal is final.
    """

    def __init__(self, code: str, message: str, *, is_passing: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.is_passing = is_passing
