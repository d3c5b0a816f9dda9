"""Attacks on a running instance, and what other users notice of them."""
