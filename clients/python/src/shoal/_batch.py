"""Questions of many jobs that travel together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Batcher(Generic[Item, Answer]):
    """What is asked in one turn of the event loop is asked in one call, of up to ``most`` items.

    ``run`` answers each item, in order; what it raises is what everybody hears who asked with that call.
    """

    def __init__(self, run: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]], most: int) -> None:
        self._run = run
        self._most = most
        self._waiting: list[tuple[Item, asyncio.Future[Answer]]] = []
        self._calls: set[asyncio.Task[None]] = set()

    async def ask(self, item: Item) -> Answer:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._send)
        self._waiting.append((item, future))
        return await future

    async def idle(self) -> None:
        """Resolves once nothing is under way."""
        while self._waiting or self._calls:
            await asyncio.sleep(0)
            if self._calls:
                await asyncio.wait(self._calls)

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, []
        for at in range(0, len(waiting), self._most):
            call = asyncio.ensure_future(self._call(waiting[at : at + self._most]))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    async def _call(self, asked: list[tuple[Item, asyncio.Future[Answer]]]) -> None:
        try:
            answers = await self._run([item for item, _ in asked])
        except BaseException as error:
            for _, future in asked:
                if not future.done():
                    future.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))
            if not isinstance(error, Exception):
                raise
            return
        for (_, future), answer in zip(asked, answers, strict=True):
            if not future.done():
                future.set_result(answer)
