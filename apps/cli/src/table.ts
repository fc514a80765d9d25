// Columns as wide as what is in them, and spans of time, for people.

/** Every row has as many cells as the head, or fewer. */
export function table(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const widths = head.map((title, column) => Math.max(title.length, ...rows.map((row) => row[column]?.length ?? 0)));
  return [head, ...rows]
    .map(
      (row) =>
        `${row
          .map((cell, column) => cell.padEnd(widths[column] ?? 0))
          .join('  ')
          .trimEnd()}\n`,
    )
    .join('');
}

/** One unit is enough for a glance: 42s, 17m, 5h, 3d. */
export function age(ms: number): string {
  const [size, unit] = AGES.find(([unitMs]) => ms >= 2 * unitMs) ?? [1_000, 's'];
  return `${Math.floor(ms / size)}${unit}`;
}

/** From two of a unit on; below, in seconds. */
const AGES = [
  [86_400_000, 'd'],
  [3_600_000, 'h'],
  [60_000, 'm'],
] as const;
