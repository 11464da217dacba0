"""The OpenAPI 3.1 document, made from the endpoints: `python -m msgworker.web.api` prints it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Required

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from msgworker import __version__
from msgworker.ops.results import Repaired
from msgworker.queries.messages import MessageInfo
from msgworker.store.audit import Edited
from msgworker.web.api.calling import Endpoint

REF = "#/components/schemas/{model}"
PROBLEM = {
    "type": "object",
    "description": "What went wrong and what to do, RFC 9457.",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "field": {"type": "string"},
                    "in": {"enum": ["query", "body", "header"]},
                    "problem": {"type": "string"},
                },
                "required": ["field", "in", "problem"],
            },
        },
    },
    "required": ["type", "title", "status", "detail"],
}
FAULTS = {
    "400": "A value cannot be used.",
    "401": "Who asks is not known.",
    "403": "The role does not suffice, or actions are not allowed.",
    "404": "There is no such thing.",
    "409": "A conflict, such as a selection that has changed.",
    "413": "The body is too long.",
    "415": "The body is not JSON.",
    "422": "Parameters or body are wrong; see errors.",
    "503": "The database cannot be used now, or is too slow.",
}


class SkipText(TypedDict):
    """A message that was skipped, and why."""

    msg_id: int
    why: str
    text: str


class Changed(TypedDict, total=False):
    """What a write did. finished: false while it still runs; /operations/{op_id} follows it. A
    replayed answer, and that of a write which still runs, has the numbers only."""

    kind: str
    op_id: Required[int | None]
    matched: Required[int]
    changed: Required[int]
    skipped: Required[int]
    finished: Required[bool]
    dry_run: bool
    why: dict[str, int]
    skips: list[SkipText]
    sample: list[MessageInfo]
    done_again: int
    stay_done: int
    requested: int
    complete: bool
    up_to: int | None
    holding: int
    changes: list[Edited]
    seen: str | None


def document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    parts = _Parts()
    paths: dict[str, dict[str, Any]] = {}
    for one in endpoints:
        path = re.sub(r":path}", "}", one.path)
        paths.setdefault(path, {})[one.method.lower()] = _operation(one, parts)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "msgworker",
            "version": __version__,
            "description": "What the dashboard shows and does, for programs.",
        },
        "servers": [{"url": "/api/v1"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(({"Problem": PROBLEM} | parts.schemas).items())),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


class _Parts:
    """Schemas by name, which the document refers to."""

    def __init__(self) -> None:
        self.schemas: dict[str, Any] = {}

    def of(self, kind: Any, mode: str) -> dict[str, Any]:
        """A schema; what it refers to becomes a part."""
        found: dict[str, Any] = TypeAdapter(kind).json_schema(
            mode=mode,  # type: ignore[arg-type]
            ref_template=REF,
        )
        self.schemas |= found.pop("$defs", {})
        name = getattr(kind, "__name__", None)
        if name is None or "$ref" in found:
            return found
        self.schemas[name] = found
        return {"$ref": REF.format(model=name)}


def _operation(one: Endpoint, parts: _Parts) -> dict[str, Any]:
    gives = Changed if one.gives is Repaired else one.gives
    answer = parts.of(gives, "serialization")
    if one.page:
        answer = {
            "type": "object",
            "properties": {
                "items": {"type": "array", "items": answer},
                "complete": {"type": "boolean"},
                "next": {"type": ["string", "null"]},
            },
            "required": ["items", "complete", "next"],
        }
    answers = {"200": _content("What was asked for.", answer)}
    if one.gives is Repaired:
        answers["202"] = _content("It still runs.", answer)
    problem = {"application/problem+json": {"schema": {"$ref": REF.format(model="Problem")}}}
    for status, text in FAULTS.items():
        answers[status] = {"description": text, "content": problem}
    found: dict[str, Any] = {
        "operationId": one.name,
        "tags": [one.tag or one.path.split("/")[1]],
        "summary": " ".join(one.says.split()),
        "description": f"Needs the role {one.role}.",
        "parameters": [*_in_path(one), *_in_query(one), *_in_header(one)],
        "responses": answers,
    }
    if one.body is not None:
        found["requestBody"] = {
            "required": bool(one.body.model_json_schema().get("required")),
            "content": {"application/json": {"schema": parts.of(one.body, "validation")}},
        }
    return found


def _content(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema}}}


NAMED = {
    "msg_id": "the id of a message",
    "job_id": "the id of a job",
    "op_id": "the number of an operation",
    "instance": "the id of an instance",
    "topic": "the name of a topic",
}
"""The parts of paths; `name` is of what the path begins with."""


def _in_path(one: Endpoint) -> Iterator[dict[str, Any]]:
    for name in re.findall(r"{(\w+)", one.path):
        schema: dict[str, Any] = {"type": "string", "minLength": 1}
        if name in ("msg_id", "op_id"):
            schema = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
        text = NAMED.get(name) or f"the name of a {one.path.split('/')[1].removesuffix('s')}"
        yield {"name": name, "in": "path", "required": True, "description": text, "schema": schema}


def _in_query(one: Endpoint) -> Iterator[dict[str, Any]]:
    schema = one.query.model_json_schema(mode="validation")
    for name, part in schema.get("properties", {}).items():
        if "anyOf" in part:  # None: the parameter is left out
            kept = [kind for kind in part.pop("anyOf") if kind != {"type": "null"}]
            part |= kept[0]
        if part.get("default", 0) is None:
            del part["default"]
        part.pop("title", None)
        yield {"name": name, "in": "query", "required": False, "schema": part}


def _in_header(one: Endpoint) -> Iterator[dict[str, Any]]:
    if one.write:
        yield {
            "name": "Idempotency-Key",
            "in": "header",
            "required": False,
            "description": "The same key again, with the same request, returns what the first one "
            "did.",
            "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
        }


def text(endpoints: Sequence[Endpoint]) -> str:
    """The document as docs/reference/openapi.json has it."""
    return json.dumps(document(endpoints), indent=1, sort_keys=True, ensure_ascii=True) + "\n"
