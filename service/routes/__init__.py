"""Routes: the translation between HTTP and the engine. A route decides nothing else.

programs, graph            register, list, read and delete programs; draw them
gradients, insight         gradients of one call; analysis, profile, and the numeric check
sessions, training, parameters, in_session   sessions, their computations and their parameters
live                       the curves of a session, and histograms of its parameters
tapes, on_tape             tapes and the operations on them
ops                        the catalogue of ops
samples                    the sample session and tape of the documentation
console                    the page of the console, its files, and statistics for its overview
system                     version, limits, health, workers, metrics, documentation
common, documented         helpers of several routes; OpenAPI entries of bodies that FastAPI does not read
"""
