"""The reference of the HTTP API, from its OpenAPI description."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Schema = dict[str, Any]
#: The largest numbers of the types.
_LARGEST = {2**bits - 1 for bits in (16, 32, 64)}
_VERSION = re.compile(r"^/v\d+/")


def _anchor(schema: str) -> str:
    return f"schema-{schema.lower()}"


def cell(text: str) -> str:
    """Returns a text as one line that a cell of a table may contain."""
    return " ".join(text.split()).replace("|", "\\|")


def type_of(schema: Schema) -> str:
    """Returns the type of a value in MyST, with links to named schemas."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{_anchor(name)})"
    for kind, word in (("oneOf", " or "), ("anyOf", " or "), ("allOf", " and ")):
        if kind in schema:
            return word.join(dict.fromkeys(map(type_of, schema[kind])))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    types = schema.get("type", "any")
    names = [types] if isinstance(types, str) else types
    return " or ".join(_plain_type(name, schema) for name in names)


def _plain_type(name: str, schema: Schema) -> str:
    if name == "array":
        return f"array of {type_of(schema.get('items', {}))}"
    if name == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {type_of(schema['additionalProperties'])}"
    return name


def limits(schema: Schema) -> str:
    """Returns the bounds of a value, such as `1 to 1000`; empty if its type allows no others."""
    found = []
    low, high = schema.get("minimum", 0), schema.get("maximum")
    if high in _LARGEST:
        if low > 0:
            found.append(f"at least {low}")
    elif high is not None:
        found.append(f"{low} to {high}")
    for kind, unit in (("Length", "bytes"), ("Items", "items")):
        if f"max{kind}" in schema:
            found.append(f"at most {schema[f'max{kind}']} {unit}")
    return "; ".join(found)


def explanation(schema: Schema) -> str:
    """Returns the description, the bounds and the default of a value."""
    inner = [one for kind in ("oneOf", "anyOf", "allOf") for one in schema.get(kind, ()) if "$ref" in one]
    texts = [one["description"] for one in [schema, *inner] if one.get("description")]
    if bounds := limits(schema):
        texts.append(f"Range: {bounds}.")
    if "pattern" in schema:
        texts.append(f"Pattern: `{schema['pattern']}`.")
    if "default" in schema:
        texts.append(f"Default: `{json.dumps(schema['default'])}`.")
    return " ".join(texts)


def fields(schema: Schema) -> Iterator[str]:
    """Yields a table of the fields of an object, and a list of the forms of a value that has several."""
    if properties := schema.get("properties"):
        required = schema.get("required", ())
        yield "| field | type | required | description |\n|---|---|---|---|"
        for name, value in properties.items():
            is_required = "yes" if name in required else ""
            yield f"| `{name}` | {cell(type_of(value))} | {is_required} | {cell(explanation(value))} |"
        yield ""
    for number, form in enumerate(schema.get("oneOf", ()), 1):
        yield f"Form {number}: {explanation(form) or type_of(form)}\n"
        yield from fields(form)


def _schema(name: str, schema: Schema) -> Iterator[str]:
    yield f"({_anchor(name)})=\n### {name}\n"
    if text := explanation(schema):
        yield f"{text}\n"
    if "properties" not in schema and "oneOf" not in schema:
        yield f"Type: {type_of(schema)}\n"
    yield from fields(schema)


def _content(about: dict[str, Any]) -> str:
    content = about.get("content", {})
    parts = [
        type_of(body.get("schema", {})) if kind == "application/json" else f"`{kind}`" for kind, body in content.items()
    ]
    return " or ".join(parts)


def _operation(path: str, method: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"### `{method.upper()} {path}`\n"
    for text in (operation.get("summary"), operation.get("description")):
        if text:
            yield f"{text}\n"
    if not operation.get("security"):
        yield "Needs no token.\n"
    if parameters := operation.get("parameters"):
        yield "| parameter | in | type | required | description |\n|---|---|---|---|---|"
        for one in parameters:
            schema = {"description": one.get("description", ""), **one["schema"]}
            is_required = "yes" if one.get("required") else ""
            row = (f"`{one['name']}`", one["in"], type_of(schema), is_required, explanation(schema))
            yield f"| {' | '.join(map(cell, row))} |"
        yield ""
    if body := operation.get("requestBody"):
        yield f"Body: {_content(body)}.\n"
    statuses = [
        f"`{status}` with {content}" if (content := _content(response)) else f"`{status}`"
        for status, response in operation["responses"].items()
        if status != "default"
    ]
    yield f"Response: {' or '.join(statuses)}.\n"


def page(root: Path, file: str) -> str:
    """Returns the reference of the API in MyST: operations by the first segment of their path, then schemas."""
    description = json.loads((root / file).read_text())
    groups: dict[str, list[str]] = {}
    for path, methods in description["paths"].items():
        group = groups.setdefault(_VERSION.sub("", path).strip("/").partition("/")[0], [])
        for method, operation in methods.items():
            group += _operation(path, method, operation)
    lines = []
    for title, operations in sorted(groups.items()):
        lines += [f"## {title.capitalize()}\n", *operations]
    lines.append("## Schemas\n")
    for name, schema in description["components"]["schemas"].items():
        lines += _schema(name, schema)
    return "\n".join(lines)
