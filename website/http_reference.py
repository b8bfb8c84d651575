"""Write the reference of the HTTP routes from the OpenAPI document of the server."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import stillhash
from stillhash.server import create_app
from website.markdown import cell, table

PAGE = "reference/http.md"
TAG_TITLES = {
    "server": "Server",
    "collections": "Collections",
    "items": "Items",
    "search": "Search",
    "learning": "Learning",
}
Document = dict[str, Any]


def openapi_document() -> Document:
    """Return the OpenAPI document of a server with one empty collection."""
    with tempfile.TemporaryDirectory() as folder, stillhash.open(Path(folder) / "c", dim=4) as collection:
        return create_app({"c": collection}).openapi()


def pages() -> dict[str, str]:
    """Return the Markdown of the page by its path."""
    document = openapi_document()
    routes = [(method, path, route) for path, each in document["paths"].items() for method, route in each.items()]
    tags = list(dict.fromkeys(route["tags"][0] for _, _, route in routes))
    parts = [
        "# HTTP routes",
        "All routes of a server, from the OpenAPI document that it has at `/v1/openapi.json`. "
        "[Collections over HTTP](../http.md) has worked examples, keys, limits and streams. "
        "`{name}` is the name of the collection. *role* is the lowest "
        "[role of a key](../http.md#addresses-and-keys) that may send the request.",
        _overview(routes),
        "## Errors",
        "A request that fails has a status of this table, and a JSON body of the type [ErrorResponse](#errorresponse).",
        _errors(routes),
    ]
    for tag in tags:
        parts.append(f"## {TAG_TITLES.get(tag, tag.capitalize())}")
        for method, path, route in routes:
            if route["tags"][0] == tag:
                parts += _route(method, path, route, document)
    parts += _schemas(document)
    return {PAGE: "\n\n".join(parts) + "\n"}


def _title(method: str, path: str) -> str:
    return f"{method.upper()} {path}"


def _anchor(method: str, path: str) -> str:
    return "-".join([method, *(part.strip("{}") for part in path.strip("/").split("/"))])


def _overview(routes: list[tuple[str, str, Document]]) -> str:
    rows = [
        (f"[`{_title(method, path)}`](#{_anchor(method, path)})", route.get("x-role") or "", cell(_summary(route)))
        for method, path, route in routes
    ]
    return table(("route", "role", "what it does"), rows)


def _summary(route: Document) -> str:
    return str(route.get("description", "")).split("\n\n")[0]


def _errors(routes: list[tuple[str, str, Document]]) -> str:
    statuses = {
        status: each["description"]
        for _, _, route in routes
        for status, each in route["responses"].items()
        if status != "200"
    }
    return table(("status", "meaning"), [(status, cell(statuses[status])) for status in sorted(statuses)])


def _route(method: str, path: str, route: Document, document: Document) -> Iterator[str]:
    """Yield the section of a route, part by part."""
    label = f"{method.upper()} {path.removeprefix('/v1').removeprefix('/collections/{name}') or '/collections/{name}'}"
    yield f'### {_title(method, path)} {{ #{_anchor(method, path)} data-toc-label="{label}" }}'
    yield str(route.get("description", ""))
    yield f"Role: {route.get('x-role') or 'none, anyone may'}."
    parameters = [
        (f"`{each['name']}`", each["in"], _typed(each["schema"], each.get("required", False)))
        for each in route.get("parameters", [])
        if (each["in"], each["name"]) != ("path", "name")
    ]
    if parameters:
        yield table(("parameter", "in", "type"), parameters)
    for media, content in route.get("requestBody", {}).get("content", {}).items():
        yield f"Body, `{media}`:"
        yield _fields(content.get("schema", {}), document)
    for media, content in route["responses"]["200"].get("content", {}).items():
        yield f"Answer, `{media}`: {type_name(content.get('schema', {}))}"
    others = sorted(status for status in route["responses"] if status != "200")
    yield f"Errors: {', '.join(others)}."


def _fields(schema: Document, document: Document) -> str:
    """Return the fields of an object as a table, or what else the schema is in a sentence."""
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    if not schema.get("properties"):
        return str(schema.get("description") or type_name(schema))
    required = schema.get("required", [])
    rows = [
        (f"`{name}`", _typed(each, name in required), cell(str(each.get("description", ""))))
        for name, each in schema["properties"].items()
    ]
    return table(("field", "type", "meaning"), rows)


def _typed(schema: Document, required: bool) -> str:
    """Return the type of a field or parameter, with its default."""
    default = schema.get("default")
    if required or default is None:
        return type_name(schema) + (", required" if required else "")
    return f"{type_name(schema)}, default `{cell(json.dumps(default))}`"


def type_name(schema: Document) -> str:
    """Return the type of a value in words; a named type is a link to its fields."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    for union in ("anyOf", "oneOf"):
        if union in schema:
            names = [type_name(each) for each in schema[union] if each.get("type") != "null"]
            return " or ".join(dict.fromkeys(names))
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return " or ".join(f"`{each}`" for each in schema["enum"])
    match schema.get("type"):
        case "array":
            return f"list of ({type_name(schema.get('items', {}))})" if "items" in schema else "list"
        case "object" if isinstance(schema.get("additionalProperties"), dict):
            return f"object of ({type_name(schema['additionalProperties'])})"
        case "string":
            return {"binary": "bytes", "base64": "base64"}.get(str(schema.get("format")), "text")
        case str(kind):
            return kind
    return "any"


def _schemas(document: Document) -> Iterator[str]:
    yield "## Types"
    for name, schema in document["components"]["schemas"].items():
        yield f"### {name}"
        if schema.get("properties") and schema.get("description"):
            yield str(schema["description"])
        yield _fields(schema, document)
