"""Routes translate between HTTP and the engine, and decide nothing else."""
