// What a server says that knows our user and refuses it a command or a key.

import { ShoalError } from '@shoal/contract';

/** Of a reply NOPERM. The server says which command or key; which rights are needed is one line of a page. */
export function denied(fault: Error): ShoalError<'QUEUE_UNREACHABLE'> {
  const command = /run the '([^']+)' command/.exec(fault.message)?.[1];
  return new ShoalError(
    'QUEUE_UNREACHABLE',
    `the user that the queue server knows us by may not ${command === undefined ? 'do that' : `run ${command.toUpperCase()}`} ` +
      `(${fault.message}). Give it the rights that docs/security.md lists (ACL SETUSER), or name another user in redisUrl`,
    { reply: fault.message },
    fault,
  );
}
