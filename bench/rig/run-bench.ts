// A bench as the tests start it: in a process of its own, and what it found is the one line of JSON on its standard
// output. Benches are named by their room: 'queue/queue-rates'.

import { execFile } from 'node:child_process';
import { testsRunBuild } from '@shoal/core/testing';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

/** The packages that a bench measures, and the workers that it starts, come from where the other tests take them. */
const CONDITIONS = testsRunBuild ? [] : ['--conditions=@shoal/source'];

export async function runBench(name: string, ...args: string[]): Promise<Record<string, unknown>> {
  const path = fileURLToPath(new URL(`../${name}.ts`, import.meta.url));
  const { stdout } = await promisify(execFile)(process.execPath, [...CONDITIONS, path, ...args], {
    timeout: 170_000,
  });
  return JSON.parse(stdout) as Record<string, unknown>;
}
