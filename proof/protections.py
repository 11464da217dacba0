"""The mutants of SECURITY.md: each takes one protection of a rule out, or does what the rule forbids,
and names the one test that must turn red.

Every test that the rule names there is red with one of its mutants (`proof/test_mutants.py` compares
the two lists). They run with the others, see proof/mutants.py.
One file, because it is a table.
"""

# ruff: noqa: E501 - a table

from __future__ import annotations

from proof.mutations import Mutant

RULES: dict[str, tuple[Mutant, ...]] = {}


def _m(rule: str, name: str, file: str, old: str, new: str, test: str) -> None:
    RULES[rule] = (*RULES.get(rule, ()), Mutant(f"{rule} {name}", file, old, new, (test,)))


# ---------------------------------------------------------------- S1 escaping

_m(
    "S1",
    "a template calls a text safe",
    "web/templates/error.html",
    "{{ text | cut(2000) }}",
    "{{ text | safe }}",
    "test_templates_escape_all_and_have_nothing_inline",
)
_m(
    "S1",
    "nothing is escaped",
    "web/site.py",
    "autoescape=True,",
    "autoescape=False,",
    "test_no_text_becomes_an_element_or_an_attribute",
)
_m(
    "S1",
    "a style stands in a page",
    "web/templates/overview.html",
    "<h1>Overview</h1>",
    "<h1 style='margin:0'>Overview</h1>",
    "test_a_page_is_whole_and_has_nothing_inline",
)
_m(
    "S1",
    "the title of a picture is markup",
    "web/charts.py",
    """    ).format(title, about, Markup("").join(parts))


def _rounded""",
    """    ).format(Markup(title), about, Markup("").join(parts))


def _rounded""",
    "test_a_text_in_a_picture_stays_a_text",
)

# ---------------------------------------------------------------- S2 headers

_m(
    "S2",
    "a page may be framed",
    "web/guard.py",
    "frame-ancestors 'none'; ",
    "",
    "test_every_answer_of_the_dashboard_has_the_headers_that_confine_it",
)
_m(
    "S2",
    "an answer may be kept",
    "web/guard.py",
    '    "cache-control": "no-store",\n',
    "",
    "test_every_answer_of_the_dashboard_has_the_headers_that_confine_it",
)
_m(
    "S2",
    "a refusal has no headers",
    "web/guard.py",
    "                for name, value in HEADERS.items():",
    "                for name, value in HEADERS.items() if status < 400 else ():",
    "test_refusals_and_errors_have_the_headers_too",
)

# ---------------------------------------------------------------- S3 writes

_m(
    "S3",
    "a write may come from anywhere",
    "web/forms.py",
    "        if not comes_from_here(request):",
    "        if request is None:",
    "test_a_write_from_another_site_is_refused_although_it_has_the_token",
)
_m(
    "S3",
    "a site beside ours counts as ours",
    "web/forms.py",
    'return site == "same-origin"',
    'return site in ("same-origin", "same-site")',
    "test_a_write_from_another_site_is_refused_although_it_has_the_token",
)
_m(
    "S3",
    "the token of any session will do",
    "web/sessions.py",
    'return self._signer("form").verify_signature(session.sid, given)',
    "return len(given) == len(self.form_token(session))",
    "test_the_token_of_another_session_is_refused",
)
_m(
    "S3",
    "only a POST is guarded",
    "web/forms.py",
    'if scope["type"] == "http" and scope["method"] not in READING:',
    'if scope["type"] == "http" and scope["method"] == "POST":',
    "test_no_other_method_comes_past_the_guard",
)
_m(
    "S3",
    "a look does what it tells of",
    "web/pages/changing.py",
    "getattr(site.ops, act.ops)(name, **asked, dry_run=True)",
    'getattr(site.app.ops, act.ops)(name, **asked, reason="x")',
    "test_looking_never_writes",
)
_m(
    "S3",
    "basic needs no form",
    "web/access.py",
    'return self.by == "token"',
    'return self.by in ("token", "basic")',
    "test_one_with_basic_or_a_session_needs_it",
)
_m(
    "S3",
    "a session needs no form",
    "web/access.py",
    'return self.by == "token"',
    'return self.by in ("token", "session")',
    "test_one_with_basic_or_a_session_needs_it",
)

# ---------------------------------------------------------------- S4 bounds

