// Errors of bullmq and ioredis, as a producer or reader meets them, in Shoal's own words. Faults that pass get a code
// that says so, QUEUE_FULL, QUEUE_REFUSES_WRITES or QUEUE_UNREACHABLE; a key of the wrong type is QUEUE_DAMAGED; what is
// neither is a bug or a refusal for good, and leaves as it came.

import { ShoalError } from '@shoal/contract';
import { denied } from './denied.ts';
import { isConnectionFault, isPassingRefusal, isServerFull, refusesWrites } from './connection.ts';

export async function translated<Value>(work: () => Promise<Value>): Promise<Value> {
  try {
    return await work();
  } catch (error) {
    throw translate(error);
  }
}

/** The error in our words where we have some, else as it came. */
export function translate(error: unknown): unknown {
  if (error instanceof ShoalError || !(error instanceof Error)) return error;
  const fault = firstOf(error);
  if (isServerFull(fault)) {
    return new ShoalError(
      'QUEUE_FULL',
      'the queue server refused the jobs because its memory is full; let workers and readers catch up and ' +
        'repeat the call, or raise maxmemory',
      { reply: fault.message },
      error,
    );
  }
  if (refusesWrites(fault)) return writesRefused(fault);
  if (fault.message.startsWith('NOPERM')) return denied(fault);
  if (isConnectionFault(fault) || isPassingRefusal(fault)) {
    return new ShoalError(
      'QUEUE_UNREACHABLE',
      `the queue server did not take the call (${fault.message}); repeat it as a whole, jobs that were added ` +
        'are not added twice',
      {},
      error,
    );
  }
  if (fault.message.includes('WRONGTYPE')) {
    return new ShoalError(
      'QUEUE_DAMAGED',
      `a key of the queue is of another type than it should be (${fault.message.slice(0, 120)}): "shoal queue repair" ` +
        'names it, moves it aside and lets the queue go on',
      {},
      error,
    );
  }
  return error;
}

/** In the server's own words, because only they say what is wrong there, with where to look. */
function writesRefused(fault: Error): ShoalError<'QUEUE_REFUSES_WRITES'> {
  return new ShoalError(
    'QUEUE_REFUSES_WRITES',
    `the queue server takes no writes (${fault.message.replace(/\.$/, '')}). ${cureOf(fault.message)}, and repeat the ` +
      'call',
    { reply: fault.message },
    fault,
  );
}

function cureOf(reply: string): string {
  if (reply.startsWith('READONLY')) return 'Use the address of its master, or wait until one was chosen';
  if (reply.startsWith('NOREPLICAS')) return 'Let its replicas come back (min-replicas-to-write)';
  return 'Look at its log, free space on its disk, or let it write there';
}

/** A refused transaction (EXECABORT) says only that it was refused; why is said by the command that was. */
function firstOf(error: Error): Error {
  const previous: unknown = Reflect.get(error, 'previousErrors');
  const first: unknown = Array.isArray(previous) ? previous[0] : undefined;
  return first instanceof Error ? first : error;
}
