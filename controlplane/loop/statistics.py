"""Keep what PostgreSQL knows of our tables near the truth: it plans by that, and looks by itself once a minute.

A new installation that is given thousands of jobs within that minute was planned for as if it had a handful: jobs were
joined with each other's attempts, and a cycle took seconds.
"""

from django.db import connection

FEWEST = 200  # changed rows that are worth a look
_CHANGED = """
SELECT seen.relname FROM pg_stat_user_tables AS seen JOIN pg_class ON pg_class.oid = seen.relid
WHERE seen.schemaname = current_schema() AND pg_has_role(pg_class.relowner, 'USAGE')
  AND seen.n_mod_since_analyze >= greatest(pg_class.reltuples, %s)
ORDER BY seen.relname
"""


def refresh_statistics() -> list[str]:
    """Look at every table of ours of which as many rows changed since the last look as it had then; return their names.
    Each costs some 20 ms, however large it is."""
    if connection.vendor != "postgresql":
        return []
    with connection.cursor() as cursor:
        cursor.execute(_CHANGED, [FEWEST])
        tables = [name for (name,) in cursor.fetchall()]
        for name in tables:
            cursor.execute(f"ANALYZE {connection.ops.quote_name(name)}")
    return tables
