"""HTTP problems for the exceptions that jobs' verbs raise."""

from controlplane.api.problems import Problem
from jobs.lifecycle import IllegalMove

TRANSLATIONS = ((IllegalMove, lambda error: Problem(409, "illegal_move", str(error))),)
