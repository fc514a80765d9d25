// A stream without groups: entries by id, and the highest id that there ever was.

export interface StreamId {
  readonly ms: number;
  readonly seq: number;
}

export interface StreamEntry extends StreamId {
  readonly fields: readonly string[];
}

export function compareIds(a: StreamId, b: StreamId): number {
  return a.ms === b.ms ? a.seq - b.seq : a.ms - b.ms;
}

export const idText = ({ ms, seq }: StreamId): string => `${ms}-${seq}`;

export class Stream {
  entries: StreamEntry[] = [];
  lastId: StreamId = { ms: 0, seq: 0 };
  /** What was ever added: XINFO would tell, and it names the entries of a node. */
  added = 0;

  clone(): Stream {
    const copy = new Stream();
    copy.entries = [...this.entries];
    copy.lastId = this.lastId;
    copy.added = this.added;
    return copy;
  }
}
