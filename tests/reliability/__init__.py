"""The service under fire: processes are killed while clients train, and every number must be that of a calm run.

workload  scripts of requests for sessions and jobs, determined by their seed
house     a service that is killed and started again on the same data
faults    the faults: kills, stops, torn writes, a full disk, a clock that is set back
client    a client that repeats each numbered request until it is acknowledged
soak      many sessions and many steps: memory, files and the database must not grow
chaos     a run with faults beside a calm run, and the comparison of both
"""
