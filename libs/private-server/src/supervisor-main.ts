// The supervisor process: started detached by the first command that attaches, with its options as one JSON argument.
// The only place here that handles signals and exits. It keeps no terminal, no folder and no command alive.

import { existsSync, renameSync, statSync } from 'node:fs';
import { toFailure } from '@shoal/contract';
import { descriptorFailure } from '@shoal/core/base';
import type { Launched } from './control-protocol.ts';
import { Supervisor, type SupervisorOptions } from './supervisor.ts';

const MAX_LOG_BYTES = 1_000_000;

async function main(): Promise<void> {
  const options = JSON.parse(process.argv[2] ?? '{}') as SupervisorOptions;
  const { log } = options.site;
  if (existsSync(log) && statSync(log).size > MAX_LOG_BYTES) renameSync(log, `${log}.old`);
  const supervisor = new Supervisor(options);
  process.on('SIGHUP', () => undefined);
  for (const signal of ['SIGTERM', 'SIGINT'] as const) process.on(signal, () => void supervisor.stop(signal));
  await supervisor.start();
  tell({ kind: 'listening' });
  await supervisor.finished();
}

/** To the command that waits for us, if it still does. */
function tell(message: Launched): void {
  if (process.connected)
    process.send?.(message, () => {
      if (process.connected) process.disconnect();
    });
}

main().then(
  () => process.exit(0),
  (error: unknown) => {
    const { message } = toFailure(descriptorFailure(error) ?? error);
    console.error(`${new Date().toISOString()} supervisor ${process.pid}: ${message}`);
    if (process.connected) process.send?.({ kind: 'unfit', message } satisfies Launched, () => process.exit(1));
    else process.exit(1);
  },
);
