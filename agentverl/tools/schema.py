"""The schema of a tool, and the check of its arguments, from a function's annotations and docstring."""

import difflib
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_type_hints

from docstring_parser import parse as parse_docstring
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from agentverl import plugins
from agentverl.errors import PluginError, ToolError


@dataclass(frozen=True, slots=True)
class FunctionSchema:
    """A function as a model may call it."""

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON schema of the arguments."""
    model: type[BaseModel]
    context_parameter: str | None = None
    """The parameter that is supplied by us and hidden from the model."""

    @property
    def openai(self) -> dict[str, Any]:
        """The schema in OpenAI's function form."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}

    def checked(self, arguments: Any) -> dict[str, Any]:
        """The arguments, coerced to the annotated types; those not given are left to the function's defaults.

        Raises:
            ToolError: an argument is missing, unknown or of the wrong type; the text is meant for the model.
        """
        try:
            instance = self.model.model_validate(arguments)
        except ValidationError as error:
            raise ToolError(self._explained(error)) from None
        fields = type(instance).model_fields
        return {str(fields[name].alias): getattr(instance, name) for name in instance.model_fields_set}

    def _explained(self, error: ValidationError) -> str:
        known = list(self.parameters["properties"])
        problems = []
        for detail in error.errors(include_url=False, include_input=False):
            path = ".".join(str(part) for part in detail["loc"])
            if detail["type"] == "missing":
                problems.append(f"argument {path!r} is missing")
            elif detail["type"] == "extra_forbidden" and len(detail["loc"]) == 1:
                nearest = difflib.get_close_matches(path, known, n=1, cutoff=0.5)
                problems.append(
                    f"argument {path!r} is unknown" + (f" (did you mean {nearest[0]!r}?)" if nearest else "")
                )
            elif path:
                problems.append(f"argument {path!r}: {detail['msg']}")
            else:
                problems.append("the arguments must be a JSON object")
        takes = ", ".join(_signature_line(name, part) for name, part in self.parameters["properties"].items())
        return f"invalid arguments for {self.name}: {'; '.join(problems)}. It takes: {takes or 'no arguments'}"


def function_schema(
    function: Callable[..., Any],
    *,
    name: str,
    description: str | None = None,
    bound: bool = False,
    context_type: type | None = None,
) -> FunctionSchema:
    """The schema of `function`; `bound` skips its first parameter (`self`), `description` stands in for a docstring.

    A parameter annotated `context_type` is left out of the schema and named in `context_parameter`.

    Raises:
        PluginError: a parameter without a type, `*args`, `**kwargs`, a type without a JSON schema, or no docstring.
    """
    where = f"tool {name!r} ({plugins.place_of(function)})"
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
        raise PluginError(f"{where}: the name may hold letters, digits, _ and -, at most 64 of them")
    # Not inspect.getdoc: a method without a docstring would get the base class's.
    docstring = parse_docstring(inspect.cleandoc(function.__doc__ or ""))
    text = (docstring.description or inspect.cleandoc(description or "")).strip()
    if not text:
        raise PluginError(f"{where} has no docstring; write one: it is what the model reads")
    descriptions = {part.arg_name: part.description for part in docstring.params}
    fields, context_parameter = _fields(function, where, descriptions, bound, context_type)
    try:
        model = create_model(
            name,
            __config__=ConfigDict(extra="forbid", coerce_numbers_to_str=True),
            **fields,
        )
        parameters = _without_titles(model.model_json_schema(by_alias=True))
    except Exception as error:  # pydantic raises several unrelated types for hints that it cannot describe
        first = str(error).splitlines()[0]
        raise PluginError(f"{where}: a parameter's type has no JSON schema: {first}") from error
    parameters = {"type": "object", "properties": {}, **parameters}
    for left_out in ("additionalProperties", "description"):
        parameters.pop(left_out, None)
    return FunctionSchema(name, text, parameters, model, context_parameter)


def _fields(
    function: Callable[..., Any],
    where: str,
    descriptions: dict[str, str | None],
    bound: bool,
    context_type: type | None,
) -> tuple[dict[str, Any], str | None]:
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise PluginError(f"{where}: a type hint does not resolve: {error}") from error
    fields: dict[str, Any] = {}
    context_parameter = None
    for parameter in list(inspect.signature(function).parameters.values())[1 if bound else 0 :]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise PluginError(f"{where}: parameter {str(parameter)!r} cannot be described; give each a name and a type")
        if parameter.name not in hints:
            raise PluginError(f"{where}: parameter {parameter.name!r} has no type hint, such as {parameter.name}: str")
        if context_type is not None and hints[parameter.name] is context_type:
            context_parameter = parameter.name
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        # Numbered names with aliases: a parameter may be called `schema` or `copy`, which a pydantic model has already.
        fields[f"argument_{len(fields)}"] = (
            hints[parameter.name],
            Field(default, alias=parameter.name, description=descriptions.get(parameter.name)),
        )
    return fields, context_parameter


def _without_titles(node: Any, names: bool = False) -> Any:
    """The schema without pydantic's titles, types first; `names`: the keys of `node` are names of the user's."""
    if isinstance(node, list):
        return [_without_titles(part) for part in node]
    if not isinstance(node, dict):
        return node
    return {
        key: _without_titles(value, names=not names and key in ("properties", "$defs"))
        for key, value in (node.items() if names else sorted(node.items(), key=lambda item: item[0] != "type"))
        if names or key != "title"
    }


def _signature_line(name: str, part: dict[str, Any]) -> str:
    kind = part.get("type") or "|".join(str(one.get("type", "object")) for one in part.get("anyOf", [])) or "object"
    return f"{name} ({kind}{', optional' if 'default' in part else ''})"
