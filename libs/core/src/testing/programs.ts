// Which file a test starts for an app, and with which flags of Node. The suite has just built the programs, which start
// in a fifth of the time (0.3 s of CPU instead of 1.3, 2026-11-28); a test that is run by hand starts the sources, which
// are never stale.

import { fileURLToPath } from 'node:url';
import { programFile } from '../base/program-file.ts';

export type AppName = 'cli' | 'cpu-worker' | 'gpu-worker' | 'producer' | 'dashboard';

/** A program and the flags that Node needs before it. */
export interface Program {
  readonly main: string;
  readonly execArgv: readonly string[];
}

/** Sources by default; the build where SHOAL_TEST_PROGRAMS says "dist", as tools/test.sh does after building. */
export const testsRunBuild = process.env['SHOAL_TEST_PROGRAMS'] === 'dist';

/** `from: 'sources'`: for the one test file of each app that proves that the sources start as well. */
export function programOf(app: AppName, options: { readonly from?: 'sources' } = {}): Program {
  const runsBuild = testsRunBuild && options.from !== 'sources';
  const main = `../../../../apps/${app}/src/main`;
  return {
    main: fileURLToPath(runsBuild ? programFile(main, import.meta.url) : new URL(`${main}.ts`, import.meta.url)),
    execArgv: runsBuild ? [] : ['--conditions=@shoal/source'],
  };
}
