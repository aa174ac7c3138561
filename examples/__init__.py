"""Example programs for a running service, such as `python -m examples.digits --url http://127.0.0.1:8080`.

client      a minimal client: HTTP with safetensors files
models      the programs of the examples, and `examples/programs/*.json`
demo        starts a service, trains the digits, stops the service (`make demo`)
digits      an MLP and a convnet on handwritten digits
rnn_text    a character RNN as a `while` loop
regression  a network of scalar neurons
tape        the backward pass of two products and a softmax
pruned      a tape whose backward pass skips an unused network
words       a recurrent network as a Python loop on a tape
recipes     models to copy, each explained in docs/recipes
"""
