// Callers of HTTP in a process of their own, as other programs would be: what they wait for is not each other's event
// loop, and what they cost is known. Started by `startCallers`. Every answer is looked at: as many vectors as texts were
// sent, or a refusal for now; anything else ends the bench.

import { fork } from 'node:child_process';
import { once } from 'node:events';
import { Agent, request, type IncomingMessage } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { seededRandom } from '@shoal/core/base';
import { OpenAI } from 'openai';

/** Whom to ask, as whom, and with how many texts a request. */
interface Door {
  readonly url: string;
  readonly key: string;
  readonly texts: number;
}

type Task = Door &
  (
    | { readonly kind: 'loop'; readonly callers: number; readonly forMs: number }
    | { readonly kind: 'offer'; readonly perSecond: number; readonly forMs: number }
    | { readonly kind: 'return'; readonly callers: number; readonly forMs: number }
    | { readonly kind: 'official'; readonly calls: number }
  );

/** A request that was answered with vectors, by when it was due or first sent. */
export interface Answered {
  readonly ms: number;
  /** When that was, since the task began. */
  readonly sinceMs: number;
}

/** A caller that was refused, came back when it was told to, and was answered. */
export interface Returned {
  /** Since the task began. */
  readonly refusedMs: number;
  readonly toldMs: number;
  readonly tookMs: number;
}

export interface Callers {
  /** So many ask one after the other for so long. */
  loop(door: Door, callers: number, forMs: number): Promise<Answered[]>;
  /**
   * Requests arrive so many a second at random moments, whatever becomes of them. One that is refused counts as if it
   * were answered when it was told to come back.
   */
  offer(door: Door, perSecond: number, forMs: number): Promise<Answered[]>;
  /** As `loop`, but who is refused asks again when it was told to. */
  comingBack(door: Door, callers: number, forMs: number): Promise<Returned[]>;
  /** So many calls of OpenAI's own client at the same moment, with its defaults; gives those that were answered. */
  official(door: Door, calls: number): Promise<Answered[]>;
  readonly pid: number;
  close(): Promise<void>;
}

export function startCallers(): Callers {
  const child = fork(fileURLToPath(import.meta.url), [], { stdio: ['ignore', 2, 2, 'ipc'] });
  process.once('exit', () => child.kill('SIGKILL'));
  const ask = async <Answer>(task: Task): Promise<Answer[]> => {
    child.send(task);
    const [answers] = (await Promise.race([once(child, 'message'), once(child, 'exit').then(() => [undefined])])) as [
      Answer[] | undefined,
    ];
    if (answers === undefined) throw new Error('the callers ended before they answered');
    return answers;
  };
  return {
    loop: (door, callers, forMs) => ask({ ...door, kind: 'loop', callers, forMs }),
    offer: (door, perSecond, forMs) => ask({ ...door, kind: 'offer', perSecond, forMs }),
    comingBack: (door, callers, forMs) => ask({ ...door, kind: 'return', callers, forMs }),
    official: (door, calls) => ask({ ...door, kind: 'official', calls }),
    pid: child.pid!,
    close: async () => {
      if (!child.connected) return; // it has ended
      const gone = once(child, 'exit');
      child.disconnect();
      await gone;
    },
  };
}

// ---- the process of the callers -----------------------------------------------------------------------------------

const agent = new Agent({ keepAlive: true, maxSockets: Infinity });
const random = seededRandom(1);
const WORDS = 'the of and shoal swims north water cold light deep small silver turns again under waves'.split(' ');
const VECTOR = Buffer.from('"embedding":"');
/** Made once: what it costs to make a body is not what is measured. */
const BODIES = 512;
const bodies = new Map<number, readonly Buffer[]>();
let asked = 0;

interface Reply {
  readonly status: number;
  readonly retryAfterMs: number;
}

function sentence(): string {
  const words = Array.from({ length: 6 + Math.floor(40 * random()) }, () => WORDS[Math.floor(WORDS.length * random())]);
  return words.join(' ');
}

function bodyOf(texts: number): Buffer {
  let made = bodies.get(texts);
  if (made === undefined) {
    made = Array.from({ length: BODIES }, () =>
      Buffer.from(
        JSON.stringify({ model: 'minilm', input: Array.from({ length: texts }, sentence), encoding_format: 'base64' }),
      ),
    );
    bodies.set(texts, made);
  }
  return made[asked++ % BODIES]!;
}

