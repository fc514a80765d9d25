// Shoal beside others on the same texts, alternately, on the same cores, all cutting rows at 512 tokens: ours bare (the
// same graph and batches in this process, token ids given) and through queue, worker and client; sentence-transformers'
// own encode(); and its encode() with the encoder in ONNX Runtime, on an export by torch.onnx as optimum makes it, where
// that runs. Vectors are compared before the clock starts. Without --python ours alone.
//
//   python3 -m venv VENV && VENV/bin/pip install sentence-transformers onnx onnxscript onnxruntime        # 5.8 GB
//   node --conditions=@shoal/source bench/peers/peers.ts [--python VENV/bin/python] [--model minilm] [--texts 400]
//       [--rounds 3] [--threads 1] [--job-texts 64] [--also minilm-int8] [--folder DIR] [--onnx FILE] [--record]
//
// --also: one more model of ours beside the first, such as its int8 form. --folder: the model's files for the others;
// default the copy in the cache. --onnx: the export, made where it is not there; without it ONNX Runtime is left out.
// The shape of ModernBERT-base: VENV/bin/python bench/peers/modernbert_base.py, then `shoal model import`.

import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { cpus, loadavg, tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { median } from '@shoal/core/base';
import { openModel, openTokenizer, type StoredModel } from '@shoal/models';
import { readArguments } from '../rig/arguments.ts';
import { raggedCorpus } from '../rig/ragged-corpus.ts';
import { record } from '../rig/record.ts';
import {
  MAX_PADDED_TOKENS,
  MAX_TOKENS,
  cacheDir,
  compareSides,
  openBackend,
  openQueued,
  runRows,
  type Side,
  type SideReport,
} from '../rig/sides.ts';

const args = readArguments(import.meta.url, {
  python: { type: 'string' },
  model: { type: 'string', default: 'minilm' },
  also: { type: 'string' },
  folder: { type: 'string' },
  onnx: { type: 'string' },
  texts: { type: 'string', default: '400' },
  rounds: { type: 'string', default: '3' },
  threads: { type: 'string', default: '1' },
  'job-texts': { type: 'string', default: '64' },
  record: { type: 'boolean', default: false },
});
const LEAST_QUEUE_TO_BARE = 0.95;
const PEERS = { sentence_transformers: 'sentence-transformers', onnx_runtime: 'ONNX Runtime' } as const;
const leastAllowed = (name: string): number => (name.includes('int8') ? 0.99 : 0.99999);
const [threads, jobTexts] = [Number(args.threads), Number(args['job-texts'])];
const loadBefore = loadavg()[0]!;
const models: StoredModel[] = [];
for (const name of [args.model, args.also]) if (name !== undefined) models.push(await openModel(name, { cacheDir }));
const [model] = models as [StoredModel];
const tokenizer = await openTokenizer(model, { maxTokens: MAX_TOKENS });
const texts = raggedCorpus(join(model.folder, 'tokenizer.json'), Number(args.texts)).map(({ text }) => text);
const rows = texts.map((text) => tokenizer.encode(text).ids);
const meanTokens = Math.round(rows.reduce((sum, { length }) => sum + length, 0) / rows.length);

const sides: Side[] = [];
const absent: Record<string, string> = {};
let versions: unknown;
try {
  await openPeers();
  for (const own of models) sides.push(await openIds(own), await openOwnQueue(own));
  const compared = await compareSides(sides, texts, Number(args.rounds), model.dims, leastAllowed);
  process.stdout.write(
    `${JSON.stringify({
      bench: 'peers',
      cpu: cpus()[0]?.model,
      threads,
      texts: texts.length,
      meanTokens,
      jobTexts,
      loadBefore: Number(loadBefore.toFixed(2)),
      versions,
      absent,
      sides: compared,
      rows: models.map((own) => rowOf(own, compared)),
    })}\n`,
  );
} finally {
  for (const side of sides) await side.close();
}

function rowOf(own: StoredModel, compared: readonly SideReport[]) {
  const rates = new Map(compared.map(({ name, textsPerSecond }) => [name, median(textsPerSecond)]));
  const [bare, queued] = [rates.get(bareName(own))!, rates.get(queueName(own))!];
  const peers = Object.entries(PEERS).filter(([, name]) => rates.has(name));
  return record({
    bench: 'peers',
    case: `${own.name}, ${threads} threads, ${jobTexts} texts a job: queue, bare and peers in one run`,
    figures: {
      texts: texts.length,
      mean_tokens: meanTokens,
      queue_texts_per_s: queued,
      bare_texts_per_s: bare,
      queue_to_bare: ratioOf(queued, bare),
      ...Object.fromEntries(
        peers.flatMap(([key, name]) => [
          [`${key}_texts_per_s`, rates.get(name)!],
          [`queue_to_${key}`, ratioOf(queued, rates.get(name)!)],
        ]),
      ),
      least_cosine: compared.find(({ name }) => name === queueName(own))!.leastCosine,
    },
    bar: { figure: 'queue_to_bare', at_least: LEAST_QUEUE_TO_BARE },
  });
}

function ratioOf(rate: number, other: number): number {
  return Number((rate / other).toFixed(3));
}

function bareName({ name }: StoredModel): string {
  return `${name}, bare`;
}

function queueName({ name }: StoredModel): string {
  return `${name}, queue`;
}

/** The runtime alone: tokenizing is not in its time, unlike the others'. */
async function openIds(own: StoredModel): Promise<Side> {
  const backend = await openBackend(own, threads);
  return {
    name: bareName(own),
    run: async () => (await runRows(backend, rows)).vectors,
    close: () => backend.stop(),
  };
}

/** The worker takes the bare side's budget, whatever was tuned on this machine. */
function openOwnQueue(own: StoredModel): Promise<Side> {
  return openQueued(queueName(own), own.name, threads, jobTexts, {
    SHOAL_MAX_PADDED_TOKENS: String(MAX_PADDED_TOKENS),
  });
}

/** The first one's vectors are those that all are held against. */
async function openPeers(): Promise<void> {
  if (args.python === undefined) return;
  const peer = await openPeer(PEERS.sentence_transformers, args.python);
  sides.push(peer);
  versions = peer.versions;
  if (args.onnx === undefined) return;
  try {
    const exported = await openPeer(PEERS.onnx_runtime, args.python, resolve(args.onnx));
    sides.push(exported);
    versions = exported.versions;
  } catch (error) {
    absent[PEERS.onnx_runtime] = (error as Error).message;
    process.stderr.write(`${PEERS.onnx_runtime} is left out: ${(error as Error).message}\n`);
  }
}

async function openPeer(name: string, python: string, onnx?: string): Promise<Side & { readonly versions: unknown }> {
  const folder = mkdtempSync(join(tmpdir(), 'shoal-peer-'));
  const vectors = join(folder, 'vectors.f32');
  const child = spawn(python, [fileURLToPath(new URL('sentence_transformers.py', import.meta.url))], {
    stdio: ['pipe', 'pipe', 'inherit'],
    env: { ...process.env, HF_HUB_OFFLINE: '1' },
  });
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const close = async (): Promise<void> => {
    child.stdin.end();
    rmSync(folder, { recursive: true, force: true });
  };
  const answer = async (): Promise<Readonly<Record<string, unknown>>> => {
    const { value, done } = await lines.next();
    if (done === true) throw new Error(`${name} ended`);
    return JSON.parse(value) as Readonly<Record<string, unknown>>;
  };
  const request = {
    model: resolve(args.folder ?? model.folder),
    threads,
    maxTokens: MAX_TOKENS,
    texts,
    onnx: onnx ?? null,
    vectors,
  };
  child.stdin.write(`${JSON.stringify(request)}\n`);
  const { versions: found, failed } = await answer();
  if (failed !== undefined) {
    await close();
    throw new Error(String(failed));
  }
  const run = async (): Promise<Float32Array> => {
    child.stdin.write('run\n');
    await answer();
    return new Float32Array(Uint8Array.from(readFileSync(vectors)).buffer);
  };
  return { name, versions: found, run, close };
}
