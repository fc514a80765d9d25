import type { Redis } from './connection.ts';

/** The queue server's clock, epoch ms with a fraction. Its seconds alone lie up to a second behind what it wrote. */
export async function serverTime(connection: Redis): Promise<number> {
  const [seconds, micros] = await connection.time();
  return Number(seconds) * 1_000 + Number(micros) / 1_000;
}