_m(
    "S4",
    "a long body in parts is read",
    "web/guard.py",
    """        size += len(part)
        if size > MOST_BODY:
            return None
""",
    "",
    "test_a_body_is_read_up_to_its_limit_only",
)
_m(
    "S4",
    "the length of a body is believed",
    "web/guard.py",
    "if not length.isdecimal() or int(length) > MOST_BODY:",
    "if int(length) > MOST_BODY:",
    "test_a_body_is_read_up_to_its_limit_only",
)
_m(
    "S4",
    "a request waits without an end",
    "web/site.py",
    "found = await asyncio.wait_for(asked, limit + 1)",
    "found = await asyncio.wait_for(asked, None)",
    "test_a_read_that_is_too_slow_is_given_up",
)
_m(
    "S4",
    "reads have no deadline",
    "web/site.py",
    "return self.app.ops.within(self.settings.deadline)",
    "return self.app.ops",
    "test_the_database_ends_a_read_of_a_page_at_its_deadline",
)
_m(
    "S4",
    "any number of requests wait",
    "web/site.py",
    "        if self._waiting >= WAITING:",
    "        if self._waiting < 0:",
    "test_only_so_many_requests_wait_for_the_database",
)
_m(
    "S4",
    "any window",
    "web/pages/overview.py",
    """        raise HTTPException(400, f"window is one of {', '.join(WINDOWS)}")""",
    '        window = "1h"',
    "test_a_window_that_is_none_is_refused",
)
_m(
    "S4",
    "NUL in a query",
    "web/guard.py",
    'if "\\0" in scope["path"] or (not of_api and b"%00" in scope.get("query_string", b"")):',
    'if "\\0" in scope["path"]:',
    "test_a_value_with_nul_is_refused_before_the_database_sees_it",
)
_m(
    "S4",
    "NUL in a path",
    "web/guard.py",
    'if "\\0" in scope["path"] or (not of_api and b"%00" in scope.get("query_string", b"")):',
    'if not of_api and b"%00" in scope.get("query_string", b""):',
    "test_a_value_with_nul_is_refused_before_the_database_sees_it",
)
_m(
    "S4",
    "any text in a cursor",
    "store/bounded.py",
    'return "\\x00" in part or not is_text(part)',
    "return False",
    "test_a_cursor_of_an_attacker_is_refused",
)
_m(
    "S4",
    "a payload of any depth",
    "web/shown.py",
    "    except (ValueError, RecursionError):  # no JSON, or nested too deeply",
    "    except ValueError:",
    "test_a_payload_that_is_nested_deeply_breaks_no_page",
)
_m(
    "S4",
    "each who asks whether it is ready costs a read",
    "web/health.py",
    "await site.look(site.ops.probe)",
    "await site.ask(site.ops.probe)",
    "test_many_who_ask_whether_it_is_ready_ask_the_database_once",
)
_m(
    "S4",
    "no time for a head",
    "web/connections.py",
    "        self._hurry()\n        self._unfinished[self] = None\n",
    "        self._unfinished[self] = None\n",
    "test_a_head_that_does_not_come_whole_in_time_ends_the_connection",
)
_m(
    "S4",
    "each byte of a head buys time",
    "web/connections.py",
    "        if self._late is None:\n            self._late = self.loop",
    "        self._calm()\n        if self._late is None:\n            self._late = self.loop",
    "test_bytes_that_trickle_in_buy_no_time",
)
_m(
    "S4",
    "any number of unfinished requests",
    "web/connections.py",
    "        if len(self._unfinished) > MOST_UNFINISHED:",
    "        if len(self._unfinished) < 0:",
    "test_slow_clients_leave_room_for_others",
)
_m(
    "S4",
    "any number of idle connections",
    "web/connections.py",
    "        if len(self.connections) > min(MOST_CONNECTIONS, most) and self._idle:",
    "        if len(self.connections) < 0:",
    "test_idle_connections_leave_room_for_others",
)
_m(
    "S4",
    "an answer may stay unread",
    "web/connections.py",
    "self._unread = self.loop.call_later(UNREAD_SECONDS, self._end_unread)",
    "self._unread = None",
    "test_who_does_not_read_the_answer_is_left",
)

# ---------------------------------------------------------------- S5 closed by default

