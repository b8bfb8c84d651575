"""Data, runs, metrics and reports: everything behind a figure, and nothing that search or learning needs."""
