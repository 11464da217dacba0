"""The dashboard and the JSON API: an ASGI application over `App.ops`. No SQL lives here.

In the order of a request:

serving      `msgworker web`: the options, checked, and uvicorn
connections  time limits for clients that send or read slowly
application  the options of `App.web`, the routes, the guards around them
guard        what every request passes: headers, hosts, bodies, who it is
writes       what a write has to show, and the fields of a form
access       who may see and who may act: this machine, tokens, a proxy, a callable
tokens       tokens, from a file or the environment; roles
sessions     the cookie of a browser, and the token of its forms
addresses    the peer of a request, proxies, loopback
elsewhere    a lock centre that is not the database
badges       the numbers beside the names of pages
badged       pages for which they are read
site         what routes work with: pages, reads in threads with a deadline
hardships    what goes wrong with reads: the answer, and a line on the Overview
environment  the templates and their filters
sharing      what those who ask for the same at the same time get together
pages        the pages, one file each
sections     parts of pages that are loaded anew, made once for all viewers
selecting    which messages a page shows or changes, as it stands in a URL
refused      what ops refuses or lacks, as a text of a page
jobs         writes that pages have asked for, in threads
api          the JSON API
live         one poller for all viewers, and the event stream that tells them
health       whether the process and its database work
scrape       metrics for Prometheus
charts       pictures as SVG, from numbers
shown        how values look: times, ages, numbers, payloads without their secrets

Templates and static files are in folders of those names. Nothing of this is imported by
`import msgworker`; it needs the extra `web`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgworker.errors import ConfigError

if TYPE_CHECKING:
    from msgworker.web.application import Dashboard

NEEDS = ("itsdangerous", "jinja2", "starlette")


def make(app: Any, **options: Any) -> Dashboard:
    """The dashboard of an App as an ASGI application; the options are those of `App.web`.

    Raises ConfigError, also if the extra `web` is not installed.
    """
    need(*NEEDS)
    from msgworker.web.application import dashboard

    return dashboard(app, **options)


def need(*modules: str) -> None:
    """Raise ConfigError that names the extra, if one of these cannot be imported."""
    from importlib.util import find_spec

    lacking = [name for name in modules if find_spec(name) is None]
    if lacking:
        raise ConfigError(f"the dashboard needs {', '.join(lacking)}: pip install 'msgworker[web]'")
