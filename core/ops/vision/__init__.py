"""Convolution, pooling, resizing and sampling of images and volumes."""
