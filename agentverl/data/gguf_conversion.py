"""Turn a .gguf file into a plain Hugging Face folder, once; the folder is kept in the cache."""

import contextlib
import hashlib
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

from agentverl.errors import ModelFolderError

_logger = logging.getLogger(__name__)
_FORMAT = 1
"""Part of every key: raised when folders are made in another way."""
_SAMPLE_BYTES = 1 << 20

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_ONE_DIGIT_A_TOKEN = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"}
_DIGITS_IN_WORDS = {"qwen2": "", "llama-bpe": "{1,3}", "llama3": "{1,3}", "llama-v3": "{1,3}"}
_AS_GPT2 = {"", "default", "gpt-2", "mpt", "olmo", "jais"}


def cache_folder() -> Path:
    """Where agentverl keeps what it can make again: `AGENTVERL_CACHE`, else `~/.cache/agentverl`."""
    return Path(os.environ.get("AGENTVERL_CACHE") or "~/.cache/agentverl").expanduser()


def convert_gguf(file: Path) -> Path:
    """The plain folder of a .gguf file: float32 weights, tokenizer, chat template, generation configuration.

    The folder is complete or absent, also when several processes convert the same file at once.

    Raises:
        ModelFolderError: the file cannot be read, its architecture is not known, or the cache cannot be written.
    """
    target = cache_folder() / "gguf" / f"{file.stem}-{_key(file)}"
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise ModelFolderError(
            f"the cache {target.parent} cannot be written ({error.strerror}); set AGENTVERL_CACHE to a writable folder"
        ) from error
    try:
        _logger.warning("converting %s into %s, once", file, target)
        _write(file, scratch)
        with contextlib.suppress(OSError):  # another process was faster
            scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _key(file: Path) -> str:
    """Of size, time and samples of the content: reading gigabytes at every start would take too long."""
    status = file.stat()
    digest = hashlib.blake2b(repr((_FORMAT, status.st_size, status.st_mtime_ns)).encode(), digest_size=8)
    with file.open("rb") as stream:
        for place in (0, status.st_size // 2, max(0, status.st_size - _SAMPLE_BYTES)):
            stream.seek(place)
            digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _write(file: Path, folder: Path) -> None:
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise ModelFolderError(f"reading {file.name} needs the package gguf: pip install 'agentverl[gguf]'") from error
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source: dict[str, Any] = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    try:
        field = GGUFReader(str(file)).get_field("tokenizer.ggml.pre")
        splitting = str(field.contents()) if field is not None else ""
        tokenizer: Any = AutoTokenizer.from_pretrained(**source, local_files_only=True)
        model: Any = AutoModelForCausalLM.from_pretrained(**source, local_files_only=True, dtype=torch.float32)
    except Exception as error:  # whatever a damaged or unknown file makes the readers raise is the user's to read
        raise ModelFolderError(f"{file} cannot be converted: {type(error).__name__}: {error}") from error
    restore_splitting(tokenizer.backend_tokenizer, splitting)
    # The weights are plain tensors by now; only these two still say otherwise.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.config._name_or_path = ""
    tokenizer.save_pretrained(str(folder))
    model.save_pretrained(str(folder))


def restore_splitting(backend: Any, name: str) -> None:
    """Give a converted tokenizer the rules by which its model's own splits text before merging.

    transformers' conversion keeps GPT-2's rules for many models; `name` is what the file says (`tokenizer.ggml.pre`).
    The rules are those of llama.cpp (`llama-vocab.cpp`). A name that is not known gets a warning.
    """
    if not isinstance(backend.pre_tokenizer, ByteLevel) or name in _AS_GPT2:
        return
    bytes_after: PreTokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    if name in _ONE_DIGIT_A_TOKEN:
        backend.pre_tokenizer = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    elif name in _DIGITS_IN_WORDS:
        words = f"{_CONTRACTIONS}|{_WORDS % _DIGITS_IN_WORDS[name]}"
        backend.pre_tokenizer = Sequence([Split(Regex(words), "isolated"), bytes_after])
    else:
        _logger.warning(
            "the tokenizer rules %r of this .gguf file are not known; text may be split otherwise than in training. "
            "Prefer the model's Hugging Face folder",
            name,
        )
