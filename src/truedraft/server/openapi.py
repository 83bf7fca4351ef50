"""The OpenAPI description, with bodies that the routes read themselves."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

_REF = "#/components/schemas/{model}"
_BODIES: dict[str, type[BaseModel]] = {}


def body_schema(model: type[BaseModel]) -> dict[str, Any]:
    """→ the `openapi_extra` of a route that reads a `model` from its body."""
    _BODIES[model.__name__] = model
    reference = {"$ref": _REF.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": reference}}}}


def describe(app: FastAPI) -> dict[str, Any]:
    """→ the OpenAPI document of `app`, the bodies' definitions included."""
    document = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for name, model in _BODIES.items():
        schema = model.model_json_schema(ref_template=_REF, by_alias=True)
        schemas.update(schema.pop("$defs", {}))
        schemas[name] = schema
    return document
