"""The bench's workloads in other frameworks, each in a process of its own, and Backpass in one like theirs."""
