// What is published on a producer's reply channel when jobs ended: their ids, nothing more. Public format
// (docs/jobs.md):
//   {"v":1,"queue":"embed-minilm","completed":["id",…],"failed":["id",…]}
// Either list may be absent. A message may be lost or come twice: it only saves the producer from asking.

export interface ReplyMessage {
  readonly queue: string;
  readonly completed: readonly string[];
  readonly failed: readonly string[];
}

/** Undefined for what is not such a message: anybody may publish on a channel. */
export function parseReply(text: string): ReplyMessage | undefined {
  const value = parse(text);
  if (typeof value !== 'object' || value === null || Reflect.get(value, 'v') !== 1) return undefined;
  const queue: unknown = Reflect.get(value, 'queue');
  return typeof queue === 'string'
    ? { queue, completed: idsOf(value, 'completed'), failed: idsOf(value, 'failed') }
    : undefined;
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function idsOf(value: object, list: 'completed' | 'failed'): string[] {
  const ids: unknown = Reflect.get(value, list);
  return Array.isArray(ids) ? ids.filter((id) => typeof id === 'string') : [];
}
