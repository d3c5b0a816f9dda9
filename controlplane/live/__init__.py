"""PUBLISH: the numbered event log turned into live topics for browsers, scripts and the CLI."""
