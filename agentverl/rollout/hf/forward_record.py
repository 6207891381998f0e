"""What a model computes in a forward pass, as a graph of operations that belongs to no model.

It depends on no sizes, as it is made with symbolic ones (Reed et al. 2022, torch.fx).
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from transformers import Cache

from agentverl.rollout.hf.attention import recording
from agentverl.rollout.hf.fused_operations import fuse
from agentverl.rollout.hf.kv_pool import PackedLayer


def _shape_of_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    layer: int,
    scaling: float | None,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """What the mark for attention gives while a record is made: the shape of its result, (1, N, H, D), and no more."""
    return query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])


_MARK = torch.library.custom_op("agentverl::slot_attention", _shape_of_attention, mutates_args=())
_MARK.register_fake(_shape_of_attention)
ATTENTION = torch.ops.agentverl.slot_attention.default


@dataclass(frozen=True, slots=True)
class Record:
    """What is computed by all models of one configuration; making it takes a second, so it is kept."""

    graph: Graph
    tensors: dict[str, str | torch.Tensor]
    """By attribute of the graph's module, the name of a parameter or buffer, or a constant."""

    @classmethod
    def of(cls, model: Any, cache_argument: str, layers: int) -> "Record":
        dtypes = {tensor.dtype for tensor in model.parameters()}
        key = (type(model), frozenset(dtypes), model.config.to_json_string(use_diff=False))
        if key not in _records:
            module = _recorded_module(model, cache_argument, layers)
            names = {id(tensor): name for name, tensor in _tensors(model).items()}
            targets = {str(node.target) for node in module.graph.nodes if node.op == "get_attr"}
            found = {target: getattr(module, target) for target in targets}
            graph = Graph()  # one that belongs to no module, which would keep the model's weights
            graph.output(graph.graph_copy(module.graph, {}))
            for node in graph.nodes:
                node.meta = _kind(node)
            _records[key] = cls(graph, {target: names.get(id(tensor), tensor) for target, tensor in found.items()})
        return _records[key]

    def over(self, model: Any) -> GraphModule:
        """The computation with a model's own tensors."""
        own = _tensors(model)
        return GraphModule(
            {name: own[tensor] if isinstance(tensor, str) else tensor for name, tensor in self.tensors.items()},
            copy.deepcopy(self.graph),
        )


def _kind(node: Node) -> dict[str, Any]:
    """What is kept of how a node was recorded: its shape in words and its dtype, not the tensor of it."""
    value = node.meta.get("val")
    return {"shape": str(tuple(value.shape)), "dtype": value.dtype} if isinstance(value, torch.Tensor) else {}


_records: dict[tuple[Any, ...], Record] = {}


def _tensors(model: Any) -> dict[str, torch.Tensor]:
    return {**dict(model.named_buffers()), **dict(model.named_parameters())}


class _RecordedLayer(PackedLayer):
    """A layer of the cache, of which a record holds only that attention sees it."""

    def __init__(self, number: int, number_of: dict[int, int]) -> None:
        super().__init__()
        self._number, self._number_of = number, number_of

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self._number_of[id(key_states)] = self._number
        return key_states, value_states


def _recorded_module(model: Any, cache_argument: str, layers: int) -> GraphModule:
    number_of: dict[int, int] = {}

    def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *options: Any) -> torch.Tensor:
        output: torch.Tensor = ATTENTION(query, key, value, number_of.pop(id(key)), *options)
        return output

    def forward(ids: torch.Tensor, positions: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        cache = Cache(layers=[_RecordedLayer(number, number_of) for number in range(layers)])
        output = model(
            input_ids=ids, position_ids=positions, use_cache=True, logits_to_keep=keep, **{cache_argument: cache}
        )
        logits: torch.Tensor = output.logits
        return logits

    places = torch.arange(7)
    traced = make_fx(forward, tracing_mode="symbolic", pre_dispatch=True, _allow_non_fake_inputs=True)
    with torch.no_grad(), recording(attention):
        graph = traced(places[None], places[None], torch.tensor([2, 5, 6]))
    if graph.shape_env is None or graph.shape_env.guards:
        raise ValueError("what is computed depends on sizes")
    return fuse(graph)
