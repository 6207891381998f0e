"""The configuration of a model folder: read, changed as the user asks, and asked how long a sequence may be."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PreTrainedConfig
from transformers.utils import logging

from agentverl.errors import BadInputError, ModelFolderError


@contextmanager
def without_warnings() -> Iterator[None]:
    """Keep transformers from warning of a folder that is then refused by one clear line."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


def load_config(
    folder: Path, override_config: Mapping[str, Any] | None = None, *, trust_remote_code: bool = False
) -> PreTrainedConfig:
    """The configuration in a model folder, with the entries of `model.override_config` in place of its own.

    Raises:
        ModelFolderError: there is no config.json, or transformers does not know the model.
        BadInputError: an entry that this kind of model does not have, or a value of another type.
    """
    if not (folder / "config.json").is_file():
        raise ModelFolderError(f"model folder {folder} has no config.json; expected a Hugging Face folder")
    try:
        with without_warnings():
            config: PreTrainedConfig = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except Exception as error:  # remote code may raise anything, and transformers raises several types
        reason = " ".join(str(error).split("\n\n")[0].split())
        raise ModelFolderError(f"{folder}/config.json cannot be used: {reason}") from error
    for name, value in (override_config or {}).items():
        if not hasattr(config, name):
            raise BadInputError(f"model.override_config: {config.model_type} has no entry {name!r}")
        try:
            setattr(config, name, value)
        except Exception as error:  # the configurations of transformers check types by errors of their own
            reason = " ".join(str(error).split())
            raise BadInputError(f"model.override_config.{name}={value!r}: {reason}") from error
    return config


def context_length(config: PreTrainedConfig) -> int | None:
    """Tokens of the longest sequence that a model was made for; None where its configuration names none."""
    text_config = config.get_text_config(decoder=True)
    positions = int(getattr(text_config, "max_position_embeddings", 0) or 0)
    rope = getattr(text_config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        # Beyond it the frequencies depend on the longest sequence of a batch, so answers would depend on their company.
        positions = min(positions, int(rope.get("original_max_position_embeddings", positions)))
    return positions or None
