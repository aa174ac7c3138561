"""Requests and answers as strict pydantic models: the source of the OpenAPI document."""
