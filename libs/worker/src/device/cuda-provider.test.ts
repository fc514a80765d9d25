// Installing the CUDA provider: from a wheel of our own, into a runtime of our own; needs python3 with pip, no network.

import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { createRequire } from 'node:module';
import { cpSync, mkdirSync, mkdtempSync, readFileSync, realpathSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { SmallDisk } from '@shoal/fetch/testing';
import {
  CUDA_PROVIDER_FILES,
  RUNTIME_ELSEWHERE,
  RUNTIME_LIBRARIES,
  installedRuntime,
  runtimeMain,
} from '@shoal/inference';
import { CUDA_PROVIDER, installCudaProvider, linkKeptProvider, type PinnedProvider } from './cuda-provider.ts';

let folder: string;
let provider: PinnedProvider;
let environment: Record<string, string | undefined>;

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'shoal-provider-'));
  const content = join(folder, 'content');
  mkdirSync(join(content, 'onnxruntime', 'capi'), { recursive: true });
  mkdirSync(join(content, 'tiny-1.0.dist-info'));
  for (const file of CUDA_PROVIDER_FILES)
    writeFileSync(join(content, 'onnxruntime', 'capi', file), `the library ${file}`);
  for (const [name, text] of [
    ['METADATA', 'Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n'],
    ['WHEEL', 'Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp312-cp312-manylinux_2_28_x86_64\n'],
    ['RECORD', ''],
  ] as const) {
    writeFileSync(join(content, 'tiny-1.0.dist-info', name), text);
  }
  const wheel = join(folder, 'tiny-1.0-cp312-cp312-manylinux_2_28_x86_64.whl');
  const zipped = spawnSync('python3', ['-m', 'zipfile', '-c', wheel, 'onnxruntime/', 'tiny-1.0.dist-info/'], {
    cwd: content,
    encoding: 'utf8',
  });
  if (zipped.status !== 0) throw new Error(`the test wheel could not be made: ${zipped.stderr}`);
  provider = {
    wheel: { project: 'tiny', version: '1.0', sha256: sha(wheel), build: CUDA_PROVIDER.wheel.build! },
    folderInWheel: CUDA_PROVIDER.folderInWheel,
    files: Object.fromEntries(
      CUDA_PROVIDER_FILES.map((file) => [file, sha(join(content, 'onnxruntime', 'capi', file))]),
    ),
  };
  environment = { ...process.env, PIP_FIND_LINKS: folder, PIP_INDEX_URL: 'http://127.0.0.1:9', PIP_RETRIES: '0' };
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

/** An empty graph of ONNX in 40 bytes is enough: the provider is loaded before it is looked at. */
const ASK_FOR_CUDA = `
  const { InferenceSession } = require(process.env.${RUNTIME_ELSEWHERE});
  const graph = Uint8Array.from([8, 8, 58, 5, 18, 3, 103, 49, 50, 66, 4, 10, 0, 16, 17]);
  InferenceSession.create(graph, { executionProviders: ['cuda'] }).then(
    () => console.log('opened'),
    (error) => console.log(error.message),
  );`;

let runtimes = 0;
function freshRuntime(version = '1.0'): { folder: string; version: string } {
  const path = join(folder, `runtime-${++runtimes}`);
  mkdirSync(path);
  return { folder: path, version };
}

