"""The served application of the service's tests."""

from tests.service.conftest import served

__all__ = ["served"]
