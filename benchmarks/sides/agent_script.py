"""What both sides of `agent_loop` play: two calls of a tool, then an answer, from a server that takes no time."""

from collections import Counter
from pathlib import Path
from typing import Any

TURNS = 3
SAMPLES = 256
PROMPT_LENGTH = RESPONSE_LENGTH = 512
PROMPTS, SAMPLES_PER_PROMPT = 32, 8
TASK = "What is 2 + 3? Call the tool twice, then answer in a sentence. This is question"
QUESTIONS = [[{"role": "user", "content": f"{TASK} {number}."}] for number in range(PROMPTS)]
TOOL_FILE = Path(__file__).with_name("agent_tool.py")


def script(tokenizer: Any) -> list[list[int]]:
    """Token ids of the three replies: about 65, 65 and 50 tokens, one a byte."""
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'
    answer = "The sum of the two numbers, added twice, is five."
    return [
        [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id] for text in (call, call, answer)
    ]


class Turns:
    """Which turn each trajectory is at."""

    def __init__(self) -> None:
        self._turns: Counter[str] = Counter()

    def next(self, request_id: str) -> int:
        turn = self._turns[request_id]
        if turn == TURNS - 1:
            del self._turns[request_id]
        else:
            self._turns[request_id] += 1
        return turn
