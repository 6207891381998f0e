"""Load the tokenizer of a model folder, with the chat template that the run uses."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from agentverl.data.model_config import without_warnings
from agentverl.errors import ModelFolderError

_IDS = 2**32
"""As many as there can be."""
_NO_CHARACTER = "\N{REPLACEMENT CHARACTER}"
_GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")


def load_tokenizer(
    folder: str | Path, *, custom_chat_template: str | None = None, trust_remote_code: bool = False
) -> Any:
    """A fast tokenizer with a chat template, from a plain Hugging Face folder.

    `custom_chat_template` replaces the folder's own: the template itself, or the path of a `.jinja` file.

    Raises:
        ModelFolderError: no tokenizer, one without a fast form, or no chat template.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ModelFolderError(f"model folder {folder} does not exist")
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise ModelFolderError(
            f"{folder} has no tokenizer: expected tokenizer.json (or tokenizer.model, or vocab.json with merges.txt)"
        )
    try:
        loader: Any = PreTrainedTokenizerFast if _reads_as_it_stands(folder) else AutoTokenizer
        with without_warnings():
            tokenizer: Any = loader.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=trust_remote_code
            )
    except Exception as error:  # whatever a broken folder makes transformers raise is the user's to read
        raise ModelFolderError(f"the tokenizer in {folder} does not load: {type(error).__name__}: {error}") from error
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise ModelFolderError(
            f"the tokenizer in {folder} has no fast form; a folder with tokenizer.json is what works"
        )
    if custom_chat_template is not None:
        tokenizer.chat_template = _template_text(custom_chat_template)
    if not tokenizer.chat_template:
        raise ModelFolderError(
            f"{folder} has no chat template (chat_template.jinja); give one with model.custom_chat_template"
        )
    if tokenizer.pad_token_id is None and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def text_of(tokenizer: Any, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
    """Token ids as text; one that no tokenizer could have is a replacement character."""
    try:
        return str(tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))
    except OverflowError:  # an agent loop made it up: its trajectory failed, but is shown like any other
        return "".join(
            str(tokenizer.decode([one], skip_special_tokens=skip_special_tokens)) if 0 <= one < _IDS else _NO_CHARACTER
            for one in ids
        )


def _reads_as_it_stands(folder: Path) -> bool:
    """Whether the folder asks for no class of its own.

    AutoTokenizer would choose one by the model's type all the same, which may split text otherwise than tokenizer.json
    says and add tokens.
    """
    file = folder / "tokenizer_config.json"
    if not file.is_file() or not (folder / "tokenizer.json").is_file():
        return False
    config = json.loads(file.read_text(encoding="utf-8"))
    return config.get("tokenizer_class") in _GENERIC and "auto_map" not in config


def _template_text(template: str) -> str:
    if "\n" in template or "{" in template or not template.endswith((".jinja", ".jinja2", ".j2")):
        return template
    path = Path(template).expanduser()
    if not path.is_file():
        raise ModelFolderError(f"model.custom_chat_template names a file that does not exist: {path}")
    return path.read_text(encoding="utf-8")
