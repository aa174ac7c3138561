"""Jobs: training of a session on a stored dataset, by the service alone.

A job is a session and a loop. Each turn of the loop is one numbered call ``session.fit`` of some steps, so that the
journal of the session makes it durable. How many steps a call has depends on their duration, and no number depends on
it. The position of the job, its metrics and its events are stored in one transaction after each call. If the process
ends before that, the next one sends the call again under the same number and gets the stored answer.

job         a job as data: its settings, its position, its states
early_stop  the rule that ends a job when a metric stops improving
curves      the metrics of steps as stored rows, and fewer points of them
store       the rows of jobs, events and metrics
runner      runs a bounded number of jobs, in a fair order
training    the loop of one job
checkpoints  the checkpoints of a job's session
validation  the metrics on the rows that are not trained on
sessions    the part of the registry of sessions that jobs use
waiting     the reason why a job waits
stream      the events of a job, for `service.http.sse`
"""

from service.jobs.checkpoints import Checkpointer, checkpoint_id
from service.jobs.job import ACTIVE, ENDED, JOB_ID, REASONS, Job, Progress, Spec
from service.jobs.runner import Runner
from service.jobs.store import JobStore

__all__ = [
    "ACTIVE",
    "ENDED",
    "JOB_ID",
    "REASONS",
    "Checkpointer",
    "Job",
    "JobStore",
    "Progress",
    "Runner",
    "Spec",
    "checkpoint_id",
]
