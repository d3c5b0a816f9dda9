"""Import REST framework without optional packages that no route uses: an HTTP client for its tests,
PostgreSQL's driver, YAML and a highlighter. They would take a tenth of the web process's start, and 10 MB of
its memory.

Import this module before any other that imports REST framework; later it has no effect.
"""

from controlplane.config.optional_packages import without

with without("requests", "django.contrib.postgres", "pygments", "yaml"):
    import rest_framework.compat  # noqa: F401  for its effect
