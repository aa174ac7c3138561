"""Convolution, pooling, resizing and sampling of images and volumes."""

from core.ir.registry import Family

FAMILY = Family("vision", "Convolution, pooling, resizing and sampling of images and volumes")
