"""Fixtures: a running service with a client, as in tests/service."""

from tests.service.conftest import client, service

__all__ = ["client", "service"]
