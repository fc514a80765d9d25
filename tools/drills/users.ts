// A user of a drill: asks HTTP for a vector once a second, whether the last question was answered or not, and keeps what
// came. What users feel is what an incident is about.

export interface Answer {
  /** 0: nothing answered. */
  readonly status: number;
  readonly ms: number;
  /** Whether it says when to come back. */
  readonly hasRetryAfter: boolean;
}

const EVERY_MS = 1_000;

export class Users {
  private readonly answers: Answer[] = [];
  private readonly open = new Set<Promise<void>>();
  private readonly timer: NodeJS.Timeout;

  /** `url`: http://127.0.0.1:8787 */
  constructor(url: string, model: string) {
    this.timer = setInterval(() => {
      const asked = this.ask(url, model).finally(() => this.open.delete(asked));
      this.open.add(asked);
    }, EVERY_MS);
  }

  /** What was answered, once every question is. */
  async stop(): Promise<readonly Answer[]> {
    clearInterval(this.timer);
    await Promise.all(this.open);
    return this.answers;
  }

  private async ask(url: string, model: string): Promise<void> {
    const sinceMs = performance.now();
    try {
      const response = await fetch(`${url}/v1/embeddings`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ model, input: ['hello'] }),
      });
      await response.arrayBuffer();
      this.keep(sinceMs, response.status, response.headers.has('retry-after'));
    } catch {
      this.keep(sinceMs, 0, false);
    }
  }

  private keep(sinceMs: number, status: number, hasRetryAfter: boolean): void {
    this.answers.push({ status, ms: performance.now() - sinceMs, hasRetryAfter });
  }
}

/**
 * "61 of 70 answered, 9 × 503", and how long the slowest took. Throws where other statuses came than are `expected`, one
 * of them did not come, or a 429 or 503 does not say when to come back.
 */
export function whatUsersFelt(answers: readonly Answer[], expected: readonly number[]): string {
  const came = [...new Set(answers.map(({ status }) => status))].toSorted((a, b) => a - b);
  if (came.join() !== expected.join())
    throw new Error(
      `users were to be answered with ${expected.join(', ')}, and were with ${came.join(', ') || 'none'}`,
    );
  const mute = answers.find(({ status, hasRetryAfter }) => [429, 503].includes(status) && !hasRetryAfter);
  if (mute !== undefined) throw new Error(`a ${mute.status} came without Retry-After`);
  const count = (status: number): number => answers.filter((one) => one.status === status).length;
  const others = expected.filter((status) => status !== 200).map((status) => `, ${count(status)} × ${status}`);
  const slowestS = Math.max(...answers.filter(({ status }) => status === 200).map(({ ms }) => ms)) / 1_000;
  return `${count(200)} of ${answers.length} answered${others.join('')}, the slowest after ${slowestS.toFixed(1)} s`;
}
