// One drill from an empty folder to silence: the fleet is up and nothing fires; the fault; exactly the expected alerts;
// what `fleet status` and the fleet page say; the commands of the runbook; nothing fires, and jobs go through.

import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { noLog } from '@shoal/core';
import { createDashboard, type Dashboard } from '../../apps/dashboard/src/dashboard.ts';
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
  { number, title, alerts, cure, shorten, status, page }: DrillPlan,
  fault: Fault,
  { prometheus, say }: DrillTools,
): Promise<DrillResult> {
  const expected = alerts.toSorted();
  const stage = await Stage.open({ workers: 2, ...fault.stage, http: fault.users !== undefined });
  let watcher: Watcher | undefined;
  let users: Users | undefined;
  let dashboard: Dashboard | undefined;
  try {
    watcher = await Watcher.start(prometheus, join(stage.box.root, 'prometheus'), {
      shorten,
      targets: [
        { job: 'shoal-worker', addresses: stage.workers.map(({ port }) => `127.0.0.1:${port}`) },
        { job: 'shoal-exporter', addresses: [`127.0.0.1:${stage.exporterPort}`] },
        { job: 'shoal-http', addresses: stage.httpPort === undefined ? [] : [`127.0.0.1:${stage.httpPort}`] },
      ],
    });
    const { seen, firing, fired } = bound(watcher);
    dashboard = await createDashboard({
      redisUrl: stage.server.url,
      prefix: PREFIX,
      host: '127.0.0.1',
      port: 0,
      log: noLog,
    });
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
    const tell = async (): Promise<void> => {
      say(`${number}:   fleet status: ${await told('fleet status', status, () => statusLines(stage))}`);
      say(`${number}:   fleet page: ${await told('the fleet page', page, () => pageLines(dashboard!))}`);
    };
    if (expected.length > 0) await tell();
    for (const command of new Set(alerts.flatMap((alert) => commandsOf(alert, 'look'))))
      say(`${number}:   $ ${command}\n${await looked(stage, command)}`);
    // nothing else may come: whatever it is, it would be there by then
    await pause(longestForS(shorten) + SLACK_S);
    if (expected.length === 0) await tell();
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
      isSaid: true,
      ...(felt === undefined ? {} : { users: felt }),
    };
  } finally {
    await Promise.all([watcher?.stop(), dashboard?.stop()]);
    await stage.close();
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
    return `${stdout}${stderr.trimEnd()}\n(exit code ${String(code)})`;
  }
}

/** Executors that were lost are told ten seconds late, and a server that is frozen is noticed after twenty. */
const TOLD_WITHIN_S = 120;

/** What is told that has these words, or that nothing needs somebody where there are none. Throws where it is not told. */
async function told(who: string, words: readonly string[], lines: () => Promise<readonly string[]>): Promise<string> {
  let last: readonly string[] = [];
  let found: string | undefined;
  const isTold = async (): Promise<boolean> => {
    last = await lines();
    found =
      words.length === 0
        ? last.find((line) => line === '')
        : last.find((line) => words.every((word) => line.includes(word)));
    return found !== undefined;
  };
  const what = words.length === 0 ? 'that nothing needs somebody' : words.join(' … ');
  await until(`${who} says ${what}`, isTold, TOLD_WITHIN_S).catch((error: Error) => {
    throw new Error(`${error.message}; it says ${last.join(' | ')}`);
  });
  return found === '' ? 'nothing needs anybody' : found!;
}

/** Every device of a drill is simulated, which is said each time. */
const NEEDS_SOMEBODY = /^! (?!a trial: )|^\(exit code/;

/** Every line, or why it could not be asked; '' where it could and no line is about what needs somebody. */
async function statusLines(stage: Stage): Promise<readonly string[]> {
  const lines = (await looked(stage, 'shoal fleet status')).split('\n').filter((line) => line !== '');
  return lines.some((line) => NEEDS_SOMEBODY.test(line)) ? lines : [...lines, ''];
}

/** Every notice, what is said of workers, or why there is no page; '' where nothing needs anybody. */
async function pageLines({ url }: Dashboard): Promise<readonly string[]> {
  const response = await fetch(url, { signal: AbortSignal.timeout(20_000) });
  const items = (await response.text()).split(/<(?:li|p)\b[^>]*>/);
  const lines = items
    .map((item) =>
      item
        .replaceAll(/<[^>]*>/g, '')
        .replaceAll(/\s+/g, ' ')
        .trim(),
    )
    .filter((line) => line !== '');
  return lines.some((line) => line.startsWith('Nothing needs anybody')) ? [...lines, ''] : lines;
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
