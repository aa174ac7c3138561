"""Gradient descent on variables, for training loops in Python. Sessions offer every optimizer of the service."""

from __future__ import annotations

from collections.abc import Iterable

from backpass_client.variable import Variable

__all__ = ["SGD"]


class SGD:
    """``data -= learning_rate * grad`` for each variable that has a gradient."""

    def __init__(self, variables: Iterable[Variable], learning_rate: float = 0.01) -> None:
        self.variables = list(variables)
        self.learning_rate = learning_rate

    def zero_grads(self) -> None:
        """Forget the gradients of the variables."""
        for variable in self.variables:
            variable.zero_grad()

    def update(self) -> None:
        """Change the variables by their gradients."""
        for variable in self.variables:
            if variable.grad is not None:
                variable.data = variable.data - self.learning_rate * variable.grad
