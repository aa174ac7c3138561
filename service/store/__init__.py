"""Durable storage.

programs   registered programs
database   the SQLite file: created whole, checked when opened
directory  the data directory: its one owner, and whether it is still in its place
errors     the reasons why stored data cannot be used
"""
