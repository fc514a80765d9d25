// SHG1, graphs, as the comment of graph-file.ts draws them.

import { copyFile, mkdir, mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { crc32 } from 'node:zlib';
import { graphFromEdges, openGraph, saveGraph } from '@shoal/similarity';
import { bytesOf, type FuzzedReader, type Values } from '../fuzzed-reader.ts';

const HEADER_BYTES = 64;
const MAX_WEIGHT = 1e6;

const edges = {
  from: Uint32Array.of(0, 1, 2, 2, 3),
  to: Uint32Array.of(1, 2, 0, 2, 1),
  weight: Float32Array.of(1, 0.5, 0, 1e6, 0.25),
};

async function seed(names?: readonly string[]): Promise<Buffer> {
  const folder = await mkdtemp(join(tmpdir(), 'shoal-fuzz-'));
  try {
    await mkdir(join(folder, '.graphs'), { recursive: true });
    await saveGraph(folder, 'seed', graphFromEdges(edges, 4, names));
    return await readFile(join(folder, '.graphs', 'seed.shg'));
  } finally {
    await rm(folder, { recursive: true });
  }
}

export const graphReader: FuzzedReader = {
  name: 'shg1',
  kind: 'both',
  codes: ['COLLECTION_CORRUPT', 'GRAPH_INVALID'],
  takesAll: true,
  variants: 1,
  seeds: () => Promise.all([seed(), seed(['here', 'there', '', '🙂'])]),
  read: async (_bytes, path) => {
    const folder = join(dirname(path), 'graphs');
    await mkdir(join(folder, '.graphs'), { recursive: true });
    await copyFile(path, join(folder, '.graphs', 'fuzzed.shg'));
    const { nodes, begin, source, weight, names } = await openGraph(folder, 'fuzzed');
    return [nodes, bytesOf(begin), bytesOf(source), bytesOf(weight), names?.length, ...(names ?? [])];
  },
  readAgain: (bytes) => readGraph(bytes),
  mend: (bytes) => {
    if (bytes.length >= HEADER_BYTES) bytes.writeUInt32LE(checksum(bytes), 24);
    return bytes;
  },
};

function checksum(bytes: Buffer): number {
  return crc32(bytes.subarray(HEADER_BYTES), crc32(bytes.subarray(0, 24)));
}

function readGraph(bytes: Buffer): Values | undefined {
  if (bytes.length < HEADER_BYTES || bytes.toString('latin1', 0, 4) !== 'SHG1') return undefined;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (view.getUint32(24, true) !== checksum(bytes)) return undefined;
  const [flags, nodes, count] = [view.getUint32(4, true), view.getBigUint64(8, true), view.getBigUint64(16, true)];
  const end = 64n + 4n * (nodes + 1n) + 8n * count;
  if (flags > 1 || nodes < 1n || end > BigInt(bytes.length) || (flags === 0 && end !== BigInt(bytes.length)))
    return undefined;
  const [sources, weights] = [68 + 4 * Number(nodes), 68 + 4 * Number(nodes) + 4 * Number(count)];
  for (let node = 0; node <= Number(nodes); node++) {
    const begin = view.getUint32(64 + 4 * node, true);
    if (node === 0 ? begin !== 0 : begin < view.getUint32(60 + 4 * node, true)) return undefined;
    if (node === Number(nodes) && begin !== Number(count)) return undefined;
  }
  for (let edge = 0; edge < Number(count); edge++) {
    const weight = view.getFloat32(weights + 4 * edge, true);
    if (view.getUint32(sources + 4 * edge, true) >= Number(nodes) || !(weight >= 0 && weight <= MAX_WEIGHT))
      return undefined;
  }
  const names = flags === 1 ? namesOf(bytes.subarray(Number(end)), Number(nodes)) : [];
  if (names === undefined) return undefined;
  const parts = [bytes.subarray(64, sources), bytes.subarray(sources, weights), bytes.subarray(weights, Number(end))];
  return [Number(nodes), ...parts, flags === 1 ? names.length : undefined, ...names];
}

function namesOf(bytes: Buffer, nodes: number): string[] | undefined {
  try {
    const names: unknown = JSON.parse(bytes.toString());
    return Array.isArray(names) && names.length === nodes && names.every((name) => typeof name === 'string')
      ? names
      : undefined;
  } catch {
    return undefined;
  }
}
