"""Ops that create arrays, change their shape, join them and split them."""
