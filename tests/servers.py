"""Real database servers for tests and benchmarks: found or installed, started on loopback, stopped.

`python -m tests.servers -- COMMAND` runs a command with servers up and the variables
MSGWORKER_TEST_POSTGRESQL_URL and MSGWORKER_TEST_MYSQL_URL set; `python -m tests.servers NAME ...`
starts those of other versions, too, and says where they are. Where these are set already, the
servers they point at are used and nothing is started. Redis and ZooKeeper are started by the
process that asks for them: few tests do.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import json
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

VARIABLES = {
    "postgresql": "MSGWORKER_TEST_POSTGRESQL_URL",
    "mariadb": "MSGWORKER_TEST_MYSQL_URL",
    "oracle": "MSGWORKER_TEST_ORACLE_URL",
    "redis": "MSGWORKER_TEST_REDIS_URL",
    "zookeeper": "MSGWORKER_TEST_ZOOKEEPER_URL",
}
CHOSEN = "MSGWORKER_TEST_SERVERS"
"""Servers in the place of those of this machine's system, unpacked from a later Debian: names of
`tests.debian.SERVERS`, such as "mysql-9.7 postgresql-18"."""
MISSING = "MSGWORKER_TEST_MISSING"
"""JSON, server -> why it cannot be had: what a process that tried it tells those it starts."""
START_SECONDS = 60.0
S = TypeVar("S", bound="Server")


class CannotHave(Exception):
    """This database cannot be had here; the text says why."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(*command: str | Path, user: str | None = None) -> str:
    """Run a command to its end; CannotHave with the end of its output if it fails."""
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, user=user
    )
    if done.returncode:
        tail = (done.stdout + done.stderr).strip().splitlines()[-3:]
        raise CannotHave(f"{Path(str(command[0])).name} failed: {' / '.join(tail)}")
    return done.stdout


def install(*packages: str) -> None:
    """apt-get install, as root only, one process at a time; the packages' own services are not
    started."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise CannotHave(f"not installed, and {' '.join(packages)} cannot be installed here")
    with (Path(tempfile.gettempdir()) / "msgworker-install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _install(*packages)


def _install(*packages: str) -> None:
    deny = Path("/usr/sbin/policy-rc.d")
    made = not deny.exists()
    if made:
        deny.write_text("#!/bin/sh\nexit 101\n")
        deny.chmod(0o755)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        for command in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
            done = subprocess.run(
                ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=120", *command],
                capture_output=True,
                text=True,
                env=environment,
                check=False,
            )
            if done.returncode and command[0] == "install":
                raise CannotHave(f"apt-get: {done.stderr.strip().splitlines()[-1:]}")
    finally:
        if made:
            deny.unlink()


def chosen(kind: str) -> Path | None:
    """Where the server of this kind that CHOSEN names is unpacked; None = the system's own."""
    for name in os.environ.get(CHOSEN, "").split():
        if name.partition("-")[0] == kind:
            from tests import debian

            if name not in debian.SERVERS:
                known = ", ".join(debian.SERVERS)
                raise CannotHave(f"{CHOSEN} names {name}; there are {known}")
            return debian.server(name)
    return None


