"""Whether a word of a cluster can be a job's id: anybody's object there may have a name or a label like ours."""

import uuid


def is_job_id(word: str) -> bool:
    try:
        return str(uuid.UUID(word)) == word
    except ValueError:
        return False
