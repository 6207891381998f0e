"""Make a rollout server by the name of its plugin."""

from pathlib import Path
from typing import Any

from agentverl import plugins
from agentverl.data.model_folder import resolve_model_path
from agentverl.data.tokenizers import load_tokenizer
from agentverl.errors import PluginError
from agentverl.rollout.replica import RolloutReplica
from agentverl.rollout.replica_spec import ReplicaSpec
from agentverl.settings.model import ModelSettings
from agentverl.settings.rollout import RolloutSettings


def replica_spec(
    model: ModelSettings, folder: Path, rollout: RolloutSettings, tokenizer: Any = None, **more: Any
) -> ReplicaSpec:
    """What a server is told; `more` are fields of ReplicaSpec that the configuration of rollouts does not hold."""
    return ReplicaSpec(
        model=folder,
        tokenizer=tokenizer or _tokenizer(model, folder),
        max_model_len=rollout.max_model_len,
        max_num_seqs=rollout.max_num_seqs,
        max_num_batched_tokens=rollout.max_num_batched_tokens,
        gpu_memory_utilization=rollout.gpu_memory_utilization,
        trust_remote_code=model.trust_remote_code,
        override_config=model.override_config,
        engine_kwargs=rollout.engine_kwargs.get(rollout.name, {}),
        **more,
    )


def make_replica(name: str, spec: ReplicaSpec) -> RolloutReplica:
    """The server of that name, which does not serve yet.

    Raises:
        PluginError: nothing has that name, or it cannot be made from a spec.
        BadInputError: the model or the limits cannot be served.
    """
    found = plugins.find("replicas", name)
    if not hasattr(found, "from_spec"):
        raise PluginError(
            f"rollout.name={name}: {found.__name__} has no from_spec, with which servers are made by name"
        )
    replica: RolloutReplica = found.from_spec(spec)
    return replica


def _tokenizer(model: ModelSettings, folder: Path) -> Any:
    return load_tokenizer(
        resolve_model_path(model.tokenizer_path).path if model.tokenizer_path else folder,
        custom_chat_template=model.custom_chat_template,
        trust_remote_code=model.trust_remote_code,
    )
