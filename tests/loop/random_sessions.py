"""Sessions of PostgreSQL that change jobs at random, for the tests of what the loop keeps between reads."""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from django.db import connection
from django.utils import timezone

from jobs.change_list import forget_changes


def empty_change_list() -> None:
    """Forget all listed changes. As long as another transaction of the server, such as an autovacuum, has run since
    before them, each read finds them again."""
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE jobs_change")


class RandomSession(ABC):
    """A session that changes the jobs whose names begin with one letter, in transactions that stay open for a while."""

    def __init__(self, letter: str, draw: random.Random) -> None:
        self.session, self.letter, self.draw, self.is_open = connection.copy(), letter, draw, False

    @abstractmethod
    def changes(self) -> Sequence[str]:
        """Return the statements of which a step executes one."""

    def step(self) -> None:
        """Begin or end a transaction, or execute one of `changes`."""
        if not self.is_open and self.draw.randrange(2):
            self.is_open = True
            self.execute("BEGIN")
        elif self.is_open and not self.draw.randrange(4):
            self.is_open = False
            self.execute(self.draw.choice(("COMMIT", "ROLLBACK")))
        else:
            self.execute(self.draw.choice(self.changes()))

    def execute(self, statement: str) -> None:
        with self.session.cursor() as cursor:
            cursor.execute(statement)


def check_while_they_write(
    sessions: Sequence[RandomSession], draw: random.Random, steps: int, check: Callable[[], None]
) -> None:
    """Let the sessions do `steps` steps, with `check` and the deletion of old entries in between; end their
    transactions, check once more, and close them."""
    try:
        for _ in range(steps):
            draw.choice(sessions).step()
            if not draw.randrange(8):
                forget_changes(timezone.now())
            if not draw.randrange(3):
                check()
        for one in sessions:
            one.execute("COMMIT" if one.is_open else "SELECT 1")
        check()
    finally:
        for one in sessions:
            one.session.close()
