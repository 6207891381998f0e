"""Resolve `model.path` once: to a plain Hugging Face folder on this machine."""

import importlib.util
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from agentverl.data.gguf_conversion import convert_gguf
from agentverl.errors import ModelFolderError

_PACKAGE = "package://"
_SHIPPED = {"nano": "package://agentverl/data/nano", "package://agentverl/nano": "package://agentverl/data/nano"}
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_LFS = b"version https://git-lfs"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
_WANTED_FROM_HUB = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "*.py"]
_ACCEPTED = "a Hugging Face folder, a hub id such as Qwen/Qwen3-0.6B, a .gguf file, or nano"


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A plain folder with config.json, weights and tokenizer; `source` is what the user wrote."""

    path: Path
    source: str

    @property
    def eos_token_ids(self) -> list[int]:
        """The tokens that end a turn according to generation_config.json (or config.json); may be empty."""
        for name in ("generation_config.json", "config.json"):
            file = self.path / name
            found = _json(file).get("eos_token_id") if file.is_file() else None
            if found is not None:
                return [found] if isinstance(found, int) else list(found)
        return []


def resolve_model_path(path: str | Path) -> ModelFolder:
    """The folder behind a Hugging Face folder, a hub id, a `.gguf` file, `nano`, or `package://package/path`.

    A `.gguf` file is converted once into a cached folder; a hub id is downloaded once into Hugging Face's cache.

    Raises:
        ModelFolderError: nothing is there, or it lacks config, weights or tokenizer; says what is missing.
    """
    source = str(path)
    place = _SHIPPED.get(source, source)
    local = _in_package(place) if place.startswith(_PACKAGE) else Path(place).expanduser()
    if local.suffix == ".gguf":
        if not local.is_file():
            raise ModelFolderError(f"model.path names a .gguf file that does not exist: {local}")
        local = convert_gguf(local.resolve())
    elif local.is_file():
        raise ModelFolderError(f"model.path is {_ACCEPTED}; {source} is another kind of file")
    elif not local.is_dir():
        if not _HUB_ID.fullmatch(source):
            in_checkpoint = local.name == "huggingface" and local.parent.is_dir()
            hint = "; a run whose actor.checkpoint.save_contents has hf_model writes it" if in_checkpoint else ""
            raise ModelFolderError(f"model folder {source} does not exist{hint}; model.path is {_ACCEPTED}")
        local = _from_hub(source)
    _check(local)
    return ModelFolder(local.resolve(), source)


def _in_package(place: str) -> Path:
    package, _, inside = place.removeprefix(_PACKAGE).partition("/")
    # Looked for without importing it: a package that only brings a model may need others that are not installed.
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise ModelFolderError(f"{place} names the package {package!r}, which is not installed")
    found = Path(spec.submodule_search_locations[0]) / inside
    if not found.exists():
        raise ModelFolderError(f"package {package} has no {inside!r} (looked for {found})")
    return found


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=_WANTED_FROM_HUB))
    except Exception as error:  # offline, private, misspelt: the hub client has a dozen types for it
        lines = str(error).strip().splitlines() or [""]
        raise ModelFolderError(
            f"no folder {name} here, and the hub gave none: {type(error).__name__}: {lines[0]} Without network, "
            "download the model elsewhere and give its folder, or use model.path=nano"
        ) from error


def _check(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise ModelFolderError(f"{folder} has no config.json, so it is no model folder")
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = sorted(set(_json(index).get("weight_map", {}).values()))
        missing = [shard for shard in shards if not (folder / shard).is_file()]
        if missing:
            raise ModelFolderError(f"{folder} lacks {len(missing)} of {len(shards)} weight files, first {missing[0]}")
    elif not any(folder.glob("*.safetensors")) and not any(folder.glob("pytorch_model*.bin")):
        raise ModelFolderError(f"{folder} has no weights: expected model.safetensors")
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise ModelFolderError(f"{folder} has no tokenizer: expected tokenizer.json")
    for file in folder.glob("*.safetensors"):
        _check_weights(file)


def _check_weights(file: Path) -> None:
    """Read the header alone, which says how long the file has to be."""
    with file.open("rb") as stream:
        start = stream.read(len(_LFS))
    if start == _LFS:
        raise ModelFolderError(f"{file} is a pointer of Git LFS, not the weights; fetch them with `git lfs pull`")
    try:
        with safe_open(file, "numpy"):
            pass
    except SafetensorError as error:
        raise ModelFolderError(f"{file} is damaged or was not copied to its end: {error}") from error


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelFolderError(f"{file} is no valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelFolderError(f"{file} holds a {type(content).__name__}; expected a JSON object")
    return content
