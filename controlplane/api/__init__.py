"""REST: a view reads the HTTP request, checks access, calls one action or query, and returns JSON.
docs/reference/openapi.json is generated from it."""
