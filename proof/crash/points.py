"""Points at which a consumer process dies, where a message says so: {"crash": POINT}."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
from typing import Any

IN_CLAIM = "in-claim"
AFTER_CLAIM = "after-claim"
FREEZE = "freeze"  # SIGSTOP right after the claim; goes on when it is woken
IN_HANDLER = "in-handler"
AFTER_EFFECT = "after-effect"
IN_SETTLE = "in-settle"
AFTER_SETTLE = "after-settle"
EXIT = "exit"
SEGV = "segv"

now = threading.local()  # what this thread is in the middle of

now_in_settle: set[int] = set()  # messages that want to die in a settle that is under way
immune: list[bool] = []  # not empty: this process dies at no point


def wants(point: str, payload: Any, attempt: int) -> bool:
    if immune:
        return False
    if isinstance(payload, str | bytes):
        payload = json.loads(payload)
    if not isinstance(payload, dict) or payload.get("crash") is None:
        return False
    at = IN_HANDLER if payload["crash"] in (EXIT, SEGV) else payload["crash"]
    return bool(at == point) and attempt <= int(payload.get("crashes", 1))


def die_at(point: str, payload: Any, attempt: int) -> None:
    if wants(point, payload, attempt):
        kind = json.loads(payload)["crash"] if isinstance(payload, str) else payload["crash"]
        _die(kind)


def die_if(chosen: set[int], msg_id: int) -> None:
    if msg_id in chosen:
        _die(IN_SETTLE)


def _die(kind: str) -> None:
    sys.stderr.flush()
    if kind == EXIT:
        os._exit(70)
    if kind == SEGV:
        ctypes.string_at(0)
    os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()  # the signal takes effect when it likes; nothing may follow here
