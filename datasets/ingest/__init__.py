"""Reads a directory into a dataset version: walk, compare, hash, pack. Standard library alone: `yard` runs it too."""
