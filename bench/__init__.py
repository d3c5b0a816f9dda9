"""What is claimed, measured: `make bench`, or one script by `python -m bench.NAME`."""
