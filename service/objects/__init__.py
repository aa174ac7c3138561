"""Immutable files of the service: checkpoints, datasets, large journal entries.

objects      write, read, list and delete files by key, in a directory or in a store that fsspec knows
tensor_file  tensors in such a file, as safetensors
copies       files of a remote store on this machine, to map them
hold         deletions wait while a backup copies the files
marker       tells a directory of files from the empty one below a mount point
errors       the content of a file is damaged, the directory is away, or the store cannot be used
"""

from service.objects.errors import DamagedFile, DirectoryAway, UnusableStore
from service.objects.objects import Objects, Written

__all__ = ["DamagedFile", "DirectoryAway", "Objects", "UnusableStore", "Written"]
