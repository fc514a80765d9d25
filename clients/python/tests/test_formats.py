"""The binary forms against the examples of docs/jobs.md, and what is refused of damaged ones. Needs no server."""

import pathlib
import pickle
import re
import struct
import unittest
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from shoal import ERROR_CODES, Shoal, ShoalError
from shoal._formats import (
    Header,
    checked_queries,
    decode_rankings,
    decode_vectors,
    encode_compared,
    encode_query_texts,
    encode_texts,
    fingerprint_of,
    open_result,
    well_formed,
    widen,
)
from shoal._keys import check_job_id, embed_queue, stored_name
from shoal.errors import parse_failed_reason
from shoal._requests import Cutter, ModelName, checked_terms, chunks_of, text_of
from shoal._similarity import _number, checked_spread, spread_job


def result(dtype: int, rows: int, dims: int, body: bytes, flags: int = 0) -> bytes:
    head = b"SHL1" + struct.pack("<BBHIII", 1, dtype, flags, rows, dims, zlib.crc32(body))
    return head + bytes.fromhex("7a46bcc903f08498") + bytes(4) + body


class Inputs(unittest.TestCase):
    def test_the_examples_of_the_page_come_out_byte_by_byte(self) -> None:
        texts = encode_texts(["hello", ""])
        self.assertEqual(texts.hex(), "53484931010000000200000000000000050000000500000068656c6c6f")
        self.assertEqual(fingerprint_of(["minilm@53aa51172d14", None, "end", "f32", None], texts), "7a46bcc903f08498")
        pairs = encode_query_texts("hi", ["hello", ""])
        self.assertEqual(
            pairs.hex(), "534849310103000002000000000000000200000007000000070000006869" "68656c6c6f"
        )
        self.assertEqual(fingerprint_of(["rerank", "bge-reranker@8c2f9a417d03", "end"], pairs), "830217e068312bfd")
        queries = encode_compared(np.array([[1, 0]], dtype=np.float32))
        self.assertEqual(queries.hex(), "53485131010000000100000002000000e6e4e358000000000000803f00000000")
        self.assertEqual(fingerprint_of(["topk", "docs@3", "cosine", 10], queries), "02611244cd9f1233")
        terms = checked_terms(
            tenant="t", request_id="r", has_own_id=True, class_=None, truncate="end", deadline=None, timeout=None,
            result_ttl=None, meta=None,
        )
        spread = spread_job(
            "t~r", "links", [[7], [1, 2]], checked_spread(10, 3, 0.5, 0), terms=terms, reply="{shoal}:reply:x"
        )
        self.assertEqual(spread.fingerprint, "69fc3466f1500765")

    def test_numbers_are_written_as_the_sdk_writes_them(self) -> None:
        for value, text in ((3.0, "3"), (0.5, "0.5"), (1e-07, "1e-7"), (1e-05, "0.00001"), (1e21, "1e+21"), (1e20, "1" + "0" * 20)):
            self.assertEqual(_number(value), text)

    def test_an_option_that_there_is_not_is_refused_by_its_name(self) -> None:
        shoal = Shoal("redis://127.0.0.1:1", model="x")
        self.addCleanup(shoal.close)
        calls: list[Callable[[], Any]] = [
            lambda: shoal.embed(["a"], dim=5),  # type: ignore[call-arg]
            lambda: shoal.embed_stream(["a"], job_id="a"),  # type: ignore[call-overload]
            lambda: shoal.submit(["a"], timeout=5),  # type: ignore[call-arg]
            lambda: shoal.search("docs", ["a"], top_k=5),  # type: ignore[call-arg]
        ]
        for call, name in zip(calls, ("dim", "job_id", "timeout", "top_k"), strict=True):
            with self.assertRaisesRegex(TypeError, f"unexpected keyword argument '{name}'"):
                call()

    def test_halves_of_surrogate_pairs_become_the_replacement_character_and_whole_pairs_stay(self) -> None:
        self.assertEqual(well_formed("a\ud800b"), "a\ufffdb")
        self.assertEqual(well_formed("\ud83d\ude00"), "😀")
        self.assertEqual(well_formed("😀"), "😀")

    def test_a_job_is_closed_by_its_number_of_texts_or_by_their_length_in_utf_16(self) -> None:
        self.assertEqual([len(chunk.texts) for chunk in chunks_of("abcdefg", 0, 3, None)], [3, 3, 1])
        long = "😀" * 400_000  # 800,000 units
        cutter: Cutter[str] = Cutter(5, 64, None)
        self.assertIsNone(cutter.add(long))
        closed = cutter.add(long)
        assert closed is not None
        self.assertEqual((closed.first, len(closed.texts)), (5, 1))

    def test_what_is_no_text_is_refused_by_its_row(self) -> None:
        with self.assertRaises(ShoalError) as raised:
            text_of(None, 7)
        self.assertEqual((raised.exception.code, raised.exception.fields), ("INPUT_INVALID", {"row": 7}))

    def test_queries_are_rows_of_finite_numbers(self) -> None:
        self.assertEqual(checked_queries([1.0, 2.0]).shape, (1, 2))
        cases = (([[1.0], [float("nan")]], "VECTOR_INVALID"), (np.zeros((2, 2, 2)), "DIMENSIONS_MISMATCH"))
        for wrong, code in cases:
            with self.assertRaises(ShoalError) as raised:
                checked_queries(wrong)
            self.assertEqual(raised.exception.code, code)