/** Throws where an answer is neither the vectors that were asked for nor a refusal for now. */
async function embed(door: Door): Promise<Reply> {
  const call = request(`${door.url}/v1/embeddings`, {
    method: 'POST',
    agent,
    headers: { 'content-type': 'application/json', authorization: `Bearer ${door.key}` },
  });
  call.end(bodyOf(door.texts));
  const answer = await once(call, 'response').then(
    ([first]) => first as IncomingMessage,
    (error: unknown) => {
      if (call.reusedSocket) return undefined; // it was closed meanwhile; every client asks again
      throw error;
    },
  );
  if (answer === undefined) return embed(door);
  const pieces: Buffer[] = [];
  answer.on('data', (piece: Buffer) => pieces.push(piece));
  await once(answer, 'end');
  const body = Buffer.concat(pieces);
  const status = answer.statusCode ?? 0;
  const isRight = status === 200 ? vectorsIn(body) === door.texts : status === 429;
  if (!isRight) throw new Error(`${status}: ${body.toString('utf8', 0, 300)}`);
  return { status, retryAfterMs: 1_000 * Number(answer.headers['retry-after']) };
}

function vectorsIn(body: Buffer): number {
  let count = 0;
  for (let at = body.indexOf(VECTOR); at >= 0; at = body.indexOf(VECTOR, at + VECTOR.length)) count++;
  return count;
}

async function loop(door: Door, callers: number, forMs: number): Promise<Answered[]> {
  const answers: Answered[] = [];
  const startMs = performance.now();
  const endMs = startMs + forMs;
  await inParallel(callers, async () => {
    while (performance.now() < endMs) {
      const askedMs = performance.now();
      const { status } = await embed(door);
      if (status === 200) answers.push({ ms: performance.now() - askedMs, sinceMs: askedMs - startMs });
    }
  });
  return answers;
}

async function offer(door: Door, perSecond: number, forMs: number): Promise<Answered[]> {
  const startMs = performance.now();
  const open: Promise<Answered>[] = [];
  const one = async (dueMs: number): Promise<Answered> => {
    const { status, retryAfterMs } = await embed(door);
    return { ms: performance.now() - dueMs + (status === 200 ? 0 : retryAfterMs), sinceMs: dueMs - startMs };
  };
  for (let dueMs = startMs; dueMs < startMs + forMs; dueMs -= (Math.log(1 - random()) * 1_000) / perSecond) {
    if (dueMs > performance.now() + 2) await sleep(dueMs - performance.now());
    open.push(one(dueMs));
  }
  return Promise.all(open);
}

async function comingBack(door: Door, callers: number, forMs: number): Promise<Returned[]> {
  const startMs = performance.now();
  const returned: Returned[] = [];
  await inParallel(callers, async () => {
    while (performance.now() < startMs + forMs) {
      let refused: { readonly atMs: number; readonly toldMs: number } | undefined;
      for (;;) {
        const askedMs = performance.now();
        const { status, retryAfterMs } = await embed(door);
        if (status === 200) {
          if (refused !== undefined)
            returned.push({
              refusedMs: refused.atMs - startMs,
              toldMs: refused.toldMs,
              tookMs: askedMs - refused.atMs,
            });
          break;
        }
        refused ??= { atMs: performance.now(), toldMs: retryAfterMs };
        await sleep(retryAfterMs);
      }
    }
  });
  return returned;
}

async function official({ url, key, texts }: Door, calls: number): Promise<Answered[]> {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key });
  const startMs = performance.now();
  const answers = await Promise.all(
    Array.from({ length: calls }, async (): Promise<Answered[]> => {
      const input = Array.from({ length: texts }, sentence);
      try {
        const { data } = await client.embeddings.create({ model: 'minilm', input });
        if (data.length !== texts) throw new Error(`${data.length} vectors of ${texts} texts`);
        return [{ ms: performance.now() - startMs, sinceMs: 0 }];
      } catch (error) {
        process.stderr.write(`a call of the official client failed: ${String(error)}\n`);
        return [];
      }
    }),
  );
  return answers.flat();
}

async function inParallel(count: number, one: () => Promise<void>): Promise<void> {
  await Promise.all(Array.from({ length: count }, one));
}

function run(task: Task): Promise<readonly unknown[]> {
  switch (task.kind) {
    case 'loop':
      return loop(task, task.callers, task.forMs);
    case 'offer':
      return offer(task, task.perSecond, task.forMs);
    case 'return':
      return comingBack(task, task.callers, task.forMs);
    case 'official':
      return official(task, task.calls);
  }
}

if (process.send !== undefined && process.argv[1] === fileURLToPath(import.meta.url)) {
  process.on('disconnect', () => process.exit(0));
  process.on('message', (task: Task) => void run(task).then((answers) => process.send?.(answers)));
}
