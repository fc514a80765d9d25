// `shoal doctor --bundle FILE`: what somebody who helps needs to know, in one tar, without a secret in it. Everything
// passes the hider (secrets.ts); files whose contents are keys are never read.

import { open, writeFile } from 'node:fs/promises';
import { gzipSync } from 'node:zlib';
import { ShoalError } from '@shoal/contract';
import { redactSettings, type Settings } from '@shoal/core';
import { AuditLog, type Redis } from '@shoal/queue';
import type { Finding } from '@shoal/worker';
import type { QueueSeen } from './fleet-checks.ts';
import type { HostFacts } from './host-checks.ts';
import { secretsHider } from './secrets.ts';
import { tarOf, type TarFile } from './tar.ts';

export interface BundleParts {
  readonly version: string;
  readonly settings: Settings;
  readonly environment: Readonly<Record<string, string | undefined>>;
  readonly findings: readonly Finding[];
  readonly host: HostFacts;
  readonly queues: readonly QueueSeen[];
  /** The server's INFO; undefined: it did not answer. */
  readonly info: string | undefined;
  /** What was done by hand, the newest last, one JSON a line. */
  readonly audit: string;
  /** Of whose end some lines are to go along. */
  readonly logFile: string | undefined;
}

const LOG_BYTES = 262_144;
/** Of variables that are neither, nothing goes along. */
const TOLD_VARIABLES = /^(?:SHOAL_|REDIS_URL$|NODE_|CUDA_|NVIDIA_|OMP_|LD_LIBRARY_PATH$|KUBERNETES_|INVOCATION_ID$)/;

/** Names what is in it. Throws FILE_UNREADABLE for a log that cannot be read. */
export async function bundleFiles(parts: BundleParts): Promise<TarFile[]> {
  const { version, settings, environment, findings, host, queues, info, audit, logFile } = parts;
  const hide = await secretsHider(settings, environment);
  const variables = Object.fromEntries(Object.entries(environment).filter(([name]) => TOLD_VARIABLES.test(name)));
  const files: TarFile[] = [
    {
      name: 'versions.json',
      text: json({ shoal: version, node: process.versions, platform: process.platform, arch: process.arch }),
    },
    { name: 'findings.json', text: json(findings) },
    { name: 'settings.json', text: json(redactSettings(settings)) },
    { name: 'environment.json', text: json(variables) },
    { name: 'host.json', text: json(host) },
    { name: 'queues.json', text: json(queues) },
    ...(info === undefined ? [] : [{ name: 'server-info.txt', text: info }]),
    ...(audit === '' ? [] : [{ name: 'audit.jsonl', text: audit }]),
    ...(logFile === undefined ? [] : [{ name: 'log.txt', text: await tailOf(logFile) }]),
  ];
  return files.map(({ name, text }) => ({ name: `shoal-doctor/${name}`, text: hide(text) }));
}

function json(value: unknown): string {
  return `${JSON.stringify(value, null, 1)}\n`;
}

/** For its owner alone. Packed where the name ends in .gz or .tgz. Throws what `writeFile` does. */
export async function writeBundle(path: string, files: readonly TarFile[], nowMs: number): Promise<void> {
  const tar = tarOf(files, nowMs);
  await writeFile(path, /\.(?:gz|tgz)$/.test(path) ? gzipSync(tar) : tar, { mode: 0o600 });
}

export async function auditLines(redisUrl: string, prefix: string): Promise<string> {
  const audit = await AuditLog.connect({ redisUrl, prefix });
  try {
    return (await audit.read())
      .toReversed()
      .map((entry) => `${JSON.stringify(entry)}\n`)
      .join('');
  } finally {
    await audit.close();
  }
}

export function serverInfo(connection: Redis): Promise<string> {
  return connection.info();
}

/** From a whole line on. */
async function tailOf(path: string): Promise<string> {
  try {
    const file = await open(path, 'r');
    try {
      const { size } = await file.stat();
      const { buffer, bytesRead } = await file.read({
        position: Math.max(0, size - LOG_BYTES),
        buffer: Buffer.alloc(LOG_BYTES),
      });
      const text = buffer.toString('utf8', 0, bytesRead);
      return size > LOG_BYTES ? text.slice(text.indexOf('\n') + 1) : text;
    } finally {
      await file.close();
    }
  } catch (error) {
    const problem = error instanceof Error ? error.message : String(error);
    throw new ShoalError('FILE_UNREADABLE', `the log ${path} cannot be read: ${problem}; name another with --log`, {
      path,
    });
  }
}
