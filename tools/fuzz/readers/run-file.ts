// run.json, in which the private server says which processes it is made of. What it names is connected to and, when it
// is left over, stopped: a damaged file names nobody.

import { readRunFile, whereabouts } from '../../../libs/private-server/src/run-file.ts';
import type { FuzzedReader, Values } from '../fuzzed-reader.ts';

const run = {
  version: 1,
  host: 'machine',
  place: 'a1b2c3d4.4026531836',
  supervisor: { pid: 4_000_001, startTime: '123456' },
  server: { pid: 4_000_002, startTime: '123457' },
  socket: '/tmp/shoal-0-abc/s',
  control: '/tmp/shoal-0-abc/c',
};

export const runFileReader: FuzzedReader = {
  name: 'run.json',
  kind: 'text',
  extension: '.json',
  codes: [],
  takesAll: true,
  variants: 1,
  seeds: async () => [
    Buffer.from(JSON.stringify(run)),
    Buffer.from(JSON.stringify({ ...run, server: undefined, place: undefined })),
  ],
  read: async (_bytes, path) => {
    const found = readRunFile(path);
    if (found === undefined) return ['none'];
    return [...namesOf(found as unknown as Fields), whereabouts(path, found) === 'here' ? 'here' : 'not here'];
  },
  readAgain: (bytes) => readRun(bytes.toString()),
};

type Fields = Readonly<Record<string, unknown>>;

function namesOf({ version, host, place, supervisor, server, socket, control }: Fields): Values {
  return [
    JSON.stringify({ version, host, place, supervisor: idOf(supervisor), server: idOf(server), socket, control }),
  ];
}

function idOf(value: unknown): unknown {
  if (typeof value !== 'object' || value === null) return value;
  return { pid: (value as Fields)['pid'], startTime: (value as Fields)['startTime'] };
}

const isText = (value: unknown): boolean => typeof value === 'string';

function isProcess(value: unknown): boolean {
  const { pid, startTime } = (value ?? {}) as Fields;
  return typeof value === 'object' && Number.isSafeInteger(pid) && (pid as number) > 0 && isText(startTime);
}

function readRun(text: string): Values {
  try {
    const found = JSON.parse(text) as Fields | null;
    if (typeof found !== 'object' || found === null || !Number.isSafeInteger(found['version'])) return ['none'];
    if (![found['host'], found['socket'], found['control']].every(isText)) return ['none'];
    if (!isProcess(found['supervisor']) || (found['server'] !== undefined && !isProcess(found['server'])))
      return ['none'];
    if (found['place'] !== undefined && !isText(found['place'])) return ['none'];
    return [...namesOf(found), 'not here'];
  } catch {
    return ['none'];
  }
}
