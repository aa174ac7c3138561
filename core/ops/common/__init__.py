"""Helpers that ops of several families share."""
