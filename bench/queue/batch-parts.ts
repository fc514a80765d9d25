// One large batch through HTTP (/v1/batches), by the queue and by parts in turns: lines that are answered a second, from
// the batch to its output file, and the CPU of queue server, HTTP and worker for a thousand lines. The device is simulated
// and takes 15 ms a run of up to 1,024 rows, so what is measured is everything around it. Both outputs have to be the
// same to the byte, ids of requests apart.
//
//   node --conditions=@shoal/source bench/queue/batch-parts.ts [--lines 200000] [--part-lines 65536] [--rounds 1]
//     [--encoding base64] [--report] [--record]
//
// --part-lines is the setting batchPartLines: parts have an eighth of so many lines.
//
// Bar: CPU of the queue server by parts ÷ by the queue at most 0.05. Prints one JSON line, exit 1 where outputs differ or
// the bar is missed. Linux only: it reads /proc.

import { createHash } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { median } from '@shoal/core/base';
import { readArguments } from '../rig/arguments.ts';
import { BenchKeys, HttpServer } from '../rig/http-server.ts';
import { processCpuMs } from '../rig/processes.ts';
import { record } from '../rig/record.ts';
import { FIXED_DEVICE, openRig, type Rig } from '../rig/rig.ts';

const args = readArguments(import.meta.url, {
  lines: { type: 'string', default: '200000' },
  'part-lines': { type: 'string', default: '65536' },
  rounds: { type: 'string', default: '1' },
  encoding: { type: 'string', default: 'base64' },
  report: { type: 'boolean', default: false },
  record: { type: 'boolean', default: false },
});
const [LINES, ROUNDS] = [Number(args.lines), Number(args.rounds)];
const WORDS = ['the', 'queue', 'keeps', 'every', 'job', 'until', 'one', 'worker', 'has', 'done', 'it', 'once'];
const MOST_SERVER_RATIO = 0.05;
const WAYS = ['queue', 'parts'] as const;
type Way = (typeof WAYS)[number];

interface Ran {
  readonly linesPerSecond: number;
  /** ms of CPU a thousand lines. */
  readonly server: number;
  readonly http: number;
  readonly worker: number;
  readonly sha256: string;
}

function lineAt(line: number): string {
  const words = Array.from({ length: 3 + (line % 17) }, (_, at) => WORDS[(line * 7 + at * 5) % WORDS.length]);
  const body = { model: 'minilm', input: `${line} ${words.join(' ')}`, encoding_format: args.encoding };
  return JSON.stringify({ custom_id: `line-${line}`, method: 'POST', url: '/v1/embeddings', body });
}

