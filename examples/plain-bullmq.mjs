// Embeds three texts with nothing but BullMQ and ioredis: adds one job, waits for it, prints the first numbers of each
// vector. It needs a queue server and a worker, e.g. `./shoal worker`, and the packages bullmq and ioredis.
//   REDIS_URL=redis://127.0.0.1:6379 node examples/plain-bullmq.mjs [JOB_ID]
// The format is described in docs/jobs.md. Settings: REDIS_URL, SHOAL_MODEL (minilm), SHOAL_PREFIX ({shoal}).

import { randomUUID } from 'node:crypto';
import { Queue } from 'bullmq';
import { Redis } from 'ioredis';

const url = process.env.REDIS_URL ?? 'redis://127.0.0.1:6379';
const prefix = process.env.SHOAL_PREFIX || '{shoal}';
const queueName = `embed-${process.env.SHOAL_MODEL || 'minilm'}`;
const texts = [
  'The ship left the harbour at dawn.',
  'At sunrise the vessel sailed out of port.',
  'Invoices are due within thirty days.',
];

const connect = () => (url.startsWith('unix://') ? new Redis({ path: url.slice('unix://'.length) }) : new Redis(url));
const connection = connect();
const subscriber = connect();
const queue = new Queue(queueName, { connection, prefix });

// 1. Listen before adding, so that the answer cannot come too early. The name of the channel is yours to choose.
const channel = `${prefix}:reply:${randomUUID()}`;
await subscriber.subscribe(channel);

// 2. Add the job. The id makes it safe to add it again after a fault: a job that is there already is left as it is.
const jobId = process.argv[2] ?? `example-${randomUUID()}`;
await queue.add('embed', { v: 1, texts, reply: channel }, { jobId });

// 3. Wait: a message on the channel ends the wait early, asking every 2 seconds makes sure that a lost one costs no
//   more.
const state = await ended();
const job = await queue.getJob(jobId);
if (state === 'failed') throw new Error(job?.failedReason); // "CODE: what was asked, what was found, what to do"

// 4. Read the result: a header of 32 bytes, then rows × dims numbers.
const result = await connection.getBuffer(job.returnvalue.key);
if (result === null) throw new Error('the result has expired; remove the job and add it again');
if (result.toString('latin1', 0, 4) !== 'SHL1' || result[4] !== 1) throw new Error('not a result of version 1');
if (result.readUInt16LE(6) & 1) throw new Error('the result was acknowledged before; remove the job and add it again');
const [rows, dims] = [result.readUInt32LE(8), result.readUInt32LE(12)];
// a copy, because its memory must be aligned
const vectors = new Float32Array(new Uint8Array(result.subarray(32)).buffer);
if (result[5] !== 0 || vectors.length !== rows * dims) throw new Error('not the f32 result that was asked for');

console.log(`${rows} rows of ${dims} dimensions from ${job.returnvalue.model} on ${job.returnvalue.device}`);
for (let row = 0; row < rows; row++) {
  const first = Array.from(vectors.subarray(row * dims, row * dims + 4), (value) => value.toFixed(4)).join(' ');
  console.log(`${first} …  ${dot(0, row).toFixed(3)} like the first  ${texts[row]}`);
}

await queue.close();
connection.disconnect();
subscriber.disconnect();

async function ended() {
  for (;;) {
    const now = await queue.getJobState(jobId);
    if (now === 'completed' || now === 'failed') return now;
    await new Promise((resolve) => {
      const timer = setTimeout(done, 2_000);
      subscriber.on('message', hear);
      function hear(_channel, text) {
        const { completed = [], failed = [] } = JSON.parse(text);
        if (completed.includes(jobId) || failed.includes(jobId)) done();
      }
      function done() {
        clearTimeout(timer);
        subscriber.off('message', hear);
        resolve();
      }
    });
  }
}

function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < dims; i++) sum += vectors[a * dims + i] * vectors[b * dims + i];
  return sum;
}
