"""Sessions and tapes in the API process: which worker holds each one, the answers it has given, and its journal.

registry  opens and closes sessions; leases
held      the sessions of this process, and those that it takes over from the store
creation  the creation of a session in a worker and in the store
places    the quotas of sessions, which requests at the same time share
turns     the calls of a session, one at a time
changes   the calls that change a session, and their journal entries
copies    the copies of sessions in workers: calls to them, their loss and deletion
recovery  rebuilding of a session in another worker
saving    checkpoints that the service makes, and parking of idle sessions
stored    the rows of sessions, with their checkpoints and answers
journal   the journals of stored sessions
entry     one entry of a journal
epoch     refuses writes of a process that lost the session
files     the keys of their files
answer    the answers to calls that change a session
session   one session: its worker, version, sequence number and lease
tape      one tape, as another kind of session
live      the recent steps of each session, for those who watch it
replay    the stored answers, for requests that arrive twice
merge_patch  changes of a session's settings
"""
