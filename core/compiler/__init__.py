"""From a program, a query and an optimiser to a step that is ready to run.

`compile.py` reads from top to bottom in the order of the work: bind the open sizes of this step, differentiate, append
the optimiser's update, optimise, plan. Each function returns an `Executable`; `Executable.compiled()` replaces what the
reference executor runs by machine code where that is possible.

    compile        compile_forward, compile_gradient, compile_training, compile_update
    differentiate  the backward pass of a query, also of a scaled loss
    update         from gradients to new parameters and optimiser state; row by row for tables
    trainer        training steps in a loop, in this process
"""
