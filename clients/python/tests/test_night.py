"""Reranking, searching and jobs of PyPI's ``bullmq``, against workers of each kind. SHOAL_TEST as for test_live, and
with reranker, dims (of the collection docs, whose rows are in rows.bin) and expected (what the SDK said)."""

import asyncio
import json
import os
import pathlib
import unittest
import uuid
from typing import Any

import numpy as np
from bullmq import Queue  # type: ignore[import-untyped]

from shoal import AsyncShoal, Shoal, ShoalError

TOLD: dict[str, Any] = json.loads(os.environ["SHOAL_TEST"])
URL, MODEL = str(TOLD["url"]), str(TOLD["model"])
NAME = MODEL.split("@", 1)[0]
ROWS = np.fromfile(pathlib.Path(TOLD["folder"]) / "rows.bin", dtype="<f4").reshape(-1, int(TOLD["dims"]))


class Others(unittest.TestCase):
    def setUp(self) -> None:
        self.shoal = Shoal(URL, model=NAME)
        self.addCleanup(self.shoal.close)

    def test_scores_are_those_of_the_sdk(self) -> None:
        expected = TOLD["expected"]
        found = self.shoal.rerank("the sea at night", expected["documents"], model=TOLD["reranker"], top_n=5)
        np.testing.assert_array_equal(found.scores, np.array(expected["scores"], dtype=np.float32))
        self.assertEqual(found.ranked.tolist(), expected["ranked"])
        self.assertTrue(found.model.startswith(f"{TOLD['reranker']}@"))

    def test_a_question_that_was_submitted_is_found_again_by_its_id(self) -> None:
        expected, model = TOLD["expected"], TOLD["reranker"]
        id = f"test-{uuid.uuid4()}"
        asked = self.shoal.submit_rerank("the sea at night", expected["documents"], model=model, job_id=id, meta={"a": 1})
        self.assertEqual(asked.id, id)
        with Shoal(URL, model=NAME) as other:
            job = other.rerank_job(id, model=model)
            found = job.result(top_n=5, timeout=120)
            np.testing.assert_array_equal(found.scores, np.array(expected["scores"], dtype=np.float32))
            self.assertEqual(found.ranked.tolist(), expected["ranked"])
            status = job.status()
            self.assertEqual((status.state, status.rows_done, status.meta), ("completed", 70, {"a": 1}))
            theirs = other.rerank_job("asked-by-the-sdk", model=model).result(timeout=120)
            np.testing.assert_array_equal(theirs.scores, found.scores)
            job.release()
            self.assertEqual(job.status().state, "unknown")
        with self.assertRaisesRegex(ShoalError, "in use for another request"):
            self.shoal.submit_rerank("x", ["y"], model=model, job_id="asked-by-the-sdk")
        with self.assertRaisesRegex(ValueError, "was given no documents"):
            self.shoal.submit_rerank("x", [], model=model)

    def test_a_search_finds_the_rows_that_numpy_finds(self) -> None:
        queries = ROWS[:70] + 0.01
        found = self.shoal.search("docs", queries, k=3)
        self.assertEqual((len(found), found.collection), (70, "docs@1"))
        unit = ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)
        scores = (queries / np.linalg.norm(queries, axis=1, keepdims=True)) @ unit.T
        for at, ranking in enumerate(found):
            self.assertEqual(int(ranking.ids[0]), int(scores[at].argmax()))
            np.testing.assert_allclose(ranking.scores, np.sort(scores[at])[::-1][:3], atol=1e-5)
            self.assertEqual(ranking.names and ranking.names[0], f"row {ranking.ids[0]}")
        self.assertIsNone(self.shoal.search("docs@1", queries[0], k=1, names=False)[0].names)
        for collection, k, code in (("nobody", 1, "COLLECTION_UNKNOWN"), ("docs", 1_000_000, "RESULT_TOO_LARGE")):
            with self.assertRaises(ShoalError) as raised:
                self.shoal.search(collection, queries, k=k)
            self.assertEqual(raised.exception.code, code)

    def test_chosen_rows_are_scored_as_numpy_scores_them(self) -> None:
        queries = ROWS[:70] + 0.01
        candidates = [[at, (at + 7) % len(ROWS), (at + 91) % len(ROWS)] for at in range(70)]
        found = self.shoal.rescore("docs", queries, candidates, k=2)
        for at, ranking in enumerate(found):
            rows = ROWS[candidates[at]]
            scores = rows @ queries[at] / np.linalg.norm(rows, axis=1) / np.linalg.norm(queries[at])
            np.testing.assert_allclose(ranking.scores, np.sort(scores)[::-1][:2], atol=1e-5)
            self.assertEqual(int(ranking.ids[0]), candidates[at][int(scores.argmax())])
        with self.assertRaises(ShoalError) as raised:
            self.shoal.rescore("docs", queries, [[10**6]] * 70)
        self.assertEqual(raised.exception.code, "SEARCH_INVALID")
        with self.assertRaisesRegex(ShoalError, "there are 1 lists of candidates for 70 queries"):
            self.shoal.rescore("docs", queries, [[1]])

    def test_every_score_of_vectors_texts_and_collections(self) -> None:
        def unit(rows: Any) -> Any:
            return rows / np.linalg.norm(rows, axis=1, keepdims=True)

        found = self.shoal.cosine(ROWS[:70], ROWS[100:109])
        np.testing.assert_allclose(np.asarray(found), unit(ROWS[:70]) @ unit(ROWS[100:109]).T, atol=1e-5)
        self.assertIsNone(found.collection)
        whole = self.shoal.cosine(ROWS[:3], collection="docs", metric="dot")
        np.testing.assert_allclose(whole.values, ROWS[:3] @ ROWS.T, atol=1e-4)
        self.assertEqual(whole.collection, "docs@1")
        texts = self.shoal.cosine(["the sea"], ["the sea", "a harbour"])
        self.assertEqual((texts.values.shape, round(float(texts.values[0, 0]), 4)), ((1, 2), 1.0))
        with self.assertRaisesRegex(TypeError, "give one"):
            self.shoal.cosine(ROWS[:1])

    def test_activation_spreads_from_seeds(self) -> None:
        found = self.shoal.spread("links", [[0], [(1, 4.0)]], k=3, steps=2, decay=0.5)
        self.assertEqual([[int(id) for id in one.ids] for one in found], TOLD["spread"]["ids"])
        for one, scores in zip(found, TOLD["spread"]["scores"], strict=True):
            np.testing.assert_allclose(one.scores, scores, atol=1e-6)
        again = self.shoal.spread("links", [[0]], k=1, decay=1e-07, threshold=0, job_id=str(uuid.uuid4()))
        self.assertEqual(len(again), 1)  # the worker makes the same fingerprint of these numbers
        with self.assertRaises(ShoalError) as raised:
            self.shoal.spread("links", [[99]], k=1)
        self.assertEqual(raised.exception.code, "GRAPH_INVALID")

    def test_texts_are_embedded_first_and_have_to_fit_the_collection(self) -> None:
        with self.assertRaises(ShoalError) as raised:
            self.shoal.search("docs", ["the sea"], k=1)
        self.assertEqual(raised.exception.code, "DIMENSIONS_MISMATCH")