async function run(rig: Rig, http: HttpServer, key: string): Promise<Ran> {
  const headers = { authorization: `Bearer ${key}` };
  const ask = async (path: string, init: RequestInit = {}): Promise<Response> => {
    const answer = await fetch(`${http.url}/v1/${path}`, { ...init, headers: { ...headers, ...init.headers } });
    if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`);
    return answer;
  };
  const form = new FormData();
  form.set('purpose', 'batch');
  form.set('file', new Blob(Array.from({ length: LINES }, (_, line) => `${lineAt(line)}\n`)), 'input.jsonl');
  const { id: fileId } = (await (await ask('files', { method: 'POST', body: form })).json()) as { id: string };
  const cpu = (): Omit<Ran, 'linesPerSecond' | 'sha256'> => {
    const { server, claimer, executor } = rig.cpuMs();
    return { server, http: processCpuMs(http.pid), worker: claimer + executor };
  };
  const [before, begunMs] = [cpu(), performance.now()];
  const terms = { input_file_id: fileId, endpoint: '/v1/embeddings', completion_window: '24h' };
  const json = { 'content-type': 'application/json' };
  const { id } = (await (
    await ask('batches', { method: 'POST', headers: json, body: JSON.stringify(terms) })
  ).json()) as {
    id: string;
  };
  for (;;) {
    const batch = (await (await ask(`batches/${id}`)).json()) as Readonly<Record<string, string>>;
    if (batch['status'] === 'completed') {
      const ms = performance.now() - begunMs;
      const after = cpu();
      const spent = (who: 'server' | 'http' | 'worker'): number => (1_000 * (after[who] - before[who])) / LINES;
      return {
        linesPerSecond: (1_000 * LINES) / ms,
        server: spent('server'),
        http: spent('http'),
        worker: spent('worker'),
        sha256: await sumOf(await ask(`files/${batch['output_file_id']}/content`)),
      };
    }
    if (!['validating', 'in_progress', 'finalizing'].includes(batch['status']!))
      throw new Error(`the batch is ${JSON.stringify(batch)}`);
    await sleep(100);
  }
}

/** Without what is of one batch alone. */
async function sumOf({ body }: Response): Promise<string> {
  const hash = createHash('sha256');
  let [rest, lines] = ['', 0];
  for await (const piece of body!.pipeThrough(new TextDecoderStream() as never) as unknown as AsyncIterable<string>) {
    const whole = (rest + piece).split('\n');
    rest = whole.pop()!;
    lines += whole.length;
    for (const line of whole) hash.update(line.replaceAll(/"(?:batch_req|req)_[0-9a-f]{32}"/g, ''));
  }
  if (lines !== LINES || rest !== '') throw new Error(`the output has ${lines} lines of ${LINES}`);
  return hash.digest('hex');
}

const folder = mkdtempSync(join(tmpdir(), 'shoal-bench-batch-'));
const keys = new BenchKeys();
const key = await keys.of('bench');
const rig = await openRig({ ...FIXED_DEVICE, SHOAL_SIM_SERVES: 'model', SHOAL_PART_FOLDERS: folder });
const common = { SHOAL_BATCH_MAX_LINES: String(LINES) };
const https: Readonly<Record<Way, HttpServer>> = {
  queue: await HttpServer.start(rig.url, keys, {
    ...common,
    SHOAL_BATCH_DIR: join(folder, 'queue'),
    SHOAL_BATCH_PART_LINES: '0',
  }),
  parts: await HttpServer.start(rig.url, keys, {
    ...common,
    SHOAL_BATCH_DIR: join(folder, 'parts'),
    SHOAL_BATCH_PART_LINES: args['part-lines'],
  }),
};
const ran: Record<Way, Ran[]> = { queue: [], parts: [] };
try {
  for (let round = 0; round < ROUNDS; round++)
    for (const way of round % 2 === 0 ? WAYS : WAYS.toReversed()) ran[way].push(await run(rig, https[way], key));
} finally {
  for (const way of WAYS) await https[way].stop();
  await rig.stop();
  keys.close();
  rmSync(folder, { recursive: true, force: true });
}

const of = (way: Way, figure: Exclude<keyof Ran, 'sha256'>): number => median(ran[way].map((one) => one[figure]));
const hundredths = (value: number): number => Math.round(100 * value) / 100;
const isSame = new Set(WAYS.flatMap((way) => ran[way].map(({ sha256 }) => sha256))).size === 1;
const figures = {
  lines: LINES,
  outputs_same: isSame ? 1 : 0,
  lines_per_s_queue: Math.round(of('queue', 'linesPerSecond')),
  lines_per_s_parts: Math.round(of('parts', 'linesPerSecond')),
  server_ms_queue: hundredths(of('queue', 'server')),
  server_ms_parts: hundredths(of('parts', 'server')),
  http_ms_queue: hundredths(of('queue', 'http')),
  http_ms_parts: hundredths(of('parts', 'http')),
  worker_ms_queue: hundredths(of('queue', 'worker')),
  worker_ms_parts: hundredths(of('parts', 'worker')),
  server_ratio: Math.round((1_000 * of('parts', 'server')) / of('queue', 'server')) / 1_000,
};
process.stdout.write(`${JSON.stringify({ bench: 'batch-parts', ...figures })}\n`);
const { held } = record({
  bench: 'batch-parts',
  case: `a batch of ${LINES.toLocaleString('en')} lines, ${args.encoding}, in parts of ${Math.ceil(Number(args['part-lines']) / 8).toLocaleString('en')}; CPU is ms a thousand lines`,
  figures,
  bar: { figure: 'server_ratio', at_most: MOST_SERVER_RATIO },
});
if (!isSame || (held === false && !args.report)) process.exitCode = 1;
