"""Reading and writing elements at positions that are data; sorting; embedding tables."""

from core.ir.registry import Family

FAMILY = Family("indexing", "Reads and writes at positions given as data, sorting, and embedding tables")
