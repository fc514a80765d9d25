// For tests of the native encoder on machines without a GPU: its addon and the reference library, built where a
// compiler is.

import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';

const BUILD = fileURLToPath(new URL('../../../native/encoder/build.sh', import.meta.url));

/** Whether both are there now; else says on the console why `what` is not tested. */
export function buildReferenceEncoder(what: string): boolean {
  const built = ['addon', 'reference'].map((part) => spawnSync('sh', [BUILD, part], { encoding: 'utf8' }));
  const isBuilt = built.every(({ status }) => status === 0);
  if (!isBuilt) console.warn(`${what} is not tested: ${built.map(({ stderr }) => stderr.trim()).join(' ')}`);
  return isBuilt;
}
