"""Metrics of the service, in the format of Prometheus."""
