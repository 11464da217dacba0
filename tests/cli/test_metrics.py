"""`msgworker run --metrics-port` and `drain --metrics-file`."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from msgworker import App
from tests import tools
from tests.support.programs import Cli, Program, children, environment, fill
from tests.support.waiting import until

ROOT = Path(__file__).parent.parent.parent
GRAFANA = ROOT / "samples" / "grafana"
METRICS = ROOT / "docs" / "operate" / "metrics.md"
TOKEN = "a-token-of-the-tests-1234"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def scrape(port: int) -> dict[str, float]:
    """The sums of all samples by name; none while the port is closed."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            body = answer.read().decode()
    except URLError:
        return {}
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(body):
        for one in family.samples:
            if one.labels.get("outcome", "done") == "done":
                found[one.name] = found.get(one.name, 0.0) + one.value
    return found


def asked(port: int, query: str) -> list[float]:
    """The values that Prometheus answers; none while it does not. Raises for a bad query."""
    try:
        url = f"http://127.0.0.1:{port}/api/v1/query?{urlencode({'query': query})}"
        with urlopen(url, timeout=10) as answer:
            found = json.load(answer)["data"]["result"]
    except HTTPError as error:
        if error.code < 500:
            raise
        return []
    except URLError:
        return []
    values = [float(one["value"][1]) for one in found]
    return [one for one in values if not math.isnan(one)]


@contextmanager
def running(start: Callable[..., Program], *args: object) -> Iterator[tuple[Program, int]]:
    port = free_port()
    child = start("run", "crm:app", "--metrics-port", port, *args)
    try:
        yield child, port
    finally:
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=60)


@pytest.mark.long
def test_a_child_that_is_killed_takes_no_count_along(
    app: App, start: Callable[..., Program]
) -> None:
    fill(app, 40)
    with running(start, "--processes", 2) as (parent, port):
        done = "msgworker_messages_total"
        until(lambda: scrape(port).get(done) == 40, "all are counted")
        assert scrape(port)["msgworker_handler_seconds_count"] == 40
        killed = set(children(parent))
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        until(lambda: killed.isdisjoint(children(parent)), "the children are gone")
        assert scrape(port)[done] == 40
        fill(app, 5)
        until(lambda: scrape(port).get(done) == 45, "others go on counting")


@pytest.mark.long
def test_children_leave_the_port_to_their_parent_wherever_it_is_set(
    app: App, start: Callable[..., Program]
) -> None:
    port = free_port()
    fill(app, 4)
    given = environment(MSGWORKER_METRICS_PORT=str(port))
    child = start("run", "crm:app", "--processes", 2, env=given)
    until(lambda: scrape(port).get("msgworker_messages_total") == 4, "all are counted")
    child.send_signal(signal.SIGTERM)
    assert "already in use" not in child.communicate(timeout=60)[1]


@pytest.mark.quick("1")
@pytest.mark.parametrize("processes", [1, 2])
def test_a_drain_writes_its_metrics_to_a_file(
    app: App, crm: Cli, tmp_path: Path, processes: int
) -> None:
    fill(app, 4)
    path = tmp_path / "crm.prom"
    found = crm("drain", "crm:app", "--metrics-file", path, "--processes", processes)
    assert found.exit_code == 0, found.stderr
    families = text_string_to_metric_families(path.read_text())
    samples = {one.name: one.value for family in families for one in family.samples}
    assert samples["msgworker_claims_won_total"] == 4
    assert samples["msgworker_database_up"] == 1
    assert os.listdir(tmp_path).count("crm.prom") == 1


def test_a_file_for_metrics_that_cannot_be_written_ends_a_drain_before_it_begins(
    app: App, crm: Cli, tmp_path: Path
) -> None:
    fill(app, 1)
    none = tmp_path / "none"
    for path, why in (
        (tmp_path, "it is a folder; name a file in it"),
        (none / "crm.prom", f"{none} is no folder to write to"),
    ):
        found = crm("drain", "crm:app", "--metrics-file", path)
        assert (found.exit_code, why in found.stderr.replace("\n", " ")) == (2, True)
    assert [one.status for one in app.ops.find()] == ["new"]


def test_a_port_that_is_taken_ends_a_run_with_2(app: App, crm: Cli) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        port = one.getsockname()[1]
        found = crm("run", "crm:app", "--metrics-port", port)
        assert (found.exit_code, f"127.0.0.1:{port}" in found.stderr) == (2, True)


