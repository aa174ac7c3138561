"""Durable storage.

programs  registered programs, in SQLite
"""
