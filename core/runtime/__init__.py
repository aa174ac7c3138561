"""Running a step: op by op with numpy or cupy, or as regions of machine code.

An `Executable` is a block with the meaning of its parameters and results. `Executable.step` runs it once. The reference
executor runs it op by op and defines the meaning of programs: everything else is tested against it. After
`Executable.compiled()` the block is split into regions, which the executable's backend compiles, and the ops between
them, which the reference executor runs.

    executable     a step that is ready to run
    outputs        the results of a step: variables and their meanings
    bound_step     a compiled step whose arrays stay bound from one step to the next
    updates_apart  a step in two regions: the second one writes new values over the old ones
    run            one run in progress: limits, messages
    times          time of each kernel and op
    sparse_rows    a table as some of its rows

    reference      the reference executor: `interpreter_of(block)`, an `Interpreter`
    native         an interpreter that calls compiled regions: `native_interpreter(block, backend)`
    fitting        the check that open sizes of operands fit each other
    forked         an op in a forked child, so that it can be stopped

The interface for devices, and machine code in this process:

    backend        the protocols `Backend` (a code generator) and `Region` (a compiled block)
    region         `NativeRegion`: machine code that is called with the addresses of numpy arrays
    expecting      a region with sizes that have no largest value, whose code is made again for larger ones
    arguments      numpy arrays and control words as the arguments of machine code
    control_words  the words that machine code and its caller share, and the error codes
    callback       ops that machine code hands back to the reference executor
    blas_threads   the threads that numpy and scipy use for such an op
    array_header   headers of numpy arrays, from which machine code reads the addresses of data
    stop           a thread that sets the stop word of steps that must end
    memory         arenas, results and stacks

The memory of a process:

    memory_limit   the protocol `MemoryLimit`: how much memory is left
    admission      the check of the predicted peak before a run

This package imports no code generator, and import-linter holds it to that. A generator implements `Backend`: it has a
`Target` for the planner (`core.plan.target`) and `compile(plan) -> Region`. `core.codegen.backend` is the CPU's, and
`core.compiler` puts it into each executable. A generator for another device brings its own `Region`, which runs arrays
of other devices in the reference executor.

Limits. A run has a deadline, a stop signal, and limits of trips, executed ops and bytes of one array. The reference
executor checks them between ops. Machine code reads control words: loops on each trip, straight code every few
milliseconds. One thread polls the limits of all running steps.

Memory. The reference executor frees a value after its last use. A worker may hold hundreds of compiled steps and runs
one at a time: large arenas are shared, so all steps together take one arena of the size of the largest. A large result
reuses the memory of an earlier result of its type that nothing refers to any more. Stacks stay with their step, so that
only its first runs allocate. If a run has a memory limit, its predicted peak is checked before it starts, and every
large allocation that only the run determines is checked before it is made: an op whose operands decide about its sizes,
the record of a loop, an arena. Idle arenas, results and stacks are freed if that makes room.
"""
