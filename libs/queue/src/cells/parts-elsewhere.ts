// Parts of files of other cells, for a worker that has none of its own: the lane of parts of another cell as HelpedCell uses
// it, and whether this worker has the folders that a part is about. A part is bulk whatever its place in line.

import { isWithin, placesOf } from '@shoal/contract';
import type { RawClaim } from '@shoal/core';
import { BullJobSource } from '../worker/bull-job-source.ts';

export class PartsElsewhere extends BullJobSource {
  override claimBulk(limit: number): Promise<readonly RawClaim[]> {
    return this.claimNow(limit);
  }
}

/** One that cannot be read as a part is for the workers of its own cell to refuse. */
export function isPartWithin({ data }: RawClaim, folders: readonly string[]): boolean {
  const { part }: { readonly part?: Partial<Parameters<typeof placesOf>[0]> } = Object(data);
  const { source, output } = part ?? {};
  if (typeof source !== 'object' || typeof output !== 'object') return false;
  const places = placesOf({ source, output });
  return [places.source, places.output].every((place) => typeof place === 'string' && isWithin(place, folders));
}
