// Bundles the programs of the build: command line, workers, HTTP, dashboard, and the executors, probes, threads and
// supervisors that those start, with the packages that they load, into dist/programs. What is loaded late stays in files
// of its own. A process that reads 20 files instead of 1,000 starts for half the CPU (`shoal queue counts`: 0.52 s
// before, 0.28 s with it; 2-core EPYC, 2026-11-28). Nothing needs it: where there is no bundle of a program, its modules
// of the build run (libs/core/src/base/program-file.ts).
//
// A bundle is made of the sources, and lies elsewhere than the modules: so `import.meta` of each says where that module
// lies in the build, and what it finds by its own place is found as before. Source maps lie beside. Packages with native
// code stay outside, and those that look for files of their own.
//
//   node tools/bundle-programs.mjs

import { readdirSync, statSync, unlinkSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { rolldown } from 'rolldown';

const ROOT = join(dirname(fileURLToPath(import.meta.url)), '..');
/** One folder without others in it: from every file there, a module lies at the same relative path. */
const OUT = join(ROOT, 'dist/programs');
const APPS = ['cli', 'cpu-worker', 'gpu-worker', 'producer', 'dashboard'];
const STARTED = [
  'libs/inference/src/session-thread-main.ts',
  'libs/private-server/src/supervisor-main.ts',
  'libs/similarity/src/arrow/arrow-thread-main.ts',
  'libs/worker/src/device/gpu-probe-main.ts',
  'libs/worker/src/device/prove-model-main.ts',
  'libs/worker/src/executor/executor-main.ts',
  'libs/worker/src/executor/similarity-executor-main.ts',
  'libs/worker/src/executor/tokenizer-thread.ts',
  'libs/worker/src/measure/shape-probe-main.ts',
  'libs/worker/src/parts/part-thread.ts',
];
const OUTSIDE = [
  /^onnxruntime-/,
  /^msgpackr-extract/,
  /^usearch/,
  /^pg(?:\/|$)/,
  /^@bull-board\//,
  /^@fastify\/swagger/,
  /\.node$/,
];
/** What earlier builds left may be loaded yet, by a process that runs since then. */
const KEPT_MS = 24 * 3_600_000;

const made = await rolldown({
  input: Object.fromEntries([
    ...APPS.map((app) => [app, join(ROOT, 'apps', app, 'src/main.ts')]),
    ...STARTED.map((path) => [/([^/]+)\.ts$/.exec(path)[1], join(ROOT, path)]),
  ]),
  platform: 'node',
  resolve: { conditionNames: ['@shoal/source', 'node', 'import', 'default'] },
  external: OUTSIDE,
  // ioredis and pino have paths made of it that nothing here asks for.
  transform: { define: { __dirname: 'import.meta.dirname' } },
  experimental: { nativeMagicString: true },
  // Of others' code, which is as it is.
  checks: { eval: false, pluginTimings: false },
  plugins: [{ name: 'address-in-the-build', transform: addressed }],
});
const { output } = await made.write({
  dir: OUT,
  format: 'esm',
  sourcemap: true,
  entryFileNames: '[name].js',
  chunkFileNames: '[name]-[hash].js',
});
await made.close();
removeOld(new Set(output.map(({ fileName }) => fileName)));

/** `import.meta` of a module of ours, as it is where the build has it. */
function addressed(code, id, { magicString }) {
  if (id.includes('/node_modules/') || !code.includes('import.meta.')) return undefined;
  const built = relative(OUT, id).replace('/src/', '/dist/').replace(/\.ts$/, '.js');
  for (const { 0: words, 1: what, index } of code.matchAll(/\bimport\.meta\.(url|filename|dirname)\b/g)) {
    const place = JSON.stringify(what === 'dirname' ? dirname(built) : built);
    const text =
      what === 'url'
        ? `new URL(${place}, import.meta.url).href`
        : `import.meta.dirname + ${JSON.stringify('/')} + ${place}`;
    magicString.overwrite(index, index + words.length, `(${text})`);
  }
  return { code: magicString };
}

function removeOld(current) {
  for (const name of readdirSync(OUT)) {
    const path = join(OUT, name);
    if (!current.has(name) && Date.now() - statSync(path).mtimeMs > KEPT_MS) unlinkSync(path);
  }
}
