"""Optimisers, learning-rate schedules, gradient clipping, loss scaling and initialisers.

Updates are ops (core/ops/optimizers). This package holds a client's choices as data and writes them into the step.

    optimizers    an op of core/ops/optimizers, its attributes and a schedule
    schedules     the learning rate as a function of the step number, written in ops
    rates         the learning rate as an input of the step
    clipping      bounds on gradients before the optimiser reads them
    loss_scaling  a factor on the loss, so that float16 gradients do not underflow
    initializers  initial values of parameters
    parameter_roles  the roles of parameters, which choose their initial values
"""
