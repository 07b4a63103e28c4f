"""The OpenAPI description, made of the table that the routes are made of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import dpsql
from dpsql.frontends.server.application import Described
from dpsql.remote.wire import PROBLEM

_PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status", "error", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "error": {"type": "string", "description": "the type of the error, as in Python's dpsql.errors"},
        "detail": {"type": "string", "description": "what is wrong, and what to write instead"},
        "span": {"type": ["object", "null"], "description": "its place in the statement"},
        "hint": {"type": "string"},
        "refusals": {"type": "array", "items": {"type": "object"}, "description": "every reason, with its place"},
        "unit": {"type": "string"},
        "requested_rho": {"type": "number"},
        "remaining_rho": {"type": "number"},
        "requested_delta": {"type": "number"},
        "remaining_delta": {"type": "number"},
    },
}


def description(title: str, routes: Sequence[Described]) -> dict[str, Any]:
    """An OpenAPI 3.1 document."""
    paths: dict[str, Any] = {}
    for route in routes:
        methods = [route.method] + ["HEAD"] * (route.method == "GET")
        for method in methods:
            paths.setdefault(route.path, {})[method.lower()] = _operation(route, method)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": dpsql.__version__},
        "paths": paths,
        "components": {
            "schemas": {"Problem": _PROBLEM},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Described, method: str) -> dict[str, Any]:
    names = re.findall(r"{(\w+)}", route.path)
    path = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    query = [
        {"name": name, "in": "query", "description": text, "schema": {"type": "string"}}
        for name, text in route.parameters.items()
    ]
    operation: dict[str, Any] = {
        "summary": route.summary,
        "parameters": path + query,
        "responses": {str(status): _response(status, text, route, method) for status, text in route.statuses.items()},
        "security": [{"token": []}] if route.secured else [],
    }
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": dict(route.body)}}}
    return operation


def _response(status: int, text: str, route: Described, method: str) -> dict[str, Any]:
    if method == "HEAD" or status in (304, 416):
        return {"description": text}
    if status in (200, 206):
        return {"description": text, "content": {kind: {} for kind in route.produces}}
    if status < 400:
        return {"description": text, "content": {"application/json": {}}}
    return {"description": text, "content": {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
