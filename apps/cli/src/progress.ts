// Progress on stderr: a bar where that is a terminal, and a line every half minute where it is not, so that a run under
// nohup, cron or Kubernetes is told apart from one that hangs. Bars disappear when they are done; a sentence stays.
// Nothing here prints when the person asked for quiet or when results go to the same terminal.

import { SingleBar } from 'cli-progress';
import { systemClock, type Clock } from '@shoal/core';
import { say, setBar, type Terminal } from './terminal.ts';

export interface Progress {
  /** `total` undefined: nobody knows it yet. */
  update(done: number, total: number | undefined): void;
  stop(): void;
}

/** How often a line is printed where no bar can be. */
export const LINE_EVERY_MS = 30_000;

const SILENT: Progress = { update: () => undefined, stop: () => undefined };

/** What a bar and a line are made of, at one moment. */
export interface Standing {
  readonly done: number;
  readonly total: number | undefined;
  /** Undefined until two moments are known that something was done between. */
  readonly perSecond: number | undefined;
}

interface Wording {
  /** Goes before the bar, and begins each line. */
  readonly label?: string | undefined;
  /** What is done, without share and time left; the first are left out first where the terminal is narrow. */
  parts(standing: Standing): readonly string[];
}

/** Rows: how many, what share, texts/s, time left. */
export function rowProgress(terminal: Terminal, isShown: boolean, clock: Clock = systemClock): Progress {
  return openProgress(terminal, isShown, clock, {
    parts: ({ done, total, perSecond }) => [
      `${done.toLocaleString('en')}${total === undefined ? '' : ` of ${total.toLocaleString('en')}`} rows`,
      ...(perSecond === undefined ? [] : [`${rate(perSecond)} texts/s`]),
    ],
  });
}

/** A download, or an upload: MB and time left. Opened by its first byte, so that nothing flashes up when nothing is fetched. */
export function downloadProgress(
  terminal: Terminal,
  label: string,
  isShown: boolean,
  clock: Clock = systemClock,
): Progress {
  return openProgress(terminal, isShown, clock, {
    label,
    parts: ({ done, total }) => [
      total === undefined ? `${megabytes(done)} MB` : `${megabytes(done)} of ${megabytes(total)} MB`,
    ],
  });
}

/** Something whose end is known: what share is done, and time left. */
export function shareProgress(
  terminal: Terminal,
  label: string,
  isShown: boolean,
  clock: Clock = systemClock,
): Progress {
  const progress = openProgress(terminal, isShown, clock, { label, parts: () => [] });
  return { update: (done, total = 1) => progress.update(done, total), stop: () => progress.stop() };
}

/**
 * Runs `work`, which says what it begins; whatever then lasts is told every half minute, with a terminal or without:
 * nobody knows when it ends, so that no bar could show it.
 */
export async function withSteps<Result>(
  terminal: Terminal,
  isShown: boolean,
  work: (begin: (step: string) => void) => Promise<Result>,
  clock: Clock = systemClock,
): Promise<Result> {
  let cancel: (() => void) | undefined;
  const tellLater = (step: string, begunMs: number): void => {
    cancel = clock.after(LINE_EVERY_MS, () => {
      say(terminal, `still ${step}, for ${duration((clock.nowMs() - begunMs) / 1_000)}`);
      tellLater(step, begunMs);
    });
  };
  try {
    return await work((step) => {
      cancel?.();
      if (isShown) tellLater(step, clock.nowMs());
    });
  } finally {
    cancel?.();
  }
}

function openProgress(terminal: Terminal, isShown: boolean, clock: Clock, wording: Wording): Progress {
  if (!isShown) return SILENT;
  const isBar = terminal.stderr.isTTY === true && terminal.environment['TERM'] !== 'dumb';
  return isBar ? new Bar(terminal, clock, wording) : new Lines(terminal, clock, wording);
}

/** Opened by the first thing that is done: before that there is nothing to show, and what is started has said so. */
class Bar implements Progress {
  readonly #terminal: Terminal;
  readonly #wording: Wording;
  readonly #pace: Pace;
  #standing: Standing = { done: 0, total: undefined, perSecond: undefined };
  #bar: SingleBar | undefined;

  constructor(terminal: Terminal, clock: Clock, wording: Wording) {
    this.#terminal = terminal;
    this.#wording = wording;
    this.#pace = new Pace(clock);
  }

  update(done: number, total: number | undefined): void {
    this.#pace.note(done);
    this.#standing = { done, total, perSecond: this.#pace.perSecond };
    this.#bar ??= this.#open();
    if (total !== undefined) this.#bar.setTotal(Math.max(1, total));
    this.#bar.update(total === undefined ? 0 : Math.min(done, total));
  }

