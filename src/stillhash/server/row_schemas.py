"""How rows, queries and weights are written in JSON. The collection validates the values."""

from typing import Annotated, Any

from pydantic import Field

_NUMBERS = {"type": "array", "items": {"type": "number"}}
_CODE = {"type": "string", "pattern": "^[0-9a-fA-F]+$"}
_ONE_QUERY = {"anyOf": [{"type": "number"}, _NUMBERS, _CODE]}
FeatureRows = Annotated[  # an array if the rows came raw
    Any,
    Field(
        description="Rows of numbers; of hexadecimal digits, where the collection has codes only.",
        json_schema_extra={"type": "array", "items": {"anyOf": [_NUMBERS, _CODE]}},
        examples=[[[0.1, 0.2, 0.3]]],
    ),
]
QueryVectors = Annotated[
    Any,
    Field(
        description="One query, or a list of queries; in hexadecimal digits, where the collection has codes only.",
        json_schema_extra={"anyOf": [{"type": "array", "items": _ONE_QUERY}, _CODE]},
        examples=[[0.1, 0.2, 0.3]],
    ),
]
OptionalQuery = Annotated[
    Any,
    Field(
        description="One query; in hexadecimal digits, where the collection has codes only. null: any.",
        json_schema_extra={"anyOf": [_NUMBERS, _CODE, {"type": "null"}]},
    ),
]
WeightVectors = Annotated[
    Any,
    Field(
        description="Weights of the bits, for one query or several, in place of queries.",
        json_schema_extra={"type": "array", "items": {"anyOf": [{"type": "number"}, _NUMBERS]}},
    ),
]
