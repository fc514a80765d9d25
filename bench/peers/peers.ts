// Shoal beside sentence-transformers' own encode() on the same texts, alternately, on the same cores, both cutting rows
// at 512 tokens: ours bare and through the queue, in fp32 and int8. Vectors are compared before the clock starts.
//
//   python3 -m venv VENV && VENV/bin/pip install sentence-transformers        # 5.8 GB
//   node --conditions=@shoal/source bench/peers/peers.ts --python VENV/bin/python [--texts 400] [--rounds 3]
//       [--threads 1]

import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { cpus, loadavg, tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { openModel } from '@shoal/models';
import { readArguments } from '../rig/arguments.ts';
import { raggedCorpus } from '../rig/ragged-corpus.ts';
import { MAX_TOKENS, cacheDir, compareSides, openBare, openQueued, type Side } from '../rig/sides.ts';

const args = readArguments(import.meta.url, {
  python: { type: 'string', default: 'python3' },
  texts: { type: 'string', default: '400' },
  rounds: { type: 'string', default: '3' },
  threads: { type: 'string', default: '1' },
  'job-texts': { type: 'string', default: '64' },
});
const leastAllowed = (name: string): number => (name.includes('int8') ? 0.99 : 0.99999);
const threads = Number(args.threads);
const [minilm, quantized] = [await openModel('minilm', { cacheDir }), await openModel('minilm-int8', { cacheDir })];
const texts = raggedCorpus(join(minilm.folder, 'tokenizer.json'), Number(args.texts)).map(({ text }) => text);
const loadBefore = loadavg()[0]!;
const peer = await openPeer();
const sides: Side[] = [
  peer,
  await openBare('shoal fp32, bare', minilm, threads),
  await openBare('shoal int8, bare', quantized, threads),
  await openQueued('shoal fp32, queue', 'minilm', threads, Number(args['job-texts'])),
  await openQueued('shoal int8, queue', 'minilm-int8', threads, Number(args['job-texts'])),
];
try {
  process.stdout.write(
    `${JSON.stringify({
      bench: 'peers',
      cpu: cpus()[0]?.model,
      threads,
      texts: texts.length,
      jobTexts: Number(args['job-texts']),
      loadBefore: Number(loadBefore.toFixed(2)),
      versions: peer.versions,
      sides: await compareSides(sides, texts, Number(args.rounds), minilm.dims, leastAllowed),
    })}\n`,
  );
} finally {
  for (const side of sides) await side.close();
}

async function openPeer(): Promise<Side & { readonly versions: unknown }> {
  const folder = mkdtempSync(join(tmpdir(), 'shoal-peer-'));
  const vectors = join(folder, 'vectors.f32');
  const child = spawn(args.python, [fileURLToPath(new URL('sentence_transformers.py', import.meta.url))], {
    stdio: ['pipe', 'pipe', 'inherit'],
    env: { ...process.env, HF_HUB_OFFLINE: '1' },
  });
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const answer = async (): Promise<unknown> => {
    const { value, done } = await lines.next();
    if (done === true) throw new Error('sentence-transformers ended');
    return JSON.parse(value);
  };
  child.stdin.write(`${JSON.stringify({ model: minilm.folder, threads, maxTokens: MAX_TOKENS, texts, vectors })}\n`);
  const versions = await answer();
  const run = async (): Promise<Float32Array> => {
    child.stdin.write('run\n');
    await answer();
    return new Float32Array(Uint8Array.from(readFileSync(vectors)).buffer);
  };
  const close = async (): Promise<void> => {
    child.stdin.end();
    rmSync(folder, { recursive: true, force: true });
  };
  return { name: 'sentence-transformers', versions, run, close };
}
