// What the encoder's addon does where the system gives it no thread, and what its build says where there is no
// compiler.

import { execFileSync, spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { ENCODER_LIBRARIES } from './encoder-addon.ts';
import { buildReferenceEncoder } from './testing.ts';

const ADDON = fileURLToPath(new URL('../../../dist/native/encoder/encoder.node', import.meta.url));
const cacheDir = mkdtempSync(join(tmpdir(), 'shoal-encoder-addon-'));
afterAll(() => rmSync(cacheDir, { recursive: true, force: true }));

const isLinux = process.platform === 'linux';
if (!isLinux) console.warn('threads that the system refuses are not tested: that needs Linux');
const canRefuse = isLinux && buildReferenceEncoder('a thread that the system refuses');

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
      extern "C" int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*work)(void *),
                                    void *data) noexcept {
        static const auto real = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
        static int asked = 0;
        Dl_info caller;
        const bool isKnown = dladdr(__builtin_return_address(0), &caller) != 0;
        const auto isIn = [&](const char *file) { return strstr(caller.dli_fname, file) != nullptr; };
        const bool isOurs = isKnown && (isIn(".node") || isIn("libstdc++"));
        if (isOurs && ++asked == atoi(getenv("REFUSE_NTH"))) return EAGAIN;
        return real(thread, attributes, work, data);
      }`,
    );
    execFileSync('sh', ['-c', '"${CXX:-c++}" -shared -fPIC -o "$1" "$2" -ldl', 'sh', preload, source]);
  });

  function runRefusing(nth: number, code: string) {
    const program = join(cacheDir, `refuse-${nth}.cjs`);
    writeFileSync(program, `const addon = require(${JSON.stringify(ADDON)});\n(async () => {${code}})();`);
    const { status, signal, stdout } = spawnSync(process.execPath, [program], {
      encoding: 'utf8',
      env: { ...process.env, LD_PRELOAD: preload, REFUSE_NTH: String(nth) },
    });
    return { status, signal, stdout };
  }

  test('is an error of the encoder: of all for its first lane, of its opening for the others, and it closes', () => {
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
        const sizes = [${hidden}, 1, 1, ${intermediate}, ${vocabulary}, ${positions}];
        await addon.open(encoder, Float64Array.of(...sizes, 1e-12, 0, 1, 0, 0, 2, 0), weights, 0).then(
          () => console.log('opened'),
          (error) => console.log(error.status, error.message),
        );
        await addon.close(encoder);
      } catch (error) { console.log(error.message); }
      console.log('closed');`;
    for (const [nth, said] of [
      [1, /^the system refuses the thread of a lane \(.*\): allow .*\nclosed\n$/],
      [2, /^5 the system refuses the thread of a lane \(.*\): allow .*\nclosed\n$/],
      [3, /^opened\nclosed\n$/],
    ] as const) {
      const { status, signal, stdout } = runRefusing(nth, opening);
      expect({ status, signal, stdout }).toEqual({ status: 0, signal: null, stdout: expect.stringMatching(said) });
    }
  });
});

test('where there is no compiler, the build says so and nothing else', () => {
  const bin = join(cacheDir, 'bin');
  mkdirSync(bin);
  for (const tool of ['sh', 'dirname', 'pwd', 'mkdir', 'uname', 'find', 'head', 'rm'])
    symlinkSync(
      spawnSync('sh', ['-c', `command -v ${tool}`], { encoding: 'utf8' }).stdout.trim() || '/bin/true',
      join(bin, tool),
    );
  const script = fileURLToPath(new URL('../../../native/encoder/build.sh', import.meta.url));
  expect(spawnSync(join(bin, 'sh'), [script, 'addon'], { encoding: 'utf8', env: { PATH: bin } })).toMatchObject({
    status: 3,
    stderr: 'build.sh: no C++ compiler (c++)\n',
  });
});
