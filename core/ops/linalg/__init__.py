"""Matrix products, linear systems, decompositions and distances."""

from core.ir.registry import Family

FAMILY = Family("linalg", "Matrix products, linear systems, decompositions and distances")
