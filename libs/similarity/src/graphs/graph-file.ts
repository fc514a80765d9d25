// Graphs as files, written once and replaced by a rename, beside the collections. Edge lists are read by the CLI
// (apps/cli/src/input/edge-list.ts).
//
//   "SHG1"  u32 flags (1 names)  u64 nodes  u64 edges  u32 crc32 of what is before it and behind the header   (64
//           bytes)
//   begin u32[nodes + 1]   source u32[edges]   weight f32[edges]   names: JSON                      little-endian

import { open, readdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { crc32 } from 'node:zlib';
import { ShoalError } from '@shoal/contract';
import { placeAtomically } from '@shoal/fetch';
import { checkGraph, type Graph } from './graph.ts';
import { unreadable } from '../collections/vector-file-errors.ts';

const MAGIC = 0x3147_4853; // "SHG1"
const HEADER_BYTES = 64;
/** Of the header: what stands before the checksum. */
const CHECKED_BYTES = 24;
/** One call of the system reads less than 2 GiB, and one of crc32 sees less than 4 GiB. */
const MOST_AT_ONCE = 1 << 30;
const NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/;

export interface GraphInfo {
  readonly name: string;
  readonly nodes: number;
  readonly edges: number;
  readonly bytes: number;
  readonly createdMs: number;
}

/** Keeps a graph under a name; one that was there is replaced, and who has it open keeps what he read. */
export async function saveGraph(folder: string, name: string, graph: Graph): Promise<GraphInfo> {
  const parts = [
    bytesOf(graph.begin),
    bytesOf(graph.source),
    bytesOf(graph.weight),
    Buffer.from(graph.names === undefined ? '' : JSON.stringify(graph.names)),
  ];
  const header = Buffer.alloc(HEADER_BYTES);
  header.writeUInt32LE(MAGIC, 0);
  header.writeUInt32LE(graph.names === undefined ? 0 : 1, 4);
  header.writeBigUInt64LE(BigInt(graph.nodes), 8);
  header.writeBigUInt64LE(BigInt(graph.source.length), 16);
  header.writeUInt32LE(
    [header.subarray(0, CHECKED_BYTES), ...parts].reduce((crc, part) => crcOf(part, crc), 0),
    CHECKED_BYTES,
  );
  await placeAtomically(pathOf(folder, name), async (temporary) => {
    const file = await open(temporary, 'w');
    try {
      for (const part of [header, ...parts]) await file.writeFile(part);
    } finally {
      await file.close();
    }
  });
  return graphInfo(folder, name);
}

/**
 * COLLECTION_UNKNOWN when there is no such graph, COLLECTION_CORRUPT when its file is damaged or holds no graph.
 */
export async function openGraph(folder: string, name: string): Promise<Graph> {
  const path = pathOf(folder, name);
  const bytes = await readWhole(path).catch(async (error: unknown) => {
    throw error instanceof ShoalError ? error : await unknownGraph(folder, name, error);
  });
  const { nodes, edges, hasNames, crc } = decodeHeader(Buffer.from(bytes), path, bytes.byteLength);
  if (crcOf(new Uint8Array(bytes, HEADER_BYTES), crc32(new Uint8Array(bytes, 0, CHECKED_BYTES))) !== crc)
    throw corrupt(path, 'its bytes have another checksum than was written');
  const at = HEADER_BYTES + (nodes + 1) * 4;
  const graph: Graph = {
    nodes,
    begin: new Uint32Array(bytes, HEADER_BYTES, nodes + 1),
    source: new Uint32Array(bytes, at, edges),
    weight: new Float32Array(bytes, at + edges * 4, edges),
    ...(hasNames ? { names: readNames(Buffer.from(bytes, at + edges * 8), nodes, path) } : {}),
  };
  try {
    checkGraph(graph);
  } catch (error) {
    throw error instanceof ShoalError ? corrupt(path, error.message) : error;
  }
  return graph;
}

function readNames(text: Buffer, nodes: number, path: string): readonly string[] {
  try {
    const names: unknown = JSON.parse(text.toString('utf8'));
    if (Array.isArray(names) && names.length === nodes && names.every((name) => typeof name === 'string')) return names;
  } catch {
    // said below
  }
  throw corrupt(path, `its names are not a JSON list of ${nodes} texts`);
}

/** What the header says, without reading the edges. */
export async function graphInfo(folder: string, name: string): Promise<GraphInfo> {
  const path = pathOf(folder, name);
  const file = await open(path, 'r').catch(async (error: unknown) => {
    throw await unknownGraph(folder, name, error);
  });
  try {
    const { size, mtimeMs } = await file.stat();
    const { buffer, bytesRead } = await file.read(Buffer.alloc(HEADER_BYTES), 0, HEADER_BYTES, 0);
    const { nodes, edges } = decodeHeader(buffer.subarray(0, bytesRead), path, size);
    return { name, nodes, edges, bytes: size, createdMs: mtimeMs };
  } finally {
    await file.close();
  }
}

export async function listGraphs(folder: string): Promise<readonly string[]> {
  const files = await readdir(join(folder, '.graphs')).catch(() => []);
  return files.flatMap((file) => (file.endsWith('.shg') && NAME.test(file) ? [file.slice(0, -4)] : [])).sort();
}

export async function removeGraph(folder: string, name: string): Promise<void> {
  await graphInfo(folder, name).catch((error: unknown) => {
    if (error instanceof ShoalError && error.code === 'COLLECTION_UNKNOWN') throw error;
  });
  await rm(pathOf(folder, name), { force: true });
}

function pathOf(folder: string, name: string): string {
  if (!NAME.test(name))
    throw new ShoalError(
      'COLLECTION_UNKNOWN',
      `"${name}" cannot be the name of a graph: up to 64 letters, digits, ".", "_" and "-", the first a letter ` +
        'or digit',
      { name },
    );
  return join(folder, '.graphs', `${name}.shg`);
}

/** In a buffer of its own, so that the graph can be views of it. */
async function readWhole(path: string): Promise<ArrayBuffer> {
  const file = await open(path, 'r');
  try {
    const buffer = new ArrayBuffer((await file.stat()).size);
    for (let at = 0; at < buffer.byteLength;) {
      const { bytesRead } = await file.read(
        new Uint8Array(buffer, at),
        0,
        Math.min(MOST_AT_ONCE, buffer.byteLength - at),
        at,
      );
      if (bytesRead === 0) throw corrupt(path, `it ends after ${at} of ${buffer.byteLength} bytes`);
      at += bytesRead;
    }
    return buffer;
  } finally {
    await file.close();
  }
}

function crcOf(bytes: Uint8Array, before: number): number {
  let crc = before;
  for (let at = 0; at < bytes.length; at += MOST_AT_ONCE) crc = crc32(bytes.subarray(at, at + MOST_AT_ONCE), crc);
  return crc;
}

function decodeHeader(
  bytes: Buffer,
  path: string,
  size: number,
): { nodes: number; edges: number; hasNames: boolean; crc: number } {
  if (bytes.length < HEADER_BYTES || bytes.readUInt32LE(0) !== MAGIC)
    throw corrupt(path, 'it does not begin like a graph');
  const [nodes, edges] = [Number(bytes.readBigUInt64LE(8)), Number(bytes.readBigUInt64LE(16))];
  const flags = bytes.readUInt32LE(4);
  if (flags > 1) throw corrupt(path, `it has flags ${flags}, of which this version does not know all`);
  const hasNames = flags === 1;
  const wanted = HEADER_BYTES + (nodes + 1) * 4 + edges * 8;
  if (hasNames ? size < wanted : size !== wanted) throw corrupt(path, `it should have ${wanted} bytes and has ${size}`);
  return { nodes, edges, hasNames, crc: bytes.readUInt32LE(CHECKED_BYTES) };
}

function corrupt(path: string, found: string): ShoalError<'COLLECTION_CORRUPT'> {
  return new ShoalError('COLLECTION_CORRUPT', `the graph file ${path} is damaged: ${found}. Save it again.`, { path });
}

async function unknownGraph(folder: string, name: string, error: unknown): Promise<ShoalError> {
  if (!(error instanceof Error && 'code' in error && error.code === 'ENOENT'))
    return unreadable(pathOf(folder, name), error);
  const names = await listGraphs(folder);
  return new ShoalError(
    'COLLECTION_UNKNOWN',
    `no graph is called ${name}: there ${names.length === 0 ? 'is none yet' : `are ${names.slice(0, 10).join(', ')}`}`,
    { name },
  );
}

function bytesOf(values: Uint32Array | Float32Array): Uint8Array {
  return new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
}
