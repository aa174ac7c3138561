"""The rows of requests with an Idempotency-Key."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, and_, delete, insert, select, update

from service.store import presence
from service.store.tables import idempotency

__all__ = ["Known", "begin", "drop", "drop_answer", "expired", "finish", "take_over"]

WIDTH = 500  # rows that one sweep deletes


@dataclass(frozen=True, slots=True)
class Known:
    """A key that was used before. answer: None while no answer is stored; owner: the process that runs the request."""

    digest: str
    answer: bytes | None
    owner: str


def begin(db: Connection, tenant: str, key: str, owner: str, now: float, expires: float) -> Known | None:
    """Reserve the key for a request of process `owner`; the earlier request if it is in use."""
    row = db.execute(
        select(idempotency.c.digest, idempotency.c.answer, idempotency.c.owner, idempotency.c.expires).where(
            _is(tenant, key)
        )
    ).first()
    if row is not None and row.expires > now:
        return Known(row.digest, row.answer, row.owner)
    if row is not None:
        db.execute(delete(idempotency).where(_is(tenant, key)))
    db.execute(insert(idempotency).values(tenant=tenant, key=key, digest="", owner=owner, created=now, expires=expires))
    return None


def take_over(db: Connection, tenant: str, key: str, before: str, owner: str) -> bool:
    """Make `owner` the owner of an unfinished request of the process `before`, if that has ended; whether it is."""
    if not presence.ended(db, before):
        return False
    found = and_(_is(tenant, key), idempotency.c.owner == before, idempotency.c.status.is_(None))
    return db.execute(update(idempotency).where(found).values(owner=owner)).rowcount == 1


def finish(db: Connection, tenant: str, key: str, owner: str, digest: str, status: int, answer: bytes) -> bool:
    """Store the answer of the request, unless another process took it over; whether it is stored."""
    mine = and_(_is(tenant, key), idempotency.c.owner == owner)
    values = {"digest": digest, "status": status, "answer": answer}
    return db.execute(update(idempotency).where(mine).values(**values)).rowcount == 1


def drop(db: Connection, tenant: str, key: str, owner: str, created: float | None = None) -> None:
    """Forget the request of process `owner`: it had no effect, and may be sent again.

    created: only if it was reserved then.
    """
    mine = and_(_is(tenant, key), idempotency.c.owner == owner, idempotency.c.status.is_(None))
    if created is not None:
        mine = and_(mine, idempotency.c.created == created)
    db.execute(delete(idempotency).where(mine))


def drop_answer(db: Connection, tenant: str, key: str, answer: bytes) -> bool:
    """Forget the request that was answered with `answer`; whether it was still known."""
    return db.execute(delete(idempotency).where(and_(_is(tenant, key), idempotency.c.answer == answer))).rowcount == 1


def expired(db: Connection, now: float) -> list[bytes]:
    """Delete expired rows; their answers."""
    old = select(idempotency.c.tenant, idempotency.c.key, idempotency.c.answer).where(idempotency.c.expires <= now)
    rows = db.execute(old.limit(WIDTH)).all()
    for row in rows:
        db.execute(delete(idempotency).where(_is(row.tenant, row.key)))
    return [row.answer for row in rows if row.answer is not None]


def _is(tenant: str, key: str):  # type: ignore[no-untyped-def]
    return and_(idempotency.c.tenant == tenant, idempotency.c.key == key)