@contextmanager
def scraping(prometheus: str, folder: Path, config: str) -> Iterator[int]:
    """A Prometheus with this configuration, which scrapes each second; its port."""
    (folder / "prometheus.yml").write_text(config.replace("15s", "1s"))
    port = free_port()
    server = subprocess.Popen(
        [
            prometheus,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield port
    finally:
        server.terminate()
        server.wait()


@pytest.mark.long
def test_prometheus_itself_scrapes_and_judges(
    app: App, start: Callable[..., Program], tmp_path: Path
) -> None:
    prometheus, promtool = tools.or_skip("prometheus", tools.prometheus)
    for what in (["rules", GRAFANA / "alerts.yml"], ["config", GRAFANA / "prometheus.yml"]):
        subprocess.run([promtool, "check", *what], check=True, capture_output=True)
    fill(app, 40)
    with running(start) as (_, port):
        until(lambda: scrape(port).get("msgworker_messages_total") == 40, "all are done")
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            linted = subprocess.run(
                [promtool, "check", "metrics"], input=answer.read(), capture_output=True
            )
        assert linted.returncode == 0, linted.stderr + linted.stdout
        config = (GRAFANA / "prometheus.yml").read_text().replace("9464", str(port))
        shutil.copy(GRAFANA / "alerts.yml", tmp_path)
        with scraping(prometheus, tmp_path, config) as ours:
            until(lambda: asked(ours, "sum(msgworker_messages_total)") == [40], "it is known")
            with urlopen(f"http://127.0.0.1:{ours}/api/v1/rules", timeout=10) as answer:
                assert b'"health":"err"' not in answer.read()
            board = json.loads((GRAFANA / "msgworker.json").read_text())
            shown = [one["expr"] for panel in board["panels"] for one in panel.get("targets", ())]

            def empty() -> list[str]:
                """The pictures of the dashboard without a value, while messages are done."""
                fill(app, 5)
                chosen = {"$__rate_interval": "10s", "$topic": ".*", "$instance": ".*"}
                queries = {one: one for one in shown}
                for name, given in chosen.items():
                    queries = {one: query.replace(name, given) for one, query in queries.items()}
                return [one for one, query in queries.items() if not asked(ours, query)]

            none = [one for one in shown if "msgworker_schedule" in one]  # there are no schedules
            until(lambda: empty() == none, "every picture has a value")


def documented(port: int, token: Path) -> str:
    """The job of the documentation that scrapes the dashboard."""
    blocks = re.findall(r"```yaml\n(.*?)```", METRICS.read_text(), re.S)
    (job,) = [block for block in blocks if "msgworker-web" in block]
    return job.replace("8080", str(port)).replace("/etc/prometheus/msgworker.token", str(token))


@pytest.mark.long
def test_prometheus_itself_scrapes_the_dashboard(
    app: App, start: Callable[..., Program], tmp_path: Path
) -> None:
    """With a token, as documented; without one it gets nothing."""
    prometheus, promtool = tools.or_skip("prometheus", tools.prometheus)
    fill(app, 40)
    token, port = tmp_path / "token", free_port()
    token.write_text(TOKEN)
    token.chmod(0o600)
    jobs = documented(port, token)
    stranger = "  - job_name: stranger\n    static_configs:\n"
    stranger += f'      - targets: ["127.0.0.1:{port}"]\n'
    config = f"global:\n  scrape_interval: 15s\nscrape_configs:\n{jobs}{stranger}"
    child = start("web", "crm:app", "--port", port, "--token-file", token)
    with scraping(prometheus, tmp_path, config) as ours:
        checked = [promtool, "check", "config", tmp_path / "prometheus.yml"]
        subprocess.run(checked, check=True, capture_output=True)
        until(lambda: asked(ours, 'up{job="msgworker-web"}') == [1], "it is scraped")
        assert asked(ours, "max(msgworker_database_up)") == [1]
        waiting = 'msgworker_table_messages{job="msgworker-web",topic="settle",status="new"}'
        assert asked(ours, waiting) == [40]
        until(lambda: asked(ours, 'up{job="stranger"}') == [0], "a stranger was refused")
        assert asked(ours, 'count({job="stranger",__name__=~"msgworker.*"})') == []
        given = Request(f"http://127.0.0.1:{port}/metrics")
        given.add_header("Authorization", f"Bearer {TOKEN}")
        with urlopen(given, timeout=10) as answer:
            linted = subprocess.run(
                [promtool, "check", "metrics"], input=answer.read(), capture_output=True
            )
        assert linted.returncode == 0, linted.stderr + linted.stdout
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=60)
