// Which processors share a core, where the kernel says of each that it is a core: a virtual machine need not tell. One
// spins while others do; where it gets much less done than alone, its other half is among them. Halving the others finds it.

import type { Core } from './cores.ts';

/** Has these processors spin at once for a moment, and says how far the first of them came. */
export type Spin = (cpus: readonly number[]) => Promise<number>;

/** Of what it does alone; threads of one core get 0.5 to 0.7 of it each. */
const MUCH_LESS = 0.82;

export async function siblingsFound(cpus: readonly number[], spin: Spin): Promise<Core[]> {
  const cores: Core[] = [];
  let left = [...cpus];
  while (left.length > 0) {
    const [cpu = 0, ...others] = left;
    const other = await otherHalf(cpu, others, spin);
    cores.push(other === undefined ? [cpu] : [cpu, other]);
    left = others.filter((one) => one !== other);
  }
  return cores;
}

async function otherHalf(cpu: number, others: readonly number[], spin: Spin): Promise<number | undefined> {
  const alone = await spin([cpu]);
  const slows = async (some: readonly number[]): Promise<boolean> => (await spin([cpu, ...some])) < MUCH_LESS * alone;
  let among = others;
  while (among.length > 1) {
    const half = among.slice(0, Math.ceil(among.length / 2));
    among = (await slows(half)) ? half : among.slice(half.length);
  }
  const [found] = among;
  return found !== undefined && (await slows([found])) ? found : undefined;
}
