"""Ops that create arrays, change their shape, join them and split them."""

from core.ir.registry import Family

FAMILY = Family("shape", "Creation of arrays, changes of shape, concatenation and splitting")
