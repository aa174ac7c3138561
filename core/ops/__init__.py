"""All ops. Importing this package imports all its modules, which declare their ops in the registry."""

from importlib import import_module
from pkgutil import walk_packages

for _module in walk_packages(__path__, f"{__name__}."):
    import_module(_module.name)
