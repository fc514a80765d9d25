// Whether a batch may go to workers as parts of its own input file, and cut into which. Stretches of it do whose lines are
// requests for the vector of one string each, nearly all on equal terms; those of other stretches may be on others. Lines of
// a part that are of another kind, whose body is refused, or that workers cannot read, are answered like those of any
// other batch. Everything else goes through the queue as it is.

import { realpath } from 'node:fs/promises';
import { MAX_ROWS_PER_PART, isWithin, placesOf, runId, type Part } from '@shoal/contract';
import { claimingOf, type ServingWorker } from '@shoal/queue';
import { tenantOf } from '../access/caller.ts';
import type { Calls, Embeddings } from './calls.ts';
import type { TextLine } from './jsonl.ts';
import type { BatchRecord, LineRange, PartPlan } from './records.ts';
import type { OutputPlace } from './storage.ts';

/** Where the text of a line lies. */
const TEXT_FIELD = 'body.input';
/**
 * Of a large batch, at least: answers are stored, and counted, a part at a time, and as many workers are at work on it.
 */
const LEAST_PARTS = 8;
/** Of the requests of a part. The others are not answered by it, and workers may embed their texts in vain. */
const LEAST_SHARE = 7 / 8;
/** What is noted in the record of a batch, which is written anew with every shard. */
const MOST_KINDS = 16;

/** Requests on equal terms, and the stretches of the input that are for workers because of them. */
export interface Kind {
  /** One of them. */
  readonly call: Embeddings;
  readonly group: string;
  readonly requests: number;
  readonly ranges: readonly LineRange[];
}

/** Sees each line of an input once, in order, while it is checked. */
export class LineCutter {
  private readonly calls: Pick<Calls, 'check' | 'groupOf'>;
  private readonly leastLines: number;
  private readonly partLines: number;
  private readonly kinds = new Map<string, Kind>();
  private requests = 0;
  private stretch = new Stretch({ offset: 0, line: 1 });

  /** `leastLines`: an input with fewer requests is not cut. */
  constructor(calls: Pick<Calls, 'check' | 'groupOf'>, leastLines: number) {
    this.calls = calls;
    this.leastLines = leastLines;
    this.partLines = Math.ceil(leastLines / LEAST_PARTS);
  }

  async add(line: TextLine, body: object): Promise<void> {
    this.stretch.add(line, await this.kindOf(body));
    if (this.stretch.lines === this.partLines) this.cut();
  }

  /** What was cut, once all lines were seen: the kinds with the most requests. None: they all go another way. */
  plan(): readonly Kind[] {
    if (this.stretch.lines > 0) this.cut();
    if (this.requests < this.leastLines) return [];
    return [...this.kinds.values()].toSorted((one, other) => other.requests - one.requests).slice(0, MOST_KINDS);
  }

  private cut(): void {
    const { kind, requests: asked, end } = this.stretch;
    this.requests += asked;
    this.stretch = new Stretch(end);
    const known = kind && this.kinds.get(kind.group);
    if (kind === undefined || known === undefined) return void (kind && this.kinds.set(kind.group, kind));
    const ranges = [...known.ranges, ...kind.ranges];
    this.kinds.set(kind.group, { ...known, requests: known.requests + kind.requests, ranges });
  }

  private async kindOf(body: object): Promise<One | 'refused' | 'other'> {
    if (typeof Reflect.get(body, 'input') !== 'string') return 'other';
    const call = await this.calls.check('/v1/embeddings', body).catch(() => undefined);
    if (call === undefined) return 'refused'; // told in the error file
    const group = this.calls.groupOf(call);
    return call.kind !== 'embeddings' || group === undefined ? 'other' : { call, group };
  }
}

type One = Pick<Kind, 'call' | 'group'>;

/** Lines that may become a part. */
class Stretch {
  lines = 0;
  /** Of its lines, those that are not refused. */
  requests = 0;
  /** Where what follows begins. */
  end: Place;
  private readonly begin: Place;
  private isReadable = true;
  private readonly kinds = new Map<string, Kind>();

  constructor(begin: Place) {
    this.begin = begin;
    this.end = begin;
  }

  add({ number, endOffset, text = '' }: TextLine, found: One | 'refused' | 'other'): void {
    this.lines++;
    this.end = { offset: endOffset, line: number + 1 };
    // to workers a carriage return ends a line
    if (text.slice(0, -1).includes('\r')) this.isReadable = false;
    if (found === 'refused') return;
    this.requests++;
    if (found === 'other') return;
    const { requests, ...first } = this.kinds.get(found.group) ?? { ...found, requests: 0, ranges: [] };
    this.kinds.set(found.group, { ...first, requests: requests + 1 });
  }

  /** What nearly all of it is, as its only part. */
  get kind(): Kind | undefined {
    const { begin, end } = this;
    const [most] = [...this.kinds.values()].toSorted((one, other) => other.requests - one.requests);
    const range = { from: begin.offset, to: end.offset, firstLine: begin.line, lines: end.line - begin.line };
    const isPart = this.isReadable && range.lines <= MAX_ROWS_PER_PART;
    if (!isPart || most === undefined || most.requests < LEAST_SHARE * this.requests) return undefined;
    return { ...most, ranges: [range] };
  }
}

interface Place {
  readonly offset: number;
  /** Number of the line that begins there. */
  readonly line: number;
}

/** `stem`: of no other plan of the batch. */
export function planOf(
  { id, tenant }: Pick<BatchRecord, 'id' | 'tenant'>,
  { call, group, ranges }: Kind,
  { source, place, stem }: { readonly source: Part['source']; readonly place: OutputPlace; readonly stem: string },
): PartPlan {
  const { name, revision, dims } = call.model;
  const { prompt, dimensions, normalize, user } = call.asked;
  const output = { ...place, stem, format: 'parquet', dtype: 'f32', hasIds: false, withTokens: true } as const;
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
