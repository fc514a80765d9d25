"""Embeds three texts with nothing but BullMQ and redis-py: adds one job, waits for it, prints the first numbers of each
vector.

    pip install bullmq redis && python examples/plain_bullmq.py

Needs a queue server and a worker (`shoal up`). The format is described in docs/jobs.md. Settings: REDIS_URL,
SHOAL_MODEL (minilm), SHOAL_PREFIX ({shoal}).
"""

import array
import asyncio
import os
import struct
import sys
import uuid

from bullmq import Job, Queue
from redis import asyncio as aioredis

URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379")
PREFIX = os.environ.get("SHOAL_PREFIX") or "{shoal}"
QUEUE = "embed-" + (os.environ.get("SHOAL_MODEL") or "minilm")
TEXTS = [
    "The ship left the harbour at dawn.",
    "At sunrise the vessel sailed out of port.",
    "Invoices are due within thirty days.",
]


async def ended(queue, listener, job_id):
    """A message on the channel ends the wait early; asking every 2 seconds makes sure that a lost one costs no more."""
    while True:
        state = await Job.getState(await Job.fromId(queue, job_id))
        if state in ("completed", "failed"):
            return state
        await listener.get_message(ignore_subscribe_messages=True, timeout=2)


def rows_of(result):
    """A header of 32 bytes, then rows × dims numbers of 4 bytes, little-endian."""
    if result is None:
        raise RuntimeError("the result has expired; remove the job and add it again")
    if result[:4] != b"SHL1" or result[4] != 1:
        raise RuntimeError("not a result of version 1")
    if struct.unpack_from("<H", result, 6)[0] & 1:
        raise RuntimeError("the result was acknowledged before; remove the job and add it again")
    rows, dims = struct.unpack_from("<II", result, 8)
    values = array.array("f", result[32:])
    if sys.byteorder == "big":
        values.byteswap()
    if result[5] != 0 or len(values) != rows * dims:
        raise RuntimeError("not the f32 result that was asked for")
    return [values[row * dims : (row + 1) * dims] for row in range(rows)]


async def main():
    redis = aioredis.from_url(URL)
    queue = Queue(QUEUE, {"connection": URL, "prefix": PREFIX})
    # Listen before adding, so that the answer cannot come too early. The name of the channel is yours to choose.
    channel = f"{PREFIX}:reply:{uuid.uuid4()}"
    listener = redis.pubsub()
    await listener.subscribe(channel)
    # The id makes it safe to add the job again after a fault: a job that is there already is left as it is.
    job_id = sys.argv[1] if len(sys.argv) > 1 else f"example-{uuid.uuid4()}"
    await queue.add("embed", {"v": 1, "texts": TEXTS, "reply": channel}, {"jobId": job_id})
    state = await ended(queue, listener, job_id)
    job = await Job.fromId(queue, job_id)
    if state == "failed":
        raise RuntimeError(job.failedReason)  # "CODE: what was asked, what was found, what to do"
    vectors = rows_of(await redis.get(job.returnvalue["key"]))
    print(f"{len(vectors)} rows of {len(vectors[0])} dimensions from {job.returnvalue['model']}")
    for text, vector in zip(TEXTS, vectors):
        like = sum(a * b for a, b in zip(vectors[0], vector))
        print(f"{' '.join(f'{value:.4f}' for value in vector[:4])} …  {like:.3f} like the first  {text}")
    await listener.aclose()
    await queue.close()
    await redis.aclose()


asyncio.run(main())
