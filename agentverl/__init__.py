"""agentverl trains language models that act; the public names are loaded when they are first used."""

import importlib
from typing import Any

_LAZY = {
    "DataProto": "agentverl.protocol.data_proto",
    "AgentLoopBase": "agentverl.agent_loops.base",
    "AgentLoopOutput": "agentverl.trajectory",
    "Tool": "agentverl.tools.base",
    "ToolResponse": "agentverl.messages",
    "Environment": "agentverl.environments.base",
    "Sandbox": "agentverl.sandboxes.base",
    "PPOTrainer": "agentverl.trainer.ppo",
    "RayPPOTrainer": "agentverl.trainer.ppo:PPOTrainer",
    "ResourcePoolManager": "agentverl.single_controller.pools",
    "RayWorkerGroup": "agentverl.single_controller.ray_group",
    "ActorRolloutRefWorker": "agentverl.workers.actor_rollout_ref",
    "RolloutReplica": "agentverl.rollout.replica",
}

__all__ = list(_LAZY)


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'agentverl' has no attribute {name!r}; public names: {', '.join(__all__)}")
    module, _, attribute = _LAZY[name].partition(":")
    return getattr(importlib.import_module(module), attribute or name)


def __dir__() -> list[str]:
    return __all__
