"""From a program, a query and an optimiser to a step that is ready to run.

`compile.py` follows the order of the work: bind the open sizes of this step, differentiate, append the optimiser's
update, optimise, plan. Each function returns an `Executable` for the reference executor. `Executable.compiled()`
replaces the parts that can be machine code by machine code.

    compile        compile_forward, compile_gradient, compile_training, compile_update
    differentiate  the backward pass of a query, with or without loss scaling
    lookups        tables that are updated by rows because nobody sees their gradients
    update         from gradients to new parameters and optimiser state; row by row for tables
    room           steps for many sizes of their feeds
    trainer        training steps in a loop, in this process
    backends       the backend of this process, for which steps are compiled
"""
