"""A worker process: it reads calls from a socket, runs their handlers, and sends the answers.

main       the process: its start, and the loop over calls
answers    the answers to calls: results and errors
state      the state that handlers share, and the stop signal of a call
handlers   the table of handlers, and the handlers about programs
sessions   handlers about sessions
session    one session: its values
opening    settings of a new session, checked and compiled
snapshot   sessions as files: save and restore
derive     new sessions from the values of a checkpoint
optimizer_state   handlers that read and replace optimiser state
checkpoint_file   these files, with errors for clients
checkpoint_state  the part of such a file that is not tensors
training   handlers that compute with a session: steps, gradients, updates, evaluations
batches    several training steps in one call
computed   computations of a session that do not change it
binding    steps bound to the arrays of a session
gradient_sum  gradients added up over several batches
warnings   warnings about gradients that are exactly zero
fit        many steps on a stored dataset in one call, `fit_check` their check before the start
columns    columns of a stored dataset as feeds
curves     the values that a job records of each step
onnx_models  handlers that write ONNX models
tapes      handlers about tapes
histograms  a handler for the distribution of a session's values
insight    handlers for cost analysis and gradient checks
program_cache  the cache of programs
programs   one program, and the executables compiled from it
step_kinds  the steps that are compiled, as data
roomy      steps with room for many sizes of their feeds
predictions  which executables are worth machine code, and which steps need not wait for it
executables  the executables of all programs, bounded by their memory
documents  documents of programs: their limits, and whether reading takes long
gpu        machine code for a GPU, after a test with the deadline of `gpu_deadline`
memory     the memory that the worker may use, and what it uses
compiling  compilations in threads, while the worker serves other calls
compilation  one of them, as data
turns      the compilation that runs Python code at a time
last_step  reuse of a session's last step
stored_values  the initial values of registered programs
given      checks of the values of a request: all mistakes, with their places
given_gradients  the same for the gradients of an update
running    one run of an executable, and its answer
finite     whether its outputs are finite, and the norms of its gradients
tables     in-place updates of tables with sparse gradients
"""
