"""A look at the rollout servers from time to time, so that one that dies leaves rotation while nobody asks it."""

import asyncio

from agentverl.rollout.router import Router

_LOOK_SECONDS = 10.0


async def look_after(router: Router) -> None:
    """Check all servers again and again, those out of rotation too; ends when it is cancelled."""
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        await asyncio.gather(*(router.check(replica) for replica in router.known))
