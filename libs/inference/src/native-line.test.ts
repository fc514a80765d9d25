// What the native binding adds: an arena with a limit, runs that find room after giving back, memory given back, runs
// cut off, and a process that may exit while a run goes on. On the CPU provider; the same calls serve CUDA
// (bench/gpu/out-of-memory.ts).

import { execFileSync, spawnSync } from 'node:child_process';
import { copyFileSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { MOST_HELD, type RunShape } from '@shoal/core';
import { openGraph, writeTinyModel, type StoredModel } from '@shoal/models';
import { probeArena } from './arena-probe.ts';
import { ENCODER_LIBRARIES, nativeEncoderProblem } from './encoder-addon.ts';
import { openGraphOn } from './native-line.ts';
import { nativeOrt, nativeOrtProblem } from './native-ort.ts';
import { OrtBackend } from './ort-backend.ts';

const cacheDir = mkdtempSync(join(tmpdir(), 'shoal-native-line-'));
afterAll(() => rmSync(cacheDir, { recursive: true, force: true }));

/** Wide enough that a micro-batch takes megabytes. */
const MODEL = { hidden: 256, heads: 8, layers: 2, seed: 11 };
const SLOTS = { slotRows: 256, slotTokens: 16_384 };
/** On the CPU only an arena with a limit grows as it is asked. */
const UNLIMITED = 2 ** 40;
const MIB = 2 ** 20;
const problem = nativeOrtProblem();
if (problem !== undefined) console.warn(`the native binding is not tested: ${problem}`);

let model: StoredModel;
let graph: { readonly graphPath: string; readonly dims: number; readonly threads: number };
beforeAll(async () => {
  model = await writeTinyModel(join(cacheDir, 'wide'), MODEL);
  graph = { graphPath: await openGraph(model, { cacheDir }), dims: model.dims, threads: 1 };
});

const open = (arenaBytes?: number): Promise<OrtBackend> =>
  OrtBackend.open({ ...graph, ...SLOTS, binding: 'native', arenaBytes });

/** Whether there was room, and the vectors. */
async function run(
  backend: OrtBackend,
  { rows, width }: RunShape,
): Promise<{ ok: boolean; message: string; vectors: Float32Array }> {
  const slot = backend.lend()!;
  for (let at = 0; at < rows * width; at++) slot.ids[at] = 5 + ((at * 7919) % 150);
  for (let row = 0; row < rows; row++) slot.lengths[row] = width - (row % 5);
  const result = await backend.run(slot, { rows, width });
  const vectors = slot.embeddings.slice(0, rows * graph.dims);
  backend.giveBack(slot);
  return { ok: result.ok, message: result.ok ? '' : result.outOfVram.message, vectors };
}

/** The addon by itself, which gives nothing back and tries nothing twice. */
async function openBare(arenaBytes = 0) {
  const addon = nativeOrt()!;
  const line = addon.line();
  const [index] = await openGraphOn(addon, line, { ...graph, provider: 'cpu', arenaBytes });
  return {
    run: ({ rows, width }: RunShape) =>
      addon
        .run(
          line,
          index,
          new Int32Array(rows * width).fill(7),
          new Int32Array(rows).fill(width),
          new Float32Array(rows * graph.dims),
          rows,
          width,
          graph.dims,
          false,
          false,
        )
        .then(
          () => 'ran',
          (error: Error) => error.message,
        ),
    statistics: () => addon.statistics(line, index),
    shrink: () => addon.runPlain(line, index, 1, 8, 5, true),
    close: () => addon.close(line),
  };
}

function cosine(a: Float32Array, b: Float32Array): number {
  return dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b));
}

function dot(a: Float32Array, b: Float32Array): number {
  return a.reduce((sum, value, at) => sum + value * b[at]!, 0);
}

