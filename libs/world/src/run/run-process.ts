// A process that runs seeds, one after the other, for whoever forked it (run-seeds.ts). Time and chance are replaced
// before the product is loaded, which is why the product is imported in here and not at the top. A planted fault is
// named in the environment.

import { patchNetwork } from '../time/network.ts';
import { patchTimeAndChance, real } from '../time/patch.ts';
import { NO_RUNS, digestOfRun, joinedDigests } from './digest.ts';
import { plant } from './planted.ts';
import { PLANT_VARIABLE, type FromRunProcess, type ToRunProcess } from './run-messages.ts';

const planted = process.env[PLANT_VARIABLE];
if (planted !== undefined && planted !== '') plant(planted);
patchTimeAndChance();
patchNetwork();
const { simulate } = await import('./simulate.ts');
const { planOf } = await import('./plan.ts');
const { shrink } = await import('./shrink.ts');

const say = (message: FromRunProcess): void => void process.send?.(message);

process.on('message', (message: ToRunProcess) => void real.setImmediate(() => answer(message)));
process.on('disconnect', () => process.exit(0));
say({ kind: 'ready' });

function answer(message: ToRunProcess): void {
  switch (message.kind) {
    case 'seeds':
      return runAll(message.seeds);
    case 'plan': {
      const lines: string[] = [];
      const report = simulate(message.plan, message.isTraced ? (line) => lines.push(line) : undefined);
      return say({ kind: 'report', report, lines });
    }
    case 'shrink': {
      const { plan } = message;
      return say({ kind: 'shrunk', shrunk: shrink(plan, simulate(plan), simulate) });
    }
  }
}

function runAll(seeds: readonly string[]): void {
  const reports = seeds.map((seed) => simulate(planOf(seed)));
  say({
    kind: 'ran',
    runs: reports.length,
    steps: reports.reduce((sum, { steps }) => sum + steps, 0),
    virtualMs: reports.reduce((sum, { virtualMs }) => sum + virtualMs, 0),
    digest: reports.map(digestOfRun).reduce(joinedDigests, NO_RUNS),
    failed: reports.filter(({ violations }) => violations.length > 0),
  });
}