_m(
    "S5",
    "another address needs nothing",
    "web/serving.py",
    "    if isinstance(door, access.Local) and not access.is_loopback(host):",
    "    if door is None:",
    "test_another_address_without_authentication_is_refused",
)
_m(
    "S5",
    "every machine is this one",
    "web/access.py",
    "        if peer is None or not peer.is_loopback:",
    "        if peer is None:",
    "test_without_authentication_only_this_machine_is_admitted",
)
_m(
    "S5",
    "who has no address is of this machine",
    "web/access.py",
    "        if peer is None or not peer.is_loopback:",
    "        if peer is not None and not peer.is_loopback:",
    "test_without_authentication_only_this_machine_is_admitted",
)
_m(
    "S5",
    "clients of a proxy are local",
    "web/access.py",
    "        if old or any(map(_tells_of_a_proxy, request.headers)):",
    "        if old:",
    "test_a_proxy_on_this_machine_does_not_make_its_clients_local",
)
_m(
    "S5",
    "Via is no sign of a proxy",
    "web/access.py",
    '    "via",\n',
    "",
    "test_every_usual_sign_of_a_proxy_makes_a_client_no_local_one",
)
_m(
    "S5",
    "HTTP/1.0 is no sign of a proxy",
    "web/access.py",
    'old = request.scope.get("http_version") == "1.0"',
    "old = False",
    "test_a_client_of_http_1_0_is_a_proxy",
)
_m(
    "S5",
    "viewers act without actions",
    "web/guard.py",
    "        if viewer is not None and not self._actions:",
    "        if viewer is not None and self._actions is None:",
    "test_without_actions_every_viewer_only_looks",
)

_m(
    "S5",
    "who is not admitted learns the place",
    "web/templates/base.html",
    """  {% if viewer %}
  <span>Server time {{ now | instant }}</span>
  <span>All times are <span data-zone>in UTC</span></span>
  <span>{{ site.place }}</span>
""",
    """  <span>{{ site.place }}</span>
  {% if viewer %}
  <span>Server time {{ now | instant }}</span>
  <span>All times are <span data-zone>in UTC</span></span>
""",
    "test_who_is_not_admitted_learns_no_place_and_no_version",
)

# ---------------------------------------------------------------- S6 tokens

_m(
    "S6",
    "a token file for the group",
    "web/sessions.py",
    "found.st_mode & 0o077",
    "found.st_mode & 0o007",
    "test_a_token_file_is_for_its_owner_only",
)
_m(
    "S6",
    "tokens are compared up to the first difference",
    "web/access.py",
    'if hmac.compare_digest(given, entry.token.encode("utf-8")):',
    'if given == entry.token.encode("utf-8"):',
    "test_every_token_is_compared_in_constant_time",
)
_m(
    "S6",
    "a token in the URL",
    "web/access.py",
    '        if scheme.lower() == "bearer":',
    """        if request.query_params.get("token"):
            return self.viewer(request.query_params["token"], "token")
        if scheme.lower() == "bearer":""",
    "test_a_token_in_the_url_is_no_token",
)

# ---------------------------------------------------------------- S7 names

_m(
    "S7",
    "a look is answered under any name",
    "web/guard.py",
    "if len(given) != 1 or given[0].lower() not in self._allowed | _own(scope):",
    'if scope["method"] != "GET" and given[0].lower() not in self._allowed | _own(scope):',
    "test_a_request_to_another_name_is_refused_also_a_look",
)
_m(
    "S7",
    "everyone is a trusted proxy",
    "web/guard.py",
    "        if is_of(self._proxies, request):",
    "        if request.client:",
    "test_forwarded_headers_count_from_a_trusted_proxy_only",
)

# ---------------------------------------------------------------- S8 the audit

_m(
    "S8",
    "a write of a page has no reason",
    "web/pages/changing.py",
    "**asked, reason=reason, rate=rate",
    "**asked, reason=None if change.kind == 'rerun' else reason, rate=rate",
    "test_a_rerun_tells_counts_and_skips_first_and_then_does_what_it_told",
)
_m(
    "S8",
    "it is not recorded what a message was",
    "store/audit.py",
    'status = sa.func.coalesce(c.status, sa.literal_column("99"))',
    'status = sa.literal_column("0")',
    "test_every_change_is_in_the_audit",
)

# ---------------------------------------------------------------- S9 what is shown

