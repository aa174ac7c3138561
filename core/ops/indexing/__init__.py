"""Reads and writes of elements at positions given as data; sorting; embedding tables."""

from core.ir.registry import Family

FAMILY = Family("indexing", "Reads and writes at positions given as data, sorting, and embedding tables")
