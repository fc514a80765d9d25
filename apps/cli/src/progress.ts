// Progress bars: on stderr, and only when it is a terminal. They disappear when they are done; a sentence stays.
// Nothing here prints when the person asked for quiet or when results go to the same terminal.

import { SingleBar } from 'cli-progress';
import type { Terminal } from './terminal.ts';

export interface Progress {
  /** `total` undefined: nobody knows it yet. */
  update(done: number, total: number | undefined): void;
  stop(): void;
}

const SILENT: Progress = { update: () => undefined, stop: () => undefined };

/** Rows: how many, what share, texts/s, time left. */
export function rowProgress(terminal: Terminal, isShown: boolean): Progress {
  if (!canShow(terminal, isShown)) return SILENT;
  const pace = new Pace();
  const bar = openBar(terminal, '{bar} {share} | {rows} rows | {pace} texts/s | {left}');
  bar.start(1, 0, { share: '', rows: '0', pace: '–', left: '' });
  return {
    update: (done, total) => {
      pace.note(done);
      const left =
        total === undefined || pace.perSecond === 0 ? '' : `${duration((total - done) / pace.perSecond)} left`;
      if (total !== undefined) bar.setTotal(Math.max(1, total));
      bar.update(total === undefined ? 0 : Math.min(done, total), {
        share: total === undefined ? '' : `${Math.floor((100 * done) / Math.max(1, total))} %`,
        rows: done.toLocaleString('en'),
        pace: pace.perSecond < 10 ? pace.perSecond.toFixed(1) : Math.round(pace.perSecond).toLocaleString('en'),
        left,
      });
    },
    stop: () => bar.stop(),
  };
}

/** A download: MB and time left. Opened by its first byte, so that nothing flashes up when nothing is fetched. */
export function downloadProgress(terminal: Terminal, label: string, isShown: boolean): Progress {
  if (!canShow(terminal, isShown)) return SILENT;
  const pace = new Pace();
  let bar: SingleBar | undefined;
  const open = (): SingleBar => {
    const opened = openBar(terminal, `${label} {bar} {amount} | {left}`);
    opened.start(1, 0, { amount: '', left: '' });
    return opened;
  };
  return {
    update: (done, total) => {
      bar ??= open();
      pace.note(done);
      if (total !== undefined) bar.setTotal(Math.max(1, total));
      const left =
        total === undefined || pace.perSecond === 0 ? '' : `${duration((total - done) / pace.perSecond)} left`;
      bar.update(total === undefined ? 0 : done, {
        amount: total === undefined ? `${megabytes(done)} MB` : `${megabytes(done)} of ${megabytes(total)} MB`,
        left,
      });
    },
    stop: () => {
      bar?.stop();
      bar = undefined;
    },
  };
}

/** Something whose end is known: what share is done, and time left. */
export function shareProgress(terminal: Terminal, label: string, isShown: boolean): Progress {
  if (!canShow(terminal, isShown)) return SILENT;
  const pace = new Pace();
  const bar = openBar(terminal, `${label} {bar} {percentage} % | {left}`);
  bar.start(1, 0, { left: '' });
  return {
    update: (done, total = 1) => {
      pace.note(done);
      bar.update(done / total, {
        left: pace.perSecond === 0 ? '' : `${duration((total - done) / pace.perSecond)} left`,
      });
    },
    stop: () => bar.stop(),
  };
}

function megabytes(bytes: number): string {
  return (bytes / 1e6).toFixed(1);
}

/** 75 → "1 min 15 s" */
export function duration(seconds: number): string {
  const whole = Math.ceil(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

function canShow(terminal: Terminal, isShown: boolean): boolean {
  return isShown && terminal.stderr.isTTY === true && terminal.environment['TERM'] !== 'dumb';
}

function openBar(terminal: Terminal, format: string): SingleBar {
  return new SingleBar({
    format,
    stream: terminal.stderr,
    barsize: 24,
    clearOnComplete: true,
    hideCursor: false,
    linewrap: true, // a killed command would leave the terminal without them
    gracefulExit: false, // signals are main.ts's business
    fps: 8,
    barCompleteChar: '█',
    barIncompleteChar: '░',
  });
}

/** Rate over the last ten seconds: a mean since the start would still show the warm-up minutes later. */
class Pace {
  readonly #marks: { readonly atMs: number; readonly done: number }[] = [];

  note(done: number): void {
    const atMs = performance.now();
    this.#marks.push({ atMs, done });
    while (this.#marks.length > 2 && atMs - this.#marks[0]!.atMs > 10_000) this.#marks.shift();
  }

  get perSecond(): number {
    const [first, last] = [this.#marks[0], this.#marks.at(-1)];
    if (first === undefined || last === undefined || last.atMs === first.atMs) return 0;
    return Math.max(0, ((last.done - first.done) * 1_000) / (last.atMs - first.atMs));
  }
}
