// Every route as schemathesis asks it: requests made from /openapi.json, those that fit and those that do not, and each
// answer held against what the document says of it: no 5xx, no status, content type, header or body that is not in it.
// Runs at night alone, in the environment of the foreign clients (clients.json), on the HTTP interface over made-up
// vectors: what queue and workers do is not in the document.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { text } from 'node:stream/consumers';
import { expect, test } from 'vitest';
import { cacheFolder } from '@shoal/core';
import { startApp } from '../testing/app-under-test.ts';
import { installClients } from './install.ts';

const isNightly = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
if (!isNightly) console.warn('schemathesis asks all routes at night alone (npm run test:nightly)');

const CHECKS = [
  'not_a_server_error',
  'status_code_conformance',
  'content_type_conformance',
  'response_headers_conformance',
  'response_schema_conformance',
];
const REQUESTS_A_ROUTE = 300;

test.runIf(isNightly)(
  'schemathesis finds no 5xx and no answer that the document does not describe',
  async () => {
    const { python } = await installClients(cacheFolder(process.env['SHOAL_CACHE_DIR']));
    const folder = await mkdtemp(join(tmpdir(), 'shoal-schemathesis-'));
    const app = await startApp();
    const seed = String(Date.now() % 2 ** 31);
    try {
      const options = [
        `--checks=${CHECKS.join()}`,
        '--phases=examples,coverage,fuzzing',
        `--max-examples=${REQUESTS_A_ROUTE}`,
        `--seed=${seed}`,
        '--continue-on-failure',
        '--no-shrink',
      ];
      const child = spawn(
        join(dirname(python), 'schemathesis'),
        ['--no-color', 'run', `${app.url}/openapi.json`, ...options],
        { cwd: folder, stdio: ['ignore', 'pipe', 'inherit'] },
      );
      const closed = once(child, 'close');
      const said = await text(child.stdout);
      const [code]: unknown[] = await closed;
      console.log(`seed ${seed}:\n${code === 0 ? said.slice(-800) : said}`);
      expect(code).toBe(0);
    } finally {
      await app.stop();
      await rm(folder, { recursive: true, force: true });
    }
  },
  900_000,
);
