"""Recipes: small models to copy, each with a page in docs/recipes. `python -m examples.recipes.gpt` runs one.

Without `--url` a recipe starts a service of its own and stops it at the end.
"""