class Plain(unittest.IsolatedAsyncioTestCase):
    async def test_a_job_that_the_bullmq_of_pypi_added_gives_the_vectors_that_this_client_gets(self) -> None:
        queue = Queue(f"embed-{NAME}", {"connection": URL, "prefix": "{shoal}"})
        job_id = f"default~{uuid.uuid4()}"
        texts = ["hello", "the sea at night"]
        await queue.add("embed", {"v": 1, "texts": texts}, {"jobId": job_id})
        async with AsyncShoal(URL, model=NAME) as shoal:
            expected = await shoal.embed(texts)
            while (await queue.getJobState(job_id)) not in ("completed", "failed"):
                await asyncio.sleep(0.05)
            # the same request under its id: the job has no fingerprint, its result has
            found = await shoal.embed(texts, job_id=job_id.partition("~")[2])
            np.testing.assert_allclose(found.vectors, expected.vectors, atol=1e-6)
            with self.assertRaises(ShoalError) as raised:
                job = f"default~{uuid.uuid4()}"
                await queue.add("embed", {"v": 1, "texts": texts}, {"jobId": job})
                while (await queue.getJobState(job)) not in ("completed", "failed"):
                    await asyncio.sleep(0.05)
                await shoal.embed(["other texts"], job_id=job.partition("~")[2])
            self.assertEqual(raised.exception.code, "JOB_ID_CONFLICT")
        await queue.close()


if __name__ == "__main__":
    unittest.main()
