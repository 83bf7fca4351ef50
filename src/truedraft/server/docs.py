"""GET /docs and /openapi.json: the API's description, without any outside host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from truedraft.server.openapi import describe

router = APIRouter(include_in_schema=False)

_STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
code, .method { font-family: ui-monospace, monospace }
.method { font-weight: 700; text-transform: uppercase }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 1rem }
th, td { text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0; border-top: 1px solid #8884 }
section { border-top: 2px solid #8888; padding-top: .5rem; margin-top: 1.5rem }
"""


@router.get("/openapi.json")
async def openapi_json(request: Request) -> Response:
    """The OpenAPI document."""
    return JSONResponse(describe(request.app))


@router.get("/docs")
async def docs(request: Request) -> Response:
    """The same for people."""
    return HTMLResponse(render(describe(request.app)))


def render(document: Mapping[str, Any]) -> str:
    """OpenAPI document → one plain page: every operation with the fields of its body."""
    schemas = document.get("components", {}).get("schemas", {})
    sections = "".join(
        _operation(path, method, operation, schemas)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    )
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    about = escape(document["info"].get("description", ""))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>'
        f'<body><h1>{title}</h1><p>{about}</p><p>As a file: <a href="/openapi.json">openapi.json</a></p>'
        f"{sections}</body></html>"
    )


def _operation(path: str, method: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    content = operation.get("requestBody", {}).get("content", {})
    reference = content.get("application/json", {}).get("schema", {}).get("$ref", "")
    schema = schemas.get(reference.rpartition("/")[2])
    table = _table(schema, schemas) if schema else ""
    return (
        f'<section><h2><span class="method">{escape(method)}</span> <code>{escape(path)}</code></h2>'
        f"<p>{escape(operation.get('description', operation.get('summary', '')))}</p>{table}</section>"
    )


def _table(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    required = schema.get("required", ())
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code>{' (required)' if name in required else ''}</td>"
        f"<td>{escape(' or '.join(dict.fromkeys(_types(field, schemas))))}</td>"
        f"<td>{escape(field.get('description', ''))}</td></tr>"
        for name, field in schema.get("properties", {}).items()
    )
    return f"<table><tr><th>Field</th><th>Value</th><th></th></tr>{rows}</table>"


def _types(field: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[str]:
    """The kinds of value that a field takes, in words."""
    if "anyOf" in field:
        for branch in field["anyOf"]:
            yield from _types(branch, schemas)
    elif "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        fields = ", ".join(schemas.get(name, {}).get("properties", {}))
        yield f"object ({fields})"
    elif "enum" in field:
        yield from (repr(value) for value in field["enum"])
    elif "const" in field:
        yield repr(field["const"])
    elif field.get("type") == "array":
        yield "list of " + " or ".join(_types(field.get("items", {}), schemas))
    elif field.get("type") != "null":
        yield field.get("type", "anything")