describe.runIf(process.platform === 'linux' && process.arch === 'x64')('the CUDA provider', () => {
  test('is fetched once, verified, and found beside every runtime of its version', async () => {
    const cacheDir = join(folder, 'cache');
    const [first, second] = [freshRuntime(), freshRuntime()];
    expect(await installCudaProvider({ cacheDir, provider, environment, runtime: first })).toMatchObject({
      version: '1.0',
      wasThere: false,
      linked: first.folder,
    });
    expect(
      await installCudaProvider({
        cacheDir,
        provider,
        environment: { ...environment, PIP_FIND_LINKS: undefined },
        runtime: second,
      }),
    ).toMatchObject({ wasThere: true });
    for (const { folder: runtime } of [first, second]) {
      for (const file of CUDA_PROVIDER_FILES)
        expect(realpathSync(join(runtime, file))).toBe(
          realpathSync(join(cacheDir, 'providers', 'onnxruntime-cuda-1.0', file)),
        );
    }
  });

  test('that root keeps for a machine may be read by its services', async () => {
    const umask = process.umask(0o022);
    try {
      const { kept } = await installCudaProvider({
        cacheDir: join(folder, 'of-root'),
        provider,
        environment,
        runtime: freshRuntime(),
      });
      for (const path of [dirname(kept), kept]) expect((statSync(path).mode & 0o777).toString(8)).toBe('755');
      for (const file of CUDA_PROVIDER_FILES)
        expect((statSync(join(kept, file)).mode & 0o777).toString(8)).toMatch(/^[67]44$|^755$/);
    } finally {
      process.umask(umask);
    }
  });

  test('that is kept is linked again where the links are gone', async () => {
    const cacheDir = join(folder, 'relink');
    const fresh = freshRuntime();
    await installCudaProvider({ cacheDir, provider, environment, runtime: freshRuntime() });
    await linkKeptProvider(cacheDir, provider, fresh);
    expect(readFileSync(join(fresh.folder, CUDA_PROVIDER_FILES[0]), 'utf8')).toBe(
      `the library ${CUDA_PROVIDER_FILES[0]}`,
    );
    await linkKeptProvider(join(folder, 'nothing'), provider, freshRuntime());
  });

  test('brings the runtime to itself where the package may not be written to', async ({ skip }) => {
    const disk = SmallDisk.make(200e6);
    if (typeof disk === 'string') return skip(disk);
    try {
      const origin = dirname(dirname(runtimeMain({})));
      const common = dirname(dirname(dirname(createRequire(join(origin, 'x.js')).resolve('onnxruntime-common'))));
      for (const [from, to] of [
        ...['package.json', 'dist', RUNTIME_LIBRARIES].map((part) => [join(origin, part), part] as const),
        [common, join('node_modules', 'onnxruntime-common')] as const,
      ])
        cpSync(from, join(disk.folder, to), { recursive: true });
      const installed = disk.readOnlyView();
      const runtime = { folder: join(installed, RUNTIME_LIBRARIES), version: '1.0' };
      const cacheDir = join(folder, 'read-only');
      const report = await installCudaProvider({ cacheDir, provider, environment, runtime });
      expect(report.linked).toBe(join(report.kept, 'runtime', RUNTIME_LIBRARIES));
      delete process.env[RUNTIME_ELSEWHERE];
      await linkKeptProvider(cacheDir, provider, runtime);
      expect(process.env[RUNTIME_ELSEWHERE]).toBe(join(report.kept, 'runtime'));
      // The runtime itself says where it looks for the provider.
      const asked = spawnSync(process.execPath, ['--input-type=commonjs', '--eval', ASK_FOR_CUDA], {
        encoding: 'utf8',
        env: process.env,
      });
      expect(asked.stderr).toContain(join(report.kept, 'runtime', RUNTIME_LIBRARIES, CUDA_PROVIDER_FILES[0]));
    } finally {
      delete process.env[RUNTIME_ELSEWHERE];
      disk.remove();
    }
  });

  test('that was damaged in the cache is fetched again', async () => {
    const cacheDir = join(folder, 'damaged');
    const runtime = freshRuntime();
    const { kept } = await installCudaProvider({ cacheDir, provider, environment, runtime });
    writeFileSync(join(kept, CUDA_PROVIDER_FILES[1]), 'cut off');
    expect(await installCudaProvider({ cacheDir, provider, environment, runtime })).toMatchObject({ wasThere: false });
    expect(readFileSync(join(runtime.folder, CUDA_PROVIDER_FILES[1]), 'utf8')).toBe(
      `the library ${CUDA_PROVIDER_FILES[1]}`,
    );
  });

  test('of another version than the runtime is refused before anything is fetched', async () => {
    await expect(
      installCudaProvider({ cacheDir: folder, provider, environment, runtime: freshRuntime('1.29.0') }),
    ).rejects.toMatchObject({
      code: 'SETUP_FAILED',
      message: expect.stringMatching(/1\.29\.0 is installed .* is 1\.0/),
    });
  });

  test('that holds another file than the pinned one is refused, and nothing is kept', async () => {
    const wrong = { ...provider, files: { ...provider.files, [CUDA_PROVIDER_FILES[1]]: 'f'.repeat(64) } };
    await expect(
      installCudaProvider({ cacheDir: join(folder, 'wrong'), provider: wrong, environment, runtime: freshRuntime() }),
    ).rejects.toMatchObject({ code: 'SETUP_FAILED', message: expect.stringMatching(/should have the sha256 ffff/) });
  });

  test('without a network says what pip met', async () => {
    await expect(
      installCudaProvider({
        cacheDir: join(folder, 'offline'),
        provider,
        environment: { ...environment, PIP_FIND_LINKS: undefined },
        runtime: freshRuntime(),
      }),
    ).rejects.toMatchObject({
      code: 'SETUP_FAILED',
      message: expect.stringMatching(/CUDA provider could not be fetched/),
    });
  });

  test('is pinned for the runtime that is installed', () => {
    expect(installedRuntime().version).toBe(CUDA_PROVIDER.wheel.version);
    expect(Object.keys(CUDA_PROVIDER.files)).toEqual([...CUDA_PROVIDER_FILES]);
  });
});

function sha(path: string): string {
  return createHash('sha256').update(readFileSync(path)).digest('hex');
}
