"""A loop in verl's form, with verl's helpers, runs on the shim."""

import json
from typing import Any
from uuid import uuid4

import pytest

from agentverl.agent_loops.verl import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register
from agentverl.errors import BadInputError
from agentverl.trajectory import Termination
from tests.agent_loops.scripted import CALL, call_text
from tests.rollout.conftest import MakeHouse


@register("verl_style")
class VerlStyle(AgentLoopBase):
    """Generate, answer each call by itself, until there is none."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.response_length = self.rollout_config.response_length

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        messages = list(kwargs["raw_prompt"])
        self._assert_mm_supported(bool(await self.process_multi_modal_info(messages)))
        tokens = await self.ct_build_initial_tokens(messages, images=None)
        prompt_length = len(tokens)
        mask: list[int] = []
        log_probs: list[float] | None = []
        request_id = uuid4().hex
        while True:
            output = await self.server_manager.generate(
                request_id=request_id, prompt_ids=tokens, sampling_params=sampling_params, image_data=None
            )
            merged, mask, log_probs = await self.ct_merge_assistant_token(
                tokens, output.token_ids, mask, log_probs, assistant_logprobs=output.log_probs
            )
            tokens = merged.token_ids
            text = self.tokenizer.decode(output.token_ids)
            call = CALL.search(text)
            if call is None or len(mask) >= self.response_length:
                break
            said = [*messages, {"role": "assistant", "content": text}]
            updated = [*said, {"role": "tool", "content": json.loads(call.group(1))["name"]}]
            merged, mask, log_probs = await self.ct_merge_context_msg(said, updated, tokens, mask, log_probs)
            tokens, messages = merged.token_ids, updated
        return AgentLoopOutput(
            prompt_ids=tokens[:prompt_length],
            response_ids=tokens[prompt_length:][: self.response_length],
            response_mask=mask[: self.response_length],
            response_logprobs=(log_probs or [])[: self.response_length],
            num_turns=4,
            metrics=AgentLoopMetrics(),
            reward_score=1.0,
        )


def call_then_answer(turn: int, chance: Any) -> str:
    return call_text("echo") if turn == 0 else "done"


async def test_a_loop_in_verls_form_runs(house: MakeHouse) -> None:
    stage = house(call_then_answer, default_agent_loop="verl_style")
    result = await stage.play()
    assert result.failure is None
    assert (result.score, result.termination) == (1.0, Termination.ANSWERED)
    (output,) = result.outputs
    answers = [token for pairs in stage.replica.answers.values() for _, one in pairs for token in one.token_ids]
    assert [t for t, bit in zip(output.response_ids, output.response_mask, strict=True) if bit] == answers
    text = stage.runner.parts.template.tokenizer.decode(output.response_ids)
    assert "<tool_response>\necho\n</tool_response><|im_end|>\n<|im_start|>assistant\ndone" in text
    assert [turn.role for turn in output.turns] == ["assistant", "tool", "assistant"]
    assert len({params["seed"] for params in stage.replica.params}) == 2


async def test_its_replies_stay_within_the_response_length(house: MakeHouse) -> None:
    result = await house(lambda turn, chance: call_text("echo") * 9, limits={"max_response_length": 90}).play(
        agent_name="verl_style"
    )
    assert result.failure is None
    assert len(result.outputs[0].response_ids) <= 90


async def test_images_are_refused(house: MakeHouse) -> None:
    prompt = [{"role": "user", "content": [{"type": "image", "image": "x"}]}]
    with pytest.raises(BadInputError, match="text only"):
        await house().play(agent_name="verl_style", raw_prompt=prompt)
