// What a run of `shoal embed` says at its end, to a person or, with --json, to a program.

import { totalBytes, type Input } from '../input/files.ts';
import { idsPath, scalesPath, skippedPath } from '../output/beside.ts';
import { interruptionReport } from '../output/interruption-report.ts';
import { FileWriter, type Abandoned, type RowWriter } from '../output/row-writer.ts';
import { SinkWriter } from '../output/sink-writer.ts';
import { besideOf, shardTarget, type FileTarget } from '../output/target.ts';
import { duration } from '../progress.ts';
import type { SinkCounts } from '../sinks/sink.ts';
import { print, say, type Terminal } from '../terminal.ts';
import { commandOf } from '../typed-command.ts';
import type { EmbedFlags } from './flags.ts';
import { keptBefore, type CheckedRequest, type Request } from './request.ts';

export interface Done {
  readonly rows: number;
  readonly rowsBefore: number;
  readonly truncated: number;
  readonly failed: number;
  /** Texts that were embedded in pieces by this run (--long chunk), and the pieces. */
  readonly long: { readonly texts: number; readonly pieces: number };
}

export const NO_LONG = { texts: 0, pieces: 0 };

export interface Ending {
  readonly seconds: number;
  readonly idsFile?: string | undefined;
  readonly scalesFile?: string | undefined;
  /** Of a table. */
  readonly counts?: SinkCounts | undefined;
}

/**
 * For programs, also where not one row had come: a command that was interrupted always says what it leaves. One that
 * was called wrongly or could not read its input says so on standard error alone.
 */
export function tellEnding(
  terminal: Terminal,
  {
    flags,
    target,
    standing: { left, earlier },
    error,
  }: Pick<Request, 'flags' | 'target' | 'standing'> & { readonly error: unknown },
): void {
  const isInterrupted = terminal.signal.aborted;
  if (target.kind !== 'file' || (left === undefined && !isInterrupted)) return;
  const before = earlier === undefined || earlier.rows === 0 ? undefined : keptBefore(target, earlier, flags);
  if (left === undefined && before !== undefined)
    say(
      terminal,
      `${before.rows.toLocaleString('en')} rows of an unfinished run stay in ${before.file}; the same command goes on ` +
        `with them: ${commandOf(terminal, ['--fresh'])}`,
    );
  if (flags.json === true)
    terminal.stdout.write(
      interruptionReport(
        terminal,
        left ?? before ?? { kind: 'nothing' },
        isInterrupted ? terminal.signal.reason : error,
      ),
    );
}

/** A report for programs, or a sentence for people. */
export async function tellDone(terminal: Terminal, done: Done, request: CheckedRequest, ending: Ending): Promise<void> {
  const { flags, records, target } = request;
  if (flags.quiet !== true && flags.json !== true) say(terminal, summary(done, request, ending));
  if (flags.quiet !== true) records.sayNotes();
  if (flags.json !== true || target.kind !== 'file') return;
  const { rows, rowsBefore, truncated, failed, long } = done;
  const skipped = records.skipped + failed;
  await print(
    terminal,
    `${JSON.stringify({
      isDone: true,
      rows,
      rowsBefore,
      truncated,
      skipped,
      output: placeOf(target, flags, rows),
      ...(skipped === 0 ? {} : { skippedList: skippedPath(besideOf(target)) }),
      ...(long.texts === 0 ? {} : { long }),
      ...(ending.idsFile === undefined ? {} : { ids: ending.idsFile }),
      ...(ending.scalesFile === undefined ? {} : { scales: ending.scalesFile }),
      ...ending.counts,
    })}\n`,
  );
}

