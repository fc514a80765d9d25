"""Texts ranked by a question, with the Python client; and a request that another process could fetch.

    pip install ./clients/python && python examples/python_client.py

Needs a queue server and a worker (`shoal up`). Settings: REDIS_URL, SHOAL_MODEL (minilm). docs/python.md has the rest.
"""

import os

import numpy as np

from shoal import Shoal

QUESTION = "when do I have to pay?"
TEXTS = ["The ship left the harbour at dawn.", "Invoices are due within thirty days.", "Gulls followed it."]

with Shoal(os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"), model=os.environ.get("SHOAL_MODEL", "minilm")) as shoal:
    question = shoal.embed([QUESTION], timeout=120).vectors[0]
    scores = shoal.embed(TEXTS).vectors @ question
    for at in np.argsort(-scores):
        print(f"{scores[at]:.3f} {TEXTS[at]}")

    # Handed in now and fetched later, by its id, here or in any other process.
    shoal.submit(TEXTS, job_id="python-client-example")
    job = shoal.job("python-client-example")
    print(job.result(timeout=120).vectors.shape, job.status().state)
    job.release()
