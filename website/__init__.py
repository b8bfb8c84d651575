"""Builds the parts of the documentation site that are not files in docs/: references, and pages of the root."""
