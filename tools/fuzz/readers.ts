// Every format that Shoal reads, and what a fuzzer needs to know of it. A new format gets a file in readers/ and a line
// here.

import { BROKEN_READERS } from './broken-readers.ts';
import type { FuzzedReader } from './fuzzed-reader.ts';
import { arrowReader } from './readers/arrow.ts';
import { compressedReader, jsonArrayReader, parquetReader } from './readers/bulk-files.ts';
import { collectionReader } from './readers/collection.ts';
import { candidatesReader, comparandsReader } from './readers/comparands.ts';
import { csvEdgesReader, jsonlEdgesReader } from './readers/edges.ts';
import { graphReader } from './readers/graph.ts';
import { inputReader } from './readers/input.ts';
import { pairsReader } from './readers/pairs.ts';
import { npyReader } from './readers/npy.ts';
import { onnxReader } from './readers/onnx.ts';
import { pointerReader } from './readers/pointer.ts';
import { resultReader } from './readers/result.ts';
import { runFileReader } from './readers/run-file.ts';
import { safetensorsReader } from './readers/safetensors.ts';
import { embeddingsReader, jobReader, rerankJobReader, searchReader, similarityJobReader } from './readers/requests.ts';
import { csvReader, jsonlReader, linesReader, markdownReader } from './readers/texts.ts';
import { tokenizerReader } from './readers/tokenizer.ts';
import { unigramReader } from './readers/unigram.ts';
import { jsonlVectorsReader } from './readers/vectors-jsonl.ts';
import { parquetVectorsReader } from './readers/vectors-parquet.ts';

export const READERS: readonly FuzzedReader[] = [
  inputReader,
  pairsReader,
  resultReader,
  pointerReader,
  comparandsReader,
  candidatesReader,
  collectionReader,
  graphReader,
  npyReader,
  arrowReader,
  jsonlVectorsReader,
  linesReader,
  jsonlReader,
  csvReader,
  markdownReader,
  jsonArrayReader,
  compressedReader,
  parquetReader,
  parquetVectorsReader,
  csvEdgesReader,
  jsonlEdgesReader,
  safetensorsReader,
  onnxReader,
  tokenizerReader,
  unigramReader,
  jobReader,
  rerankJobReader,
  similarityJobReader,
  embeddingsReader,
  searchReader,
  runFileReader,
];

export function readerNamed(name: string): FuzzedReader {
  const found = [...READERS, ...BROKEN_READERS].find((reader) => reader.name === name);
  if (found === undefined)
    throw new Error(`no reader is called ${name}: there are ${READERS.map((reader) => reader.name).join(', ')}`);
  return found;
}