_m(
    "S9",
    "redact of one key only",
    "web/shown.py",
    'return [path[1:]] if path[0] in ("*", key) else []',
    "return [path[1:]] if path[0] == key else []",
    "test_a_payload_is_shown_without_what_redact_names",
)
_m(
    "S9",
    "what a callable fails on is shown",
    "web/shown.py",
    "                return HIDDEN\n",
    "                return value\n",
    "test_what_a_callable_fails_on_is_hidden_whole",
)
_m(
    "S9",
    "texts that are JSON are shown whole",
    "web/shown.py",
    "    if isinstance(value, str) and paths:\n",
    "    if value is paths:\n",
    "test_what_is_hidden_is_hidden_in_texts_that_are_json_too",
)
_m(
    "S9",
    "what is odd of a payload is shown",
    "queries/messages.py",
    'held = "a text" if role == "payload" else quoted(value)',
    "held = quoted(value)",
    "test_a_payload_of_odd_bytes_is_shown_on_request_only",
)
_m(
    "S9",
    "texts turn the line",
    "web/shown.py",
    'return "".join(map(_seen, text[:most])) + rest',
    "return text[:most] + rest",
    "test_a_text_is_cut_and_cannot_turn_the_line",
)
_m(
    "S9",
    "passwords of URLs are shown",
    "payload.py",
    '        text = _LONE_KEY.sub("***@", _USER_PASSWORD.sub(r"\\1:***@", text))\n',
    "        pass\n",
    "test_what_looks_like_a_secret_in_a_url_is_not_shown",
)
_m(
    "S9",
    "keys of URLs are shown",
    "payload.py",
    'return _QUERY.sub(r"\\1***", text) if "=" in text else text',
    "return text",
    "test_what_looks_like_a_secret_in_a_url_is_not_shown",
)
_m(
    "S9",
    "a cell is a formula",
    "web/pages/messages.py",
    'FORMULA = "=+-@"',
    'FORMULA = "=+-"',
    "test_no_cell_is_a_formula",
)

# ---------------------------------------------------------------- S10 code

_m(
    "S10",
    "payloads are unpickled",
    "payload.py",
    '            raw = bytes(raw).decode("utf-8")\n',
    """            import pickle

            raw = str(pickle.loads(bytes(raw)))
""",
    "test_pickles_are_never_unpickled",
)
_m(
    "S10",
    "something is evaluated",
    "web/shown.py",
    "    left = int(seconds)\n",
    '    left = int(eval("seconds"))\n',
    "test_nothing_is_unpickled_evaluated_or_run_by_a_shell",
)
_m(
    "S10",
    "code is imported by a name that was read",
    "schedules.py",
    "KEYS = (",
    """def named(name: str) -> Any:
    import importlib

    return importlib.import_module(name)


KEYS = (""",
    "test_code_is_imported_by_names_of_the_configuration_only",
)

# ---------------------------------------------------------------- S11, S12 SQL

_m(
    "S11",
    "a value in a statement",
    "store/pauses.py",
    "    return bool(conn.execute(sa.delete(PAUSE.of(t)).where(*where)).rowcount)",
    """    text = f"DELETE FROM msgworker_pause WHERE topic = '{topic}'"
    return bool(where and conn.exec_driver_sql(text).rowcount)""",
    "test_only_statements_about_tables_are_texts_that_are_put_together",
)
_m(
    "S11",
    "a name without quotes",
    "db/postgresql.py",
    "{conn.dialect.identifier_preparer.quote(channel)}",
    "{channel}",
    "test_no_value_stands_in_a_text_of_sql",
)
_m(
    "S12",
    "an Engine of ours shows parameters",
    "db/engine.py",
    """        engine = engine.execution_options(**options)
        engine.hide_parameters = True
""",
    """        engine = engine.execution_options(**options)
        engine.hide_parameters = False
""",
    "test_an_error_of_the_database_shows_no_parameters",
)
_m(
    "S12",
    "the Engine beside ours shows parameters",
    "db/engine.py",
    '{"hide_parameters": True, "pool_size": 0}',
    '{"hide_parameters": False, "pool_size": 0}',
    "test_an_error_of_the_database_shows_no_parameters",
)

# ---------------------------------------------------------------- S13 secrets

