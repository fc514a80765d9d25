// What the steps of the group "payloads" show, from the rows that are there so far: two GPUs against one, payloads beside
// the queue server against those that go through it, by the medians of all windows of a case. Started by main.ts alone.

import { readFileSync } from 'node:fs';
import { partArguments, median, round, row } from './kit.ts';

interface Found {
  readonly part: string;
  readonly dtype: string;
  readonly devices: readonly string[];
  readonly payloadServers: number;
  readonly isPeeking: boolean;
  readonly raw: readonly number[];
  readonly failures: number;
  readonly leastCosine: number;
  readonly commandMicrosPerJob: number;
  readonly cpuPercent: { readonly serverMainThread: number };
}

partArguments(import.meta.url, {});
const path = process.env['GPU_BENCH_ROWS'];
if (path === undefined) throw new Error('GPU_BENCH_ROWS names no file of rows');
const rows = readFileSync(path, 'utf8')
  .split('\n')
  .filter((line) => line !== '')
  .map((line) => JSON.parse(line) as Found)
  .filter((found) => found.part === 'end-to-end' && found.isPeeking);

for (const dtype of new Set(rows.map((found) => found.dtype))) {
  const one = (payloadServers: number) => figures(dtype, 1, payloadServers);
  const two = (payloadServers: number) => figures(dtype, 2, payloadServers);
  row({
    part: 'payload-ratios',
    dtype,
    server: { one: one(0), two: two(0), twoToOne: ratio(two(0).textsPerSecond, one(0).textsPerSecond) },
    ...Object.fromEntries(
      [1, 2].map((beside) => [
        `beside${beside}`,
        {
          one: one(beside),
          two: two(beside),
          twoToOne: ratio(two(beside).textsPerSecond, one(beside).textsPerSecond),
          twoToOneOfServer: ratio(two(beside).textsPerSecond, one(0).textsPerSecond),
          textsToServer: ratio(two(beside).textsPerSecond, two(0).textsPerSecond),
          commandThreadToServer: ratio(two(beside).commandThreadPercent, two(0).commandThreadPercent),
          commandMicrosToServer: ratio(two(beside).commandMicrosPerJob, two(0).commandMicrosPerJob),
        },
      ]),
    ),
  });
}

function ratio(over: number, under: number): number {
  return round(over / under, 3);
}

function figures(dtype: string, gpus: number, payloadServers: number) {
  const found = rows.filter(
    (one) => one.dtype === dtype && one.devices.length === gpus && one.payloadServers === payloadServers,
  );
  return {
    windows: found.flatMap(({ raw }) => raw).length,
    textsPerSecond: median(found.flatMap(({ raw }) => raw)),
    commandThreadPercent: median(found.map(({ cpuPercent }) => cpuPercent.serverMainThread)),
    commandMicrosPerJob: median(found.map((one) => one.commandMicrosPerJob)),
    failures: found.reduce((sum, { failures }) => sum + failures, 0),
    leastCosine: Math.min(...found.map((one) => one.leastCosine)),
  };
}
