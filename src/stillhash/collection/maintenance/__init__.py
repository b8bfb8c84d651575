"""Keep a collection small and whole: compact, forget, verify, repair, find duplicates."""
