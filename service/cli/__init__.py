"""The command line of the service.

main         `backpass`: the parser of all commands; serve, version
refusal      the exit statuses of all commands
server       `backpass serve`: start and end of the service
doctor       `backpass doctor`: what is wrong with the machine or the settings
keys         `backpass keys`: API keys and tenants
backup       `backpass backup` and `backpass restore`
importing    `backpass import`: an ONNX model to a running service
documents    `backpass openapi`, `catalogue`, `options` and `signatures`: documents that follow from the code
signatures   the table of ops for the Python client
stubs        the types of the ops for the Python client
profile      `backpass profile`: the times of the kernels of a step
catalogue    `backpass catalogue`: the pages about the ops
options_page `backpass options`: the page about hooks, clips, budgets and loss scales
refusal      the reasons of failures, and the exit statuses of all commands
output       standard output, and its failures
healthcheck  `python -m service.cli.healthcheck`: the health check of a container
"""
