// The queue server must not outlive its supervisor, even when that is killed with SIGKILL. A tiny shell waits on a pipe
// from the supervisor; when the pipe ends without a farewell it ends the server whose pid it was told last, after
// checking that the pid still means a process with our socket in its arguments. Works alike on Linux and macOS.

import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';

const SCRIPT = `
server=
while read -r pid; do server=$pid; done
[ -n "$server" ] || exit 0
case "$({ tr '\\000' ' ' <"/proc/$server/cmdline" || ps -ww -o args= -p "$server"; } 2>/dev/null)" in
  *"$1"*) kill -TERM "$server" ;;
esac`;

export class Guard {
  readonly #shell: ChildProcess;

  constructor(socket: string) {
    this.#shell = spawn('/bin/sh', ['-c', SCRIPT, 'shoal-guard', socket], { stdio: ['pipe', 'ignore', 'ignore'] });
    this.#shell.stdin?.on('error', () => undefined); // somebody killed the guard: then there is none
    this.#shell.on('error', () => undefined);
  }

  watch(pid: number): void {
    this.#shell.stdin?.write(`${pid}\n`);
  }

  /** Says farewell and waits until the shell is gone. The server is left alone. */
  async stop(): Promise<void> {
    if (this.#shell.exitCode !== null || this.#shell.signalCode !== null || this.#shell.pid === undefined) return;
    const gone = once(this.#shell, 'exit');
    this.#shell.stdin?.end('\n');
    await gone;
  }
}
