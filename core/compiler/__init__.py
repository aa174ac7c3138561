"""From a program, a query and an optimiser to a step that is ready to run."""
