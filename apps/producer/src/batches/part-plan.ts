// Whether a batch may go to workers as parts of its own input file, and cut into which. That is so where all its lines
// are requests for the vector of one string each, on equal terms; a line whose body is refused, or that workers cannot
// read, is answered like one of any other batch. Everything else goes through the queue as it is.

import { realpath } from 'node:fs/promises';
import { MAX_ROWS_PER_PART, isWithin, placesOf, runId, type Part } from '@shoal/contract';
import { claimingOf, type ServingWorker } from '@shoal/queue';
import { tenantOf } from '../access/caller.ts';
import type { Call, Calls, Embeddings } from './calls.ts';
import type { TextLine } from './jsonl.ts';
import type { BatchRecord, LineRange, PartPlan } from './records.ts';
import type { OutputPlace } from './storage.ts';

/** Where the text of a line lies. */
const TEXT_FIELD = 'body.input';

/** Sees each line of an input once, in order, while it is checked. */
export class LineCutter {
  private readonly calls: Pick<Calls, 'check' | 'groupOf'>;
  private readonly partLines: number;
  private readonly done: LineRange[] = [];
  private first: { readonly call: Embeddings; readonly group: string } | undefined;
  private isPlain = true;
  private begin = { offset: 0, line: 1 };
  private lines = 0;
  private requests = 0;
  private end = { offset: 0, line: 0 };

  constructor(calls: Pick<Calls, 'check' | 'groupOf'>, partLines: number) {
    this.calls = calls;
    this.partLines = partLines;
  }

  async add({ number, endOffset, text = '' }: TextLine, body: object): Promise<void> {
    if (!this.isPlain) return;
    // to workers a carriage return ends a line
    const hasReturn = text.slice(0, -1).includes('\r');
    this.isPlain = !hasReturn && (await this.isOfTheKind(body)) && number - this.begin.line < MAX_ROWS_PER_PART;
    this.end = { offset: endOffset, line: number };
    if (++this.lines === this.partLines) this.cut();
  }

  /** What was cut, once all lines were seen; undefined: they go another way. */
  plan(): { readonly call: Embeddings; readonly group: string; readonly ranges: readonly LineRange[] } | undefined {
    if (!this.isPlain || this.first === undefined || this.requests < this.partLines) return undefined;
    if (this.lines > 0) this.cut();
    return { ...this.first, ranges: this.done };
  }

  private cut(): void {
    const { begin, end } = this;
    this.done.push({ from: begin.offset, to: end.offset, firstLine: begin.line, lines: end.line - begin.line + 1 });
    this.begin = { offset: end.offset, line: end.line + 1 };
    this.lines = 0;
  }

  private async isOfTheKind(body: object): Promise<boolean> {
    const call = await this.calls.check('/v1/embeddings', body).catch(() => undefined);
    if (call === undefined) return true; // told in the error file
    const group = this.calls.groupOf(call);
    if (call.kind !== 'embeddings' || group === undefined || typeof Reflect.get(body, 'input') !== 'string')
      return false;
    this.first ??= { call, group };
    this.requests++;
    return group === this.first.group;
  }
}

/** A call that a row of a part may answer. */
export function isOf(
  { group }: Pick<PartPlan, 'group'>,
  call: Call,
  calls: Pick<Calls, 'groupOf'>,
): call is Embeddings {
  return call.kind === 'embeddings' && call.texts.length === 1 && calls.groupOf(call) === group;
}

export function planOf(
  { id, tenant }: Pick<BatchRecord, 'id' | 'tenant'>,
  { call, group, ranges }: NonNullable<ReturnType<LineCutter['plan']>>,
  { source, place }: { readonly source: Part['source']; readonly place: OutputPlace },
): PartPlan {
  const { name, revision, dims } = call.model;
  const { prompt, dimensions, normalize, user } = call.asked;
  const output = { ...place, stem: 'part', format: 'parquet', dtype: 'f32', hasIds: false, withTokens: true } as const;
  const model: Part['model'] = {
    name: `${name}@${revision}`,
    truncate: 'end', // which texts were cut is told, and a line that wants none to be is asked by itself
    ...(prompt !== undefined && { prompt }),
    ...(dimensions !== undefined && { dimensions }),
    ...(normalize && { normalize }),
  };
  const run = runId({ sources: [source], output, options: { batch: id, model, ranges } });
  return { run, source, output, model, dims: dimensions ?? dims, group, tenant: tenantOf({ tenant }, user), ranges };
}

/** The parts of a plan, as jobs have them. */
export function partOf({ run, source, output, model, ranges }: PartPlan, number: number): Part {
  return {
    run,
    number,
    of: ranges.length,
    source,
    format: 'jsonl',
    range: { kind: 'bytes', ...ranges[number]! },
    textField: TEXT_FIELD,
    onError: 'skip',
    output,
    model,
  };
}

/**
 * Which of the workers that take parts of this model have these places, all of them, some or none. One that tells no
 * folders is too old for such parts.
 */
export async function takersOf(
  workers: readonly ServingWorker[] | undefined,
  plan: Pick<PartPlan, 'source' | 'output'>,
): Promise<'all' | 'some' | 'none'> {
  const claiming = claimingOf(workers);
  const { source, output } = placesOf(plan);
  const places = await Promise.all([source, output].map(namesOf));
  const takers = claiming.filter(({ facts }) => hasAll(facts?.partFolders, places));
  if (takers.length === 0) return 'none';
  return takers.length === claiming.length ? 'all' : 'some';
}

function hasAll(told: unknown, places: readonly (readonly string[])[]): boolean {
  if (!Array.isArray(told)) return false;
  const folders = told.map(String);
  return places.every((names) => names.some((name) => isWithin(name, folders)));
}

/** As it is called, and as links lead. */
async function namesOf(place: string): Promise<readonly string[]> {
  return place.startsWith('/') ? [place, await realpath(place).catch(() => place)] : [place];
}
