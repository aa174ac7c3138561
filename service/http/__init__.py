"""The HTTP layer between the socket and the routes: protocol, middleware, request bodies, answers."""