_m(
    "S13",
    "the password of the URL is shown",
    "db/errors.py",
    "render_as_string(hide_password=True)",
    "render_as_string(hide_password=False)",
    "test_the_password_of_the_database_is_on_no_page",
)
_m(
    "S13",
    "the query of the URL is shown",
    "db/errors.py",
    'value if HARMLESS.fullmatch(key) else "***"',
    "value",
    "test_the_password_of_the_database_is_on_no_page",
)
_m(
    "S13",
    "pages show secrets of the URL",
    "web/site.py",
    "return db.without(text, self.secrets)",
    "return text",
    "test_a_secret_is_nowhere_but_in_the_payload_that_was_asked_for",
)
_m(
    "S13",
    "a page shows the secrets of URLs in payloads",
    "web/templates/message.html",
    "{{ payload | scrub }}",
    "{{ payload }}",
    "test_no_page_shows_a_secret",
)
_m(
    "S13",
    "an answer shows the secrets of URLs in payloads",
    "web/api/calling.py",
    "rows = [plain(one, site.without) for one in found.rows]",
    "rows = [plain(one) for one in found.rows]",
    "test_no_answer_shows_a_secret",
)
_m(
    "S13",
    "reasons are shown as they are",
    "payload.py",
    '    if "://" in text:\n        text = _LONE_KEY',
    '    if "://" in text:\n        return text\n        text = _LONE_KEY',
    "test_no_write_says_a_secret_again",
)
_m(
    "S13",
    "the words of doctor are shown as they are",
    "web/templates/system.html",
    '<td class="text" data-label="what was found">{{ one.text | scrub | cut(2000) }}',
    '<td class="text" data-label="what was found">{{ one.text | cut(2000) }}',
    "test_what_doctor_says_is_shown_without_secrets",
)
_m(
    "S13",
    "commands show secrets of other URLs",
    "payload.py",
    '    if "://" in text:\n        text = _LONE_KEY',
    '    if "://" in text:\n        return text\n        text = _LONE_KEY',
    "test_no_command_shows_a_secret",
)
_m(
    "S13",
    "reasons are kept as they are",
    "ops/call.py",
    "clean(without_url_secrets(reason), MAX_REASON)",
    "clean(reason, MAX_REASON)",
    "test_what_is_kept_of_an_error_has_no_secret",
)
_m(
    "S13",
    "the span of a send that is refused has the error",
    "tracing.py",
    'self._tracer.failed(self._span, kind_of(error), "not sent")',
    'self._tracer.failed(self._span, kind_of(error), f"not sent: {error.params}")  # type: ignore',
    "test_no_span_has_a_secret",
)
_m(
    "S13",
    "log lines keep the secrets of URLs",
    "logs.py",
    "            safe = without_url_secrets(text)",
    "            safe = text",
    "test_the_log_of_the_library_shows_no_password_of_a_url",
)

# ---------------------------------------------------------------- S14 the log

_m(
    "S14",
    "the query of a URL is logged",
    "web/guard.py",
    '        scope["path"],  # without its query, which may hold what was searched for',
    "        str(Request(scope).url),",
    "test_each_write_is_one_line_of_the_log_with_who_and_without_its_query",
)
_m(
    "S14",
    "a path is logged as it is",
    "logs.py",
    "                record.msg, record.args = shown(safe, MOST), None",
    "                record.msg, record.args = safe, None",
    "test_a_path_fakes_no_line_of_the_log",
)

# ---------------------------------------------------------------- S15 Redis

_m(
    "S15",
    "a script asks for all keys",
    "coordination/redis.py",
    "return redis.call('ZRANGE', KEYS[1], 0, -1)",
    "return redis.call('KEYS', '*')",
    "test_redis_is_asked_by_fixed_scripts_and_never_for_all_its_keys",
)
_m(
    "S15",
    "Redis is asked without TLS",
    "coordination/redis.py",
    "client = redis.Redis.from_url(url, **limits)",
    'client = redis.Redis.from_url(url.replace("rediss:", "redis:"), **limits)',
    "test_redis_is_reached_with_tls_and_a_login_if_its_url_says_so",
)

# ---------------------------------------------------------------- S16 rights

_m(
    "S16",
    "a page writes",
    "web/pages/overview.py",
    "        found, history, timings = await",
    '        await site.ask(site.app.ops.pause, "x")\n        found, history, timings = await',
    "test_a_dashboard_needs_no_more_rights_than_a_looker_and_says_what_a_write_lacks[postgresql]",
)
_m(
    "S16",
    "the page forgets a right",
    "../docs/operate/rights.md",
    "GRANT SELECT, INSERT, UPDATE, DELETE ON public.msgworker_lease, public.msgworker_item, public.msgworker_try TO crm_worker;",
    "GRANT SELECT, INSERT, UPDATE, DELETE ON public.msgworker_lease, public.msgworker_item TO crm_worker;",
    "test_each_role_of_the_page_does_its_work[postgresql]",
)

