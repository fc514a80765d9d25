// HTTP on a simulated device that takes 15 ms a run, with API keys: how many texts a second come through in requests of
// 64, how long a request of one text takes among 500 a second, what a quiet tenant feels of a loud one, and, of ten
// times as many callers as there are places, whether those who were refused find one when they were told to come back.
//
//   node --conditions=@shoal/source bench/queue/http.ts [--seconds 15] [--overload-seconds 90] [--report]
//
// Bars: ≥ 10,000 texts/s; p99 of single requests ≤ 60 ms; the quiet tenant's p99 ≤ that of the empty system and three
// runs of the device; the median time told within 30 % of the median until a place was found, and memory of HTTP below
// 768 MB. One JSON line, exit 1 when a bar is missed. Takes about 3 minutes. Wants a quiet machine.

import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { Agent, request, type IncomingMessage } from 'node:http';
import { cpus, tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { makeApiKey } from '@shoal/core';
import { median, seededRandom } from '@shoal/core/base';
import { FileApiKeys } from '@shoal/queue';
import { readArguments } from '../rig/arguments.ts';
import { FIXED_DEVICE, openRig, percentile } from '../rig/rig.ts';

const args = readArguments(import.meta.url, {
  seconds: { type: 'string', default: '15' },
  'overload-seconds': { type: 'string', default: '90' },
  report: { type: 'boolean', default: false },
});
const [seconds, overloadSeconds] = [Number(args.seconds), Number(args['overload-seconds'])];
const RUN_MS = 15;
const BARS = { textsPerSecond: 10_000, singleP99Ms: 60, quietMs: 3 * RUN_MS, error: 0.3, bytes: 768e6 };
/** So few places that ten times as many callers are no load by themselves. */
const NARROW = { SHOAL_MAX_OPEN_REQUESTS: '8', SHOAL_MAX_WAITING_REQUESTS: '24' };
const CALLERS = 320;

const folder = mkdtempSync(join(tmpdir(), 'shoal-http-bench-'));
const keyFile = join(folder, 'keys.json');
const agent = new Agent({ keepAlive: true, maxSockets: Infinity });
const random = seededRandom(1);
const WORDS = 'the of and shoal swims north water cold light deep small silver turns again under waves'.split(' ');

interface Answer {
  readonly status: number;
  readonly retryAfterMs: number;
  readonly ms: number;
}

class Http {
  readonly child: ChildProcess;
  readonly url: string;

  constructor(child: ChildProcess, url: string) {
    this.child = child;
    this.url = url;
  }

  static async start(redisUrl: string, environment: Readonly<Record<string, string>> = {}): Promise<Http> {
    const child = fork(fileURLToPath(new URL('../../apps/producer/src/main.ts', import.meta.url)), [], {
      env: {
        ...process.env,
        SHOAL_REDIS_URL: redisUrl,
        SHOAL_MODEL: 'minilm',
        SHOAL_HTTP_PORT: '0',
        SHOAL_HTTP_KEY_FILE: keyFile,
        SHOAL_LOG_LEVEL: 'error',
        ...environment,
      },
      stdio: ['ignore', 2, 2, 'ipc'],
    });
    process.once('exit', () => child.kill('SIGKILL'));
    const [report] = (await once(child, 'message')) as [{ kind: string; url: string; failure?: { message: string } }];
    if (report.kind !== 'ready') throw new Error(report.failure?.message ?? 'HTTP did not start');
    return new Http(child, report.url);
  }

  /** Throws where an answer is neither the vectors that were asked for nor a refusal for now. */
  async embed(key: string, texts: number, startMs = performance.now()): Promise<Answer> {
    const input = Array.from({ length: texts }, sentence);
    const asked = request(`${this.url}/v1/embeddings`, {
      method: 'POST',
      agent,
      headers: { 'content-type': 'application/json', authorization: `Bearer ${key}` },
    });
    asked.end(JSON.stringify({ model: 'minilm', input, encoding_format: 'base64' }));
    const answer = await once(asked, 'response').then(
      ([first]) => first as IncomingMessage,
      (error: unknown) => {
        if (asked.reusedSocket) return undefined; // it was closed meanwhile; every client asks again
        throw error;
      },
    );
    if (answer === undefined) return this.embed(key, texts, startMs);
    const body = await text(answer);
    const status = answer.statusCode ?? 0;
    const isRight = status === 200 ? body.split('"embedding":"').length === texts + 1 : status === 429;
    if (!isRight) throw new Error(`${status}: ${body.slice(0, 300)}`);
    return { status, retryAfterMs: 1_000 * Number(answer.headers['retry-after']), ms: performance.now() - startMs };
  }

  /** Resident, at its most, bytes. */
  peakBytes(): number {
    return 1_024 * Number(/VmHWM:\s+(\d+)/.exec(readFileSync(`/proc/${this.child.pid}/status`, 'utf8'))?.[1]);
  }

  async stop(): Promise<void> {
    const gone = once(this.child, 'exit');
    this.child.kill('SIGTERM');
    await gone;
  }
}

function sentence(): string {
  const words = Array.from({ length: 6 + Math.floor(40 * random()) }, () => WORDS[Math.floor(WORDS.length * random())]);
  return words.join(' ');
}

/** `callers` ask one after the other for so long; gives the answers. */
async function loop(http: Http, key: string, texts: number, callers: number, forMs: number): Promise<Answer[]> {
  const answers: Answer[] = [];
  const endMs = performance.now() + forMs;
  const one = async (): Promise<void> => {
    while (performance.now() < endMs) answers.push(await http.embed(key, texts));
  };
  await Promise.all(Array.from({ length: callers }, one));
  return answers;
}

/** Requests of one text arrive so many a second, whatever becomes of them; gives their times from when they were due. */
async function offer(http: Http, key: string, perSecond: number, forMs: number): Promise<number[]> {
  const startMs = performance.now();
  const open: Promise<Answer>[] = [];
  for (let dueMs = startMs; dueMs < startMs + forMs; dueMs -= (Math.log(1 - random()) * 1_000) / perSecond) {
    if (dueMs > performance.now() + 2) await sleep(dueMs - performance.now());
    open.push(http.embed(key, 1, dueMs));
  }
  return (await Promise.all(open)).map(({ ms }) => ms);
}

/** Callers ask again at once when they were answered, and when they were told to where they were refused. */
async function overload(http: Http, key: string): Promise<{ readonly toldMs: number[]; readonly tookMs: number[] }> {
  const [toldMs, tookMs]: [number[], number[]] = [[], []];
  const startMs = performance.now();
  const one = async (): Promise<void> => {
    while (performance.now() < startMs + overloadSeconds * 1_000) {
      let refused: { readonly atMs: number; readonly toldMs: number } | undefined;
      for (;;) {
        const askedMs = performance.now();
        const { status, retryAfterMs } = await http.embed(key, 64);
        if (status === 200) {
          const isSteady = refused !== undefined && refused.atMs > startMs + 0.3 * overloadSeconds * 1_000;
          if (isSteady) {
            toldMs.push(refused!.toldMs);
            tookMs.push(askedMs - refused!.atMs);
          }
          break;
        }
        refused ??= { atMs: performance.now(), toldMs: retryAfterMs };
        await sleep(retryAfterMs);
      }
    }
  };
  await Promise.all(Array.from({ length: CALLERS }, one));
  return { toldMs, tookMs };
}

const store = new FileApiKeys(keyFile);
const keyOf = async (tenant: string): Promise<string> => {
  const { text: key, kept } = makeApiKey({ name: tenant, tenant }, Date.now());
  await store.add(kept);
  return key;
};
const [loud, quiet] = [await keyOf('loud'), await keyOf('quiet')];
const rig = await openRig({ ...FIXED_DEVICE, SHOAL_SIM_SERVES: 'model' });
const http = await Http.start(rig.url);
const forMs = seconds * 1_000;

await loop(http, loud, 64, 8, Math.min(2_000, forMs)); // warm
const batches = await loop(http, loud, 64, 32, forMs);
const textsPerSecond = (64 * batches.filter(({ status }) => status === 200).length) / seconds;
const single = await offer(http, quiet, 500, forMs);
const alone = await offer(http, quiet, 20, forMs);
const [beside] = await Promise.all([offer(http, quiet, 20, forMs), loop(http, loud, 64, 512, forMs)]);
const narrow = await Http.start(rig.url, NARROW);
const { toldMs, tookMs } = await overload(narrow, loud);

const report = {
  textsPerSecond: Math.round(textsPerSecond),
  single: { p50Ms: Math.round(percentile(single, 0.5)), p99Ms: Math.round(percentile(single, 0.99)) },
  quiet: { aloneP99Ms: Math.round(percentile(alone, 0.99)), besideP99Ms: Math.round(percentile(beside, 0.99)) },
  overload: {
    returned: tookMs.length,
    toldMs: Math.round(tookMs.length === 0 ? 0 : median(toldMs)),
    tookMs: Math.round(tookMs.length === 0 ? 0 : median(tookMs)),
  },
  peakMb: Math.round(Math.max(http.peakBytes(), narrow.peakBytes()) / 1e6),
  machine: `${cpus().length} × ${cpus()[0]?.model ?? 'unknown'}`,
};
const { overload: told, quiet: felt } = report;
const missed = [
  ...(textsPerSecond < BARS.textsPerSecond ? ['texts/s'] : []),
  ...(report.single.p99Ms > BARS.singleP99Ms ? ['single p99'] : []),
  ...(felt.besideP99Ms > felt.aloneP99Ms + BARS.quietMs ? ['quiet p99'] : []),
  ...(told.returned === 0 || Math.abs(told.toldMs / told.tookMs - 1) > BARS.error ? ['Retry-After'] : []),
  ...(report.peakMb > BARS.bytes / 1e6 ? ['memory'] : []),
];
process.stdout.write(`${JSON.stringify({ ...report, missed })}\n`);
await Promise.all([http.stop(), narrow.stop()]);
agent.destroy();
await rig.stop();
rmSync(folder, { recursive: true, force: true });
process.exitCode = missed.length > 0 && !args.report ? 1 : 0;
