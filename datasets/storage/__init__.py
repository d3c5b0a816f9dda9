"""Storage of dataset bytes: the interface (`base`) and its backends. Imports neither Django nor models."""