# ---------------------------------------------------------------- S17 files, shells

_m(
    "S17",
    "a file for all",
    "db/sqlite.py",
    "os.O_RDWR, 0o600)",
    "os.O_RDWR, 0o644)",
    "test_a_file_that_we_create_is_its_owners_alone",
)
_m(
    "S17",
    "a shell is run",
    "web/__init__.py",
    'NEEDS = ("itsdangerous", "jinja2", "starlette")\n',
    """NEEDS = ("itsdangerous", "jinja2", "starlette")


def run(text: str) -> Any:
    import subprocess

    return subprocess.run(text, shell=True)
""",
    "test_nothing_is_unpickled_evaluated_or_run_by_a_shell",
)

# ---------------------------------------------------------------- S18 writes are bounded

_m(
    "S18",
    "any number of writes at once",
    "web/jobs.py",
    "            if running >= MOST_RUNNING:",
    "            if running < 0:",
    "test_no_more_than_a_few_writes_run_at_once_and_a_stop_ends_them",
)
_m(
    "S18",
    "a page does not say what it has counted",
    "web/pages/changing.py",
    'found = {"expected_count": whole(form, "expected_count", 0, 0, 2**62)}',
    "found = {}",
    "test_a_selection_that_has_changed_since_it_was_counted_is_not_changed",
)
_m(
    "S18",
    "all messages are a selection",
    "web/pages/changing.py",
    "    if not chosen.query:",
    "    if chosen is None:",
    "test_a_change_of_all_messages_is_not_offered",
)
_m(
    "S18",
    "as fast as it can",
    "ops/operation.py",
    "        if self._rate is not None:\n            now",
    "        if self._rate == 0:\n            now",
    "test_the_rate_is_kept[sqlite]",
)

# ---------------------------------------------------------------- S19 what is installed

_m(
    "S4",
    "a head of any size at once",
    "web/connections.py",
    "PART = 8192",
    "PART = 2**30",
    "test_a_head_that_arrives_at_once_is_bounded_as_one_in_parts",
)
_m(
    "S4",
    "as many connections as files",
    "web/connections.py",
    "        elif len(self.connections) > most:",
    "        elif len(self.connections) < 0:",
    "test_who_does_not_read_leaves_room_for_others_where_few_files_may_be_open",
)
_m(
    "S4",
    "a database may hang",
    "web/threads.py",
    "                attempt.cut()\n",
    "                pass\n",
    "test_a_dashboard_works_again_as_soon_as_its_database_does",
)
_m(
    "S4",
    "a thread for each scrape",
    "metrics/exposition.py",
    "if len(self._open) >= MOST_SCRAPES:",
    "if len(self._open) < 0:",
    "test_slow_clients_of_the_metrics_take_no_thread_each",
)
_m(
    "S7",
    "any name for all",
    "web/guard.py",
    "        if self._is_of_a_program(request):",
    "        if True:",
    "test_probes_and_programs_with_a_token_need_no_name",
)
_m(
    "S7",
    "metrics for any name",
    "metrics/exposition.py",
    'elif local and not _is_known(self.headers.get("Host", "")):',
    "elif False:",
    "test_metrics_of_this_machine_are_for_its_own_names",
)
_m(
    "S8",
    "the proxy is who asks",
    "web/access.py",
    '    return named or (request.client.host if request.client else "?")',
    '    return request.client.host if request.client else "?"',
    "test_the_client_behind_a_trusted_proxy_is_who_asks_and_its_cookie_is_for_tls",
)
_m(
    "S19",
    "one package more",
    "../pyproject.toml",
    'web = ["h11',
    'web = ["requests", "h11',
    "test_few_packages_are_needed_and_nothing_runs_when_they_are_installed",
)
_m(
    "S19",
    "a file of others is changed",
    "web/static/htmx.min.js",
    "var htmx=",
    "var  htmx=",
    "test_files_of_others_are_as_they_were_published",
)

PROTECTIONS = tuple(mutant for found in RULES.values() for mutant in found)
