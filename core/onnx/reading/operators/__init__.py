"""Converters, one file for each family of operators. Nothing lists the files."""
