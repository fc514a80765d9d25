// What a command may touch of the process it runs in. `main.ts` makes the only real one; commands take it as an
// argument, so that none of them reads the environment, listens for signals or exits.

export interface Terminal {
  readonly stdin: NodeJS.ReadStream;
  readonly stdout: NodeJS.WriteStream;
  readonly stderr: NodeJS.WriteStream;
  readonly environment: Readonly<Record<string, string | undefined>>;
  /** What stands behind `shoal`: the command as it was typed. */
  readonly words: readonly string[];
  /** Aborted by the first Ctrl-C, by SIGTERM, and when the reader of stdout is gone. */
  readonly signal: AbortSignal;
  /**
   * Runs what hears nothing until it is done, for seconds: a signal ends the process at once meanwhile. For work that
   * leaves nothing behind. Left out: it is simply run.
   */
  readonly whileDeaf?: <Result>(work: () => Result) => Promise<Result>;
}

/** Why a command was told to stop. `isQuiet`: nobody needs to be told, the reader of stdout simply had enough. */
export class Interruption extends Error {
  readonly exitCode: number;
  readonly isQuiet: boolean;

  constructor(message: string, exitCode: number, isQuiet = false) {
    super(message);
    this.name = 'Interruption';
    this.exitCode = exitCode;
    this.isQuiet = isQuiet;
  }
}

/** Terminals in whose last line a bar is drawn now. */
const withBar = new WeakSet<object>();
const CLEARED_LINE = '\r\u001B[K';

/** A bar is drawn in the last line of standard error, or not any more. */
export function setBar({ stderr }: Pick<Terminal, 'stderr'>, isDrawn: boolean): void {
  if (isDrawn) withBar.add(stderr);
  else withBar.delete(stderr);
}

/**
 * A line for the person, on stderr: what happens, never a result. It takes the place of a bar, which is drawn again
 * below it.
 */
export function say({ stderr }: Pick<Terminal, 'stderr'>, message: string): void {
  stderr.write(`${withBar.has(stderr) ? CLEARED_LINE : ''}shoal: ${message}\n`);
}

/** Says each time that a store is away, and when it is asked again; for those who wait for one. */
export function sayAway(terminal: Pick<Terminal, 'stderr'>): (problem: string, waitMs: number) => void {
  return (problem, waitMs) => say(terminal, `${problem}; trying again in ${waitMs / 1_000} s`);
}

/** A line of result. Resolves when stdout took it, so that a slow reader slows the command down. */
export async function print(terminal: Terminal, text: string | Uint8Array): Promise<void> {
  if (terminal.stdout.write(text)) return;
  await new Promise<void>((resolve, reject) => {
    const settle = (): void => {
      terminal.stdout.off('drain', settle);
      terminal.signal.removeEventListener('abort', fail);
      resolve();
    };
    const fail = (): void => {
      terminal.stdout.off('drain', settle);
      reject(terminal.signal.reason);
    };
    terminal.stdout.once('drain', settle);
    terminal.signal.addEventListener('abort', fail, { once: true });
  });
}

/** Columns to wrap text at: the terminal's, at most 100, and 80 where there is none or it does not know. */
export function columnsOf(terminal: Terminal): number {
  return Math.max(40, Math.min(100, terminal.stdout.columns || 80));
}

/** Whether stdout shows colours: a terminal, and NO_COLOR unset or empty (no-color.org). */
export function hasColor(terminal: Terminal): boolean {
  return terminal.stdout.isTTY === true && !terminal.environment['NO_COLOR'] && terminal.environment['TERM'] !== 'dumb';
}
