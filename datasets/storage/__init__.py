"""Where the bytes of datasets are: one interface (`base`), and its backends. Imports neither Django nor a model."""
