"""Errors of remote systems: clusters, API servers, storage."""

from __future__ import annotations


class Unreachable(Exception):
    """The system did not answer. Its state is unknown: retry later and release nothing."""


class Refused(Exception):
    """The remote system refused the request. `code`: a constant for programs. `message`: what happened, with the next
    step. `is_passing`: the cause may disappear soon, such as an exceeded quota, so a few retries are worthwhile; any
    other refusal is final."""

    def __init__(self, code: str, message: str, *, is_passing: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.is_passing = is_passing
