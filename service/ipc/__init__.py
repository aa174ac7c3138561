"""Messages and shared memory between the service and its workers: both ends of the socket."""
