"""Tools in verl's form keep their state for a trajectory."""

from pathlib import Path

from agentverl.messages import ToolResponse
from agentverl.tools.base import ToolContext
from agentverl.tools.loading import tools_of_entries
from agentverl.tools.toolset import Toolset, close_all

MODULE = """
from agentverl.tools.verl import BaseTool, ToolResponse

class Sum(BaseTool):
    async def create(self, instance_id=None, **kwargs):
        name, response = await super().create(instance_id)
        self.state = {name: kwargs.get("start", self.config["start"])}
        return name, response

    async def execute(self, instance_id, parameters, **kwargs):
        self.state[instance_id] += parameters["x"]
        return ToolResponse(text=str(self.state[instance_id])), 0.25, {"calls": 1.0}

    async def release(self, instance_id, **kwargs):
        del self.state[instance_id]
"""

SCHEMA = {
    "type": "function",
    "function": {
        "name": "sum",
        "description": "Add to the sum.",
        "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
    },
}


async def test_runs_as_a_tool(tmp_path: Path) -> None:
    path = tmp_path / "sum_tool.py"
    path.write_text(MODULE)
    entry = {"class_name": f"{path}:Sum", "config": {"type": "native", "start": 1}, "tool_schema": SCHEMA}
    (spec,) = tools_of_entries([entry])
    assert spec.schema == SCHEMA
    bound = await Toolset([spec]).open(ToolContext(), {"sum": {"create_kwargs": {"start": 10}}})
    assert await bound["sum"].call({"x": 2}) == ToolResponse(text="12", reward=0.25, metrics={"calls": 1.0})
    assert (await bound["sum"].call({"x": 3})).text == "15"
    await close_all(bound)
    assert spec.settings.state == {}
