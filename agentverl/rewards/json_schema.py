"""Answers that are JSON, checked by a JSON schema."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

import jsonschema
from pydantic import AfterValidator

from agentverl.rewards.code_blocks import last_block
from agentverl.rewards.process_pool import killable


def _validator(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        raise ValueError("no JSON schema: set `schema`, or give one in extra_info['schema'] or the ground truth")
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise ValueError(f"the schema is no JSON schema: {error.message}") from None
    return kind(schema)


def _checked(schema: Any) -> Any:
    _validator(schema)
    return schema


@killable(minimum_score=0.0)
def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any = None,
    extra_info: dict[str, Any] | None = None,
    *,
    final_message: str | None = None,
    schema: Annotated[Mapping[str, Any], AfterValidator(_checked)] | None = None,
    parsed_score: float = 0.0,
    **_: Any,
) -> dict[str, Any]:
    """1 where the final message is JSON that the schema accepts, `parsed_score` where it is other JSON, else 0.

    The last code block counts, else the whole message. The schema is `schema`, `extra_info["schema"]` or the ground
    truth, as a mapping or in JSON.

    Raises:
        ValueError: there is no schema, or it is none.
    """
    chosen = schema or (extra_info or {}).get("schema") or ground_truth
    validator = _validator(json.loads(chosen) if isinstance(chosen, str) else chosen)
    text = solution_str if final_message is None else final_message
    try:
        value = json.loads(last_block(text, ("json", "")) or text, parse_constant=_refused)
    except (ValueError, RecursionError):
        return {"score": 0.0, "acc": 0.0, "problem": "no JSON"}
    problem = next(iter(validator.iter_errors(value)), None)
    if problem is None:
        return {"score": 1.0, "acc": 1.0, "problem": ""}
    return {"score": parsed_score, "acc": 0.0, "problem": problem.message[:200]}


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
