"""Many traces in one call: which they are, and where they are replayed."""
