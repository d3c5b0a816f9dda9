"""PUBLISH: turn the numbered event log into live topics for browsers, scripts and the CLI."""
