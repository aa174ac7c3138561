"""The command line of the service.

main         `backpass`: the commands serve, profile, openapi, catalogue, options, version
profile      `backpass profile`: the times of the kernels of a step
catalogue    `backpass catalogue`: the pages about the ops
options_page `backpass options`: the page about hooks, clips, budgets and loss scales
refusal      the reasons of failures, and the exit statuses of all commands
output       standard output, and its failures
healthcheck  `python -m service.cli.healthcheck`: the health check of a container
"""
