"""From a question about gradients to a program with its backward pass.

Clients ask two questions: `append_backward(program, loss)` and `gradients(program, targets, inputs)`. The answer,
`Backward`, holds the program and, as data, the tables that nobody should have to parse from names: the gradient of each
variable, the forward op of each backward op, the op after which each gradient is final, and the reason for each missing
gradient.

    query             the question, as data: which gradients, and how they are computed
    append_backward   from the question to the answer
    backward_program  the answer and its tables
    unreachable       the reason for a missing gradient
    forward_only      the forward program of a program with a backward pass
"""