describe.skipIf(problem !== undefined)('the native binding', () => {
  test('refuses a run that its arena has no room for, runs half of it, and gives the same vectors as before', async () => {
    const large = { rows: 16, width: 256 };
    const { loadedBytes, peakBytes } = await probeArena({ ...graph, provider: 'cpu' }, large);
    const backend = await open(loadedBytes + 0.75 * (peakBytes - loadedBytes));
    const before = await run(backend, { rows: 3, width: 64 });
    const refused = await run(backend, large);
    expect(refused).toMatchObject({
      ok: false,
      message: expect.stringMatching(
        /Available memory of \d+ is smaller than requested bytes of \d+|Failed to allocate memory/,
      ),
    });
    expect((await run(backend, { rows: 3, width: 64 })).vectors).toEqual(before.vectors);
    expect(await run(backend, { rows: 8, width: 256 })).toMatchObject({ ok: true });
    await backend.stop();
  });

  test('a run that finds no room between the regions of earlier ones finds it after these are given back', async () => {
    const [narrow, wide] = [
      { rows: 150, width: 16 },
      { rows: 10, width: 256 },
    ];
    const { loadedBytes, heldBytes } = await probeArena({ ...graph, provider: 'cpu', arenaBytes: UNLIMITED }, wide);
    const arenaBytes = Math.floor(loadedBytes + 1.15 * (heldBytes - loadedBytes));
    const bare = await openBare(arenaBytes);
    expect(await bare.run(narrow)).toBe('ran');
    expect(await bare.run(wide)).toMatch(/Available memory|Failed to allocate/); // or this test shows nothing
    await bare.close();

    const backend = await open(arenaBytes + 1); // an arena of its own: graphs of one limit share theirs
    expect(await run(backend, narrow)).toMatchObject({ ok: true });
    const second = await run(backend, wide);
    expect(second).toMatchObject({ ok: true });
    await backend.stop();
    const unlimited = await open();
    expect(cosine(second.vectors, (await run(unlimited, wide)).vectors)).toBeGreaterThan(0.999_999);
    await unlimited.stop();
  });

  test('gives back what a large run took, keeps its graph, and takes it again', async () => {
    const bare = await openBare();
    const [weights] = await bare.statistics();
    await bare.run({ rows: 16, width: 256 });
    const [, peak, held] = await bare.statistics();
    expect(held).toBeGreaterThanOrEqual(peak);
    expect(peak).toBeGreaterThan(weights + 10 * MIB);
    const [inUse, , heldAfter] = await bare.shrink();
    expect(inUse).toBe(weights);
    expect(heldAfter).toBeLessThan(weights + 4 * MIB);
    await bare.run({ rows: 16, width: 256 });
    expect((await bare.statistics())[2]).toBeGreaterThanOrEqual(peak);
    await bare.close();
  });

  test(
    'an arena that grows as it is asked never holds more than half again of what a fresh one takes for the ' +
      'largest run since it was given back, whatever ran before',
    async () => {
      const shapes = [
        [20, 24],
        [10, 48],
        [4, 128],
        [2, 256],
        [80, 24],
        [40, 48],
        [15, 128],
        [8, 256],
        [160, 24],
        [80, 48],
        [32, 128],
        [16, 256],
      ].map(([rows, width]) => ({ rows: rows!, width: width! }));
      let arenas = 1; // graphs of one limit share an arena, and what it had in use at most never falls
      const fresh = new Map<RunShape, number>();
      for (const shape of shapes) {
        const { heldBytes, loadedBytes } = await probeArena(
          { ...graph, provider: 'cpu', arenaBytes: UNLIMITED - arenas++ },
          shape,
          2,
        );
        fresh.set(shape, heldBytes - loadedBytes);
      }
      const backend = await open(UNLIMITED - arenas);
      await run(backend, { rows: 32, width: 256 });
      await backend.shrink();
      let [mostBytes, givenBack, kept] = [0, 0, 0];
      for (const shape of [...shapes, ...shapes.toReversed()]) {
        expect(await run(backend, shape)).toMatchObject({ ok: true });
        const { held, inUse } = backend.arenas()[0]!;
        const isGivenBack = held - inUse < 0.25 * MIB;
        mostBytes = isGivenBack ? 0 : Math.max(mostBytes, fresh.get(shape)!);
        if (isGivenBack) givenBack++;
        else kept++;
        expect(held - inUse).toBeLessThanOrEqual(MOST_HELD * mostBytes + 1.25 * MIB); // 1 MiB is not worth giving back
      }
      expect(givenBack).toBeGreaterThan(0); // or nothing was shown of the bound
      expect(kept).toBeGreaterThan(2 * givenBack);
      await backend.stop();
    },
  );

  test(
    'the fused graph in fp16, whose sizes have no names, keeps no buffer alive for the next layer: it lives on ' +
      'less than the one in fp32, even where it is computed in fp32',
    async () => {
      const shape = { rows: 32, width: 64 };
      const [half, full] = await Promise.all(
        (['fused-fp16', 'fused-fp32'] as const).map(async (kind, at) => {
          const { peakBytes, loadedBytes } = await probeArena(
            {
              ...graph,
              graphPath: await openGraph(model, { cacheDir, kind }),
              provider: 'cpu',
              arenaBytes: UNLIMITED - 50 - at,
            },
            shape,
          );
          return peakBytes - loadedBytes;
        }),
      );
      expect(half! / full!).toBeLessThan(0.85);
    },
  );

  test('cuts off the run that goes on, which says so, and runs what waits behind it', async () => {
    const backend = await open();
    const before = await run(backend, { rows: 3, width: 64 });
    const cut = run(backend, { rows: 64, width: 256 }).then(
      () => 'ran',
      (error: { code: string }) => error.code,
    );
    const waiting = run(backend, { rows: 3, width: 64 });
    while (backend.runningMs() === 0) await new Promise(setImmediate);
    expect(backend.cancel()).toBe(true);
    expect(await cut).toBe('CANCELLED');
    expect((await waiting).vectors).toEqual(before.vectors);
    expect(backend.cancel()).toBe(false); // nothing goes on
    await backend.stop();
  });

  test('an exact graph that could not be opened is tried again by the next exact run', async () => {
    const exactGraphPath = join(cacheDir, 'later.onnx');
    rmSync(exactGraphPath, { force: true });
    const backend = await OrtBackend.open({ ...graph, ...SLOTS, binding: 'native', exactGraphPath });
    const slot = backend.lend()!;
    slot.lengths.fill(8, 0, 2);
    const runExact = () =>
      backend.runExact!(slot, { rows: 2, width: 8 }).then(
        ({ ok }) => (ok ? 'ran' : 'no room'),
        (error: { code: string }) => error.code,
      );
    expect(await runExact()).toBe('INFERENCE_FAILED');
    copyFileSync(graph.graphPath, exactGraphPath);
    expect(await runExact()).toBe('ran');
    await backend.stop();
  });

  test('an exact graph that does not open is seen like a run that hangs', async () => {
    const exactGraphPath = join(cacheDir, 'never.onnx');
    execFileSync('mkfifo', [exactGraphPath]); // whoever reads it waits until somebody writes
    const backend = await OrtBackend.open({ ...graph, ...SLOTS, binding: 'native', exactGraphPath });
    expect(backend.runningMs()).toBe(0);
    const slot = backend.lend()!;
    slot.lengths.fill(8, 0, 2);
    const refused = backend.runExact!(slot, { rows: 2, width: 8 }).catch((error: { code: string }) => error.code);
    await expect.poll(() => backend.runningMs()).toBeGreaterThan(100);
    expect(backend.cancel()).toBe(false); // it is no run
    writeFileSync(exactGraphPath, 'no graph');
    expect(await refused).toBe('INFERENCE_FAILED');
    expect(backend.runningMs()).toBe(0);
    await backend.stop();
  });

  test('lets the process exit while a run goes on', () => {
    const program = join(cacheDir, 'exit.mjs');
    writeFileSync(
      program,
      `
      import { OrtBackend } from '${new URL('./ort-backend.ts', import.meta.url).href}';
      const backend = await OrtBackend.open({ ...${JSON.stringify({ ...graph, ...SLOTS })}, binding: 'native' });
      const slot = backend.lend();
      slot.lengths.fill(256);
      backend.run(slot, { rows: 64, width: 256 }).catch(() => undefined);
      while (backend.runningMs() === 0) await new Promise(setImmediate);
      process.stdout.write('running');
      process.exit(7);`,
    );
    const { status, signal, stdout } = spawnSync(process.execPath, ['--conditions=@shoal/source', program], {
      encoding: 'utf8',
    });
    expect({ status, signal, stdout }).toEqual({ status: 7, signal: null, stdout: 'running' });
  });

  test('is refused by name when it was asked for and is not there; the package’s own serves when nobody asked', () => {
    // Loading the addon is what fails where it was not built, or was built for another system.
    const hide = join(cacheDir, 'hide.mjs');
    writeFileSync(
      hide,
      'const load = process.dlopen; process.dlopen = (module, path, ...rest) => { if ' +
        `(path.endsWith('ort-session.node')) throw new Error('hidden'); return load(module, path, ...rest); };`,
    );
    const program = join(cacheDir, 'hidden.mjs');
    writeFileSync(
      program,
      `
      import { OrtBackend } from '${new URL('./ort-backend.ts', import.meta.url).href}';
      const options = ${JSON.stringify({ ...graph, ...SLOTS })};
      const asked = await OrtBackend.open({ ...options, binding: 'native' }).catch((error) => error.code + ': ' + error.message);
      const backend = await OrtBackend.open(options);
      process.stdout.write(JSON.stringify({ asked, binding: backend.binding }));
      await backend.stop();`,
    );
    const { stdout } = spawnSync(process.execPath, ['--conditions=@shoal/source', `--import=${hide}`, program], {
      encoding: 'utf8',
    });
    expect(JSON.parse(stdout)).toEqual({
      asked: expect.stringMatching(/^SETUP_FAILED: .*hidden.*npm run build/),
      binding: 'stock',
    });
  });
});