/** Rows that came are never given up in silence: where they are, and what goes on with them. */
export function tellWhatIsLeft(
  terminal: Terminal,
  left: Abandoned,
  { records, inputs, target, flags }: CheckedRequest,
): void {
  if (left.kind === 'nothing' || (left.kind === 'lost' && flags.quiet === true)) return;
  const total = records.estimateTotal(totalBytes(inputs));
  const about = records.isAtEnd ? '' : 'about ';
  // a run that goes on and was stopped at once has read too little to know
  const of = total === undefined || total < left.rows ? '' : ` of ${about}${total.toLocaleString('en')}`;
  const rows = `${left.rows.toLocaleString('en')}${of} ${left.rows === 1 && total === undefined ? 'row' : 'rows'}`;
  switch (left.kind) {
    case 'kept':
      return say(
        terminal,
        `${rows} kept in ${left.file}; the same command goes on with them: ${commandOf(terminal, ['--fresh'])}`,
      );
    case 'ended':
      return say(
        terminal,
        `${rows} kept in ${left.file}, which is a whole file; ${nameOfUnrepeatable(inputs)} cannot be read again, so ` +
          'that no command goes on with them by itself: embed what comes behind them into another file',
      );
    case 'lost':
      return say(
        terminal,
        `${rows} not kept: a .npy in a pipe begins with their number. With -o FILE${target.kind === 'file' ? '' : '.npy'} ` +
          'they are kept',
      );
  }
}

function nameOfUnrepeatable(inputs: readonly Input[]): string {
  return inputs.find(({ identity }) => identity === undefined)?.name ?? 'the input';
}

function summary(
  { rows, rowsBefore, truncated, failed, long }: Done,
  { records: { skipped }, target, flags }: Pick<Request, 'records' | 'target' | 'flags'>,
  { seconds, idsFile, scalesFile, counts }: Ending,
): string {
  const place = target.kind === 'file' ? ` → ${placeOf(target, flags, rows)}` : '';
  if (rows === 0 && failed + skipped === 0) return `the input is empty: 0 rows${place}`;
  const fresh = rows - rowsBefore;
  // A rate of a few rows would be that of starting a worker.
  const pace = fresh < 256 ? '' : ` (${Math.round(fresh / seconds).toLocaleString('en')} texts/s)`;
  const parts = [`${rows.toLocaleString('en')} ${rows === 1 ? 'row' : 'rows'}${place} in ${duration(seconds)}${pace}`];
  if (rowsBefore > 0) parts.push(`${rowsBefore.toLocaleString('en')} of them were there before`);
  if (truncated > 0) parts.push(`${truncated.toLocaleString('en')} truncated at the model’s length`);
  if (long.texts > 0)
    parts.push(`${long.texts.toLocaleString('en')} long ones in ${long.pieces.toLocaleString('en')} pieces`);
  if (skipped + failed > 0) {
    const list = target.kind === 'file' ? `, listed in ${skippedPath(besideOf(target))}` : '';
    parts.push(`${(skipped + failed).toLocaleString('en')} skipped${list}`);
  }
  if (idsFile !== undefined) parts.push(`their ids in ${idsFile}`);
  if (counts !== undefined && counts.replaced > 0)
    parts.push(`${counts.replaced.toLocaleString('en')} of this run took the place of rows with their ids`);
  if (scalesFile !== undefined) parts.push(`their scales in ${scalesFile}`);
  return parts.join('; ');
}

export function listsOf(writer: RowWriter): Omit<Ending, 'seconds'> {
  if (writer instanceof SinkWriter) return { counts: writer.counts };
  return writer instanceof FileWriter ? { idsFile: writer.idsFile, scalesFile: writer.scalesFile } : {};
}

/** The same lists as they are called beside an object. */
export function objectsOf(
  { upload }: FileTarget,
  { idsFile, scalesFile }: Ending,
): Pick<Ending, 'idsFile' | 'scalesFile'> {
  const path = upload?.name ?? '';
  return {
    ...(idsFile !== undefined && { idsFile: idsPath({ path }) }),
    ...(scalesFile !== undefined && { scalesFile: scalesPath({ path }) }),
  };
}

function placeOf(target: FileTarget, { shardRows }: EmbedFlags, rows: number): string {
  if (target.upload !== undefined) return target.upload.name;
  if (shardRows === undefined) return target.name;
  const [first, last] = [0, Math.max(0, Math.ceil(rows / shardRows) - 1)].map(
    (shard) => shardTarget(target, shard).name,
  );
  return first === last ? first! : `${first} to ${last}`;
}
