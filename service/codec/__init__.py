"""Decoding of large bodies and encoding of large answers, in processes of their own.

A JSON parser holds the interpreter lock for a whole document, so that a thread would still stop the event loop. These
processes run `service.worker.main` with the handlers of this package; `service.http.codec` calls them.
"""
