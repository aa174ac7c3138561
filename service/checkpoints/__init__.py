"""Checkpoints of clients: files of sessions that can be listed, downloaded, uploaded, and opened as sessions again.

A row of the store describes each file; the file is in the object store below `checkpoints/client`.

checkpoints  the rows and files of all checkpoints, and their sweep
upload       a file from a client: its header and digests are checked before it is stored

A worker writes and reads the files: `service.worker.snapshot` and `service.worker.derive`.
"""

from service.checkpoints.checkpoints import Checkpoints

__all__ = ["Checkpoints"]
