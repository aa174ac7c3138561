"""Random numbers drawn from a counter."""
