"""Builds the parts of the documentation site that follow from the code: references, and pages of files outside docs/."""
