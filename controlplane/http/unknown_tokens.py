"""A limit on API tokens that no user has, by address; tokens that are known are not limited."""

from controlplane.http.client_address import address_key
from controlplane.http.throttle import Throttle

# Tokens have 256 bits and are not guessed: the limit keeps what goes on using a revoked one from costing the others.
UNKNOWN_TOKENS_PER_MINUTE = 120
_attempts = Throttle(UNKNOWN_TOKENS_PER_MINUTE, 60)


def note_unknown_token(address: str) -> None:
    """Count a token that no user has. Raises TooManyAttempts."""
    _attempts.attempt(address_key((address, 0)))


def forget_unknown_tokens() -> None:
    """Reset the limit, as a restart does."""
    _attempts.clear()
