"""A data job: a column of pyarrow in, a NumPy file out, in memory of a few blocks whatever the number of rows.

    pip install shoal pyarrow
    REDIS_URL=redis://localhost:6379 python embed_column.py

Started again after it died it goes on where it was: rows that are in the file are not asked for, and what was computed
meanwhile is found by the run's id.
"""

import os
import pathlib

import numpy as np
import pyarrow as pa

from shoal import Shoal

REDIS_URL = os.environ.get("REDIS_URL", "redis://localhost:6379")
OUT, DONE = pathlib.Path("vectors.npy"), pathlib.Path("vectors.done")

# Any column will do: pq.ParquetFile("rows.parquet") streams them, and of pandas it is df["text"].
column = pa.chunked_array([[f"row {row} of the table" for row in range(2_000)]])

with Shoal(REDIS_URL, model="minilm") as shoal:
    dims = shoal.embed(["how long is a vector?"]).dims
    first = int(DONE.read_text()) if DONE.exists() else 0
    out = np.lib.format.open_memmap(OUT, "r+" if first else "w+", np.float32, None if first else (len(column), dims))
    for block in shoal.embed_stream(column.slice(first), start_at=first, run_id="rows-2026-11-27"):
        end = block.first + len(block.embeddings)
        out[block.first : end] = block.embeddings.vectors
        out.flush()
        DONE.write_text(str(end))

print(f"{len(column)} texts, {dims} dimensions: {OUT}")
