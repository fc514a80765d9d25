// One drill from an empty folder to silence: the fleet is up and nothing fires; the fault; exactly the expected alerts;
// what `fleet status` says; the commands of the runbook; nothing fires, and jobs go through.

import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { noLog } from '@shoal/core';
import { FleetSurvey } from '@shoal/queue';
import { FleetReader } from '../../apps/dashboard/src/fleet/fleet-reading.ts';
import { noticesOf } from '../../apps/dashboard/src/fleet/notices.ts';
import { alertsOf, readGroups, runbookOf } from '../watch/rules-file.ts';
import { commandsIn } from '../watch/runbook.ts';
import type { DrillPlan } from './drill-list.ts';
import type { DrillResult } from './drills-page.ts';
import type { Fault } from './faults.ts';
import { milliseconds } from './shorten.ts';
import { MODEL, PREFIX, Stage } from './stage.ts';
import { Users, whatUsersFelt } from './users.ts';
import { until, Watcher } from './watcher.ts';

const ROOT = join(import.meta.dirname, '../..');
/** Beside the longest `for`, what a scrape, an evaluation and a slow machine take. */
const SLACK_S = 10;

export interface DrillTools {
  /** Prometheus. */
  readonly prometheus: string;
  readonly say: (line: string) => void;
}

/** Throws with what was expected and what was found. */
export async function runDrill(
  { number, title, alerts, cure }: DrillPlan,
  fault: Fault,
  { prometheus, say }: DrillTools,
): Promise<DrillResult> {
  const expected = alerts.toSorted();
  const stage = await Stage.open({ workers: 2, ...fault.stage, http: fault.users !== undefined });
  let watcher: Watcher | undefined;
  let users: Users | undefined;
  try {
    watcher = await Watcher.start(prometheus, join(stage.box.root, 'prometheus'), {
      shorten: fault.shorten,
      targets: [
        { job: 'shoal-worker', addresses: stage.workers.map(({ port }) => `127.0.0.1:${port}`) },
        { job: 'shoal-exporter', addresses: [`127.0.0.1:${stage.exporterPort}`] },
        { job: 'shoal-http', addresses: stage.httpPort === undefined ? [] : [`127.0.0.1:${stage.httpPort}`] },
      ],
    });
    const { seen, firing, fired } = bound(watcher);
    await until('Prometheus sees all processes', seen);
    say(`${number}: ${title}`);
    if (stage.httpPort !== undefined) users = new Users(`http://127.0.0.1:${stage.httpPort}`, MODEL);
    const begunMs = Date.now();
    const variables = (await fault.begin(stage)) ?? {};
    if (expected.length > 0) {
      await until(`${expected.join(' and ')} fire`, async () => same(await firing(), expected)).catch(async (error) => {
        throw new Error(`${error.message}; these do: ${(await firing()).join(', ') || 'none'}`);
      });
    }
    const raisedAfterS = seconds(begunMs);
    const status = expected.length === 0 ? undefined : await look(stage, fault.status);
    if (fault.page !== undefined) say(`${number}:   the page: ${await onPage(stage, fault.page)}`);
    for (const command of new Set(alerts.flatMap((alert) => commandsOf(alert, 'look'))))
      say(`${number}:   $ ${command}\n${await looked(stage, command)}`);
    // nothing else may come: whatever it is, it would be there by then
    await pause(longestForS(fault.shorten) + SLACK_S);
    const cureMs = Date.now();
    await fault.mend?.(stage);
    if (cure !== undefined)
      for (const command of commandsOf(cure, 'cure'))
        say(`${number}:   $ ${command}\n${await stage.shell(command, variables)}`.trimEnd());
    await until('nothing fires', async () => same(await firing(), []), 300);
    const goneAfterS = seconds(cureMs);
    await fault.check?.(stage);
    const felt = users && whatUsersFelt(await users.stop(), fault.users ?? []);
    const raised = await fired();
    if (!same(raised, expected))
      throw new Error(`expected ${expected.join(', ') || 'no alert'}; fired ${raised.join(', ') || 'none'}`);
    return {
      date: new Date().toISOString().slice(0, 10),
      raised,
      ...(expected.length === 0 ? {} : { raisedAfterS }),
      goneAfterS,
      ...(status === undefined ? {} : { status }),
      ...(felt === undefined ? {} : { users: felt }),
    };
  } finally {
    await Promise.all([watcher?.stop(), stage.close()]);
    await users?.stop();
  }
}

function bound(watcher: Watcher): {
  readonly seen: () => Promise<boolean>;
  readonly firing: () => Promise<readonly string[]>;
  readonly fired: () => Promise<readonly string[]>;
} {
  return { seen: () => watcher.seesAll(), firing: () => watcher.firing(), fired: () => watcher.fired() };
}

function commandsOf(alert: string, kind: 'look' | 'cure'): readonly string[] {
  return commandsIn(readFileSync(join(ROOT, runbookOf(alert)), 'utf8'), kind);
}

/**
 * What a command of "See it" said. It may fail, since something is wrong; throws where the command or an option of it
 * does not exist.
 */
export async function looked(
  stage: Stage,
  command: string,
  variables: Readonly<Record<string, string>> = {},
): Promise<string> {
  try {
    return (await stage.shell(command, variables)).trimEnd();
  } catch (error) {
    const { code, stdout = '', stderr = '' } = error as { code?: unknown; stdout?: string; stderr?: string };
    if (code === 2 || code === 127) throw error;
    return `${stdout}${stderr}(exit code ${String(code)})`;
  }
}

/** The line of `fleet status` that says it. */
async function look(stage: Stage, says: RegExp | undefined): Promise<string | undefined> {
  if (says === undefined) return undefined;
  const lines = (await stage.shell('shoal fleet status')).split('\n');
  const found = lines.filter((said) => says.test(said));
  const line = found.find((said) => said.startsWith('!')) ?? found[0];
  if (line === undefined) throw new Error(`fleet status does not say ${says}: ${lines.join(' | ')}`);
  // of a warning all, of a worker its name and state
  const words = line.trim().split(/\s+/);
  return (line.startsWith('!') ? words : words.slice(0, 2)).join(' ');
}

/** What the fleet page says of it. */
async function onPage(stage: Stage, says: RegExp): Promise<string> {
  const address = { redisUrl: stage.server.url, prefix: PREFIX, log: noLog };
  const survey = await FleetSurvey.connect(address);
  const reader = new FleetReader({ survey, ...address });
  try {
    const names = (await survey.read()).queues.map(({ queue }) => queue);
    const notices = noticesOf(await reader.read(names)).map(({ text }) => text);
    const found = notices.find((text) => says.test(text));
    if (found === undefined) throw new Error(`the fleet page does not say ${says}: ${notices.join(' | ')}`);
    return found;
  } finally {
    await Promise.all([reader.close(), survey.close()]);
  }
}

/** Seconds of the longest `for` that is shorter than ten minutes: longer ones are for what nobody heals. */
function longestForS(shorten: number): number {
  const lengths = alertsOf(readGroups('shoal.rules.yml')).map((rule) => milliseconds(rule.for ?? '1s'));
  return Math.max(...lengths.filter((ms) => ms < 600_000)) / shorten / 1_000;
}

function same(left: readonly string[], right: readonly string[]): boolean {
  return left.join() === right.join();
}

function seconds(sinceMs: number): number {
  return Math.round((Date.now() - sinceMs) / 1_000);
}

function pause(s: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, s * 1_000));
}