class Names(unittest.TestCase):
    def test_queues_are_named_after_models(self) -> None:
        self.assertEqual(embed_queue("MiniLM@53aa"), "embed-minilm")
        self.assertEqual(stored_name("BAAI/bge-m3"), "baai--bge-m3")
        self.assertEqual(ModelName.of("minilm@53aa").revision, "53aa")
        for wrong in ("", "a@b@c", "org/name@main", None):
            with self.assertRaises(TypeError):
                ModelName.of(wrong)

    def test_ids_that_keys_cannot_carry_are_refused(self) -> None:
        check_job_id("default~docs-1")
        for wrong in ("", "12", "-3", "a:b", "marker", "x" * 257, "\ud800"):
            with self.assertRaises(ShoalError) as raised:
                check_job_id(wrong)
            self.assertEqual(raised.exception.code, "JOB_INVALID")


class Errors(unittest.TestCase):
    def test_an_error_says_its_code_and_survives_a_process_pool(self) -> None:
        error = ShoalError("INPUT_TOO_LONG", "too long", {"row": 3})
        again = pickle.loads(pickle.dumps(error))
        self.assertEqual((again.code, again.message, again.fields), ("INPUT_TOO_LONG", "too long", {"row": 3}))
        self.assertEqual(str(error), "INPUT_TOO_LONG: too long")
        self.assertEqual(repr(error), "ShoalError('INPUT_TOO_LONG', 'too long')")
        self.assertEqual(parse_failed_reason("CANCELLED: a\nb"), ("CANCELLED", "a\nb"))
        self.assertEqual(parse_failed_reason("stalled"), ("INFERENCE_FAILED", "stalled"))

    def test_the_codes_are_those_of_the_contract(self) -> None:
        contract = pathlib.Path(__file__).parents[3] / "libs/contract/src/errors.ts"
        table = contract.read_text().split("export const ERROR_CODES = {", 1)[1].split("} as const", 1)[0]
        self.assertEqual(ERROR_CODES, set(re.findall(r"^  ([A-Z_]+):", table, re.MULTILINE)))


