"""REST: HTTP in, one access question and one action or query, JSON out. docs/reference/openapi.json is made from it."""
