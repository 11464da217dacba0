"""The worker processes of the demonstration, by name, in the order they were started."""

from __future__ import annotations

import signal
import subprocess
import sys
from types import TracebackType

STOP_SECONDS = 30.0


class Processes:
    """Starts, halts, kills and stops them; at the end of the block none is left."""

    def __init__(self, url: str, lease_seconds: float) -> None:
        self._url = url
        self._lease_seconds = lease_seconds
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._started = 0

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    @property
    def names(self) -> list[str]:
        return list(self._running)

    def oldest(self) -> str:
        return next(iter(self._running))

    def start(self) -> str:
        """Start one; returns its name, which is the label of its lease."""
        self._started += 1
        name = f"worker-{self._started}"
        command = [sys.executable, "-m", "msgworker.demo.worker"]
        command += [self._url, str(self._lease_seconds), name]
        # It stops when this pipe is closed, however we end.
        self._running[name] = subprocess.Popen(command, stdin=subprocess.PIPE)
        return name

    def halt(self, name: str) -> None:
        self._running[name].send_signal(signal.SIGSTOP)

    def go_on(self, name: str) -> None:
        self._running[name].send_signal(signal.SIGCONT)

    def kill(self, name: str) -> None:
        """SIGKILL."""
        self._running[name].kill()
        self._forget(name)

    def stop(self, name: str) -> int:
        """SIGTERM, and SIGKILL if that does not help; returns the exit code."""
        self._running[name].terminate()
        return self._forget(name)

    def ended(self) -> str:
        """Who ended by itself, with what exit code; empty if none did."""
        codes = {name: process.poll() for name, process in self._running.items()}
        return ", ".join(
            f"{name} (exit code {code})" for name, code in codes.items() if code is not None
        )

    def end(self) -> None:
        """Stop all that run, at once."""
        for name, process in self._running.items():
            process.terminate()
            self.go_on(name)  # a halted one would not hear
        for name in self.names:
            self._forget(name)

    def _forget(self, name: str) -> int:
        process = self._running[name]
        try:
            code = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        finally:
            if process.stdin is not None:
                process.stdin.close()
        del self._running[name]
        return code