class Results(unittest.TestCase):
    def test_every_form_is_given_as_it_is_stored_and_means_what_it_says(self) -> None:
        rows = np.array([[0.5, -1.0, 0.25], [1.0, 0.0, -0.125]], dtype=np.float32)
        header, body = open_result(result(0, 2, 3, rows.tobytes()))
        np.testing.assert_array_equal(decode_vectors(header, body)[0], rows)
        header, body = open_result(result(1, 2, 3, rows.astype("<f2").tobytes(), flags=2 | 4))
        self.assertTrue(header.is_truncated and header.is_simulated and not header.is_taken)
        np.testing.assert_array_equal(widen("f16", 3, *decode_vectors(header, body)), rows)
        stored = bytes([1, 2, 255, 127, 0, 129]) + np.array([0.5, 2], dtype="<f4").tobytes()
        header, body = open_result(result(2, 2, 3, stored))
        np.testing.assert_array_equal(widen("i8", 3, *decode_vectors(header, body)), [[0.5, 1, -0.5], [254, 0, -254]])
        header, body = open_result(result(3, 2, 10, bytes([0b1010_0000, 0b0100_0000, 0, 0b1000_0000])))
        values, scales = decode_vectors(header, body)
        self.assertEqual((values.shape, values.dtype, scales), ((2, 2), np.dtype(np.uint8), None))
        wide = widen("binary", 10, values, None)
        np.testing.assert_array_equal(wide[0], [1, -1, 1, -1, -1, -1, -1, -1, -1, 1])
        np.testing.assert_array_equal(wide[1], [-1] * 8 + [1, -1])

    def test_a_damaged_result_is_refused_wherever_it_is_damaged(self) -> None:
        whole = result(0, 2, 3, bytes(range(24)))
        for at in range(len(whole)):
            damaged = bytearray(whole)
            damaged[at] ^= 0x40
            if 20 <= at < 28:  # the fingerprint, which belongs to the request
                continue
            with self.assertRaises(ShoalError, msg=f"byte {at}") as raised:
                open_result(bytes(damaged))
            self.assertEqual(raised.exception.code, "RESULT_CORRUPT")
        for cut in range(len(whole)):
            with self.assertRaises(ShoalError):
                open_result(whole[:cut])
        with self.assertRaises(ShoalError) as taken:
            open_result(result(0, 2, 3, b"", flags=1))
        self.assertEqual(taken.exception.code, "RESULT_TAKEN")

    def test_a_body_on_a_payload_server_is_never_taken_for_vectors(self) -> None:
        names = b"10.0.0.5:6379" + b"{shoal}:out:embed-minilm:a:t"
        behind = struct.pack("<HH", 13, len(names) - 13) + names
        pointer = result(0, 1, 2, struct.pack("<II", 40, zlib.crc32(behind)) + behind, flags=8)
        with self.assertRaises(ShoalError) as elsewhere:
            open_result(pointer)
        self.assertEqual(elsewhere.exception.code, "PAYLOAD_ELSEWHERE")
        self.assertIn("10.0.0.5:6379", elsewhere.exception.message)
        for cut in range(len(pointer)):
            with self.assertRaises(ShoalError) as cut_off:
                open_result(pointer[:cut])
            self.assertEqual(cut_off.exception.code, "RESULT_CORRUPT")

    def test_rankings_come_with_their_names_or_are_refused(self) -> None:
        numbers = b"".join(
            struct.pack("<I", len(ids)) + np.array(ids, "<u8").tobytes() + np.array(scores, "<f4").tobytes()
            for ids, scores in (([7, 2**60], [0.5, 0.25]), ([], []), ([3], [1]))
        )
        names = struct.pack("<3I", 2, 0, 3) + "éabc".encode() + bytes(3)
        header = Header("ranking", 3, 5, 0, "", 0)
        plain = decode_rankings(header, memoryview(numbers))
        self.assertEqual([list(map(int, one.ids)) for one in plain], [[7, 2**60], [], [3]])
        self.assertIsNone(plain[0].names)
        named = decode_rankings(header, memoryview(numbers + names))
        self.assertEqual([one.names for one in named], [("é", ""), (), ("abc",)])
        for cut in range(1, len(numbers)):
            with self.assertRaises(ShoalError):
                decode_rankings(header, memoryview((numbers)[:cut]))
        with self.assertRaises(ShoalError):
            decode_rankings(header, memoryview(numbers + names[:-1] + b"x"))


if __name__ == "__main__":
    unittest.main()
