"""A model folder's configuration, the entries that a user puts in place of its own, and its longest sequence."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentverl.data.model_config import context_length, load_config
from agentverl.errors import BadInputError, ModelFolderError

QWEN2 = {"model_type": "qwen2", "hidden_size": 8, "num_hidden_layers": 1, "max_position_embeddings": 300}


def folder_with(path: Path, config: Any) -> Path:
    (path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return path


def test_entries_are_replaced_and_the_context_follows(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, QWEN2)
    assert context_length(load_config(folder)) == 300
    assert context_length(load_config(folder, {"max_position_embeddings": 40})) == 40


def test_models_that_name_no_longest_sequence_have_none(tmp_path: Path) -> None:
    config = load_config(folder_with(tmp_path, QWEN2), {"max_position_embeddings": 0})
    assert context_length(config) is None


def test_a_rope_that_is_stretched_later_ends_the_context_where_stretching_begins(tmp_path: Path) -> None:
    rope = {"rope_type": "longrope", "original_max_position_embeddings": 100, "short_factor": [1], "long_factor": [1]}
    config = load_config(folder_with(tmp_path, QWEN2))
    config.rope_parameters = rope
    assert context_length(config) == 100


def test_an_entry_that_the_model_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"model.override_config: qwen2 has no entry 'max_positions'"):
        load_config(folder_with(tmp_path, QWEN2), {"max_positions": 1})


def test_a_value_of_another_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"model.override_config.max_position_embeddings='long': "):
        load_config(folder_with(tmp_path, QWEN2), {"max_position_embeddings": "long"})


@pytest.mark.parametrize("config", ["{", {}, {"model_type": "qwen99"}], ids=["no JSON", "no type", "unknown type"])
def test_a_configuration_that_cannot_be_used_gives_one_line(tmp_path: Path, config: Any) -> None:
    with pytest.raises(ModelFolderError, match=r"config.json cannot be used: ") as raised:
        load_config(folder_with(tmp_path, config))
    assert "\n" not in str(raised.value)


def test_a_folder_without_configuration_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match=r"has no config\.json"):
        load_config(tmp_path)
