"""All ops. Importing this package imports all its modules, which declare their ops in the registry.

A folder is a family of ops; `common` has helpers of several families. `other_names` finds ops by the names that other
libraries have for them.
"""

from importlib import import_module
from pkgutil import walk_packages

for _module in walk_packages(__path__, f"{__name__}."):
    import_module(_module.name)
