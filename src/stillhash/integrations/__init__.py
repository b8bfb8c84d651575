"""Other libraries, one module each. Nothing here is imported by itself: each needs its own optional dependency."""
