"""How much memory the KV caches of one server may take."""

import psutil
import torch

from agentverl.rollout.hf.model import ServedModel
from agentverl.rollout.hf.settings import HFSettings


def kv_budget(model: ServedModel, settings: HFSettings) -> int:
    """Bytes: what the settings say, else what the device has for them."""
    if settings.kv_memory_bytes is not None:
        return settings.kv_memory_bytes
    if model.device.type == "cuda":
        free, total = torch.cuda.mem_get_info(model.device)
        # What PyTorch keeps of freed memory is free for it too.
        free += torch.cuda.memory_reserved(model.device) - torch.cuda.memory_allocated(model.device)
        weights = sum(parameter.nbytes for parameter in model.model.parameters())
        return budget_on_gpu(total, free, weights, settings.gpu_memory_utilization)
    memory = psutil.virtual_memory()
    # Which caches are dropped shows in the last bits, so what else runs on the machine must not decide it.
    return int(memory.total if settings.deterministic else memory.available) // 4


def budget_on_gpu(total: int, free: int, weights: int, utilization: float) -> int:
    """The server's share of the GPU's bytes without its weights, which are there already, and no more than is free.

    A third of it stays free: a pool that grows holds its old keys or values beside the new ones for a moment.
    """
    share = int(total * utilization) - weights
    return max(min(share, free), 0) * 2 // 3
