"""What a worker saves beside its engine's state, and what it reads of it."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from agentverl.data.model_folder import resolve_model_path
from agentverl.data.tokenizers import load_tokenizer
from agentverl.engines.base import BaseEngine, Content
from agentverl.settings.critic import CriticCheckpointSettings
from agentverl.settings.engine import CheckpointSettings
from agentverl.settings.model import ModelSettings

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
)


def save(engine: BaseEngine, path: Path, settings: CheckpointSettings, model: ModelSettings) -> None:
    """Write what `save_contents` names into an existing folder."""
    contents: Sequence[Content] = settings.save_contents
    if "hf_model" in contents:
        export(engine, path, model)
    others = [content for content in contents if content != "hf_model"]
    engine.save_checkpoint(path, others, asynchronous=settings.async_save)


def load(engine: BaseEngine, path: Path, settings: CheckpointSettings | CriticCheckpointSettings) -> None:
    """Read what `load_contents` names."""
    contents: Sequence[Content] = settings.save_contents if settings.load_contents is None else settings.load_contents
    engine.load_checkpoint(path, [content for content in contents if content != "hf_model"])


def export(engine: BaseEngine, path: Path, model: ModelSettings) -> None:
    """Write the folder `huggingface` into `path`: the model with the tokenizer and template of the run."""
    engine.save_checkpoint(path, ["hf_model"])
    folder = path / "huggingface"
    source = resolve_model_path(model.tokenizer_path or str(model.path)).path
    for name in _TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    if model.custom_chat_template is not None:
        tokenizer = load_tokenizer(source, custom_chat_template=model.custom_chat_template)
        (folder / "chat_template.jinja").write_text(tokenizer.chat_template, encoding="utf-8")
