// What `shoal doctor` says of the payload servers in the settings: whether each takes a body, gives it back and deletes it,
// of a bucket whether it deletes by itself what is left there, and which workers have others, so that nothing goes there.
// Nothing is lost either way, so all of it is a warning at most.

import { PayloadServers, notSharing, payloadSetOf, type TriedServer } from '@shoal/queue';
import type { Finding } from '@shoal/worker';
import type { QueueSeen } from './fleet-checks.ts';

/** None without the setting. Throws CONFIG_INVALID. */
export async function checkPayloadServers(
  payloadServers: string | undefined,
  queues: readonly QueueSeen[],
): Promise<Finding[]> {
  if (payloadServers === undefined) return [];
  const servers = await PayloadServers.connect({ payloadServers, clientName: 'doctor' });
  try {
    const tried = await servers.tried();
    return [...tried.flatMap(findingsOf), ...sharing(queues, payloadSetOf(payloadServers))];
  } finally {
    await servers.close();
  }
}

function findingsOf({ name, where, problem, remarks }: TriedServer): Finding[] {
  const about = `payload server ${name}`;
  const at = where === undefined ? '' : `; ${where}`;
  if (problem === undefined) {
    const warnings = remarks.map(({ found, cure }): Finding => ({ about, state: 'warning', found, cure }));
    return [{ about, state: 'ok', found: `takes a body and gives it back${at}` }, ...warnings];
  }
  const cure = 'put that right; until then what it would carry goes to the others, or by the queue server';
  return [{ about, state: 'warning', found: problem + at, cure }];
}

/** Of workers that embed: no others use them. */
function sharing(queues: readonly QueueSeen[], set: string): Finding[] {
  const about = 'payload servers of workers';
  const embedding = queues.filter(({ queue }) => queue.startsWith('embed-'));
  const found = notSharing(
    embedding.flatMap(({ view }) => view.workers),
    set,
  );
  if (found === undefined) return [];
  const others = [...new Set(found)];
  if (others.length === 0) return [{ about, state: 'ok', found: 'all have the same' }];
  const who = `${others.join(', ')} ${others.length === 1 ? 'has' : 'have'}`;
  const said = `${who} others, or none: everything goes by the queue server`;
  return [
    { about, state: 'warning', found: said, cure: 'give all workers the same payloadServers, each written alike' },
  ];
}
