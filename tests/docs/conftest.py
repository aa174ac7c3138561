"""The served application of the service's tests."""

from tests.service.conftest import client, service

__all__ = ["client", "service"]
