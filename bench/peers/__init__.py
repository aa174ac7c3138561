"""The workloads of the bench in other frameworks and in Backpass, each in a separate process."""
