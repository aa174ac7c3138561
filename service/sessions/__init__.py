"""Open sessions and tapes in the API process: which worker holds each one, and the answers it has given.

registry  opens, calls and closes sessions, one call of a session at a time
session   one session: its worker, version, sequence number and lease
tape      one tape, as another kind of session
replay    the stored answers, for requests that arrive twice
merge_patch  changes of a session's settings
"""
