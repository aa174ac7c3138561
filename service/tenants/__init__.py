"""Tenants: who may call the service, how much they may use, how much they have used, and what they did.

* `key`, `table`, `key_file`: API keys, their rows in the store, and the file of keys
* `states`: tenants that are suspended or deleted
* `erasing`: the erasure of all that a deleted tenant has
* `key_ring`: all keys in memory, for the check of each request
* `limits`, `quotas`: the limits of a tenant, and the refusals beyond them
* `usage`: counters by tenant and day
* `audit`: the log of changes and their authors
* `actions`: actions on keys and tenants, for the command line and for routes
* `tenancy`: these parts, put together for one service

`service.http.auth` asks these for each request. A service without keys has one tenant, "local", who may do everything.
"""