const canRefuse = process.platform === 'linux' && spawnSync('sh', ['-c', 'command -v "${CXX:-c++}"']).status === 0;
if (!canRefuse) console.warn('threads that the system refuses are not tested: that needs Linux and a C++ compiler');

describe.skipIf(!canRefuse)('a thread that the system refuses', () => {
  const preload = join(cacheDir, 'refuse.so');

  /**
   * A library that refuses the nth std::thread. The addon may come to use the system's libstdc++ although it has its
   * own; Node starts its threads itself.
   */
  beforeAll(() => {
    const source = join(cacheDir, 'refuse.cc');
    writeFileSync(
      source,
      `
      #include <cerrno>
      #include <cstdlib>
      #include <cstring>
      #include <dlfcn.h>
      #include <pthread.h>
      extern "C" int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*work)(void *), void *data) noexcept {
        static const auto real = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
        static int asked = 0;
        Dl_info caller;
        const bool isOurs = dladdr(__builtin_return_address(0), &caller) != 0 && (strstr(caller.dli_fname, ".node") != nullptr || strstr(caller.dli_fname, "libstdc++") != nullptr);
        if (isOurs && ++asked == atoi(getenv("REFUSE_NTH"))) return EAGAIN;
        return real(thread, attributes, work, data);
      }`,
    );
    execFileSync('sh', ['-c', '"${CXX:-c++}" -shared -fPIC -o "$1" "$2" -ldl', 'sh', preload, source]);
  });

  function runRefusing(name: string, nth: number, code: string) {
    const program = join(cacheDir, `refuse-${name}-${nth}.cjs`);
    writeFileSync(
      program,
      'const addon = ' +
        `require(${JSON.stringify(fileURLToPath(new URL(`../../../dist/native/${name}/${name}.node`, import.meta.url)))});\n(async ` +
        `() => {${code}})();`,
    );
    const { status, signal, stdout } = spawnSync(process.execPath, [program], {
      encoding: 'utf8',
      env: { ...process.env, LD_PRELOAD: preload, REFUSE_NTH: String(nth) },
    });
    return { status, signal, stdout };
  }

  test.skipIf(problem !== undefined)('is an error of the line, and the next line opens', () => {
    const { status, signal, stdout } = runRefusing(
      'ort-session',
      1,
      `
      try { addon.line(); } catch (error) { console.log(error.message); }
      await addon.close(addon.line());
      console.log('closed');`,
    );
    expect({ status, signal, stdout }).toEqual({
      status: 0,
      signal: null,
      stdout: expect.stringMatching(/^the system refuses the thread of a line \(.*\): allow .*\nclosed\n$/),
    });
  });

  test.skipIf(nativeEncoderProblem(ENCODER_LIBRARIES.reference) !== undefined)(
    'is an error of the encoder: of the whole for its first lane, of its opening for the others, and it closes',
    () => {
      const [hidden, intermediate, vocabulary, positions] = [32, 64, 10, 16];
      const weights = [
        vocabulary * hidden,
        positions * hidden,
        hidden,
        hidden,
        hidden,
        ...Array.from({ length: 4 }, () => [hidden * hidden, hidden]).flat(),
        hidden,
        hidden,
        intermediate * hidden,
        intermediate,
        hidden * intermediate,
        hidden,
        hidden,
        hidden,
      ];
      const opening = `
      const weights = ${JSON.stringify(weights)}.map((count) => new Float32Array(count).fill(0.01));
      try {
        const encoder = addon.encoder(${JSON.stringify(ENCODER_LIBRARIES.reference)});
        await addon.open(encoder, Float64Array.of(${hidden}, 1, 1, ${intermediate}, ${vocabulary}, ${positions}, 1e-12, 0, 1, 0, 0, 2, 0), weights, 0).then(() => console.log('opened'), (error) => console.log(error.status, error.message));
        await addon.close(encoder);
      } catch (error) { console.log(error.message); }
      console.log('closed');`;
      for (const [nth, said] of [
        [1, /^the system refuses the thread of a lane \(.*\): allow .*\nclosed\n$/],
        [2, /^5 the system refuses the thread of a lane \(.*\): allow .*\nclosed\n$/],
        [3, /^opened\nclosed\n$/],
      ] as const) {
        const { status, signal, stdout } = runRefusing('encoder', nth, opening);
        expect({ status, signal, stdout }).toEqual({ status: 0, signal: null, stdout: expect.stringMatching(said) });
      }
    },
  );
});

test('where there is no compiler, the build says so and nothing else', () => {
  const bin = join(cacheDir, 'bin');
  mkdirSync(bin);
  for (const tool of ['sh', 'dirname', 'pwd', 'mkdir', 'uname', 'find', 'head'])
    symlinkSync(
      spawnSync('sh', ['-c', `command -v ${tool}`], { encoding: 'utf8' }).stdout.trim() || '/bin/true',
      join(bin, tool),
    );
  const script = fileURLToPath(new URL('../../../native/ort-session/build.sh', import.meta.url));
  expect(spawnSync(join(bin, 'sh'), [script], { encoding: 'utf8', env: { PATH: bin } })).toMatchObject({
    status: 3,
    stderr: 'build.sh: no C++ compiler (c++)\n',
  });
});
