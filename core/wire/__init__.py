"""Programs as JSON: `read` closes open scopes, `write` gives closed blocks back in the client's names."""

from core.wire.document import Limits
from core.wire.read import KEY, read
from core.wire.write import write

__all__ = ["KEY", "Limits", "read", "write"]
