"""Everything between the socket and the routes: the protocol, middleware, request bodies, answers."""
