"""What each code of Oracle's and of its drivers means."""

from __future__ import annotations

from msgworker.db import Trouble

MEANINGS = {
    Trouble.RACE: "ORA-00001",
    Trouble.AGAIN: """ORA-00054 ORA-00060 ORA-01013 ORA-01555 ORA-04068 ORA-08006 ORA-08177
        ORA-12860 ORA-30006 DPY-4024 DPI-1067""",
    Trouble.LOST: """ORA-00018 ORA-00020 ORA-00028 ORA-00600 ORA-00603 ORA-01012 ORA-01033
        ORA-01034 ORA-01041 ORA-01089 ORA-01090 ORA-01092 ORA-02391 ORA-02396 ORA-02399 ORA-03113
        ORA-03114 ORA-03135 ORA-12153 ORA-12170 ORA-12505 ORA-12514 ORA-12516 ORA-12518 ORA-12519
        ORA-12520 ORA-12526 ORA-12528 ORA-12535 ORA-12537 ORA-12541 ORA-12543 ORA-12545 ORA-12547
        ORA-12571 ORA-25401 ORA-25402 ORA-25403 ORA-25405 ORA-25408 ORA-25409 ORA-41412 DPY-1001
        DPY-4011 DPY-4033 DPY-6000 DPY-6001 DPY-6003 DPY-6005 DPI-1010 DPI-1080""",
    Trouble.REFUSED: """ORA-00904 ORA-00942 ORA-01017 ORA-01031 ORA-16000 ORA-28000 ORA-28001
        DPY-3001 DPY-3010 DPY-4027 DPI-1047""",
    Trouble.OTHER: "ORA-00900 ORA-01400 ORA-01722 ORA-02290 ORA-12899 DPY-4010",
}
ALL = [(code, kind) for kind, codes in MEANINGS.items() for code in codes.split()]


class CxDetails:
    """What cx_Oracle has as `exception.args[0]`: an error of its own layer has the code 0."""

    def __init__(self, name: str) -> None:
        self.code = int(name[4:]) if name.startswith("ORA") else 0
        self.message = f"{name}: as it says"

    def __str__(self) -> str:
        return self.message