  stop(): void {
    this.#bar?.stop();
    this.#bar = undefined;
    setBar(this.#terminal, false);
  }

  #open(): SingleBar {
    const bar = new SingleBar({
      format: () => barLine(this.#standing, this.#wording, this.#terminal.stderr.columns || 80),
      stream: this.#terminal.stderr,
      clearOnComplete: true,
      hideCursor: false,
      linewrap: true, // a killed command would leave the terminal without them
      gracefulExit: false, // signals are main.ts's business
      fps: 8,
    });
    bar.start(1, 0);
    setBar(this.#terminal, true);
    return bar;
  }
}

const MOST_CELLS = 24;
/** A bar of fewer cells says nothing that the share does not. */
const FEWEST_CELLS = 6;

/** As much as fits: the bar shrinks first and goes, then the count; rate and time left stay longest. */
export function barLine(standing: Standing, wording: Wording, columns: number): string {
  const label = wording.label === undefined ? [] : [wording.label];
  const share = shareOf(standing);
  const parts = [...wording.parts(standing)];
  const left = leftOf(standing);
  const text = (): string => [...label, share, ...parts, left].filter((part) => part !== '').join(' | ');
  while (text().length >= columns && parts.length > 1) parts.shift();
  const cells = Math.min(MOST_CELLS, columns - 2 - text().length);
  if (cells < FEWEST_CELLS) return text().slice(0, columns - 1);
  const isKnown = standing.total !== undefined;
  const full = isKnown ? Math.round((cells * standing.done) / Math.max(standing.total, standing.done, 1)) : 0;
  return `${'█'.repeat(full)}${'░'.repeat(cells - full)} ${text()}`;
}

/** One line every half minute, and none for what is over sooner. */
class Lines implements Progress {
  readonly #terminal: Terminal;
  readonly #clock: Clock;
  readonly #wording: Wording;
  readonly #pace: Pace;
  #standing: Standing = { done: 0, total: undefined, perSecond: undefined };
  #cancel: () => void;

  constructor(terminal: Terminal, clock: Clock, wording: Wording) {
    this.#terminal = terminal;
    this.#clock = clock;
    this.#wording = wording;
    this.#pace = new Pace(clock, LINE_EVERY_MS);
    this.#cancel = this.#next();
  }

  update(done: number, total: number | undefined): void {
    this.#pace.note(done);
    this.#standing = { done, total, perSecond: this.#pace.perSecond };
  }

  stop(): void {
    this.#cancel();
  }

  #next(): () => void {
    return this.#clock.after(LINE_EVERY_MS, () => {
      const standing = { ...this.#standing, perSecond: this.#pace.perSecond };
      const { label, parts } = this.#wording;
      const words = [label ?? '', shareOf(standing), ...parts(standing), leftOf(standing)];
      say(this.#terminal, words.filter((part) => part !== '').join(', '));
      this.#cancel = this.#next();
    });
  }
}

function shareOf({ done, total }: Standing): string {
  return total === undefined ? '' : `${Math.min(100, Math.floor((100 * done) / (total || 1)))} %`;
}

function leftOf({ done, total, perSecond }: Standing): string {
  return total === undefined || perSecond === undefined
    ? ''
    : `${duration(Math.max(0, total - done) / perSecond)} left`;
}

function rate(perSecond: number): string {
  return perSecond < 10 ? perSecond.toFixed(1) : Math.round(perSecond).toLocaleString('en');
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

/** Rate over the last seconds: a mean since the start would still show the warm-up minutes later. */
class Pace {
  readonly #clock: Clock;
  readonly #windowMs: number;
  readonly #marks: { readonly atMs: number; readonly done: number }[] = [];

  constructor(clock: Clock, windowMs = 10_000) {
    this.#clock = clock;
    this.#windowMs = windowMs;
  }

  note(done: number): void {
    const atMs = this.#clock.nowMs();
    this.#marks.push({ atMs, done });
    while (this.#marks.length > 2 && atMs - this.#marks[1]!.atMs > this.#windowMs) this.#marks.shift();
  }

  /** Undefined rather than 0: nothing done yet is no rate. */
  get perSecond(): number | undefined {
    const [first, last] = [this.#marks[0], this.#marks.at(-1)];
    if (first === undefined || last === undefined || last.done <= first.done) return undefined;
    return ((last.done - first.done) * 1_000) / Math.max(1, this.#clock.nowMs() - first.atMs);
  }
}
