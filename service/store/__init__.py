"""Durable storage: one database, and the data directory.

store          reads and writes of the database
tables         all tables; `migrations/` creates them
migrate        brings older tables to this version
backing        a database behind the store:
  embedded       SQLite in the data directory
  server         PostgreSQL
sqlite_file    the SQLite file: created whole, checked when opened
first_version  import of the programs that the first version stored
directory      the data directory: its one owner, and whether it is still in its place
files          errors of stored files as refusals
file_directory the directory of files that belongs to the database
admin          commands of other processes, run by the owner
backup         a copy of everything that is stored, and the way back
postgres_tools pg_dump and pg_restore
presence       the API processes that use the store
once           writes that take effect once, though they are sent again
patience       the time that one use of the store may take
patient_connection  a connection to PostgreSQL that gives up after this time
programs       registered programs
program_values the initial values of programs
checkpoints    the rows of checkpoints
operations     the rows of operations
idempotency    the rows of requests with an Idempotency-Key
shared_files   files that several rows may name
program_text   a program as JSON text, with its id
copies         deletes copies of files that nothing names any more
newest         pages of lists, the newest entry first
labelled       pages of the things that have some labels
rows_of_tenant all rows of a tenant, to erase them
orphans        deletes files that nothing names
sweeping       sweeps that are made again and again
errors         the reasons why stored data cannot be used
"""
