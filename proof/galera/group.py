"""MySQL's Group Replication: three servers on this machine."""

from __future__ import annotations

import os
import random
import time

from tests.servers import CHOSEN, START_SECONDS, CannotHave, Cluster, MySQL, free_port


class GroupMember(MySQL):
    """One server of MySQL's Group Replication. It joins by reading what it missed from another."""

    def __init__(self, *, durable: bool, single: bool) -> None:
        super().__init__(durable=durable)
        self.group_port, self.single = free_port(), single
        self.members: list[GroupMember] = [self]
        self.founds = False

    def prepare(self) -> None:
        os.environ.setdefault(CHOSEN, "mysql-9.7")
        super().prepare()

    def command(self) -> list[str]:
        options = {
            "group-name": "11111111-2222-4333-8444-555555555555",
            "local-address": f"127.0.0.1:{self.group_port}",
            "group-seeds": ",".join(f"127.0.0.1:{one.group_port}" for one in self.members),
            "start-on-boot": "OFF",
            "single-primary-mode": "ON" if self.single else "OFF",
            "enforce-update-everywhere-checks": "OFF" if self.single else "ON",
            "recovery-get-public-key": "ON",
            "ip-allowlist": "127.0.0.1",
        }
        return [
            *super().command(),
            f"--server-id={self.port}",
            "--report-host=127.0.0.1",
            "--log-bin=log",
            "--gtid-mode=ON",
            "--enforce-gtid-consistency=ON",
            "--super-read-only=ON",
            "--plugin-load-add=group_replication.so",
            *(f"--loose-group-replication-{name}={value}" for name, value in options.items()),
        ]

    def start(self) -> None:
        """Start it and have it join; or found the group."""
        super().start()
        boots = "SET GLOBAL group_replication_bootstrap_group = {}"
        if self.founds:
            self.query(boots.format("ON"))
        deadline = time.monotonic() + START_SECONDS
        while True:  # it is refused while the group has not given up what it was before
            self.query("START GROUP_REPLICATION USER = 'root'", quiet=True)
            if self.is_online() or time.monotonic() > deadline:
                break
            time.sleep(0.5)
        if self.founds:
            self.query(boots.format("OFF"))
        if not self.is_online():
            tail = self.log.read_text(errors="replace").strip().splitlines()[-3:]
            raise CannotHave(f"the server did not join: {' / '.join(tail)}")

    def states(self) -> dict[str, tuple[str, str]]:
        """The state and the role of each member, by its port, as this one sees them."""
        query = (
            "SELECT member_port, member_state, member_role"
            " FROM performance_schema.replication_group_members"
        )
        return {str(p): (str(s), str(r)) for p, s, r in self.query(query, quiet=True)}

    def is_online(self) -> bool:
        return self.states().get(str(self.port), ("", ""))[0] == "ONLINE"


class Group(Cluster[GroupMember]):
    """MySQL's Group Replication. single: one of them takes writes, and it is the one that is
    harmed; else all do."""

    harms = ("killed", "paused")

    def __init__(self, *, single: bool) -> None:
        super().__init__([GroupMember(durable=False, single=single) for _ in range(3)])
        self.single = single

    def primary(self) -> GroupMember | None:
        """The one that takes writes, as far as a member that answers knows."""
        for node in self.nodes:
            if node.is_online():
                for port, (state, role) in node.states().items():
                    if (state, role) == ("ONLINE", "PRIMARY"):
                        return next(one for one in self.nodes if str(one.port) == port)
        return None

    def victim(self, chance: random.Random) -> GroupMember:
        return (self.primary() if self.single else None) or super().victim(chance)

    def is_back(self, node: GroupMember) -> bool:
        states = [state for state, _ in node.states().values()]
        return states == ["ONLINE"] * len(self.nodes)
