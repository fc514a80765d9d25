// The thread in which ONNX Runtime runs, and nothing else: `run()` blocks its thread for the whole call. It must never
// be terminated, and its process must not exit, while a run is in flight (both abort the process); SIGKILL is the hard
// way out. Loads nothing that it does not need: each module is loaded anew for a thread, and the whole of core takes it
// 0.1 s of every start.

import { parentPort, receiveMessageOnPort, workerData } from 'node:worker_threads';
import { invariant } from '@shoal/contract/invariant';
import { SHORT_WIDTH, layOutArena } from './arena-region.ts';
import { feedsFor, openSession, openTracedSession } from './ort-session.ts';
import { refuseStrays } from './ort-trace.ts';
import { processMemory } from './process-memory.ts';
import { Tensor, type InferenceSession } from './runtime.ts';
import type {
  FromSessionThread,
  RunRequest,
  SessionThreadOptions,
  ToSessionThread,
} from './session-thread-protocol.ts';

invariant(parentPort !== null, 'this file runs as a worker thread');
const port = parentPort;
const { graphPath, exactGraphPath, provider, threads, dims, slots } = workerData as SessionThreadOptions;
const say = (message: FromSessionThread): void => port.postMessage(message);

/** A reading costs 0.04 ms and says little new after each of many short runs. */
const READ_MEMORY_EVERY_MS = 20;

/** What was asked for and has not begun. */
const waiting: RunRequest[] = [];
let isServing = false;
let isClosing = false;
let session: InferenceSession | undefined;
let exactSession: InferenceSession | undefined;
let memoryReadMs = -Infinity;

/**
 * The truth gate: a session under a GPU's label is believed only when the runtime's own trace says that the model's
 * work ran there. The CPU is where everything lands that could not run elsewhere; it needs no proof.
 */
async function openTrueSession(): Promise<InferenceSession> {
  if (provider === 'cpu') return openSession({ graphPath, provider, threads });
  const traced = await openTracedSession({ graphPath, provider, threads });
  try {
    refuseStrays(traced.nodes, provider);
    return traced.session;
  } catch (error) {
    await traced.session.release();
    throw error;
  }
}

function firstLine(error: unknown): string {
  return (error instanceof Error ? error.message : String(error)).split('\n', 1)[0] ?? '';
}

function accept(message: ToSessionThread): void {
  if (message === 'close') isClosing = true;
  else if ('reserveTokens' in message)
    void layOutArena(message.reserveTokens, canRun).then(() => say({ kind: 'prepared' }));
  else waiting.push(message);
}

/** One length whatever the rows: where nothing is computed, masks for them would be left over in the arena. */
async function canRun(rows: number, id: number): Promise<boolean> {
  const runs = await sessionFor(false);
  const feeds = feedsFor(runs, {
    input_ids: new Tensor('int32', new Int32Array(rows * SHORT_WIDTH).fill(id), [rows, SHORT_WIDTH]),
    lengths: new Tensor('int32', Int32Array.of(SHORT_WIDTH), [1]),
    second_from: new Tensor('int32', Int32Array.of(0), [1]),
  });
  return runs.run(feeds).then(
    () => true,
    () => false,
  );
}

/** One run after the other until nothing waits; then closes, when that was asked. */
async function serve(): Promise<void> {
  if (isServing) return;
  isServing = true;
  for (let next = nextRun(); next !== undefined; next = nextRun()) await run(next);
  isServing = false;
  if (!isClosing) return;
  port.close();
  await session?.release();
  await exactSession?.release();
}

/**
 * The first urgent one, else the first. A run blocks this thread, and what was sent meanwhile lies unread in the port:
 * read it now, or an urgent run would wait for everything that was asked before it.
 */
function nextRun(): RunRequest | undefined {
  for (let unread = receiveMessageOnPort(port); unread !== undefined; unread = receiveMessageOnPort(port))
    accept(unread.message as ToSessionThread);
  const urgent = waiting.findIndex(({ isUrgent }) => isUrgent);
  return waiting.splice(Math.max(urgent, 0), 1)[0];
}

async function run({ slot, rows, width, isExact }: RunRequest): Promise<void> {
  const { ids, lengths, secondFrom, embeddings } = slots[slot]!;
  const inputs = {
    input_ids: new Tensor('int32', new Int32Array(ids, 0, rows * width), [rows, width]),
    lengths: new Tensor('int32', new Int32Array(lengths, 0, rows), [rows]),
    second_from: new Tensor('int32', new Int32Array(secondFrom, 0, rows), [rows]),
  };
  const fetches = { embeddings: new Tensor('float32', new Float32Array(embeddings, 0, rows * dims), [rows, dims]) };
  say({ kind: 'started', slot });
  try {
    const runs = await sessionFor(isExact);
    const startedMs = performance.now();
    await runs.run(feedsFor(runs, inputs), fetches);
    const endedMs = performance.now();
    say({ kind: 'ran', slot, runMs: endedMs - startedMs, memory: memoryAt(endedMs) });
  } catch (error) {
    say({ kind: 'failed', slot, message: firstLine(error) });
  }
}

/**
 * The exact graph is opened when a row needs it for the first time, and stays: a model that overflows does so again.
 */
async function sessionFor(isExact: boolean): Promise<InferenceSession> {
  invariant(session !== undefined, 'nothing runs before the session is open');
  if (!isExact) return session;
  invariant(exactGraphPath !== undefined, 'an exact run needs an exact graph');
  return (exactSession ??= await openSession({ graphPath: exactGraphPath, provider, threads }));
}

function memoryAt(nowMs: number): ReturnType<typeof processMemory> | undefined {
  if (provider !== 'cpu' || nowMs - memoryReadMs < READ_MEMORY_EVERY_MS) return undefined;
  memoryReadMs = nowMs;
  return processMemory();
}

try {
  session = await openTrueSession();
  port.on('message', (message: ToSessionThread) => {
    accept(message);
    void serve();
  });
  say({ kind: 'ready' });
} catch (error) {
  say({ kind: 'unfit', message: firstLine(error) });
}
