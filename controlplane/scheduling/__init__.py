"""The decision core: turns a frozen view of a cluster into decisions with reasons. Pure: no Django, clock,
files or network."""
