"""Routes: the translation between HTTP and the engine."""
