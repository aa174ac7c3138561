"""The command line: `backpass serve`, `profile`, `openapi`, `catalogue`, `healthcheck`, `version`."""
