"""Oracle's errors as the driver raises them, and the engines' errors as Oracle's."""

from __future__ import annotations

import re
from typing import Any

import oracledb

_INTEGRITY = {1, 1400, 2290, 2291, 2292}
_OPERATIONAL = {1013, 1033, 1034, 1090, 12571}
LOST = {28, 1012, 1033, 1034, 1089, 1090, 1092, 2396, 3113, 3114, 3135, 12537, 12547, 12571, 25408}
"""Codes after which the session is gone."""
_WRAPPED = {28, 600, 1012, 1089, 1092, 2396, 3113, 3114, 3135, 12537, 12547}
"""Codes to which the driver puts DPY-4011 in front."""


class Details:
    """What the driver keeps of an error, as `exception.args[0]`."""

    def __init__(self, code: int, full_code: str, message: str) -> None:
        self.code = code
        self.full_code = full_code
        self.message = message
        self.offset = 0
        self.context = ""
        self.isrecoverable = code in LOST
        self.iswarning = False
        self.is_session_dead = code in LOST or full_code in ("DPY-4011", "DPY-1001")

    def __str__(self) -> str:
        return self.message


def ora(code: int, text: str = "as the server says") -> oracledb.Error:
    """An error of the server, by its number."""
    name = f"ORA-{code:05d}"
    message = f"{name}: {text}"
    if code in _WRAPPED:
        message = f"DPY-4011: the database or network closed the connection\n{message}"
        return oracledb.DatabaseError(Details(code, "DPY-4011", message))
    kind: type[oracledb.Error] = oracledb.DatabaseError
    if code in _INTEGRITY:
        kind = oracledb.IntegrityError
    elif code in _OPERATIONAL:
        kind = oracledb.OperationalError
    return kind(Details(code, name, message))


def dpy(number: int, text: str = "as the driver says") -> oracledb.Error:
    """An error of the driver, by its number."""
    name = f"DPY-{number}"
    kind: type[oracledb.Error] = oracledb.DatabaseError
    if number == 1001:
        kind = oracledb.InterfaceError
    elif number in (6000, 6001, 6005):
        kind = oracledb.OperationalError
    return kind(Details(0, name, f"{name}: {text}"))


def by_name(name: str) -> oracledb.Error:
    """The error of a code such as "ORA-00060" or "DPY-4011"."""
    if name.startswith("DPI"):  # of the thick mode
        return oracledb.DatabaseError(Details(0, name, f"{name}: as the driver says"))
    kind, _, number = name.partition("-")
    return dpy(int(number)) if kind == "DPY" else ora(int(number))


_PAIRS = """
    1044:1031 1045:1017 1049:942 1050:955 1053:3113 1054:904 1061:955 1062:1 1048:1400
    1364:1400 1064:900 1020:8177 1046:942 1051:942 1040:12516 1091:1418 1142:1031 1143:1031
    1146:942 1203:2391 1205:30006 1213:60 1226:2391 1264:1438 1292:1858 1317:1013 1366:1722
    1406:12899 1451:2292 1452:2291 1927:28 2003:12541 2006:3114 2013:3113 2014:3113 4025:2290
"""
_MARIADB = dict(map(int, one.split(":")) for one in _PAIRS.split())
"""Number of MariaDB's -> that of Oracle's."""


def from_mariadb(error: BaseException, owner: str) -> oracledb.Error:
    """A PyMySQL error as Oracle's."""
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 600
    text = str(error.args[1] if len(error.args) > 1 else error)
    if code == 0:  # PyMySQL: the connection is closed
        return dpy(1001, "not connected to database")
    if code == 1969:  # max_statement_time
        return dpy(4024, "call timeout exceeded")
    number = _MARIADB.get(code)
    if number is None:
        # Not one that Oracle has: a fault of the translation, and so it must be seen.
        return oracledb.DatabaseError(Details(900, "ORA-00900", f"ORA-00900: {code} {text}"))
    if number == 1:
        named = re.search(r"for key '([^']*)'", text)
        name = named[1].rpartition(".")[2].upper() if named else "?"
        return ora(1, f"unique constraint ({owner.upper()}.{name}) violated")
    return ora(number, f"{text} [{code}]")


def is_lost(error: oracledb.Error) -> bool:
    details: Any = error.args[0]
    return bool(details.is_session_dead)
