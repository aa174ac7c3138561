"""From a question about gradients to a program with its backward pass."""
