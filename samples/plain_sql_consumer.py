"""A consumer in plain SQL that knows nothing of msgworker: the plain protocol, literally.

It takes the lowest message that is new, or failed with tries left, of an object that has no
earlier message running; the consumer whose `UPDATE ... WHERE status = 0` affects a row owns the
message. A unique violation comes from the guard index: another consumer runs this
object. Used by existing_table.py.
"""

import time
from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, OperationalError

CANDIDATE = sa.text(
    """
    select msgID, objectID from tb_cus_msg re
     where (status = 0 or (status = -1 and errorTryTimes < 3))
       and not exists (select 1 from tb_cus_msg t
                        where t.objectID = re.objectID and t.status = 1 and t.msgID < re.msgID)
     order by msgID limit 1 offset :skip
    """
)
CLAIM = sa.text("update tb_cus_msg set status = 1 where status = 0 and msgID = :id")
DONE = sa.text("update tb_cus_msg set status = 2 where msgID = :id")
FAILED = sa.text(
    "update tb_cus_msg set status = -1, errorTryTimes = errorTryTimes + 1 where msgID = :id"
)


def consume(
    engine: sa.Engine, handle: Callable[[int, str], None], *, until: Callable[[], bool]
) -> int:
    """Handle messages one by one until told to stop; returns how many were handled."""
    handled = skip = 0
    while not until():
        with engine.connect() as conn:
            found = conn.execute(CANDIDATE, {"skip": skip}).first()
        if found is None:
            skip = 0
            time.sleep(0.005)
            continue
        if not claimed(engine, found[0]):
            skip = (skip + 1) % 50  # lost: look a little further the next time
            continue
        skip = 0
        try:
            handle(*found)
        except Exception:
            write(engine, FAILED, found[0])
        else:
            write(engine, DONE, found[0])
            handled += 1
    return handled


def claimed(engine: sa.Engine, msg_id: int) -> bool:
    try:
        return write(engine, CLAIM, msg_id) == 1
    except (IntegrityError, OperationalError):  # the guard, or a deadlock: not ours
        return False


def write(engine: sa.Engine, statement: sa.TextClause, msg_id: int) -> int:
    with engine.begin() as conn:
        return conn.execute(statement, {"id": msg_id}).rowcount
