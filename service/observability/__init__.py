"""Metrics of the service in the format of Prometheus.

metrics    the instruments, and the page for /metrics
histogram  a fast histogram for one thread
"""