def unprivileged(*names: str) -> str | None:
    """A user to run a server as when we are root, which servers refuse; None = ourselves."""
    if os.geteuid() != 0:
        return None
    for name in (*names, "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise CannotHave("there is no unprivileged user to run the server as")


@functools.cache
def end_with_us() -> IO[bytes]:
    """The input of a process that waits for the end of this one, however it ends: then it kills our
    servers and removes their folders. It is told of each server by a line: process id, folder."""
    ends = (
        "import os, shutil, signal, sys\n"
        "last = dict(reversed(line.split(' ', 1)) for line in sys.stdin.read().splitlines())\n"
        "for folder, pid in last.items():\n"
        "    if os.path.isdir(folder):\n"
        "        try: os.kill(int(pid), signal.SIGKILL)\n"
        "        except ProcessLookupError: pass\n"
        "        shutil.rmtree(folder, ignore_errors=True)\n"
    )
    watcher = subprocess.Popen(
        [sys.executable, "-c", ends], stdin=subprocess.PIPE, start_new_session=True
    )
    atexit.register(watcher.communicate)
    assert watcher.stdin is not None
    return watcher.stdin


class Server:
    """One server process with its data in a temporary folder.

    durable: whether a commit waits for the disk. Without it only a crash of the machine loses
    anything; the tests, which make some thousand tables, are much faster.
    """

    name = ""

    def __init__(self, *, durable: bool = True) -> None:
        self.durable = durable
        self.port = free_port()
        self.user: str | None = None
        self.folder = Path(tempfile.mkdtemp(prefix=f"msgworker-{self.name}-"))
        self.process: subprocess.Popen[bytes] | None = None
        self.log = self.folder / "server.log"

    @property
    def url(self) -> str:
        """A URL without a database name, ending in a slash."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Find or install the programs, make the data folder."""
        raise NotImplementedError

    def command(self) -> list[str]:
        raise NotImplementedError

    def answers(self) -> bool:
        raise NotImplementedError

    def start(self) -> None:
        """Start and wait until it answers."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=self.user,
                cwd=self.folder,
                start_new_session=True,
            )
        end_with_us().write(f"{self.process.pid} {self.folder}\n".encode())
        end_with_us().flush()
        deadline = time.monotonic() + START_SECONDS
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                tail = self.log.read_text(errors="replace").strip().splitlines()[-3:]
                raise CannotHave(f"the server did not start: {' / '.join(tail)}")
            time.sleep(0.1)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Stop it and wait for its end."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def kill(self) -> None:
        """kill -9, as a crash of the server."""
        self.stop(signal.SIGKILL)

    def restart(self) -> None:
        """Stop in the quickest orderly way and start again, on the same port with the same data."""
        self.stop(signal.SIGQUIT if self.name == "postgresql" else signal.SIGTERM)
        self.start()

    def remove(self) -> None:
        self.stop(signal.SIGQUIT if self.name == "postgresql" else signal.SIGTERM)
        shutil.rmtree(self.folder, ignore_errors=True)

    def give_folder(self) -> None:
        self.folder.chmod(0o755)
        if self.user is not None:
            shutil.chown(self.folder, self.user)


class PostgreSQL(Server):
    name = "postgresql"
    settings: Mapping[str, str] = {}

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/"

    @staticmethod
    def programs() -> Path | None:
        root = chosen("postgresql")
        if root is not None:
            return next((root / "usr/lib/postgresql").glob("*/bin"))
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: p.parts[-3])
        if found:
            return found[-1].parent
        path = shutil.which("initdb")
        return None if path is None else Path(path).resolve().parent

    def prepare(self) -> None:
        self.find()
        data = self.folder / "data"
        run(self.bin / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8",
            "--no-sync", "--locale=C.UTF-8", user=self.user)  # fmt: skip

    def find(self) -> None:
        """Find or install the programs."""
        self.user = unprivileged("postgres")
        folder = self.programs()
        if folder is None:
            install("postgresql")
            folder = self.programs()
        if folder is None:
            raise CannotHave("no initdb found")
        self.bin = folder
        self.give_folder()

    def command(self) -> list[str]:
        options = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.folder),
            "max_connections": "600",
            "shared_buffers": "256MB",
        }
        if not self.durable:
            options |= {"fsync": "off", "full_page_writes": "off"}
        options |= self.settings
        settings = [part for key, value in options.items() for part in ("-c", f"{key}={value}")]
        data = str(self.folder / "data")
        return [str(self.bin / "postgres"), "-D", data, "-p", str(self.port), *settings]

    def answers(self) -> bool:
        ready = [str(self.bin / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(ready, check=False).returncode == 0


class MariaDB(Server):
    name = "mariadb"
    root: Path | None = None

    @property
    def url(self) -> str:
        return f"mysql+pymysql://root@127.0.0.1:{self.port}/"

    @staticmethod
    def program(*names: str) -> str | None:
        path = os.environ.get("PATH", "") + os.pathsep + "/usr/sbin" + os.pathsep + "/usr/libexec"
        return next((found for name in names if (found := shutil.which(name, path=path))), None)

    def prepare(self) -> None:
        self.user = unprivileged("mysql")
        self.root = chosen("mariadb")
        if self.root is not None:
            self.server = str(self.root / "usr/sbin/mariadbd")
            maker: str | None = str(self.root / "usr/bin/mariadb-install-db")
        else:
            if self.program("mariadbd") is None:
                install("mariadb-server")
            self.server = self.program("mariadbd") or ""
            maker = self.program("mariadb-install-db", "mysql_install_db")
        if not self.server or maker is None:
            raise CannotHave("no mariadbd found")
        self.give_folder()
        arguments = [*self.folders(), "--skip-test-db"]
        run(maker, *arguments, "--auth-root-authentication-method=normal", user=self.user)

    def folders(self) -> list[str]:
        """Its own folder for temporary tables, too: a server that starts removes all it finds."""
        base = [] if self.root is None else [f"--basedir={self.root / 'usr'}"]
        return [
            "--no-defaults",
            *base,
            f"--datadir={self.folder / 'data'}",
            f"--tmpdir={self.folder}",
        ]

    def command(self) -> list[str]:
        return [
            self.server,
            *self.folders(),
            f"--socket={self.folder / 's.sock'}",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            f"--pid-file={self.folder / 'server.pid'}",
            "--innodb-buffer-pool-size=256M",
            "--max-connections=1000",
            *([] if self.durable else ["--innodb-flush-method=nosync", "--innodb-doublewrite=0"]),
        ]

    def answers(self) -> bool:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), 1) as s,
        ):
            s.settimeout(2)
            return bool(s.recv(1))
        return False

    def connect(self) -> Any:
        """A connection of its administrator."""
        import pymysql  # the servers themselves need nothing but Python

        return pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user="root",
            ssl_disabled=True,
            connect_timeout=2,
            read_timeout=20,
            autocommit=True,
        )

    def query(self, statement: str, *, quiet: bool = False) -> list[tuple[object, ...]]:
        """The rows of a statement of its administrator; quiet: none if it does not answer."""
        import pymysql

        try:
            with self.connect() as conn, conn.cursor() as cursor:
                cursor.execute(statement)
                return list(cursor.fetchall())
        except (OSError, pymysql.err.MySQLError):
            if quiet:
                return []
            raise

    def status(self, name: str) -> str:
        """A value of SHOW STATUS; "" while it does not answer."""
        row = self.query(f"SHOW GLOBAL STATUS LIKE '{name}'", quiet=True)
        return str(row[0][1]) if row else ""


class MySQL(MariaDB):
    """It takes MariaDB's place in what tests both."""

    def prepare(self) -> None:
        self.root = chosen("mysql")
        if self.root is None:
            raise CannotHave(f"{CHOSEN} names no MySQL")
        self.user = unprivileged("mysql")
        self.server = str(self.root / "usr/sbin/mysqld")
        self.give_folder()
        run(self.server, *self.folders(), "--initialize-insecure", user=self.user)

    def command(self) -> list[str]:
        return [*super().command(), "--mysqlx=OFF", "--secure-file-priv=NULL"]


class GaleraNode(MariaDB):
    """One node of a Galera cluster: a MariaDB with the provider. It joins by copying the folder of
    another node with rsync, or only what it missed."""

    provider = Path("/usr/lib/galera/libgalera_smm.so")

    def __init__(self, *, durable: bool = True) -> None:
        super().__init__(durable=durable)
        self.group_port, self.ist_port, self.sst_port = free_port(), free_port(), free_port()
        self.members: list[GaleraNode] = [self]
        self.founds = False

    def prepare(self) -> None:
        if not self.provider.exists() or shutil.which("rsync") is None:
            install("galera-4", "rsync")
        if not self.provider.exists():
            raise CannotHave("no libgalera_smm.so found")
        super().prepare()

    def command(self) -> list[str]:
        others = [node for node in self.members if node is not self]
        place = "" if self.founds else ",".join(f"127.0.0.1:{n.group_port}" for n in others)
        options = {
            "base_host": "127.0.0.1",
            "base_port": self.group_port,
            "gmcast.listen_addr": f"tcp://127.0.0.1:{self.group_port}",
            "ist.recv_addr": f"127.0.0.1:{self.ist_port}",
            "gcache.size": "32M",
        }
        return [
            *super().command(),
            "--binlog-format=ROW",
            "--innodb-autoinc-lock-mode=2",
            "--innodb-flush-log-at-trx-commit=1",
            "--wsrep-on=ON",
            "--loose-plugin-wsrep-provider=OFF",  # else its options are fixed at the start
            f"--wsrep-provider={self.provider}",
            "--wsrep-cluster-name=torture",
            f"--wsrep-cluster-address=gcomm://{place}",
            f"--wsrep-node-name=node{self.port}",
            "--wsrep-node-address=127.0.0.1",
            f"--wsrep-node-incoming-address=127.0.0.1:{self.port}",
            "--wsrep-sst-method=rsync",
            f"--wsrep-sst-receive-address=127.0.0.1:{self.sst_port}",
            "--wsrep-slave-threads=2",
            "--wsrep-provider-options=" + ";".join(f"{k}={v}" for k, v in options.items()),
        ]

    def answers(self) -> bool:
        """It is a member of the cluster, and has all that the others have."""
        return super().answers() and self.status("wsrep_local_state_comment") == "Synced"

    def tell(self, options: str) -> None:
        """Set wsrep_provider_options, for instance gmcast.isolate=1: no network to the others."""
        self.query(f"SET GLOBAL wsrep_provider_options = '{options}'")


N = TypeVar("N", bound=Any)
"""A node: a server with its `members`, and whether it `founds` the cluster."""


class Cluster(Generic[N]):
    """Three nodes on this machine. harms: what can happen to one."""

    harms = ("killed", "cut off", "paused")

    def __init__(self, nodes: list[N]) -> None:
        self.nodes = nodes
        for node in nodes:
            node.members = nodes

    def start(self) -> None:
        """Start all; raises CannotHave."""
        try:
            for node in self.nodes:
                node.prepare()
            self.nodes[0].founds = True
            for node in self.nodes:
                node.start()
            self.nodes[0].founds = False
        except BaseException:
            self.remove()
            raise

    def url(self, first: int = 0) -> str:
        """All nodes, this one first; without a database name."""
        turned = self.nodes[first:] + self.nodes[:first]
        hosts = "&".join(f"host=127.0.0.1:{node.port}" for node in turned)
        return f"mysql+pymysql://root@/?{hosts}"

    def first(self, url: str, place: int) -> str:
        """The same URL with the hosts in another order: who connects begins with this node."""
        for node, turned in zip(self.nodes, range(place, place + len(self.nodes)), strict=True):
            other = self.nodes[turned % len(self.nodes)]
            url = url.replace(f"127.0.0.1:{node.port}", f"<{other.port}>")
            url = url.replace(f"127.0.0.1%3A{node.port}", f"<{other.port}>")
        return url.replace("<", "127.0.0.1:").replace(">", "")

    def victim(self, chance: random.Random) -> N:
        """Which node is to be harmed."""
        return chance.choice(self.nodes)

    def cut_off(self, node: N, *, away: bool) -> None:
        """Take the network to the others from a node, or give it back."""
        raise NotImplementedError

    def is_back(self, node: N) -> bool:
        """It is one of all nodes, and has what they have."""
        raise NotImplementedError

    def harm(self, node: N, kind: str, seconds: float) -> None:
        """Kill a node, cut it off from the others or pause it; after so long it is back, with all
        that the others have."""
        assert node.process is not None
        if kind == "killed":
            node.kill()
            time.sleep(seconds)
            node.start()
        elif kind == "cut off":
            self.cut_off(node, away=True)
            time.sleep(seconds)
            self.cut_off(node, away=False)
        else:
            node.process.send_signal(signal.SIGSTOP)
            time.sleep(seconds)
            node.process.send_signal(signal.SIGCONT)
        deadline = time.monotonic() + START_SECONDS
        while not self.is_back(node):
            if time.monotonic() > deadline:
                node.kill()
                node.start()
                deadline = time.monotonic() + START_SECONDS
            time.sleep(0.2)

    def remove(self) -> None:
        for node in self.nodes:
            node.kill()
            node.remove()


class Galera(Cluster[GaleraNode]):
    def __init__(self, *, durable: bool = False, size: int = 3) -> None:
        super().__init__([GaleraNode(durable=durable) for _ in range(size)])

    def cut_off(self, node: GaleraNode, *, away: bool) -> None:
        node.tell(f"gmcast.isolate={int(away)}")

    def is_back(self, node: GaleraNode) -> bool:
        whole = node.status("wsrep_cluster_size") == str(len(self.nodes))
        return whole and node.answers()


class PgBouncer(Server):
    """In front of a PostgreSQL, for all of its databases. mode: session or transaction."""

    name = "pgbouncer"

    def __init__(self, behind: str, mode: str, *, size: int = 20, more: str = "") -> None:
        """behind: the URL of the server; size: how many sessions of it a database may have; more:
        further lines of the configuration."""
        from sqlalchemy.engine import make_url  # the servers themselves need nothing but Python

        super().__init__()
        self.behind, self.mode, self.size, self.more = make_url(behind), mode, size, more

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/"

    def prepare(self) -> None:
        path = os.environ.get("PATH", "") + os.pathsep + "/usr/sbin"
        if shutil.which("pgbouncer", path=path) is None:
            install("pgbouncer")
        found = shutil.which("pgbouncer", path=path)
        if found is None:
            raise CannotHave("no pgbouncer found")
        self.program = found
        self.user = unprivileged("postgres")
        (self.folder / "users.txt").write_text('"postgres" ""\n')
        (self.folder / "pgbouncer.ini").write_text(
            f"[databases]\n* = host={self.behind.host} port={self.behind.port}\n[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\n"
            f"auth_type = trust\nauth_file = {self.folder / 'users.txt'}\nauth_user = postgres\n"
            f"pool_mode = {self.mode}\ndefault_pool_size = {self.size}\nmax_client_conn = 500\n"
            f"admin_users = postgres\nlog_connections = 0\nlog_disconnections = 0\n{self.more}\n"
        )
        self.give_folder()

    def command(self) -> list[str]:
        return [self.program, str(self.folder / "pgbouncer.ini")]

    def answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False


class Redis(Server):
    """Without `durable` it keeps nothing over a restart: locks and their tokens are forgotten."""

    name = "redis"

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/"

    def prepare(self) -> None:
        if shutil.which("redis-server") is None:
            install("redis-server")
        self.user = unprivileged("redis")
        self.give_folder()

    def command(self) -> list[str]:
        keeps = ["--appendonly", "yes"] if self.durable else ["--save", ""]
        place = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        return ["redis-server", *place, *keeps]

    def answers(self) -> bool:
        return _says(self.port, b"PING\r\n", b"+PONG")


class ZooKeeper(Server):
    """A short tick, so that sessions may be as short as 0.4 s."""

    name = "zookeeper"
    jar = Path("/usr/share/java/zookeeper.jar")

    @property
    def url(self) -> str:
        return f"zookeeper://127.0.0.1:{self.port}"

    def prepare(self) -> None:
        if not self.jar.exists() or shutil.which("java") is None:
            install("zookeeper")
        if not self.jar.exists() or shutil.which("java") is None:
            raise CannotHave("no zookeeper.jar, or no java, found")
        self.user = unprivileged("zookeeper")
        (self.folder / "zoo.cfg").write_text(
            f"tickTime=200\ndataDir={self.folder}\nclientPort={self.port}\n"
            "clientPortAddress=127.0.0.1\nadmin.enableServer=false\nmaxClientCnxns=0\n"
            "maxSessionTimeout=60000\n4lw.commands.whitelist=ruok\n"
        )
        self.give_folder()

    def command(self) -> list[str]:
        options = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        if not self.durable:
            options.append("-Dzookeeper.forceSync=no")
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        return ["java", *options, "-cp", str(self.jar), main, str(self.folder / "zoo.cfg")]

    def answers(self) -> bool:
        return _says(self.port, b"ruok", b"imok")


def _says(port: int, asked: bytes, answer: bytes) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as s:
        s.settimeout(2)
        s.sendall(asked)
        return s.recv(len(answer)) == answer
    return False


KINDS: dict[str, type[Server]] = {"postgresql": PostgreSQL, "mariadb": MariaDB}
"""What nearly every test needs."""
CENTRES: dict[str, type[Server]] = {"redis": Redis, "zookeeper": ZooKeeper}
"""What few tests need besides: those of locks."""


def kind(name: str) -> type[Server]:
    """of KINDS or CENTRES; a MySQL in MariaDB's place where CHOSEN names one."""
    is_mysql = name == "mariadb" and "mysql-" in os.environ.get(CHOSEN, "")
    return MySQL if is_mysql else (KINDS | CENTRES)[name]


def start(name: str, *, durable: bool = True) -> Server:
    """A new, running server of this kind; raises CannotHave."""
    server = kind(name)(durable=durable)
    try:
        server.prepare()
        server.start()
    except BaseException:
        server.remove()
        raise
    return server


@contextlib.contextmanager
def running(server: S) -> Iterator[S]:
    """It runs meanwhile; raises CannotHave."""
    try:
        server.prepare()
        server.start()
        yield server
    finally:
        server.remove()


class Fleet:
    """The servers of one session, started when first asked for."""

    def __init__(self, *, durable: bool = True) -> None:
        self._durable = durable
        self._servers: dict[str, Server] = {}
        self._cluster: Galera | None = None
        self.missing: dict[str, str] = json.loads(os.environ.get(MISSING, "{}"))

    def url(self, name: str) -> str:
        """The base URL of a database server; raises CannotHave, and remembers why."""
        given = os.environ.get(VARIABLES.get(name, ""))
        if given:
            return given
        if name in self.missing:
            raise CannotHave(self.missing[name])
        if name not in self._servers:
            try:
                if name not in KINDS | CENTRES:
                    raise CannotHave(f"{VARIABLES[name]} is not set")
                self._servers[name] = start(name, durable=self._durable)
            except CannotHave as reason:
                self.missing[name] = str(reason)
                raise
        return self._servers[name].url

    def keep(self, server: Server) -> Server:
        """Start one of the test's own making, which is stopped with the others."""
        self._servers[f"{server.name}:{server.port}"] = server
        server.prepare()
        server.start()
        return server

    def cluster(self) -> Galera:
        """Three nodes of Galera; raises CannotHave."""
        if self._cluster is None:
            made = Galera(durable=self._durable)
            made.start()
            self._cluster = made
        return self._cluster

    def offer(self, *more: str) -> None:
        """Start everything, for processes that we start from now on. more: of CENTRES."""
        for name in (*KINDS, *more):
            with contextlib.suppress(CannotHave):
                os.environ[VARIABLES[name]] = self.url(name)
        os.environ[MISSING] = json.dumps(self.missing)

    def stop(self) -> None:
        for server in self._servers.values():
            server.remove()
        self._servers.clear()
        if self._cluster is not None:
            self._cluster.remove()
            self._cluster = None


@contextlib.contextmanager
def session(*, durable: bool = True) -> Iterator[Fleet]:
    fleet = Fleet(durable=durable)
    try:
        yield fleet
    finally:
        fleet.stop()


def up(names: Sequence[str]) -> int:
    """Start these servers, say where each is, and keep them until Ctrl-C. A name alone, such as
    "mariadb", is the one of this machine's system."""
    began: list[Server] = []
    try:
        for name in names:
            what = name.partition("-")[0]
            os.environ[CHOSEN] = name if "-" in name else ""
            try:
                server = start("mariadb" if what == "mysql" else what, durable=False)
            except CannotHave as reason:
                print(f"{name}: not to be had: {reason}", flush=True)
                continue
            began.append(server)
            print(f"{name}: {VARIABLES[server.name]}={server.url}", flush=True)
        print("Ctrl-C stops them and removes their data", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
        return 0 if began else 1
    finally:
        for server in began:
            server.remove()


def main() -> int:
    """`-- COMMAND`, or names of servers."""
    if "--" not in sys.argv:
        from tests import debian

        return up(sys.argv[1:] or ["postgresql", "mariadb", *debian.SERVERS])
    command = sys.argv[sys.argv.index("--") + 1 :]
    with session() as fleet:
        fleet.offer()
        for name, reason in fleet.missing.items():
            print(f"{name} is not there: {reason}", file=sys.stderr)
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
