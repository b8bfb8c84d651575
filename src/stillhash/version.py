"""The version of this package, and its only place: pyproject.toml reads it from here."""

__version__ = "0.2.0"
