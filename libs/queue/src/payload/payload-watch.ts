// How payload servers fare, for who looks after a fleet and has no body for them: asked while somebody looks and at no
// other time. One that failed is given some bytes to see whether it takes them again, and nothing else is written.

import { redactMessage, type PayloadServerFacts } from '@shoal/core';
import { PayloadServers } from './payload-servers.ts';

export interface PayloadsHere {
  readonly servers: readonly (PayloadServerFacts & { readonly where?: string | undefined })[];
  /** Why none can be asked from here, in words: there are no servers then. */
  readonly problem?: string;
}

export interface PayloadWatchOptions {
  /** As the setting. */
  readonly payloadServers: string;
  /** Shown by CLIENT LIST. */
  readonly clientName: string;
}

/** What was seen is told again for so long. */
const FRESH_MS = 10_000;
const SOON_MS = 1_000;

export class PayloadWatch {
  private readonly options: PayloadWatchOptions;
  private opening: Promise<PayloadServers> | undefined;
  private looking: Promise<PayloadsHere> | undefined;
  private againMs = 0;
  private last: PayloadsHere | undefined;

  constructor(options: PayloadWatchOptions) {
    this.options = options;
  }

  /** Never rejects; resolves within some seconds. */
  read(): Promise<PayloadsHere> {
    if (this.looking === undefined || performance.now() >= this.againMs) {
      this.againMs = performance.now() + FRESH_MS;
      this.looking = this.look().then((seen) => (this.last = seen));
    }
    return this.looking;
  }

  /** As of the look before, where this one takes longer than a second. */
  async readSoon(): Promise<PayloadsHere> {
    const { last } = this;
    if (last === undefined) return this.read();
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<PayloadsHere>((resolve) => (timer = setTimeout(resolve, SOON_MS, last)));
    return Promise.race([this.read(), late]).finally(() => clearTimeout(timer));
  }

  /** Safe to call twice. */
  async close(): Promise<void> {
    const opened = await this.opening?.catch(() => undefined);
    await opened?.close();
  }

  private async look(): Promise<PayloadsHere> {
    try {
      this.opening ??= PayloadServers.connect(this.options);
      return { servers: await (await this.opening).look() };
    } catch (error) {
      this.opening = undefined;
      return { servers: [], problem: redactMessage(error) };
    }
  }
}
