"""Limits, per address, attempts with API tokens that belong to no user; valid tokens are not limited."""

from controlplane.http.client_address import address_key
from controlplane.http.throttle import Throttle

# Guessing a token of 256 bits is hopeless. The limit only bounds the cost of programs that keep using a revoked
# token.
UNKNOWN_TOKENS_PER_MINUTE = 120
_attempts = Throttle(UNKNOWN_TOKENS_PER_MINUTE, 60)


def note_unknown_token(address: str) -> None:
    """Count a use of an API token that belongs to no user. Raise TooManyAttempts after UNKNOWN_TOKENS_PER_MINUTE of
    one address."""
    _attempts.attempt(address_key((address, 0)))


def forget_unknown_tokens() -> None:
    """Reset the limits of all addresses, for tests."""
    _attempts.clear()
