#!/usr/bin/env node
// `shoal` of an installed package: looks at Node, keeps compiled code for this command and all it starts, and runs the
// command line. Written so that an old Node can read it.

import module from 'node:module';
import { homedir } from 'node:os';
import { join } from 'node:path';

const [major, minor] = process.versions.node.split('.').map(Number);
if (major < 22 || (major === 22 && minor < 12)) {
  process.stderr.write(
    `shoal: Node 22.12 or later is needed, and this is ${process.version}.\n` +
      'In a project: npm install node@22, which puts it beside shoal for npx and npm scripts and leaves yours as it is.\n' +
      'For all of this user: nvm install 22 && nvm use 22, or https://nodejs.org; then npm i -g shoal again.\n',
  );
  process.exit(1);
}
const { NODE_COMPILE_CACHE, SHOAL_CACHE_DIR, XDG_CACHE_HOME } = process.env;
const cache = SHOAL_CACHE_DIR || join(XDG_CACHE_HOME || join(homedir(), '.cache'), 'shoal');
process.env.NODE_COMPILE_CACHE = NODE_COMPILE_CACHE || join(cache, 'compiled');
module.enableCompileCache(process.env.NODE_COMPILE_CACHE);
await import('../apps/cli/dist/main.js');
