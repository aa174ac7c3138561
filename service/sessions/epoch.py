"""The epoch of a stored session goes up when another process of the service takes the session over. Every change names
its epoch, so that the store refuses late writes of the process that lost the session.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, and_, select

from service.store.tables import sessions

__all__ = ["Fenced", "at_epoch", "check_epoch"]


class Fenced(Exception):
    """Another process of the service has taken the session over: the copy in this process is out of date."""


def at_epoch(id: str, epoch: int) -> ColumnElement[bool]:
    """The condition for the row of a session: no process has taken the session over since this epoch."""
    return and_(sessions.c.id == id, sessions.c.epoch == epoch)


def check_epoch(connection: Connection, session: str, epoch: int, alone: bool = False) -> None:
    """Raises Fenced, or lets nobody take the session over before the transaction has ended.

    alone: wait until all transactions that write to its journal have ended.
    """
    query = select(sessions.c.epoch).where(sessions.c.id == session).with_for_update(read=not alone)
    if connection.execute(query).scalar() != epoch:
        raise Fenced
