"""Reverse-mode differentiation of one block: its adjoint, cotangents, VJP rules, activity and gradient hooks."""
