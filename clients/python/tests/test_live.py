"""The client against a real queue server and a worker. Needs SHOAL_TEST: a JSON object with url, model (name@revision),
folder (texts.json and what the SDK gave for them, a file a form)."""

import asyncio
import json
import os
import pathlib
import threading
import time
import unittest
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, cast

import numpy as np
import redis

from shoal import AsyncShoal, Dtype, EmbeddedRow, Shoal, ShoalError, SkippedBlock, __version__

TOLD: dict[str, Any] = json.loads(os.environ["SHOAL_TEST"])
URL, MODEL = str(TOLD["url"]), str(TOLD["model"])
NAME = MODEL.split("@", 1)[0]
FOLDER = pathlib.Path(TOLD["folder"])
TEXTS: list[str] = json.loads((FOLDER / "texts.json").read_text())
DTYPES: tuple[Dtype, ...] = ("f32", "f16", "i8", "binary")


def new_id() -> str:
    return f"test-{uuid.uuid4()}"


async def until(holds: Callable[[], bool]) -> None:
    """Waits, for half a minute at most."""
    last = time.monotonic() + 30
    while not holds():
        if time.monotonic() > last:
            raise AssertionError("half a minute was not enough")
        await asyncio.sleep(0.01)


def assert_same(found: Any, expected: Any) -> None:
    """Up to what the neighbours in a micro-batch do to the last bits."""
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 if expected.dtype == np.float32 else 2e-3)


