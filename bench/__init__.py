"""Measurements of every claim: `make bench` runs all, `python -m bench.NAME` one script."""
