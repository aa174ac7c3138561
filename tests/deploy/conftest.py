"""The running service of the tests of the service."""

from tests.service.conftest import client, service

__all__ = ["client", "service"]
