// What a server refuses when something is wrong with it, with its words. The order of the questions is the real server's.

import type { Command, Flavour } from './command.ts';
import type { ServerFaults } from './interface.ts';
import { Failure } from './replies.ts';
import type { Script } from './scripts.ts';
import type { SessionCommand } from './session-commands.ts';
import type { Session } from './session.ts';

const OOM = new Failure("OOM command not allowed when used memory > 'maxmemory'.");
const READONLY = new Failure("READONLY You can't write against a read only replica.");
const MISCONF = new Failure('MISCONF Errors writing to the AOF file: No space left on device');

export class Refusals {
  readonly #faults: ServerFaults;
  readonly #flavour: Flavour;

  constructor(faults: ServerFaults, flavour: Flavour) {
    this.#faults = faults;
    this.#flavour = flavour;
  }

  ofCommand(command: Command | SessionCommand, session: Session): Failure | undefined {
    const { refuse, denied } = this.#faults;
    const { name } = command;
    if (denied?.has(name.toUpperCase()) === true)
      return new Failure(`NOPERM User default has no permissions to run the '${name}' command`);
    if (refuse === 'oom' && command.needsMemory) return OOM;
    if (refuse === 'misconf' && (command.isWrite || name === 'ping')) return MISCONF;
    if (refuse === 'readonly' && command.isWrite) return READONLY;
    if (
      session.isSubscribed &&
      !('isForSubscribers' in command && command.isForSubscribers === true) &&
      name !== 'ping'
    )
      return new Failure(
        `ERR Can't execute '${name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context`,
      );
    if (refuse === 'loading' && !('runsWhileLoading' in command && command.runsWhileLoading === true))
      return new Failure(
        `LOADING ${this.#flavour === 'valkey-9' ? 'Valkey' : 'Redis'} is loading the dataset in memory`,
      );
    return undefined;
  }

  /** Of a script that says what it needs; without a word each command is asked (`inScript`). */
  ofScript({ hasFlags, isReadOnly, allowsOom }: Script): Failure | undefined {
    const { refuse } = this.#faults;
    if (!hasFlags || refuse === undefined) return undefined;
    if (!isReadOnly && refuse === 'readonly') return READONLY;
    if (!isReadOnly && refuse === 'misconf') return MISCONF;
    if (!allowsOom && refuse === 'oom')
      return new Failure("OOM allow-oom flag is not set on the script, can not run it when used memory > 'maxmemory'");
    return undefined;
  }

  inScript(command: Command, script: Script, hasWritten: boolean): Failure | undefined {
    const { refuse, denied } = this.#faults;
    if (denied?.has(command.name.toUpperCase()) === true)
      return new Failure('ERR ACL failure in script: User default has no permissions to run the command');
    if (command.isWrite && script.isReadOnly)
      return new Failure('ERR Write commands are not allowed from read-only scripts.');
    if (refuse === 'readonly' && command.isWrite) return READONLY;
    if (refuse === 'misconf' && command.isWrite) return MISCONF;
    if (refuse === 'oom' && command.needsMemory && !script.allowsOom && !hasWritten) return OOM;
    return undefined;
  }
}
