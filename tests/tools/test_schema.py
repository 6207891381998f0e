"""What a model is told about a function, and how its arguments are checked."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from agentverl.errors import PluginError, ToolError
from agentverl.tools.base import ToolContext
from agentverl.tools.schema import function_schema


def search(
    query: str, limit: Annotated[int, Field(ge=1, le=10)] = 5, title: str | None = None, kind: Literal["a", "b"] = "a"
) -> str:
    """Search the library.

    Looks everywhere.

    Args:
        query: what to look for
        limit: how many results
    """
    return query


def test_describes_types_defaults_and_descriptions() -> None:
    schema = function_schema(search, name="search")
    assert schema.description == "Search the library.\n\nLooks everywhere."
    assert schema.parameters["required"] == ["query"]
    assert schema.parameters["properties"] == {
        "query": {"type": "string", "description": "what to look for"},
        "limit": {"type": "integer", "description": "how many results", "default": 5, "minimum": 1, "maximum": 10},
        "title": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "kind": {"type": "string", "enum": ["a", "b"], "default": "a"},
    }


def test_coerces_and_leaves_defaults_to_the_function() -> None:
    schema = function_schema(search, name="search")
    assert schema.checked({"query": 12, "limit": "3"}) == {"query": "12", "limit": 3}
    assert schema.checked({"query": "x"}) == {"query": "x"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "argument 'query' is missing"),
        ({"query": "x", "limits": 3}, "'limits' is unknown .did you mean 'limit'"),
        ({"query": "x", "limit": "many"}, "argument 'limit': Input should be a valid integer"),
        ({"query": "x", "limit": 11}, "less than or equal to 10"),
        ({"query": ["x"]}, "argument 'query': Input should be a valid string"),
        (["x"], "must be a JSON object"),
        (None, "must be a JSON object"),
    ],
)
def test_tells_the_model_what_is_wrong(arguments: Any, said: str) -> None:
    with pytest.raises(ToolError, match=said) as caught:
        function_schema(search, name="search").checked(arguments)
    assert "It takes: query (string), limit (integer, optional)" in str(caught.value)


def test_parameters_may_have_names_that_pydantic_uses_itself() -> None:
    def odd(schema: str, copy: int, model_config: str = "x", title: str = "t") -> str:
        """Odd names."""
        return schema

    described = function_schema(odd, name="odd")
    assert list(described.parameters["properties"]) == ["schema", "copy", "model_config", "title"]
    assert described.checked({"schema": "s", "copy": "1"}) == {"schema": "s", "copy": 1}


def test_hides_the_context_parameter() -> None:
    def shell(command: str, context: ToolContext) -> str:
        """Run a command."""
        return command

    described = function_schema(shell, name="shell", context_type=ToolContext)
    assert described.context_parameter == "context"
    assert list(described.parameters["properties"]) == ["command"]


def _no_hint(x):  # type: ignore[no-untyped-def]  # the missing hint is what is tested
    """Doc."""


def _no_docstring(x: int) -> None:
    pass


def _star(*numbers: int) -> None:
    """Doc."""


def _stars(**numbers: int) -> None:
    """Doc."""


def _no_schema(x: object, y: type[int], z: Exception) -> None:
    """Doc."""


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (_no_hint, "parameter 'x' has no type hint"),
        (_no_docstring, "has no docstring"),
        (_star, "numbers: int' cannot be described"),
        (_stars, "numbers: int' cannot be described"),
        (_no_schema, "has no JSON schema"),
    ],
)
def test_refuses_at_registration_what_it_cannot_describe(function: Any, said: str) -> None:
    with pytest.raises(PluginError, match=said):
        function_schema(function, name="f")


def test_refuses_a_name_that_no_server_takes() -> None:
    with pytest.raises(PluginError, match="letters, digits"):
        function_schema(search, name="se arch")
