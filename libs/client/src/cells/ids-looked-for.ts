// Ids that are looked for in cells, those of one turn of the event loop together: a round trip for many. One after the
// other, so that jobs are asked for in the order in which they were made.

export class IdsLookedFor<Cell> {
  private readonly look: (ids: readonly string[]) => Promise<(Cell | undefined)[]>;
  private isLooking = false;
  private waiting: { readonly id: string; readonly found: PromiseWithResolvers<Cell | undefined> }[] = [];

  constructor(look: (ids: readonly string[]) => Promise<(Cell | undefined)[]>) {
    this.look = look;
  }

  find(id: string): Promise<Cell | undefined> {
    const found = Promise.withResolvers<Cell | undefined>();
    this.waiting.push({ id, found });
    this.sendSoon();
    return found.promise;
  }

  private sendSoon(): void {
    if (this.isLooking || this.waiting.length === 0) return;
    this.isLooking = true;
    setImmediate(() => void this.send());
  }

  private async send(): Promise<void> {
    const sent = this.waiting;
    this.waiting = [];
    try {
      const cells = await this.look(sent.map(({ id }) => id));
      for (const [at, { found }] of sent.entries()) found.resolve(cells[at]);
    } catch (error) {
      for (const { found } of sent) found.reject(error);
    }
    this.isLooking = false;
    this.sendSoon();
  }
}
