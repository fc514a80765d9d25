// Which file a test starts for an app, and with which flags of Node. The suite has just built `dist`, where a process
// starts in half the time (0.5 s of CPU instead of 1.3, 2026-11-26); a test that is run by hand starts the sources,
// which are never stale.

import { fileURLToPath } from 'node:url';

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
  const [folder, ending] = runsBuild ? ['dist', 'js'] : ['src', 'ts'];
  return {
    main: fileURLToPath(new URL(`../../../../apps/${app}/${folder}/main.${ending}`, import.meta.url)),
    execArgv: runsBuild ? [] : ['--conditions=@shoal/source'],
  };
}
