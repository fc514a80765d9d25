"""A client by way of Sentinels, or to a node of a cluster, whose server is killed while it asks. SHOAL_TEST as for test_live;
says "some are done" when the server may be killed, and at last how many calls were right."""

import asyncio
import json
import os
import pathlib
from typing import Any

import numpy as np

from shoal import AsyncShoal

TOLD: dict[str, Any] = json.loads(os.environ["SHOAL_TEST"])
TEXTS: list[str] = json.loads((pathlib.Path(TOLD["folder"]) / "texts.json").read_text())[:4]
CALLS = 60


async def main() -> None:
    async with AsyncShoal(TOLD["url"], model=TOLD["model"]) as shoal:
        expected = (await shoal.embed(TEXTS)).vectors
        done = 0

        async def ask() -> bool:
            nonlocal done
            found = (await shoal.embed(TEXTS)).vectors
            done += 1
            if done == CALLS // 3:
                print("some are done", flush=True)
            return bool(np.abs(found - expected).max() < 1e-5)

        right = []
        for _ in range(CALLS // 5):
            right += await asyncio.gather(*(ask() for _ in range(5)))
        print(f"{sum(right)} of {CALLS} right", flush=True)


asyncio.run(main())
