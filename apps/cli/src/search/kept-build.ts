// Rows of a collection that is being built from texts, kept until it is whole: embedding takes hours, writing the
// collection of them seconds. They are an unfinished .npy with its list of names, hidden in the folder of collections,
// as those of `shoal embed` lie beside its output; the same command goes on with them.

import { randomUUID } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { mkdir, open } from 'node:fs/promises';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { ShoalError, invariant } from '@shoal/contract';
import type { RowBatch } from '@shoal/similarity';
import { SkippedList, hiddenLists, skippedPath } from '../output/beside.ts';
import { leftovers } from '../output/earlier-run.ts';
import { NPY_HEADER_BYTES } from '@shoal/worker/files/npy';
import { withOutputLock } from '../output/output-lock.ts';
import { removeLeftovers } from '../output/partial-file.ts';
import { FileWriter, type Abandoned } from '../output/row-writer.ts';
import { differences, type RunRequest, type RunState } from '../output/run-state.ts';
import type { FileTarget } from '../output/target.ts';
import { say, type Terminal } from '../terminal.ts';
import { commandOf } from '../typed-command.ts';

export interface KeptBuild {
  /** Where the run that goes on begins. */
  readonly state: RunState;
  readonly writer: FileWriter;
  /** No more rows come: every row and name is on the disk, and counted. */
  settle(): Promise<void>;
  /** All rows, when they are settled. */
  rows(): AsyncGenerator<RowBatch>;
  /** The collection is whole: nothing is kept any more. Where records without a row are listed, if there are any. */
  done(): Promise<string | undefined>;
  /** The build failed: rows that a later run goes on with. 0: there are none, or nobody can go on with them. */
  keep(): Promise<number>;
}

export interface KeptBuildTerms {
  readonly folder: string;
  readonly name: string;
  readonly request: RunRequest;
  readonly dims: number;
  readonly skipped: SkippedList;
  readonly isFresh: boolean;
  /** The input can be read again, so that a later run can go on. */
  readonly isRepeatable: boolean;
}

/** Runs `use` with what is kept of this build; no other run builds the same meanwhile. */
export async function withKeptBuild<Result>(
  terminal: Terminal,
  terms: KeptBuildTerms,
  use: (build: KeptBuild) => Promise<Result>,
): Promise<Result> {
  await mkdir(terms.folder, { recursive: true });
  const target = targetOf(terms);
  const onWait = (line: string): void => say(terminal, line);
  return withOutputLock(target, async () => use(await openBuild(terminal, target, terms)), { onWait });
}

function targetOf({ folder, name }: KeptBuildTerms): FileTarget {
  const partial = join(folder, `.${name}.shoal-build`);
  return { kind: 'file', name: `the collection ${name}`, path: join(folder, name), partial, state: `${partial}.json` };
}

async function openBuild(
  terminal: Terminal,
  target: FileTarget,
  { name, request, dims, skipped, isFresh, isRepeatable }: KeptBuildTerms,
): Promise<KeptBuild> {
  const found = isFresh ? undefined : await leftovers(target);
  const earlier = isRepeatable ? found : undefined;
  if (!isRepeatable && found !== undefined && found.rows > 0)
    throw new ShoalError(
      'USAGE',
      `${found.rows.toLocaleString('en')} rows of an unfinished build of ${name} are kept, and standard input or a pipe ` +
        'cannot be read again behind them; --fresh removes them and begins again',
    );
  refuseOther(name, earlier, request);
  const options = {
    target,
    form: { format: 'npy', dims, hasIds: true, withText: false } as const,
    shardRows: undefined,
    skipped,
  };
  const reopened =
    earlier === undefined || earlier.rows === 0 ? undefined : await FileWriter.reopen(options, { ...earlier, request });
  if (reopened === undefined && earlier !== undefined && earlier.rows > 0)
    throw new ShoalError(
      'FILE_UNREADABLE',
      `not all of the ${earlier.rows.toLocaleString('en')} rows that an interrupted build of ${name} left are there any ` +
        'more; --fresh begins again',
    );
  if (reopened !== undefined)
    say(
      terminal,
      `goes on with ${name} behind ${reopened.state.rows.toLocaleString('en')} rows of an interrupted run; --fresh ` +
        'begins again',
    );
  const command = commandOf(terminal, ['--fresh']);
  const state = { v: 1, runId: randomUUID(), request, rows: 0, position: 0, shard: 0, bytes: 0, command } as const;
  const writer = reopened ?? (await FileWriter.create(options, state));
  let left: Promise<Abandoned> | undefined;
  const abandon = (): Promise<Abandoned> => (left ??= writer.abandon());
  return {
    state: writer.state,
    writer,
    settle: async () => void (await abandon()),
    keep: async () => {
      const kept = await abandon();
      if (isRepeatable) return kept.kind === 'kept' ? kept.rows : 0;
      await removeLeftovers(target);
      return 0;
    },
    rows: () => rowsOf(target, writer.state.rows, dims),
    done: async () => {
      await skipped.publish(target);
      await removeLeftovers(target);
      return skipped.size === 0 ? undefined : skippedPath(target);
    },
  };
}

function refuseOther(name: string, earlier: RunState | undefined, request: RunRequest): void {
  if (earlier === undefined || earlier.rows === 0) return;
  const found = differences(earlier.request, request);
  if (found.length === 0) return;
  throw new ShoalError(
    'USAGE',
    `${earlier.rows.toLocaleString('en')} rows of an unfinished build of ${name} are kept, and this command asks for ` +
      `something else:\n  ${found.join('\n  ')}\n${earlier.command ?? 'The command of that run'}\ngoes on with them; ` +
      '--fresh removes them and begins again',
  );
}

const BATCH_ROWS = 1_024;

async function* rowsOf(target: FileTarget, rows: number, dims: number): AsyncGenerator<RowBatch> {
  const file = await open(target.partial, 'r');
  const list = createReadStream(hiddenLists(target).ids);
  try {
    const names = createInterface({ input: list })[Symbol.asyncIterator]();
    for (let from = 0; from < rows; from += BATCH_ROWS) {
      const count = Math.min(BATCH_ROWS, rows - from);
      const vectors = new Float32Array(count * dims);
      const bytes = new Uint8Array(vectors.buffer);
      const { bytesRead } = await file.read(bytes, 0, bytes.length, NPY_HEADER_BYTES + from * dims * 4);
      invariant(bytesRead === bytes.length, 'the state counts no row that is not there');
      yield { dims, vectors, names: await next(names, count) };
    }
  } finally {
    list.destroy(); // whoever reads its lines leaves it open
    await file.close();
  }
}

async function next(lines: AsyncIterator<string>, count: number): Promise<readonly string[]> {
  const names: string[] = [];
  while (names.length < count) {
    const { value, done } = await lines.next();
    invariant(done !== true, 'there is a name for each row');
    names.push(String(JSON.parse(value)));
  }
  return names;
}
