"""What all sections of the configuration share: no unknown keys, no lossy coercion, reading like a mapping."""

import types
from collections.abc import Iterator
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, StringConstraints, ValidationInfo, field_validator


def alternatives(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, seen through `Annotated`; any other annotation stands alone."""
    if get_origin(annotation) is Annotated:
        return alternatives(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(member for part in get_args(annotation) for member in alternatives(part))
    return (annotation,)


class Section(BaseModel):
    """One section of the configuration. Subclass it for a plugin's own settings too.

    `section.get("key", default)` and `section["key"]` work, because functions written for verl read settings so.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True, protected_namespaces=()
    )

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_bool_as_number(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool) and info.field_name is not None:
            kinds = alternatives(cls.model_fields[info.field_name].annotation)
            if bool not in kinds and (int in kinds or float in kinds):
                raise ValueError("a number, not true or false")
        return value

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or `default` where the section has no such key."""
        return getattr(self, key) if key in type(self).model_fields else default

    def __getitem__(self, key: str) -> Any:
        if key not in type(self).model_fields:
            raise KeyError(f"{type(self).__name__} has no key {key!r}; it has {', '.join(type(self).model_fields)}")
        return getattr(self, key)

    def __contains__(self, key: object) -> bool:
        return key in type(self).model_fields

    def keys(self) -> Iterator[str]:
        """The names of the section's keys."""
        return iter(type(self).model_fields)


Name = Annotated[str, StringConstraints(min_length=1)]
"""Text that may not be empty."""


def _as_list(value: Any) -> Any:
    if value is None:
        return []
    return [value] if isinstance(value, str) else value


Names = Annotated[list[str], BeforeValidator(_as_list)]
"""One string or a list of strings; always a list once read."""
