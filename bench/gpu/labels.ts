// A worker under a GPU's label runs on the GPU or not at all: forced to the CPU it says so, with CUDA hidden it
// refuses, and `auto` falls to the CPU with one warning. Each is a worker's own process, its words taken from its log.
//
//   labels.ts [--device gpu:0] [--small]

import { fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { startTestServer } from '@shoal/queue/testing';
import { partArguments, round, row } from './kit.ts';

partArguments(import.meta.url, {});
const CASES: readonly (readonly [string, Readonly<Record<string, string>>])[] = [
  ['gpu:0', { SHOAL_DEVICE: 'gpu:0' }],
  ['gpu:0 a second time, from the cache', { SHOAL_DEVICE: 'gpu:0' }],
  ['gpu:0 in fp32', { SHOAL_DEVICE: 'gpu:0', SHOAL_PRECISION: 'fp32' }],
  ['gpu:0 in bf16', { SHOAL_DEVICE: 'gpu:0', SHOAL_PRECISION: 'bf16' }],
  ['auto', { SHOAL_DEVICE: 'auto' }],
  ['SHOAL_FORCE_CPU', { SHOAL_DEVICE: 'gpu:0', SHOAL_FORCE_CPU: '1' }],
  ['gpu:0, CUDA hidden', { SHOAL_DEVICE: 'gpu:0', CUDA_VISIBLE_DEVICES: '' }],
  ['auto, CUDA hidden', { SHOAL_DEVICE: 'auto', CUDA_VISIBLE_DEVICES: '-1' }],
  ['gpu:7', { SHOAL_DEVICE: 'gpu:7' }],
];
const server = await startTestServer();
for (const [label, environment] of CASES) {
  const startedMs = performance.now();
  const worker = fork(fileURLToPath(new URL('../../apps/gpu-worker/src/main.ts', import.meta.url)), [], {
    env: {
      ...process.env,
      SHOAL_REDIS_URL: server.url,
      SHOAL_MODEL: 'minilm',
      SHOAL_LOG_LEVEL: 'info',
      ...environment,
    },
    stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
  });
  const output: string[] = [];
  for (const stream of [worker.stdout!, worker.stderr!])
    stream.setEncoding('utf8').on('data', (chunk: string) => output.push(chunk));
  const [report] = (await once(worker, 'message')) as [
    { kind: string; device?: string; precision?: string; failure?: { message: string } },
  ];
  const readyMs = round(performance.now() - startedMs);
  const exit = once(worker, 'exit');
  worker.kill('SIGTERM');
  const [code] = await exit;
  const said = output
    .join('')
    .split('\n')
    .filter((line) => line.startsWith('{'))
    .map((line) => JSON.parse(line) as { level: string; msg: string; tried?: object });
  row({
    part: 'labels',
    case: label,
    kind: report.kind,
    device: report.device,
    precision: report.precision,
    failure: report.failure?.message,
    warnings: said
      .filter(({ level }) => level === 'warn' || level === 'error')
      .map(({ msg, tried }) => ({ msg, tried })),
    readyMs,
    exitCode: code as number,
  });
}
await server.stop();
