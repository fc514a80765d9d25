"""Exact top-k by inner product with NumPy: a matrix product (BLAS) and argpartition, for
bench/similarity/similarity.ts.

Usage: numpy_topk.py ROWS.npy QUERIES.npy K ROUNDS. A line of JSON: seconds of each round at the fastest of three
chunk sizes (queries at a time; the whole score matrix does not fit any cache), and the rows that were found.
"""

import json
import sys
import time

import numpy as np


def top_k(rows, queries, k, chunk):
    found = np.empty((len(queries), k), dtype=np.int64)
    for first in range(0, len(queries), chunk):
        scores = queries[first : first + chunk] @ rows.T
        best = np.argpartition(scores, -k, axis=1)[:, -k:]
        order = np.argsort(-np.take_along_axis(scores, best, axis=1), axis=1, kind="stable")
        found[first : first + chunk] = np.take_along_axis(best, order, axis=1)
    return found


def seconds(work):
    begun = time.perf_counter()
    result = work()
    return time.perf_counter() - begun, result


rows, queries = np.load(sys.argv[1]), np.load(sys.argv[2])
k, rounds = int(sys.argv[3]), int(sys.argv[4])
times = {}
for chunk in (32, 125, len(queries)):
    times[chunk] = []
    for _ in range(rounds):
        taken, found = seconds(lambda: top_k(rows, queries, k, chunk))
        times[chunk].append(taken)
best = min(times, key=lambda chunk: sorted(times[chunk])[rounds // 2])
print(json.dumps({"version": np.__version__, "chunk": best, "seconds": times[best], "found": found.tolist()}))
