"""1,000 calls at once, and a server that dies among them. Says when some are done, and how many were right."""

import asyncio
import json
import os
import sys

import numpy as np

from shoal import AsyncShoal, ShoalError

TOLD = json.loads(os.environ["SHOAL_TEST"])
CALLS = 1_000
BEFORE_THE_OUTAGE = 200


async def main() -> int:
    async with AsyncShoal(TOLD["url"], model=TOLD["model"].split("@")[0]) as shoal:
        texts = [f"text number {at} of this run" for at in range(CALLS)]
        right, done = 0, 0

        async def ask(at: int) -> None:
            nonlocal right, done
            try:
                rows = (await shoal.embed([texts[at], texts[(at + 1) % CALLS]])).vectors
            except ShoalError as error:
                print(error, file=sys.stderr)
                return
            done += 1
            if done == BEFORE_THE_OUTAGE:
                print("some are done", flush=True)
            found[at] = rows

        found: dict[int, np.ndarray] = {}
        await asyncio.gather(*(ask(at) for at in range(CALLS)))
        expected = (await shoal.embed(texts)).vectors
        for at, rows in found.items():
            cosines = (rows * expected[[at, (at + 1) % CALLS]]).sum(axis=1)
            right += bool((cosines > 0.99999).all())
    print(f"{right} of {CALLS} right", flush=True)
    return 0 if right == CALLS else 1


sys.exit(asyncio.run(main()))
