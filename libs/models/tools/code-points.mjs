// How the generated tables of code points are spelled.

/** Ascending code points as hexadecimal ranges. */
export function ranges(points) {
  const found = [];
  for (const point of points) {
    const last = found.at(-1);
    if (last !== undefined && last[1] === point - 1) last[1] = point;
    else found.push([point, point]);
  }
  return found.map(([from, to]) => (from === to ? from.toString(16) : `${from.toString(16)}-${to.toString(16)}`));
}

/** Of the formatter. */
const COLUMNS = 120;

/** Lines of words, each behind `indent` and no longer than the formatter's. */
export function wrap(pieces, indent) {
  const lines = [];
  for (const word of pieces) {
    const last = lines.at(-1);
    if (last === undefined || last.length + 1 + word.length > COLUMNS) lines.push(`${indent}${word}`);
    else lines[lines.length - 1] = `${last} ${word}`;
  }
  return lines.join('\n');
}
