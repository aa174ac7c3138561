"""Reading and writing elements at positions that are data; sorting; embedding tables."""
