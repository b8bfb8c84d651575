"""Filters, facets and completions: the language of conditions, and columns that answer it."""
