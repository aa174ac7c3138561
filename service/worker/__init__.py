"""What a worker process does: it reads calls from a socket, runs their handlers, and answers."""
