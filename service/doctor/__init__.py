"""The examination of `backpass doctor`: the needs of this service, findings about them, and remedies.

It writes only files of its own into the data directory, which it deletes again, and works beside a running service.

finding      one line of the report
settings     invalid, unknown and conflicting settings
machine      processor, memory, limits, clock, kernel
gpu          devices, driver, and the libraries that workers load
storage      data directory, disk, database, objects, machine code, secrets
access       API keys, TLS
network      ports
examination  all of them
"""

from service.doctor.examination import examine
from service.doctor.finding import Finding

__all__ = ["Finding", "examine"]
