// Alertmanager itself, at night: which alerts are kept back while another fires, and that a queue of its own is not.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test, vi } from 'vitest';
import { freePort } from '@shoal/queue/testing';
import { UNPACKED, findWatchProgram } from './programs.ts';
import { INFRA } from './rules-file.ts';

const { path: program, missing } = findWatchProgram('prometheus-alertmanager');
const isNight = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
if (!isNight) console.log('Alertmanager is started at night: SHOAL_TEST_NIGHTLY=1');
else if (missing !== undefined) console.log(`Alertmanager is not tried: ${missing}`);

/**
 * Debian's Alertmanager reads its templates from /usr/share. Where it is not installed, those of the unpacked package are
 * laid over that folder, for this process alone.
 */
const OVER_SHARE = existsSync('/usr/share/prometheus/alertmanager/default.tmpl')
  ? []
  : [
      'unshare',
      '--mount',
      'sh',
      '-ec',
      `mount -t overlay -o lowerdir="${join(UNPACKED, 'usr/share')}:/usr/share" overlay /usr/share; exec "$0" "$@"`,
    ];

interface Alert {
  readonly labels: Readonly<Record<string, string>>;
  readonly status: { readonly inhibitedBy: readonly string[] };
}

/** Names of the alerts that are kept back when these fire together: "name" or "name@queue". */
async function keptBack(...firing: readonly string[]): Promise<readonly string[]> {
  const folder = mkdtempSync(join(tmpdir(), 'shoal-alertmanager-'));
  const address = `127.0.0.1:${await freePort()}`;
  const [command = '', ...before] = [...OVER_SHARE, program!];
  const child = spawn(command, [
    ...before,
    `--config.file=${join(INFRA, 'prometheus/alertmanager.yml')}`,
    `--storage.path=${folder}`,
    `--web.listen-address=${address}`,
    '--cluster.listen-address=',
    '--log.level=error',
  ]);
  let said = '';
  for (const stream of [child.stdout, child.stderr])
    stream.setEncoding('utf8').on('data', (text: string) => (said += text));
  const ended = once(child, 'close');
  onTestFinished(async () => {
    child.kill('SIGKILL');
    await ended;
    rmSync(folder, { recursive: true });
  });
  const url = `http://${address}/api/v2/alerts`;
  const isUp = async (): Promise<boolean> => {
    if (child.exitCode !== null) throw new Error(`Alertmanager ended: ${said}`);
    return (await fetch(url).catch(() => undefined))?.ok === true;
  };
  await vi.waitUntil(isUp, { timeout: 60_000, interval: 100 });
  const alerts = firing.map((one) => {
    const [alertname = '', queue] = one.split('@');
    return { labels: { alertname, severity: 'page', ...(queue === undefined ? {} : { queue }) } };
  });
  await fetch(url, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(alerts) });
  let told: readonly Alert[] = [];
  // it looks at inhibitions when it groups alerts: a moment after it has taken them
  const inhibited = async (): Promise<readonly string[]> => {
    told = (await (await fetch(url)).json()) as Alert[];
    return told
      .filter(({ status }) => status.inhibitedBy.length > 0)
      .map(({ labels: { alertname, queue } }) => (queue === undefined ? alertname! : `${alertname}@${queue}`))
      .toSorted();
  };
  await vi.waitUntil(async () => (await inhibited()).length > 0, { timeout: 20_000, interval: 200 });
  return inhibited();
}

test.skipIf(!isNight || program === undefined)(
  'while the queue server is away nothing else wakes anybody',
  async () => {
    expect(await keptBack('ShoalQueueServerDown', 'ShoalNobodyServes@a', 'ShoalHttpErrorsFast', 'Other')).toEqual([
      'ShoalHttpErrorsFast',
      'ShoalNobodyServes@a',
    ]);
  },
);

test.skipIf(!isNight || program === undefined)(
  'who waits on a paused queue is one message, on another queue another',
  async () => {
    expect(await keptBack('ShoalQueuePaused@a', 'ShoalBulkWaits@a', 'ShoalBulkWaits@b')).toEqual(['ShoalBulkWaits@a']);
  },
);
