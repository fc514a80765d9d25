// The memory of a simulated device: context, weights and workspaces, an arena that grows by doubling and keeps what it
// took, and whoever else is on the card. Answers for each run whether there was room; forgets everything when the
// executor ends.

import type { MemoryReading, RunShape } from '../ports/device.ts';
import { WORKSPACE_BYTES, tensorBytes, workspaceClass, type DeviceLaw } from './device-law.ts';

const FIRST_REGION_BYTES = 2 ** 20;
/** Elements of a tensor from which on the runtime's integers overflow. */
const TOO_MANY_ELEMENTS = 2 ** 31;

export type MemoryVerdict = 'fits' | 'too-large' | 'needs-recycle';

export class SimulatedMemory {
  private readonly law: DeviceLaw;
  private readonly random: () => number;
  private arenaBytes: number;
  private lastRegionBytes: number;
  private workspaces = new Set<number>();
  private peakBytes: number;
  /** What other processes hold. Memory taken while this device's arena has it too is what a restart would find gone. */
  othersBytes = 0;
  /** Whether the driver's figures show them. */
  areOthersSeen = true;

  constructor(law: DeviceLaw, random: () => number) {
    this.law = law;
    this.random = random;
    this.arenaBytes = 0;
    this.lastRegionBytes = FIRST_REGION_BYTES / 2;
    this.peakBytes = this.fixedBytes();
  }

  /** Whether a run of this shape finds room now. */
  take(shape: RunShape): MemoryVerdict {
    if (shape.rows * shape.width * this.law.elementsPerToken >= TOO_MANY_ELEMENTS) return 'too-large';
    const need = tensorBytes(this.law, shape) * (1 + this.law.noise * (2 * this.random() - 1));
    const workspace = workspaceClass(shape.width);
    const added = this.workspaces.has(workspace) ? 0 : WORKSPACE_BYTES[workspace]!;
    const room = this.law.totalBytes - this.othersBytes - this.fixedBytes() - added;
    if (need > room) return 'too-large';
    if (added > 0 && this.arenaBytes > room) return 'needs-recycle'; // there would be room, but the arena has it
    this.workspaces.add(workspace);
    this.grow(need, room);
    this.peakBytes = Math.max(this.peakBytes, this.fixedBytes() + need);
    return 'fits';
  }

  reading(): MemoryReading {
    return {
      liveBytes: Math.ceil(this.peakBytes),
      footprintBytes: Math.ceil(this.fixedBytes() + this.arenaBytes),
      source: 'simulated',
    };
  }

  /** What the driver says. Free memory is what neither this device's arena nor anybody seen holds. */
  driver(): { readonly freeBytes: number; readonly totalBytes: number } {
    const others = this.areOthersSeen ? this.othersBytes : 0;
    return {
      freeBytes: Math.max(0, this.law.totalBytes - this.fixedBytes() - this.arenaBytes - others),
      totalBytes: this.law.totalBytes,
    };
  }

  private fixedBytes(): number {
    let bytes = this.law.contextBytes + this.law.weightsBytes;
    for (const workspace of this.workspaces) bytes += WORKSPACE_BYTES[workspace]!;
    return bytes;
  }

  /** Regions double; one that does not fit any more is tried a tenth smaller, down to what is needed. */
  private grow(need: number, room: number): void {
    this.arenaBytes = Math.min(this.arenaBytes, room); // what others took from under it is gone
    while (this.arenaBytes < need) {
      const missing = need - this.arenaBytes;
      this.lastRegionBytes = Math.max(2 * this.lastRegionBytes, missing);
      let region = this.lastRegionBytes;
      while (region > room - this.arenaBytes) region = Math.max(missing, region * 0.9);
      this.arenaBytes += region;
    }
  }
}
