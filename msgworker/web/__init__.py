"""The dashboard and the JSON API: an ASGI application over `App.ops`. No SQL lives here.

In the order of a request:

serving      `msgworker web`: the options, checked, uvicorn, and time limits for slow clients
application  the options of `App.web`, the routes, the guards around them; probes and metrics
guard        what every request passes: headers, hosts, bodies, authentication, and the proof that
             a write is of our own page
forms        fields of forms, and the messages that they choose
access       who may see and who may act: this machine, tokens and roles, a proxy, a callable; the
             cookie of a browser, the token of its forms
site         what routes work with: templates, reads, live sections, errors
threads      reads in threads with a deadline, which viewers share; writes that pages have asked for
pages        the pages, and the numbers beside their names
api          the JSON API
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
    need()
    from msgworker.web.application import dashboard

    return dashboard(app, **options)


def need(*modules: str) -> None:
    """Raise ConfigError that names the extra, if it cannot be imported, or one of `modules`."""
    from importlib.util import find_spec

    lacking = [name for name in (*NEEDS, *modules) if find_spec(name) is None]
    if lacking:
        raise ConfigError(f"the dashboard needs {', '.join(lacking)}: pip install 'msgworker[web]'")
