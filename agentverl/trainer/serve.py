"""`agentverl serve`: a model behind OpenAI's chat completions, by the server that rollouts use."""

import asyncio
import signal

from aiohttp import web
from rich.console import Console

from agentverl.rollout.chat_server import ChatServer
from agentverl.settings.model import ModelSettings
from agentverl.settings.rollout import RolloutSettings
from agentverl.trainer.preparation import template_of
from agentverl.workers.engine_settings import resolve_device
from agentverl.workers.replicas import make_replica, replica_spec


def serve(model: str, *, host: str, port: int, name: str | None = None, console: Console | None = None) -> None:
    """Serve a model folder until interrupted; a port of 0 takes a free one, which is printed.

    Raises:
        BadInputError: the folder cannot be served.
    """
    asyncio.run(_serve(model, host, port, name or model, console or Console()))


async def _serve(model: str, host: str, port: int, name: str, console: Console) -> None:
    section, rollout = ModelSettings(path=model), RolloutSettings()
    folder, tokenizer, template = template_of(section, {})
    spec = replica_spec(section, folder.path, rollout, tokenizer, device=resolve_device("auto"))
    replica = make_replica(rollout.name, spec)
    await replica.init_standalone()
    runner = web.AppRunner(ChatServer(replica, template, name).app())
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        address = runner.addresses[0]
        console.print(f"serving {name} at http://{address[0]}:{address[1]}/v1", soft_wrap=True)
        await _until_interrupted()
    finally:
        await runner.cleanup()
        await replica.shutdown()


async def _until_interrupted() -> None:
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await ended.wait()
