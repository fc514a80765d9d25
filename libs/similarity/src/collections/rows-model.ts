// Which model made the rows of a collection: one, or not known. Vectors of two models have cosines, and they mean
// nothing; so rows of another model are refused, and rows of which nobody says where they come from are not put behind
// those of a known one. What is not known, or was mixed, stays not known.

import { isSameModel, ShoalError } from '@shoal/contract';

/** What is there before: rows, and what is known of their model. */
export interface RowsBefore {
  readonly rows: number;
  readonly model: string | undefined;
}

export class RowsModel {
  readonly #collection: string;
  readonly #before: RowsBefore | undefined;
  readonly #given: string | undefined;
  /** Undefined: not known. Absent until the first rows came. */
  #added: { readonly model: string | undefined } | undefined;

  /** `given`: what whoever brings the rows says of all of them. */
  constructor(collection: string, before: RowsBefore | undefined, given: string | undefined) {
    this.#collection = collection;
    this.#before = before === undefined || before.rows === 0 ? undefined : before;
    this.#given = given;
    if (given !== undefined) this.#refuseOther(this.#before?.model, given);
  }

  /** `said`: what comes with some more rows. DIMENSIONS_MISMATCH when they may not stand beside those before them. */
  add(said: string | undefined): void {
    if (said !== undefined) {
      this.#refuseOther(this.#given, said);
      this.#refuseOther(this.#added?.model, said);
      this.#refuseOther(this.#before?.model, said);
    }
    const model = merged(said, this.#given);
    if (model === undefined && this.#before?.model !== undefined)
      throw new ShoalError(
        'DIMENSIONS_MISMATCH',
        `${this.#collection} was embedded by ${this.#before.model}, and the new rows do not say which model made them: ` +
          `say --model ${nameOf(this.#before.model)} if it was the same, or build it anew without --append`,
        { model: this.#before.model },
      );
    // Once some rows were not known, none of the later ones makes all of them known.
    const isKnown = model !== undefined && (this.#added === undefined || this.#added.model !== undefined);
    this.#added = { model: isKnown ? merged(this.#added?.model, model) : undefined };
  }

  /** Of all rows, the old and the new. */
  get model(): string | undefined {
    const { model } = this.#added ?? { model: this.#given };
    if (this.#before === undefined) return model;
    return this.#before.model === undefined ? undefined : merged(this.#before.model, model);
  }

  #refuseOther(before: string | undefined, now: string): void {
    if (before === undefined || isSameModel(before, now)) return;
    throw new ShoalError(
      'DIMENSIONS_MISMATCH',
      `${this.#collection} has rows of ${before} and would get rows of ${now}: vectors of two models cannot be ` +
        'compared; build it anew without --append, from files of one model',
      { models: [before, now] },
    );
  }
}

/** The one that says more, of two that are the same. */
function merged(a: string | undefined, b: string | undefined): string | undefined {
  if (a === undefined || b === undefined) return a ?? b;
  return a.includes('@') ? a : b;
}

function nameOf(model: string): string {
  return model.split('@')[0]!;
}