class Embedding(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        self.shoal = AsyncShoal(URL, model=NAME)
        self.addAsyncCleanup(self.shoal.close)

    async def code_of(self, work: Any) -> str:
        with self.assertRaises(ShoalError) as raised:
            await work
        return raised.exception.code

    async def test_the_request_of_a_call_goes_with_its_job_and_a_wrong_one_is_refused(self) -> None:
        job_id, trace = new_id(), {"requestId": "req-7", "traceparent": f"00-{'4b' * 16}-{'f0' * 8}-01"}
        await self.shoal.embed(["whose"], job_id=job_id, tenant="acme/alice", trace=cast(Any, trace))
        data = redis.from_url(URL).hget(f"{{shoal}}:embed-{NAME}:acme/alice~{job_id}", "data")
        self.assertEqual({**json.loads(cast(bytes, data)), **{"trace": trace, "v": 2}}, json.loads(cast(bytes, data)))
        with self.assertRaisesRegex(ValueError, "trace has 'requestId': 'two words'"):
            await self.shoal.embed(["whose"], trace={"requestId": "two words"})

    async def test_the_queue_is_noted_and_structures_of_another_version_are_refused(self) -> None:
        server = redis.from_url(URL)
        await self.shoal.embed(TEXTS[:1])
        self.assertIn(f"embed-{NAME}".encode(), cast(Any, server.smembers("{shoal}:queues")))
        self.assertEqual(server.hget("{shoal}:schema", "version"), b"1")
        prefix = f"{{{new_id()}}}"
        refusals: list[tuple[dict[str, str], str, str]] = [
            ({"version": "9", "minReader": "2", "writer": "7.0.0"}, "QUEUE_UNSAFE", "pip install -U shoal"),
            ({"version": "0", "minReader": "0", "writer": "0.0.1"}, "QUEUE_UNSAFE", "reads none older than 1"),
            ({"version": "new"}, "QUEUE_DAMAGED", f"DEL '{prefix}:schema'"),
        ]
        for told, code, message in refusals:
            server.delete(f"{prefix}:schema")
            server.hset(f"{prefix}:schema", mapping=cast(Any, told))
            with self.assertRaisesRegex(ShoalError, message) as raised:
                await AsyncShoal(URL, model=NAME, prefix=prefix).__aenter__()
            self.assertEqual(raised.exception.code, code)
        server.delete(f"{prefix}:schema")
        async with AsyncShoal(URL, model=NAME, prefix=prefix):
            self.assertEqual(server.hget(f"{prefix}:schema", "writer"), __version__.encode())
        server.delete(f"{prefix}:schema", f"{prefix}:queues")

    async def test_vectors_have_the_bits_that_the_sdk_gives_in_every_form(self) -> None:
        for dtype in DTYPES:
            found = await self.shoal.embed(TEXTS, dtype=dtype)
            self.assertEqual((found.model, found.dtype, len(found)), (MODEL, dtype, len(TEXTS)))
            expected = np.fromfile(FOLDER / f"{dtype}.bin", dtype=found.vectors.dtype)
            np.testing.assert_array_equal(found.vectors.reshape(-1), expected)
            if dtype == "i8":
                np.testing.assert_array_equal(found.scales, np.fromfile(FOLDER / "scales.bin", dtype="<f4"))
            wide = np.fromfile(FOLDER / f"{dtype}-wide.bin", dtype="<f4")
            np.testing.assert_array_equal(np.asarray(found).reshape(-1), wide)

    async def test_fewer_dimensions_are_of_length_1_again_and_no_texts_are_no_rows(self) -> None:
        short = await self.shoal.embed(TEXTS[:3], dimensions=8)
        self.assertEqual((short.vectors.shape, short.dims), ((3, 8), 8))
        np.testing.assert_allclose(np.linalg.norm(short.vectors, axis=1), 1, atol=1e-6)
        self.assertEqual((await self.shoal.embed([])).vectors.shape, (0, 0))
        short.vectors[0] = 0  # the caller's own

    async def test_rows_come_in_order_with_their_items_and_the_input_is_read_no_further_than_the_window(self) -> None:
        read = 0

        async def source() -> AsyncIterator[tuple[int, str]]:
            nonlocal read
            for at in range(40):
                read += 1
                yield at, TEXTS[at % len(TEXTS)]

        rows: list[EmbeddedRow[tuple[int, str]]] = []
        async with AsyncShoal(URL, model=NAME, job_texts=2, max_in_flight_jobs=3) as shoal:
            async for row in shoal.embed_many(source(), text=lambda item: item[1]):
                rows.append(row)
                # what was given, three jobs that are under way, and the one that is being cut
                self.assertLessEqual(read, 2 * (len(rows) // 2) + 2 * 3 + 4)
        self.assertEqual([row.index for row in rows], list(range(40)))
        self.assertEqual([row.item[0] for row in rows], list(range(40)))
        again = await self.shoal.embed([row.item[1] for row in rows])
        assert_same(np.stack([row.vector for row in rows]), again.vectors)

    async def test_what_an_input_raises_comes_behind_the_rows_before_it(self) -> None:
        def source() -> Iterator[Any]:
            yield from TEXTS[:4]
            raise OSError("the disk is gone")

        rows: list[Any] = []
        async with AsyncShoal(URL, model=NAME, job_texts=2) as shoal:
            with self.assertRaisesRegex(OSError, "the disk is gone"):
                async for row in shoal.embed_many(source()):
                    rows.append(row)
        self.assertEqual(len(rows), 2)  # the chunk behind it was not whole
        self.assertEqual(await self.code_of(self.shoal.embed(["a", None])), "INPUT_INVALID")  # type: ignore[list-item]

    async def test_a_job_that_fails_is_an_error_or_skipped_in_its_place(self) -> None:
        long = "word " * 2_000
        self.assertEqual(await self.code_of(self.shoal.embed([long], truncate="error")), "INPUT_TOO_LONG")
        self.assertTrue((await self.shoal.embed([long])).is_truncated)
        async with AsyncShoal(URL, model=NAME, job_texts=1) as shoal:
            blocks = [
                block async for block in shoal.embed_stream(["a", long, "b"], truncate="error", on_error="skip")
            ]
        self.assertEqual([block.first for block in blocks], [0, 1, 2])
        self.assertEqual([isinstance(block, SkippedBlock) for block in blocks], [False, True, False])

    async def test_an_id_that_is_asked_for_again_is_the_same_request_and_no_other(self) -> None:
        id = new_id()
        first = await self.shoal.embed(TEXTS[:2], job_id=id)
        again = await self.shoal.embed(TEXTS[:2], job_id=id)  # its result was taken: computed anew
        assert_same(first.vectors, again.vectors)
        both = await asyncio.gather(*(self.shoal.embed(["at once"], job_id=id + "-twice") for _ in range(2)))
        assert_same(both[0].vectors, both[1].vectors)
        job = await self.shoal.submit(TEXTS[:2], job_id=id + "-kept")
        await job.result(timeout=60)
        self.assertEqual(await self.code_of(self.shoal.embed(["other"], job_id=id + "-kept")), "JOB_ID_CONFLICT")
        kept = await (await self.shoal.job(id + "-kept")).result(timeout=60)
        assert_same(kept.vectors, first.vectors)
        await job.release()

    async def test_what_no_worker_would_do_is_refused_before_anything_is_added(self) -> None:
        self.assertEqual(await self.code_of(self.shoal.embed(["a"], prompt="nobody-has-this")), "JOB_INVALID")
        self.assertEqual(await self.code_of(self.shoal.embed(["a"], normalize=False)), "JOB_INVALID")
        long = {"meta": {"a": "x" * 3_000}}
        for wrong in ({"dtype": "f64"}, {"truncate": "start"}, {"timeout": 0}, {"tenant": "a~b"}, {"class_": "?"}, long):
            with self.assertRaises(ValueError):
                await self.shoal.embed(["a"], **wrong)
        with self.assertRaises(TypeError):
            await self.shoal.embed("a text")
        async with AsyncShoal(URL, model="nobody-serves-this") as shoal:
            self.assertEqual(await self.code_of(shoal.embed(["a"])), "NOT_SERVED")
        async with AsyncShoal(URL, model="nobody-serves-this@1", not_served_after=0.1) as shoal:
            self.assertEqual(await self.code_of(shoal.embed(["a"])), "NOT_SERVED")

    async def test_jobs_are_large_where_all_workers_take_them_and_small_beside_one_of_0_1_0(self) -> None:
        server, queue = redis.from_url(URL), f"{{shoal}}:embed-{NAME}"
        texts = [f"text {at}" for at in range(600)]

        def jobs_of(id: str) -> dict[str, int]:
            names = [cast(bytes, name).decode() for name in server.zrange(f"{queue}:completed", 0, -1)]
            own = [name for name in names if f"~{id}" in name]
            data = {name: json.loads(cast(bytes, server.hget(f"{queue}:{name}", "data"))) for name in own}
            return {
                name.partition(id)[2]: len(told["texts"]) if "texts" in told else told["input"]["rows"]
                for name, told in data.items()
            }

        small, large = new_id(), new_id()
        expected = await self.shoal.embed(texts)
        async with AsyncShoal(URL, model=NAME, job_texts=500) as shoal:
            found = await shoal.embed(texts, job_id=large)
            np.testing.assert_allclose(found.vectors, expected.vectors, rtol=0, atol=1e-5)
            await until(lambda: jobs_of(large) == {"-0x500": 500, "-500x500": 100})
            await shoal.submit(texts, job_id=large + "-kept")
            server.zadd(f"{{shoal}}:workers:embed-{NAME}", {"old": int(time.time() * 1_000) + 60_000})
        try:
            async with AsyncShoal(URL, model=NAME, job_texts=1_024) as shoal:
                rows = [row async for row in shoal.embed_many(texts, run_id=small)]
                self.assertEqual([row.index for row in rows], list(range(600)))
                await until(lambda: jobs_of(small) == {"-0": 256, "-256": 256, "-512": 88})
                again = await shoal.submit(texts, job_id=large + "-kept")  # cut as it was
                self.assertEqual((await again.result(timeout=60)).vectors.shape, found.vectors.shape)
                with self.assertRaises(ShoalError) as raised:
                    await shoal.submit(["other", *texts[1:]], job_id=large + "-kept")
                self.assertEqual(raised.exception.code, "JOB_ID_CONFLICT")
                self.assertEqual(jobs_of(large + "-kept"), {"-0x500": 500, "-500x500": 100})
                await again.release()
        finally:
            server.zrem(f"{{shoal}}:workers:embed-{NAME}", "old")
            server.close()
        with self.assertRaisesRegex(ValueError, "job_texts is 1025; a job has 1 to 1024 texts"):
            AsyncShoal(URL, model=NAME, job_texts=1_025)

    async def test_a_call_that_is_cancelled_or_late_leaves_nothing_on_the_queue(self) -> None:
        server = redis.Redis.from_url(URL)
        async with AsyncShoal(URL, model="nobody-comes@1") as shoal:
            task = asyncio.ensure_future(shoal.embed(["a"], job_id="left"))
            record = "{shoal}:embed-nobody-comes:default~left"
            await until(lambda: server.exists(record) == 1)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            with self.assertRaises(ShoalError) as raised:
                await shoal.embed(["a"], job_id="late", timeout=0.05)
            self.assertEqual(raised.exception.code, "DEADLINE_PASSED")
            await until(lambda: server.exists(record, record.replace("left", "late")) == 0)
            await until(lambda: server.exists("{shoal}:admitted:embed-nobody-comes") == 0)
        server.close()

    async def test_inputs_of_all_sizes_come_by_their_ways_and_go_when_they_are_done(self) -> None:
        server = redis.Redis.from_url(URL)
        for size in (10, 5_000, 40_000):  # in the job, under a key, staged
            found = await self.shoal.embed(["x" * size, "é" * size])
            self.assertEqual(len(found), 2)
        async with AsyncShoal(URL, model=NAME) as other:
            await other.embed(["closed at once"])
        await until(lambda: not list(server.scan_iter(match="{shoal}:in:*")))
        await until(lambda: not list(server.scan_iter(match="{shoal}:staged:*")))
        server.close()

    async def test_a_damaged_or_lost_result_is_computed_anew(self) -> None:
        server = redis.Redis.from_url(URL)
        id = new_id()
        job = await self.shoal.submit(["a", "b"], job_id=id)
        right = await job.result(timeout=60)
        key = f"{{shoal}}:out:embed-{NAME}:default~{id}"
        damaged = bytearray(cast(bytes, server.get(key)))
        damaged[-1] ^= 1
        server.set(key, bytes(damaged), keepttl=True)
        found = await self.shoal.embed(["a", "b"], job_id=id)
        assert_same(found.vectors, right.vectors)
        server.delete(key)
        found = await self.shoal.embed(["a", "b"], job_id=id)
        assert_same(found.vectors, right.vectors)
        server.close()


class Submitting(unittest.IsolatedAsyncioTestCase):
    async def test_a_request_is_found_again_by_its_id_in_another_client(self) -> None:
        id = new_id()
        async with AsyncShoal(URL, model=NAME, job_texts=2) as shoal:
            await shoal.submit(TEXTS[:5], job_id=id, dtype="f16", meta={"user": "é"})
            await shoal.submit(TEXTS[:5], job_id=id, dtype="f16")  # the same request
        async with AsyncShoal(URL, model=NAME) as shoal:
            job = await shoal.job(id)
            found = await job.result(timeout=60)
            status = await job.status()
            self.assertEqual((status.state, status.rows, status.rows_done, status.model), ("completed", 5, 5, MODEL))
            self.assertEqual(status.meta, {"user": "é"})
            self.assertEqual((found.dtype, found.model, len(found)), ("f16", MODEL, 5))
            assert_same(found.vectors, (await shoal.embed(TEXTS[:5], dtype="f16")).vectors)
            self.assertEqual(await job.cancel(), "finished")
            await job.release()
            self.assertEqual((await job.status()).state, "unknown")
            with self.assertRaises(ShoalError) as raised:
                await job.result(timeout=60)
            self.assertEqual(raised.exception.code, "INPUT_LOST")
            sdk = await (await shoal.job("by-the-sdk")).result(timeout=60)
            assert_same(sdk.vectors, (await shoal.embed(TEXTS[:3])).vectors)

    async def test_a_request_that_waits_is_cancelled_at_once(self) -> None:
        async with AsyncShoal(URL, model="nobody-comes@1") as shoal:
            job = await shoal.submit(["a"], job_id=new_id())
            self.assertEqual((await job.status()).state, "waiting")
            self.assertEqual(await job.cancel(), "cancelled")
            status = await job.status()
            self.assertEqual((status.state, status.error and status.error.code), ("cancelled", "CANCELLED"))
            self.assertEqual(await shoal.cancel([job.id, "nobody"]), {job.id: "finished", "nobody": "unknown"})
            self.assertEqual((await shoal.why_waiting()).reason, "not-served")


class Waiting(unittest.TestCase):
    def test_many_threads_share_one_client_and_get_their_own_rows(self) -> None:
        with Shoal(URL, model=NAME) as shoal:
            alone = {text: shoal.embed([text]).vectors for text in TEXTS[:4]}
            wrong: list[str] = []

            def ask(text: str) -> None:
                for _ in range(3):
                    if np.abs(shoal.embed([text]).vectors - alone[text]).max() > 1e-5:
                        wrong.append(text)

            threads = [threading.Thread(target=ask, args=(text,)) for text in alone for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(wrong, [])

    def test_rows_come_in_order_and_leaving_the_loop_takes_the_rest_back(self) -> None:
        with Shoal(URL, model=NAME, job_texts=2, max_in_flight_jobs=2) as shoal:
            rows = list(shoal.embed_many(enumerate(TEXTS[:5]), text=lambda item: item[1]))
            self.assertEqual([row.item[0] for row in rows], [0, 1, 2, 3, 4])
            assert_same(np.stack([row.vector for row in rows]), shoal.embed(TEXTS[:5]).vectors)
            for row in shoal.embed_many(TEXTS):
                self.assertEqual(row.index, 0)
                break
            job = shoal.submit(["a"], job_id=new_id())
            self.assertEqual(len(job.result(timeout=60)), 1)
            job.release()
        with self.assertRaises(ShoalError) as raised:
            shoal.embed(["after it was closed"])
        self.assertEqual(raised.exception.code, "INTERRUPTED")
        shoal.close()

    def test_a_server_that_is_not_there_is_told_by_its_address_without_the_password(self) -> None:
        with self.assertRaises(ShoalError) as raised, Shoal("redis://:secret@127.0.0.1:1", model=NAME):
            pass
        self.assertEqual(raised.exception.code, "QUEUE_UNREACHABLE")
        self.assertNotIn("secret", str(raised.exception))
        for wrong in ("http://a", "redis+sentinel://a", "redis+cluster://a/1", "redis+cluster://a?x=1"):
            with self.assertRaises(ShoalError) as raised:
                Shoal(wrong, model=NAME)
            self.assertEqual(raised.exception.code, "CONFIG_INVALID")


if __name__ == "__main__":
    unittest.main()
