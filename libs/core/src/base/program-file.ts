// Which file is started for a program or a thread of ours: its source where the module that starts it is one, else what
// the build made of it. Of a checkout that is a bundle (tools/bundle-programs.mjs), which starts for half the CPU; where
// there is none, as in a package that was installed, the module.

import { existsSync } from 'node:fs';

const ROOT = new URL('../../../../', import.meta.url).href;

/** `path`: of the program's source as `starter` would import it, without its ending; `starter`: `import.meta.url`. */
export function programFile(path: string, starter: string): URL {
  const { href } = new URL(path, starter);
  if (startsSources(starter)) return new URL(`${href}.ts`);
  const place = href.slice(ROOT.length).replace(/^((?:apps|libs)\/[^/]+)\/src\//, '$1/dist/');
  const bundle = new URL(`dist/programs/${bundleName(place)}.js`, ROOT);
  return existsSync(bundle) ? bundle : new URL(`${place}.js`, ROOT);
}

/** An app's program is called as the app, any other as its file. */
function bundleName(place: string): string {
  return /^apps\/([^/]+)\/dist\/main$/.exec(place)?.[1] ?? place.slice(place.lastIndexOf('/') + 1);
}

/**
 * Tests run sources in their own process, and start from the build what they start where it was just made
 * (tools/test.sh). A program that runs from its source starts sources.
 */
function startsSources(starter: string): boolean {
  if (!starter.endsWith('.ts')) return false;
  return process.env['SHOAL_TEST_PROGRAMS'] !== 'dist' || process.argv[1]?.endsWith('.ts') === true;
}
