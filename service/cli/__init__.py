"""The command line of the service.

main         `backpass`: the commands serve, profile, openapi, catalogue, version
profile      `backpass profile`: the times of the kernels of a step
catalogue    `backpass catalogue`: the pages about the ops
healthcheck  `python -m service.cli.healthcheck`: the health check of a container
"""
