"""A model's forward pass recorded as a flat list of operations: the same computation, without modules between them.

Decoding a small model spends as much time between its operations as in them.
"""

import logging
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node
from transformers import Cache

from agentverl.rollout.hf.attention import slot_attention
from agentverl.rollout.hf.forward_record import ATTENTION, Record
from agentverl.rollout.hf.packed_linear import PackedGate, PackedLinear, can_pack

_log = logging.getLogger(__name__)

_LINEAR = torch.ops.aten.linear.default


class FlatForward:
    """The record of one model on a CPU.

    Raises:
        Exception: whatever the model's code or torch raises when this model cannot be recorded so.
    """

    def __init__(self, model: Any, cache_argument: str, layers: int) -> None:
        self._graph = Record.of(model, cache_argument, layers).over(model)
        self._linears: list[PackedLinear | PackedGate] = []
        self._name_attention()
        if can_pack(list(model.parameters())):
            self._pack_linears()
        _keep_all_without_choice(self._graph)
        _call_directly(self._graph)
        self._graph.graph.eliminate_dead_code()
        self._graph.recompile()
        self._forward = self._graph.forward
        self._cache_layers: list[Any] = []

    def __call__(
        self, ids: torch.Tensor, positions: torch.Tensor, keep: torch.Tensor | None, cache: Cache
    ) -> torch.Tensor:
        """Logits (K, V) at the tokens `keep` (K; None: all) of N packed ones; neither K nor N may be 1."""
        self._cache_layers = cache.layers
        logits: torch.Tensor = self._forward(ids[None], positions[None], keep)[0]
        return logits

    def forget_weights(self) -> None:
        """Let the next pass take the model's weights anew; to be called when they have changed."""
        for linear in self._linears:
            linear.forget_weights()

    def _name_attention(self) -> None:
        for node in self._graph.graph.find_nodes(op="call_function", target=ATTENTION):
            node.target = self._attend

    def _attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layer: int, *options: Any
    ) -> torch.Tensor:
        keys, values = self._cache_layers[layer].update(key, value)
        return slot_attention(None, query, keys, values, None, *options)[0]

    def _pack_linears(self) -> None:
        nodes = [node for node in self._graph.graph.find_nodes(op="call_function", target=_LINEAR) if _is_fixed(node)]
        for node in list(nodes):
            if node in nodes and (gated := _gate_and_product(node)):
                up, product = gated
                gate_weights, up_weights = self._weights(node), self._weights(up)
                if gate_weights[0].shape == up_weights[0].shape:
                    self._replace([product], PackedGate(gate_weights, up_weights), node.args[0])
                    nodes = [other for other in nodes if other not in (node, up)]
        joined: dict[tuple[Any, bool], list[Node]] = {}
        for node in nodes:
            joined.setdefault((node.args[0], _has_bias(node)), []).append(node)
        for (states, _), of_states in joined.items():
            packed = PackedLinear([self._weights(node) for node in of_states])
            summed = _sum_with_residual(of_states[0]) if len(of_states) == 1 else None
            if summed is None:
                self._replace(of_states, packed, states)
            else:
                self._replace([summed[0]], packed, states, summed[1])

    def _replace(self, nodes: list[Node], linear: PackedLinear | PackedGate, *inputs: Any) -> None:
        """Let one call give the outputs of all nodes."""
        self._linears.append(linear)
        graph = self._graph.graph
        with graph.inserting_before(nodes[0]):
            outputs = graph.call_function(linear, inputs)
            parts = [outputs]
            if len(nodes) > 1:
                parts = [graph.call_function(operator.getitem, (outputs, place)) for place in range(len(nodes))]
        for node, part in zip(nodes, parts, strict=True):
            part.meta = node.meta
            node.replace_all_uses_with(part)
            graph.erase_node(node)

    def _weights(self, node: Node) -> list[torch.Tensor]:
        """Weight and bias, if there is one, of a linear layer."""
        return [self._attribute(part) for part in node.args[1:] if part is not None]

    def _attribute(self, node: Any) -> torch.Tensor:
        tensor: torch.Tensor = getattr(self._graph, str(node.target))
        return tensor


def recorded(model: Any, cache_argument: str, layers: int) -> FlatForward | None:
    """The record of a model; None where it cannot be made, as the model chooses by what it computes or by sizes."""
    if next(model.parameters()).device.type != "cpu":
        return None
    try:
        return FlatForward(model, cache_argument, layers)
    except Exception as error:  # a model's code may raise anything when it is not run as its author expected
        _log.debug("%s is served without a flat forward pass: %s", type(model).__name__, error)
        return None


def _is_fixed(linear: Node) -> bool:
    """Whether weight and bias of a linear layer are the model's own."""
    return all(isinstance(part, Node) and part.op == "get_attr" for part in linear.args[1:] if part is not None)


def _has_bias(linear: Node) -> bool:
    return len(linear.args) > 2 and linear.args[2] is not None


def _gate_and_product(gate: Node) -> tuple[Node, Node] | None:
    """For silu(gate(x)) * up(x), where nothing else is made of the factors: `up` and the product."""
    activated = _only_user(gate, torch.ops.aten.silu.default)
    product = _only_user(activated, torch.ops.aten.mul.Tensor)
    if activated is None or product is None:
        return None
    for up in product.args:
        if isinstance(up, Node) and up.target is _LINEAR and _is_fixed(up) and _only_user(up, product.target):
            return (up, product) if up.args[0] is gate.args[0] else None
    return None


def _sum_with_residual(linear: Node) -> tuple[Node, Node] | None:
    """Where a layer's output is only added to something of its own shape: the sum, and what it is added to.

    In float32 only: a packed product with a sum would not round the product of halves before it is added.
    """
    total = _only_user(linear, torch.ops.aten.add.Tensor)
    if total is None or total.kwargs or linear.meta["dtype"] != torch.float32:
        return None
    other = total.args[0] if total.args[1] is linear else total.args[1]
    return (total, other) if isinstance(other, Node) and other.meta == linear.meta else None


def _only_user(node: Node | None, target: Any) -> Node | None:
    users = list(node.users) if node is not None else []
    return users[0] if len(users) == 1 and users[0].target is target else None


def _keep_all_without_choice(module: GraphModule) -> None:
    """Let the choice of tokens be None, which spares a copy."""
    *_, keep = module.graph.find_nodes(op="placeholder")
    for node in list(keep.users):
        if node.target is not torch.ops.aten.index.Tensor or node.args[1] != [None, keep]:
            raise ValueError(f"logits_to_keep goes into {node.target}")
        node.target, node.args = _kept, (node.args[0], keep)


def _kept(states: torch.Tensor, keep: torch.Tensor | None) -> torch.Tensor:
    return states if keep is None else states[:, keep]


def _call_directly(module: GraphModule) -> None:
    """Call what Python itself calls, which costs less than the operator by its full name."""
    for node in module.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "aten":
            name = node.target._schema.name.removeprefix("aten::")
            direct: Callable[..., Any] | None = getattr(torch._C._VariableFunctions, name, None)
            direct = direct or getattr(torch._C._nn, name, None) or getattr(torch._C.TensorBase, name, None)
            if direct is not None:
                node.target = direct
