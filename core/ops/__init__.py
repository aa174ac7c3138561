"""Every op, declared. Importing this package imports each of its modules, and so fills the registry."""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
