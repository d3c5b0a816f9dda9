"""Data: the code that jobs run, and the store of datasets."""
