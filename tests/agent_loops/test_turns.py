"""What a turn says of itself: the state that it answers, and whether it holds anything at all."""

from agentverl.agent_loops.chat import Chat
from agentverl.environments.base import Environment, Observation, Step
from agentverl.messages import Message
from tests.agent_loops.conftest import MakeScene
from tests.agent_loops.scripted import FunctionTool, Scene, call_text

QUESTION: list[Message] = [{"role": "user", "content": "What is 2 + 3?"}]


async def add(a: int, b: int) -> str:
    return str(a + b)


ADD = FunctionTool("add", add)


async def played(stage: Scene, max_tokens: int | None = None) -> Chat:
    """A chat that goes on as long as there are calls."""
    chat = Chat(stage.context, QUESTION, {})
    while not chat.done:
        reply = await chat.generate(max_tokens=max_tokens)
        if not reply.tool_calls:
            break
        await chat.call_tools(reply.tool_calls)
    return chat


def states(chat: Chat) -> list[str | None]:
    return [turn.state_key for output in chat.outputs() for turn in output.turns if turn.role == "assistant"]


def void(chat: Chat) -> list[bool]:
    return [turn.void for output in chat.outputs() for turn in output.turns if turn.role == "assistant"]


async def test_turns_that_answer_the_same_text_are_in_the_same_state(scene: MakeScene) -> None:
    one = await played(scene([call_text("add", a=2, b=3), "5"], tools=[ADD]))
    other = await played(scene([call_text("add", a=1, b=4), "five"], tools=[ADD]))
    third = await played(scene([call_text("add", a=1, b=1), "2"], tools=[ADD]))
    assert states(one) == states(other)
    assert states(one)[0] == states(third)[0]
    assert states(one)[1] != states(third)[1]
    assert states(one)[0] != states(one)[1]


class Rooms(Environment):
    """A world whose rooms look alike."""

    async def step(self, action: Message) -> Step:
        message = {"role": "user", "content": "A room."}
        return Step(observation=Observation(messages=[message], state_key=f"room {len(action['content'])}"))


async def test_an_environment_names_its_states(scene: MakeScene) -> None:
    stage = scene(["go", "stay", "end"], world=Rooms())
    stage.context.state_key = "door"
    chat = Chat(stage.context, QUESTION, {})
    for _ in range(2):
        assert await chat.act(await chat.generate())
    await chat.generate()
    assert states(chat) == ["door", "room 2", "room 4"]


async def test_turns_without_a_valid_call_or_an_answer_are_void(scene: MakeScene) -> None:
    broken, unknown = "<tool_call>{</tool_call>", call_text("multiply", a=2, b=3)
    script = [call_text("add", a=2, b=3), broken, unknown, "It is 5."]
    assert void(await played(scene(script, tools=[ADD]))) == [False, True, True, False]
    assert void(await played(scene([""]))) == [True]
    assert void(await played(scene(["a long answer"]), max_tokens=3)) == [True]
