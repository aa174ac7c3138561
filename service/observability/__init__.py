"""Metrics of the service in the format of Prometheus, and traces by OpenTelemetry.

metrics    the instruments, and the page for /metrics
workers    the state, the memory and the processor time of each worker
tracing    the spans of a request
host       the disk, and the end of the service
statistics  the main numbers of the metrics, for people
histogram  a fast histogram for one thread
"""
