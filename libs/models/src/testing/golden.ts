// What a test has computed before, kept below the cache folder under a hash of all that it depends on: the bytes of a
// graph, a package's version, the processor. A test that finds nothing computes as if there were no such file, and its
// comparisons run either way. SHOAL_TEST_GOLDEN=no computes everything anew, as the nightly form does.

import { createHash } from 'node:crypto';
import { mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { cpus } from 'node:os';
import { join } from 'node:path';
import { deserialize, serialize } from 'node:v8';
import { testCacheDir } from './minilm.ts';

const require = createRequire(import.meta.url);

/** The name and version of an installed package, for what depends on it. */
export function versionOf(packageName: string): string {
  const manifest = require(`${packageName}/package.json`) as { readonly version: string };
  return `${packageName}@${manifest.version}`;
}

/** What results of floating-point kernels depend on besides their inputs. */
export const processor = `${process.arch} ${cpus()[0]?.model ?? ''} ${process.version}`;

export const hashOf = (...parts: readonly (string | Uint8Array)[]): string => {
  const hash = createHash('sha256');
  for (const part of parts) hash.update(`${part.length}:`).update(part);
  return hash.digest('hex');
};

export class Golden<Value> {
  private readonly path: string;
  private readonly values: Map<string, Value>;
  private isChanged = false;

  constructor(name: string, ...dependsOn: readonly (string | Uint8Array)[]) {
    this.path = join(testCacheDir, 'test-golden', `${name}-${hashOf(...dependsOn).slice(0, 16)}`);
    this.values = process.env['SHOAL_TEST_GOLDEN'] === 'no' ? new Map() : readMap(this.path);
  }

  /** What `compute` gives for this key, from an earlier run where there was one. */
  async get(key: string, compute: () => Promise<Value> | Value): Promise<Value> {
    const known = this.values.get(key);
    if (known !== undefined) return known;
    const value = await compute();
    this.values.set(key, value);
    this.isChanged = true;
    return value;
  }

  /** Keeps what is new for the next run. A cache folder that cannot be written costs that run its time, no more. */
  save(): void {
    if (!this.isChanged) return;
    try {
      mkdirSync(join(testCacheDir, 'test-golden'), { recursive: true });
      // What other runs kept stays: a run that computes everything anew may have computed a part only.
      const all = new Map([...readMap<Value>(this.path), ...this.values]);
      writeFileSync(`${this.path}.${process.pid}`, serialize(all));
      renameSync(`${this.path}.${process.pid}`, this.path);
    } catch (error) {
      console.warn(`golden values are not kept: ${String(error)}`);
    }
  }
}

function readMap<Value>(path: string): Map<string, Value> {
  try {
    return deserialize(readFileSync(path)) as Map<string, Value>;
  } catch {
    return new Map(); // none yet, or one that was cut
  }
}
