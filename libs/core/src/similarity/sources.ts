// The collections and graphs that jobs of a similarity executor name: each opened once, looked at again whenever
// another job comes for it, and closed when nobody needs it any more and others are needed more. What a job has taken
// stays usable until it is given back, even if the files are gone by then.

import type { Resident, Residents } from './ledger.ts';
import type { Fitted, Held } from './device.ts';

interface Openable {
  readonly name: string;
  isCurrent(): Promise<boolean>;
  close(): Promise<void>;
}

/** Open files that nobody uses at the moment, most. */
const MOST_IDLE = 64;

let opened = 0;

/** One source, and what of it is held as a whole. */
export class OpenSource<Source extends Openable, Whole extends Held> {
  readonly source: Source;
  /** Another for each opening: what is called the same may have been replaced in between. */
  readonly number = ++opened;
  /** Jobs that have it. */
  users = 0;
  /** Another is opened for the next job. */
  isStale = false;
  private looking: Promise<boolean> | undefined;
  private readonly residents: Residents;
  private resident: (Resident & { readonly whole: Whole }) | undefined;

  constructor(source: Source, residents: Residents) {
    this.source = source;
    this.residents = residents;
  }

  /** One look serves all who ask while it goes on: jobs come by the dozen, and each look opens a file. */
  isCurrent(): Promise<boolean> {
    return (this.looking ??= this.source.isCurrent().finally(() => (this.looking = undefined)));
  }

  /** What is held; it counts as used now. */
  whole(): Whole | undefined {
    if (this.resident !== undefined) this.residents.touch(this.resident);
    return this.resident?.whole;
  }

  /** Holds it as a whole from now on; undefined where the budget has no room for that. */
  async holdWhole(bytes: number, load: () => Promise<Fitted<Whole>>): Promise<Fitted<Whole> | undefined> {
    if (!this.residents.makeRoom(bytes)) return undefined;
    const loaded = await load();
    if (!loaded.fits) return loaded;
    const whole = loaded.value;
    this.resident = { whole, bytes, leave: () => this.left(whole) };
    this.residents.add(this.resident);
    return loaded;
  }

  async close(): Promise<void> {
    if (this.resident !== undefined) this.residents.remove(this.resident);
    await this.source.close();
  }

  private left(whole: Whole): void {
    this.resident = undefined;
    whole.free();
  }
}

export class Sources<Source extends Openable, Whole extends Held> {
  private readonly open: (name: string) => Promise<Source>;
  private readonly residents: Residents;
  /** Least recently asked for first. */
  private readonly sources = new Map<string, Promise<OpenSource<Source, Whole>>>();

  constructor(open: (name: string) => Promise<Source>, residents: Residents) {
    this.open = open;
    this.residents = residents;
  }

  /** To be given back. Throws what opening and checking throw. */
  async take(name: string): Promise<OpenSource<Source, Whole>> {
    for (let known = this.sources.get(name); known !== undefined; known = this.sources.get(name)) {
      const taken = await this.takeKnown(name, known);
      if (taken !== undefined) return taken;
    }
    return this.takeNew(name); // of all who found it gone the first opens it, the others find what that one opens
  }

  async giveBack(source: OpenSource<Source, Whole>): Promise<void> {
    source.users--;
    if (source.isStale && source.users === 0) await source.close();
    await this.closeIdle();
  }

  async close(): Promise<void> {
    const sources = await Promise.allSettled(this.sources.values());
    this.sources.clear();
    await Promise.all(sources.map((found) => (found.status === 'fulfilled' ? found.value.close() : undefined)));
  }

  private async takeNew(name: string): Promise<OpenSource<Source, Whole>> {
    const opening = this.open(name).then((source) => new OpenSource<Source, Whole>(source, this.residents));
    this.sources.set(name, opening);
    try {
      const source = await opening;
      source.users++; // at once: whoever looks for idle ones may be next
      await this.closeIdle();
      return source;
    } catch (error) {
      this.sources.delete(name);
      throw error;
    }
  }

  /** A file may be gone, cut or replaced since it was opened: nobody gets it from then on. */
  private async takeKnown(
    name: string,
    known: Promise<OpenSource<Source, Whole>>,
  ): Promise<OpenSource<Source, Whole> | undefined> {
    const source = await known;
    const isCurrent = await source.isCurrent().catch(async (error: unknown) => {
      await this.retire(name, source);
      throw error;
    });
    if (!isCurrent) return void (await this.retire(name, source));
    if (source.isStale) return undefined; // retired while we looked: it may be closed
    source.users++;
    this.sources.delete(name);
    this.sources.set(name, known);
    return source;
  }

  private async retire(name: string, source: OpenSource<Source, Whole>): Promise<void> {
    if (source.isStale) return;
    source.isStale = true;
    this.sources.delete(name);
    if (source.users === 0) await source.close();
  }

  private async closeIdle(): Promise<void> {
    for (const [name, opening] of this.sources) {
      if (this.sources.size <= MOST_IDLE) return;
      const source = await opening.catch(() => undefined);
      if (source?.users === 0) await this.retire(name, source);
    }
  }
}
