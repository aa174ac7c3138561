"""Communication between the service and its worker processes: both ends of the socket, and the memory they share.

messages       typed frames over a socket: `Start`, `Call`, `Returned`, ...
shared_memory  large tensors, in a file that both processes map
signal_page    one page with the cancel and heartbeat signals
channel        the service's end of the socket, on the event loop
"""
