"""The REST views, one module per resource."""
